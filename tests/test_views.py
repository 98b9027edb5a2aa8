"""Pictures and tables: they say what was measured, what was not, and read any text as it is."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fakes import judgement
from rich.console import Console

import rlteach as rl
from rlteach.training.evaluate import Evaluation, wilson
from rlteach.training.metrics import table
from rlteach.types import Group, Message, Sample, StepRecord, Trajectory
from rlteach.views import plots, report


def history(**columns: list[Any]) -> pd.DataFrame:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return table([StepRecord(i, (), row) for i, row in enumerate(rows, 1)])


FULL = history(**{
    "reward/mean": [0.2, 0.4, 0.6], "dev/accuracy": [None, 0.5, None], "loss/positive": [1.0, 0.8, None],
    "loss/negative": [0.1, 0.2, None], "loss/kl": [0.0, 0.01, None], "loss/total": [1.1, 1.01, None],
    "loss/token_reward": [0.69, 0.6, 0.5], "kl/reference": [0.0, 0.01, None], "entropy": [0.4, 0.3, None],
    "response/length": [30.0, 31.0, 29.0], "response/truncated": [0.1, 0.0, 0.0],
    "response/no_answer": [0.0, 0.0, 0.0], "judge/unscorable": [0.0, 0.0, 0.0]})


def shown(thing: Any) -> str:
    """As a terminal of 200 columns shows it."""
    console = Console(file=io.StringIO(), width=200)
    console.print(thing)
    return console.file.getvalue()


def evaluation(answers: dict[str, tuple[str, float | None]], levels: dict[str, int] | None = None
               ) -> Evaluation:
    groups = []
    for question, (text, score) in answers.items():
        extra = {"level": levels[question]} if levels else {}
        sample = Sample(question, (Message("user", question),), ("1",), extra=extra)
        answer = Trajectory((*sample.messages, Message("assistant", text)), (), (), (), 0, "stop")
        groups.append(Group(sample, (answer,), (judgement(score),)))
    scores = [g.scores[0] for g in groups if g.scores[0] is not None]
    right = sum(s >= 1 for s in scores)
    n = len(scores)
    return Evaluation(right / n, wilson(right, n), n, 1, None, {}, 0, tuple(groups))


# the table of a history ---------------------------------------------------------------------------


def test_a_history_is_a_table_of_numbers() -> None:
    assert list(FULL.index) == [1, 2, 3]
    assert FULL.index.name == "step"
    assert all(kind.kind in "if" for kind in FULL.dtypes)
    assert FULL["loss/total"].isna().tolist() == [False, False, True], "nothing measured is NaN, not 0"
    assert history(a=[None, None])["a"].isna().all()
    assert len(table([])) == 0
    assert rl.table is table


# curves -------------------------------------------------------------------------------------------


def labels(figure: Any) -> set[str]:
    return {line.get_label() for ax in figure.axes for line in ax.get_lines()}


def test_curves_show_every_curve() -> None:
    figure = plots.curves(FULL, before=0.51, after=0.93, title="tiny, seed 0")
    assert labels(figure) >= {
        "reward of the rollouts", "dev, greedy", "positive", "negative", "KL", "total", "token reward model",
        "KL to the reference", "entropy (nats a token)", "tokens an answer", "cut off", "no answer found",
        "unscorable"}
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert texts == ["test before 51.0%", "test after 93.0%"]
    assert figure.get_suptitle() == "tiny, seed 0"
    reward = next(line for line in figure.axes[0].get_lines() if line.get_label() == "reward of the rollouts")
    assert list(reward.get_xdata()) == [1, 2, 3]
    assert list(reward.get_ydata()) == [0.2, 0.4, 0.6]
    dev = next(line for line in figure.axes[0].get_lines() if line.get_label() == "dev, greedy")
    assert (list(dev.get_xdata()), list(dev.get_ydata())) == ([2], [0.5]), "only where it was measured"


def test_a_curve_that_was_not_measured_is_not_drawn() -> None:
    figure = plots.curves(history(**{"reward/mean": [0.5], "loss/total": [None], "entropy": [None]}))
    assert not {"total", "entropy (nats a token)", "dev, greedy"} & labels(figure)


@pytest.mark.parametrize(("rewards", "lowest"), [([-0.5, 0.6], -0.65), ([0.2, 0.6], 0.0)])
def test_rewards_below_zero_are_inside_the_picture(rewards: list[float], lowest: float) -> None:
    """A plug-in may give -1 for a malformed call."""
    frame = history(**{"reward/mean": rewards})
    for figure, room in ((plots.curves(frame), 1.25), (plots.overlay({"a": frame}), 1)):  # for a legend
        assert figure.axes[0].get_ylim() == pytest.approx((lowest, lowest + room * (1.06 - lowest)))


def test_the_band_of_a_share_ends_at_0_and_1_and_that_of_a_penalty_does_not() -> None:
    low, high = plots.band(np.array([0.1, 0.9, -0.5, np.nan]), np.array([0.2, 0.2, 0.1, 0.1]))
    assert low == pytest.approx([0.0, 0.7, -0.6, np.nan], nan_ok=True)
    assert high == pytest.approx([0.3, 1.0, -0.4, np.nan], nan_ok=True)


@pytest.mark.parametrize("frame", [
    table([]), history(**{"reward/mean": [None, None], "loss/total": [None, None]}), history(other=[1.0]),
    FULL.head(1),
], ids=["nothing", "nobody judged", "other columns", "one step"])
def test_curves_of_little_are_drawn_without_a_warning(frame: pd.DataFrame) -> None:
    assert plots.png(plots.curves(frame)).startswith(b"\x89PNG")
    assert plots.png(plots.curves(frame, before=0.5)).startswith(b"\x89PNG")


def test_a_picture_is_png_and_the_same_each_time() -> None:
    one, other = (plots.png(plots.curves(FULL, title="tiny")) for _ in range(2))
    assert one.startswith(b"\x89PNG\r\n\x1a\n")
    assert one == other
    assert 5_000 < len(one) < 500_000


def test_no_pyplot_and_no_window() -> None:
    """pyplot keeps every figure, and is not safe in a thread."""
    code = ("import sys; import rlteach as rl; rl.curves; import rlteach.views.report; "
            "print('matplotlib.pyplot' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert rl.curves is plots.curves


# tables and transcripts ---------------------------------------------------------------------------


def entry(accuracy: float | None, by_level: dict[str, float] | None = None, unscorable: int = 0
          ) -> dict[str, Any]:
    ci95 = None if accuracy is None else [max(accuracy - 0.1, 0), min(accuracy + 0.1, 1)]
    return {"accuracy": accuracy, "ci95": ci95, "n": 1000, "by_level": by_level or {},
            "unscorable": unscorable}


def summary(**parts: dict[str, Any]) -> dict[str, Any]:
    return {"steps": 40, "best_step": 35, "before": entry(0.5), "after": entry(0.9),
            "last_step": entry(0.8), **parts}


def test_accuracy_table() -> None:
    text = shown(report.accuracy_table(summary(
        before=entry(0.514, {"2": 0.5, "3": 0.4}), after=entry(0.9, {"2": 1.0}),
        last_step=entry(0.8, {"2": 0.9, "3": 0.7}))))
    for wanted in ("1000 test questions", "before", "step 35, best on dev", "last step (40)",
                   "51.4 % [41.4, 61.4]", "90.0 % [80.0, 100.0]", "2 digits", "3 digits", "100.0 %",
                   "not measured"):
        assert wanted in text
    assert "unscorable" not in text, "a row of zeros says nothing"


def test_accuracy_table_shows_what_nobody_judged() -> None:
    text = shown(report.accuracy_table(summary(before=entry(None, unscorable=7))))
    assert "not measured" in text
    assert "unscorable" in text
    assert "7" in text


@pytest.mark.parametrize(("value", "interval", "text"), [
    (0.9887, (0.98, 0.9941), "98.9 % [98.0, 99.4]"), (1, (0.5, 1), "100.0 % [50.0, 100.0]"),
    (0, None, "0.0 %"), (None, None, "not measured"), (None, (0, 1), "not measured")])
def test_share(value: float | None, interval: tuple[float, float] | None, text: str) -> None:
    assert report.share(value, interval) == text


def test_transcripts_show_what_was_mended_first_and_each_level_once() -> None:
    levels = {"a?": 2, "b?": 2, "c?": 3, "d?": 4, "e?": 4}
    first = {"a?": ("wrong a", 0), "b?": ("wrong b", 0), "c?": ("fine c", 1), "d?": ("fine d", 1),
             "e?": ("wrong e", 0)}
    before = evaluation(first, levels)
    after = evaluation({**first, "b?": ("now b", 1), "d?": ("bad d", 0), "e?": ("now e", 1)}, levels)
    text = shown(report.transcripts(before, after))
    order = [q for line in text.splitlines() for q in levels if q in line]
    assert order == ["b?", "e?", "c?"]
    assert "wrong b" in text
    assert "now b" in text
    assert "right" in text
    assert "incorrect" in text


@pytest.mark.parametrize("count", [1, 3, 9])
def test_transcripts_of_few_questions(count: int) -> None:
    found = evaluation({"a?": ("1", 1), "b?": ("2", 0)})
    assert len(report.transcripts(found, found, count=count).rows) == min(count, 2)


@pytest.mark.parametrize("text", ["[bold]1[/bold]", "[/red]", "[1, 2]", "[link=x]", "\\[", "a\nb",
                                  "答案：[/]", ":smile:"])
def test_a_text_is_shown_as_it_is(text: str) -> None:
    """Questions and answers are data: brackets in them are no instructions to the printer."""
    found = evaluation({f"What is {text}?": (text, None), "x?": ("1", 1)})
    lines = shown(report.transcripts(found, found))
    for part in text.split("\n"):
        assert lines.count(part) >= 3
    assert "unscorable" in lines
