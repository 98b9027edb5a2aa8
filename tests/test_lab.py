"""The laboratory: knobs are the config's own fields, refusals are its sentences, results are measured."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from fakes import two_digit_data
from nbclient import NotebookClient

import rlteach as rl
from rlteach.config import Config, ConfigError
from rlteach.training.experiment import build_trainer
from rlteach.types import StepRecord
from rlteach.views import plots
from rlteach.views.settings import KNOBS, differences, knob, label, line, number
from rlteach.views.trials import BusyError, Trials

TINY = Config.preset("tiny")
GUARD = 120  # seconds after which a test has hung


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of the embedded model that takes a second."""
    data = two_digit_data(tmp_path_factory.mktemp("questions"), dev=6, test=1)
    return {**data, "difficulty_bins": (), "batch_size": 2, "group_size": 4, "total_steps": 2, "threads": 1,
            "max_new_tokens": 40}


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def lab_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("rlteach-lab", "rlteach-run"))]


# knobs are the config's fields ----------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_has_the_bounds_and_the_words_of_its_field(name: str) -> None:
    k = knob(name, TINY)
    field = Config.model_fields[name]
    assert k.description == field.description
    if k.kind == "choice":
        base = Config.preset("tiny-oreal")  # has what some of the options need
        assert [getattr(base.replace(**{name: option}), name) for option in k.options] == list(k.options)
        assert getattr(TINY, name) in k.options
        return
    assert k.low <= getattr(TINY, name) <= k.high
    kind = int if k.kind in ("int", "typed") else float
    ends = [kind(k.low), kind(k.high)]
    for part in field.metadata:
        assert all(end >= part.ge for end in ends if hasattr(part, "ge"))
        assert all(end > part.gt for end in ends if hasattr(part, "gt"))
        assert all(end <= part.le for end in ends if hasattr(part, "le"))
        assert all(end < part.lt for end in ends if hasattr(part, "lt"))


def test_how_knobs_are_turned() -> None:
    kinds = {name: knob(name, TINY).kind for name in KNOBS}
    assert kinds["policy_lr"] == "log"
    assert kinds["seed"] == "typed", "no slider reaches 2 to the 63rd"
    assert {kinds[n] for n in ("kl_estimator", "selection", "advantage", "token_weighting", "judger")} == {
        "choice"}
    assert kinds["temperature"] == "float"
    assert knob("temperature", TINY).high == 5, "the config's bound"
    assert knob("group_size", TINY).high == 64, "no bound: four times the present value"
    assert knob("kl_coefficient", TINY).low == 0
    assert knob("token_reward_balance", TINY).kind == "bool"


@pytest.mark.parametrize(("name", "sentence"), [
    ("policy", "policy cannot be a knob"), ("grop_size", "there is no config field 'grop_size'"),
    ("difficulty_bins", "cannot be a knob"), ("reference", "cannot be a knob")])
def test_what_is_no_knob_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        knob(name, TINY)


# differences and lines ------------------------------------------------------------------------------


def test_only_the_differences_are_named() -> None:
    other = TINY.replace(policy_lr=1e-3, group_size=4)
    assert differences(other, TINY) == {"group_size": (16, 4), "policy_lr": (4e-4, 1e-3)}
    assert label(other, TINY, "the same") == "group size 16 -> 4, lr 4e-4 -> 1e-3"
    assert label(TINY, TINY, "the same") == "the same"
    assert label(TINY.replace(advantage="grpo"), TINY, "") == "advantage rloo -> grpo"
    assert differences(TINY.replace(name="mine"), TINY) == {}, "the name is no setting"


@pytest.mark.parametrize(("value", "text"), [
    (4e-4, "4e-4"), (1e-3, "1e-3"), (3.25e-5, "3.25e-5"), (0.05, "0.05"), (0.0, "0"), (1.0, "1"), (16, "16"),
    ("grpo", "grpo"), (True, "True"), (None, "None"), (1e6, "1e6")])
def test_numbers_as_people_write_them(value: Any, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("changes", [
    {}, {"group_size": 4}, {"policy_lr": 4e-05, "kl_estimator": "k1"}, {"system_prompt": 'say "hi"\n'},
    {"difficulty_bins": ((0.0, 0.5, 1),), "token_reward_balance": False}, {"reference": None, "seed": 2**62}])
def test_the_python_line_makes_the_same_config(changes: dict[str, Any]) -> None:
    config = Config.preset("tiny", **changes)
    text = line("tiny", config)
    assert eval(text, {"rl": rl}) == config
    if changes == {"group_size": 4}:
        assert text == 'rl.Config.preset("tiny", group_size=4)'


# curves of several settings ---------------------------------------------------------------------------


def test_an_overlay_has_one_colour_a_setting_and_one_legend() -> None:
    def history(rewards: list[float]) -> Any:
        return rl.table([StepRecord(i, (), {"reward/mean": r, "reward/ci95": 0.1, "entropy": 0.3,
                                            "kl/reference": None, "loss/total": r})
                         for i, r in enumerate(rewards, 1)])

    figure = plots.overlay({"1: tiny": history([0.1, 0.2]), "2: lr 4e-4 -> 1e-3": history([0.3])}, steps=10)
    reward = {one.get_label(): one for one in figure.axes[0].get_lines()}
    assert list(reward) == ["1: tiny", "2: lr 4e-4 -> 1e-3"]
    assert list(reward["1: tiny"].get_ydata()) == [0.1, 0.2]
    assert len({one.get_color() for one in reward.values()}) == 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(reward)
    assert len(figure.axes[0].collections) == 2, "an interval each"
    assert figure.axes[2].get_lines() == [], "a curve that was not measured is not drawn"
    assert plots.png(plots.overlay({})).startswith(b"\x89PNG")


# settings that are run -------------------------------------------------------------------------------


def test_two_settings_are_trained_measured_and_told_apart(small: dict[str, Any]) -> None:
    lab = rl.widgets.Lab("tiny", **small)
    first = lab.run(wait=True)
    lab.set(policy_lr=1e-3)
    second = lab.run(wait=True)
    assert lab_threads() == []
    assert second.label == "lr 4e-4 -> 1e-3"
    assert first.label == "tiny"
    frame = lab.results
    assert list(frame.index) == [1, 2]
    assert list(frame["state"]) == ["finished", "finished"]
    assert list(frame["steps"]) == [2, 2]
    assert frame["dev_accuracy"].between(frame["low"], frame["high"]).all()
    assert eval(frame["setting"][2], {"rl": rl}) == second.config
    trainer = build_trainer(first.config, rl.RuleJudger())
    trainer.fit()
    assert [r.metrics["reward/mean"] for r in trainer.history] == [
        r.metrics["reward/mean"] for r in first.records], "the line reproduces the curve"
    dev = rl.evaluate(trainer.policy, rl.RuleJudger(), rl.load_samples(first.config.dev_data))
    assert dev.accuracy == frame["dev_accuracy"][1]
    assert all(r.groups == () for r in first.records), "answers are not kept"
    compared = lab.compare()
    assert list(compared.columns) == ["policy_lr", "dev_accuracy", "low", "high", "apart"]
    assert list(compared["policy_lr"]) == [4e-4, 1e-3]
    assert not compared["apart"][1]
    lab.panel.buttons["Compare"].click()
    assert "policy_lr" in lab.panel.table.value
    assert "rl.Config.preset(&quot;tiny&quot;" in lab.panel.list.value
    assert lab.panel.list.value.count("dev ") == 2
    picture = lab.png
    lab.clear()
    assert lab.png != picture
    assert len(lab.results) == len(lab.compare()) == 0
    assert lab.panel.list.value == ""


def test_a_refused_setting_is_said_under_the_knobs_and_not_run(small: dict[str, Any]) -> None:
    lab = rl.widgets.Lab("tiny", **small)
    knobs, panel = lab.panel.knobs, lab.panel
    knobs["token_weighting"].value = "topk"
    assert "set token_reward_model=&#x27;policy&#x27;" in panel.sentence.value
    knobs["temperature"].value = 0.5
    assert "token_reward_model" in panel.sentence.value, "still refused"
    panel.buttons["Run"].click()
    assert lab.trials.all == []
    assert lab.config.token_weighting == "none"
    knobs["token_weighting"].value = "none"
    assert panel.sentence.value == ""
    assert lab.config == Config.preset("tiny", **small).replace(temperature=0.5), "what was meant is kept"
    with pytest.raises(ConfigError, match="group_size must be at least 2"):
        lab.set(group_size=1)
    assert lab.config.group_size == 4


def test_knobs_and_settings_follow_each_other(small: dict[str, Any]) -> None:
    lab = rl.widgets.Lab("tiny", **small)
    lab.set(policy_lr=3.25e-5, group_size=500, seed=2**60)
    assert lab.panel.knobs["group_size"].value == 500, "the slider was made longer"
    assert lab.panel.knobs["seed"].value == 2**60
    lab.panel.knobs["kl_estimator"].value = "k1"
    assert lab.config.policy_lr == 3.25e-5, "another knob does not round it"
    lab.panel.knobs["policy_lr"].value = 10 ** -3.0501
    assert lab.config.policy_lr == 8.9e-4
    assert "policy_lr=0.00089" in lab.panel.state.value
    assert lab.panel.knobs["temperature"].tooltip == "of the sampling distribution"


def test_one_setting_at_a_time_and_stop(small: dict[str, Any]) -> None:
    lab = rl.widgets.Lab("tiny", **{**small, "total_steps": 2000})
    lab.panel.buttons["Run"].click()
    (trial,) = lab.trials.all
    assert lab.panel.buttons["Run"].disabled
    with pytest.raises(BusyError, match="one setting is trained at a time"):
        lab.run()
    eventually(lambda: trial.records)
    assert trial.state == "running"
    lab.panel.buttons["Stop"].click()
    lab.wait()
    assert (trial.state, trial.dev) == ("stopped", None)
    assert lab.results["dev_accuracy"].isna().all()
    assert not lab.panel.buttons["Run"].disabled
    assert lab_threads() == []


def test_what_cannot_be_loaded_is_said(small: dict[str, Any]) -> None:
    trials = Trials("tiny", **{**small, "train_data": "nowhere.jsonl"})
    trial = trials.start()
    with pytest.raises(Exception, match=r"nowhere\.jsonl"):
        trial.wait()
    assert trials.results["state"][1] == "failed"
    lab = rl.widgets.Lab("tiny", **{**small, "train_data": "nowhere.jsonl"})
    with pytest.raises(Exception, match=r"nowhere\.jsonl"):
        lab.run(wait=True)
    assert "nowhere.jsonl" in lab.panel.list.value
    assert lab_threads() == []


def test_a_preset_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no preset 'huge'"):
        rl.widgets.Lab("huge")


# in a kernel, and without widgets --------------------------------------------------------------------


def test_the_saved_notebook_holds_the_curves(small: dict[str, Any]) -> None:
    cells = ["import rlteach as rl", f"lab = rl.widgets.Lab('tiny', **{small!r})\nlab",
             "trial = lab.run()\nlab.wait()\nprint(trial.state)",
             "import base64\nprint(base64.b64encode(lab.png).decode())"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    NotebookClient(notebook, timeout=GUARD, kernel_name="python3", store_widget_state=False,
                   extra_arguments=["--log-level=ERROR"]).execute()
    _, shown, waited, last = (one.outputs for one in notebook.cells)
    assert [o["data"]["text/plain"] for o in shown] == ["", "curves of the settings"]
    assert shown[1]["data"]["image/png"].strip() == last[0]["text"].strip()
    assert base64.b64decode(last[0]["text"]) != plots.png(plots.note(rl.widgets.EMPTY))
    assert waited[-1]["text"] == "finished\n"


def test_the_logic_needs_no_widgets() -> None:
    code = ("import sys; import rlteach as rl; import rlteach.views.trials; "
            "print({'ipywidgets', 'IPython', 'matplotlib.pyplot'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_without_ipywidgets_there_is_a_sentence(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ipywidgets'] = None; import rlteach as rl; rl.widgets"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "rl.widgets needs ipywidgets: pip install ipywidgets" in done.stderr.splitlines()[-1]
