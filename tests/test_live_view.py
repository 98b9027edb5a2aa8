"""rl.view: what it shows is what was measured; it ends with its run and leaves nothing but a picture."""

from __future__ import annotations

import base64
import gc
import io
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import nbformat
import numpy as np
import pytest
from fakes import even_first, small_config, small_trainer
from ipywidgets.widgets import widget as ipywidgets_widget
from matplotlib.image import imread
from nbclient import NotebookClient

import rlteach as rl
from rlteach.training.metrics import half_width, table
from rlteach.training.run import Run
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Sample, StepRecord, Trajectory
from rlteach.views import cell, live, plots
from rlteach.views.live import Panel, Status, View, status_of
from rlteach.views.moving import MovingFigure
from rlteach.views.pulse import Budget, Pulse

STEPS = 6
GUARD = 60  # seconds after which a test has hung


def records(count: int, **columns: list[float | None]) -> list[StepRecord]:
    given = columns or {"reward/mean": [i / 10 for i in range(count)], "reward/ci95": [0.05] * count,
                        "loss/total": [float(i) for i in range(count)], "entropy": [0.3] * count,
                        "response/length": [20.0 + i for i in range(count)]}
    return [StepRecord(i + 1, (), {name: values[i] for name, values in given.items()}) for i in range(count)]


def trainer_of(judge: Callable[..., Any] = even_first, **changes: Any) -> OrealTrainer:
    return small_trainer(small_config(**{"total_steps": STEPS, "threads": 1, **changes}), judge)


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


class Screen:
    """What a view says, kept; made from outside, so that a test needs no notebook."""

    def __init__(self) -> None:
        self.states: list[Status] = []
        self.shown: list[bytes] = []
        self.stays: list[bytes] = []
        self.times: list[float] = []

    def open(self, png: bytes, nudge: Callable[[], None]) -> None:
        self.first = png

    def state(self, status: Status) -> None:
        self.states.append(status)

    def show(self, png: bytes) -> None:
        self.shown.append(png)
        self.times.append(time.monotonic())

    def last(self, png: bytes) -> None:
        self.stays.append(png)


class Gate:
    """A judger that waits in the first step until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, sample: Sample, answer: Trajectory) -> float:
        self.reached.set()
        assert self.opened.wait(GUARD)
        return even_first(sample, answer)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def view_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "rlteach-view"]


def pixels(png: bytes) -> np.ndarray:
    return imread(io.BytesIO(png))


# the interval of the reward -----------------------------------------------------------------------


def test_the_interval_is_that_of_the_mean_of_the_steps_answers() -> None:
    scores = [1.0, 0.0, 0.0, 1.0, 1.0]
    sd = np.std(scores, ddof=1)
    assert half_width(scores) == pytest.approx(1.96 * sd / np.sqrt(5))
    assert half_width([1.0, 1.0]) == 0
    assert half_width([1.0]) is None
    trainer = trainer_of(lambda s, a: None if len(a.token_ids) % 2 else even_first(s, a))
    record = trainer.step()
    scored = [s for g in record.groups for s in g.scores if s is not None]
    assert 1 < len(scored) < 12, "some answers are unscorable here, and left out"
    assert record.metrics["reward/ci95"] == pytest.approx(half_width(scored))


def test_curves_draw_the_interval_inside_nought_and_one() -> None:
    steps = records(3, **{"reward/mean": [0.02, 0.5, None], "reward/ci95": [0.05, 0.1, None]})
    figure = plots.curves(table(steps))
    (band,) = (c for c in figure.axes[0].collections if c.get_gid() == "reward/ci95")
    ys = band.get_paths()[0].vertices[:, 1]
    assert ys.min() == 0
    assert ys.max() == pytest.approx(0.6)


# moving lines ------------------------------------------------------------------------------------


def test_a_series_holds_every_curve_that_was_measured() -> None:
    steps = records(3, **{"reward/mean": [0.2, 0.4, 0.6], "reward/ci95": [0.1, 0.1, 0.1],
                          "loss/kl": [None, 0.1, 0.2], "dev/accuracy": [None, 0.5, None],
                          "loss/token_reward": [None, None, None], "seconds/total": [1.0, 1.0, 1.0]})
    found = plots.series(steps)
    assert set(found) == {"reward/mean", "reward/ci95", "loss/kl", "dev/accuracy"}
    assert [list(part) for part in found["reward/mean"]] == [[1, 2, 3], [0.2, 0.4, 0.6]]
    assert [list(part) for part in found["dev/accuracy"]] == [[2], [0.5]]
    np.testing.assert_allclose(found["reward/ci95"][1:], [[0.1, 0.3, 0.5], [0.3, 0.5, 0.7]])
    assert plots.series([]) == {}


def moving(steps: list[StepRecord]) -> MovingFigure:
    return MovingFigure(lambda: plots.curves(table(steps), steps=20))


def test_a_moved_picture_shows_what_a_new_one_would() -> None:
    """Two frames of one figure, and the second history drawn at once: the lines lie on the same pixels."""
    few, many = records(2), records(9)
    moved = moving(few)
    moved.frame(plots.series(few))
    frame = pixels(moved.frame(plots.series(many)))
    ground = pixels(moved.frame({name: tuple(np.array([np.nan]) for _ in parts)
                                 for name, parts in plots.series(many).items()}))
    figure = moved.figure
    for ax, color in ((figure.axes[0], plots.BLUE), (figure.axes[2], plots.BLUE)):
        (line,) = (one for one in ax.get_lines() if one.get_color() == color)
        values = {r.index: r.metrics[line.get_gid()] for r in many}
        for step, value in values.items():
            x, y = ax.transData.transform((step, value))
            at = (round(frame.shape[0] - y) - 1, round(x))
            around = (slice(at[0] - 2, at[0] + 3), slice(at[1] - 2, at[1] + 3))
            assert np.abs(frame[around] - ground[around]).max() > 0.3, f"nothing at step {step}"


def test_axes_stand_still_until_a_line_leaves_them() -> None:
    few = records(2)
    moved = moving(few)
    moved.frame(plots.series(few))
    figure, loss = moved.figure, moved.figure.axes[1]
    limits, reward = loss.get_ylim(), moved.figure.axes[0].get_ylim()
    moved.frame(plots.series(few))
    assert loss.get_ylim() == limits
    moved.frame(plots.series(records(9)))
    assert moved.figure is figure, "the same figure"
    assert loss.get_ylim()[1] > 8
    assert moved.figure.axes[0].get_ylim() == reward
    assert loss.get_xlim()[1] >= 20, "the whole run, from the beginning"


@pytest.mark.parametrize("growth", [0.0, 0.4, 1.0, 5.0])
def test_no_line_runs_into_the_legends_above(growth: float) -> None:
    found: list[StepRecord] = []
    moved = MovingFigure(lambda: plots.curves(table(found), steps=20))
    for count in range(1, 21):
        found[:] = records(count, **{"response/length": [40 + growth * i for i in range(count)],
                                     "response/truncated": [i / 20 for i in range(count)],
                                     "entropy": [0.1 + growth * i for i in range(count)],
                                     "loss/total": [growth * i - 3 for i in range(count)],
                                     "kl/reference": [growth * i * i for i in range(count)],
                                     "reward/mean": [i / 19 for i in range(count)]})
        moved.frame(plots.series(found))
        reward, loss, distance, length, lost = moved.figure.axes
        for axes in ((reward,), (loss,), (distance,), (lost, length)):
            legend = axes[0].get_legend().get_window_extent()
            ys = [ax.transData.transform((x, y))[1] for ax in axes for line in ax.get_lines()
                  for x, y in line.get_xydata()]
            assert max(ys) + 2 < legend.y0, f"at step {count}"


def test_a_curve_that_comes_later_is_drawn() -> None:
    steps = records(2)
    found: list[StepRecord] = list(steps)
    moved = MovingFigure(lambda: plots.curves(table(found), steps=20))
    moved.frame(plots.series(found))
    assert "dev/accuracy" not in moved.artists
    found.append(StepRecord(3, (), {**steps[-1].metrics, "dev/accuracy": 0.5}))
    moved.frame(plots.series(found))
    assert list(moved.artists["dev/accuracy"].get_xdata()) == [3]


@pytest.mark.parametrize("steps", [
    [], records(1),
    records(2, **{"reward/mean": [None, None]}), records(3, **{"entropy": [None, 1.0, None]})])
def test_pictures_of_little_have_the_size_of_all_the_others(steps: list[StepRecord]) -> None:
    moved = moving(steps)
    wanted = pixels(plots.png(plots.note(live.FIRST))).shape
    assert pixels(moved.frame(plots.series(steps))).shape == wanted
    assert pixels(moved.last("finished")).shape == wanted


@pytest.mark.parametrize("text", ["cost $5 and $", r"\boxed{1} \frac", "答案不对", "x" * 5000, "a\nb"])
def test_any_error_can_stand_above_a_picture(text: str) -> None:
    shown = live.title(f"failed after step 3 of 9: ValueError: {text}")
    assert shown.isascii()
    assert shown.startswith("failed after step 3 of 9")
    assert len(shown.splitlines()) <= 3
    assert moving([]).last(shown).startswith(b"\x89PNG")


# how often ---------------------------------------------------------------------------------------


def burn(seconds: float) -> bytes:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return b"x"


def test_drawing_waits_until_training_has_paid_for_it() -> None:
    budget = Budget(share=0.5, at_once=0.01)
    assert budget.allows()
    assert budget.pay(lambda: burn(0.1)) == b"x"
    assert budget.spent == pytest.approx(0.1, abs=0.05)
    assert not budget.allows()
    burn(0.2)
    assert budget.allows()


def test_a_pulse_beats_at_most_four_times_a_second_and_at_once_when_nudged() -> None:
    times: list[float] = []
    pulse = Pulse(lambda: bool(times.append(time.monotonic())), "rlteach-view")
    eventually(lambda: len(times) >= 3)
    assert min(np.diff(times)) >= 0.24
    count = len(times)
    pulse.nudge()
    eventually(lambda: len(times) > count)
    pulse.close()
    assert view_threads() == []


# a view of a run ---------------------------------------------------------------------------------


def test_a_view_ends_with_its_run_and_leaves_the_whole_history() -> None:
    screen, run = Screen(), trainer_of().start()
    found = View(run, screen).wait()
    assert found.error is None
    assert view_threads() == []
    assert screen.states[-1] == Status("finished", STEPS, STEPS, f"finished, step {STEPS} of {STEPS}")
    assert screen.stays == [found.png]
    assert len(found._records) == STEPS
    again = View(run, Screen())
    assert again.png == found.png, "a view of a run that has ended is its last picture"
    assert view_threads() == []


def test_a_view_draws_only_when_there_is_a_new_step(gate: Gate) -> None:
    run = trainer_of(gate).start()
    screen = Screen()
    found = View(run, screen)
    gate.reached.wait(GUARD)
    for _ in range(5):
        found.beat()
    assert screen.shown == []
    assert screen.first.startswith(b"\x89PNG")
    gate.opened.set()
    found.wait()
    assert len(screen.shown) <= STEPS
    assert len(set(screen.shown)) == len(screen.shown)


def test_pause_step_resume_stop(gate: Gate) -> None:
    """The panel's buttons, pressed as a front end presses them."""
    run = trainer_of(gate, total_steps=1000).start()
    gate.reached.wait(GUARD)
    nudges: list[int] = []
    panel = Panel(run, lambda: nudges.append(1), buttons=True)
    panel.state(status_of(run))
    assert [b.disabled for b in panel.buttons.values()] == [False, False, True, False]
    panel.buttons["Pause"].click()
    panel.state(status_of(run))
    assert [b.disabled for b in panel.buttons.values()] == [True, False, False, False]
    assert panel.line.value == "pausing when step 1 of 1000 is over"
    gate.opened.set()
    eventually(lambda: run.state == "paused")
    panel.state(status_of(run))
    assert [b.disabled for b in panel.buttons.values()] == [True, False, False, False]
    assert panel.line.value == "paused after step 1 of 1000"
    assert (panel.bar.value, panel.bar.max) == (1, 1000)
    panel.buttons["Step"].click()
    eventually(lambda: run.trainer.step_index == 2 and run.state == "paused")
    panel.buttons["Resume"].click()
    eventually(lambda: run.trainer.step_index >= 4)
    gate.opened.clear()
    gate.reached.clear()
    gate.reached.wait(GUARD)
    panel.buttons["Stop"].click()
    panel.state(status_of(run))
    assert all(b.disabled for b in panel.buttons.values())
    assert panel.line.value == f"stopping when step {run.trainer.step_index + 1} of 1000 is over"
    gate.opened.set()
    run.wait()
    panel.state(status_of(run))
    assert run.state == "stopped"
    assert all(b.disabled for b in panel.buttons.values())
    assert len(nudges) == 4
    cell.close(panel.box)


def test_a_panel_leaves_no_widget_behind(gate: Gate) -> None:
    before = set(ipywidgets_widget._instances)
    run = trainer_of(gate).start()
    panel = Panel(run, lambda: None, buttons=True)
    assert set(ipywidgets_widget._instances) > before
    cell.close(panel.box)
    assert set(ipywidgets_widget._instances) == before


def test_why_a_run_waits_and_why_it_failed_is_said(gate: Gate) -> None:
    run = trainer_of(gate).start()
    gate.reached.wait(GUARD)
    run.trainer.grading.waiting = "judge unavailable: <refused>; waiting, 5 s left"
    wanted = f"step 0 of {STEPS}, waiting: judge unavailable: <refused>; waiting, 5 s left"
    assert status_of(run).line == wanted
    panel = Panel(run, lambda: None, buttons=False)
    panel.state(status_of(run))
    assert "&lt;refused&gt;" in panel.line.value, "text, never markup"
    assert panel.buttons == {}
    cell.close(panel.box)

    def broken(sample: Sample, answer: Trajectory) -> float:
        raise RuntimeError("no more paper")

    screen = Screen()
    failed = View(trainer_of(broken).start(), screen)
    with pytest.raises(RuntimeError, match="no more paper"):
        failed.wait()
    assert screen.states[-1].line == f"failed after step 0 of {STEPS}: RuntimeError: no more paper"
    assert len(screen.stays) == 1
    assert view_threads() == []


def test_a_view_that_fails_says_so_and_the_run_goes_on() -> None:
    class Torn(Screen):
        def show(self, png: bytes) -> None:
            raise OSError("the wire is cut")

    screen, run = Torn(), trainer_of(total_steps=300).start()
    found = View(run, screen)
    found._pulse.wait()
    assert isinstance(found.error, OSError)
    assert screen.states[-1].line == "the view failed, the run goes on: the wire is cut"
    assert run.state == "running"
    run.stop()
    run.wait()


def test_a_second_view_of_a_run_ends_the_first(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    run = trainer_of(gate).start()
    rl.view(run)
    second = rl.view(run)
    assert len(view_threads()) == 1
    gate.opened.set()
    second.wait()
    assert view_threads() == []
    assert "view.png" in capsys.readouterr().out, "outside a notebook it says where the picture is"


def test_a_trainer_is_started_and_anything_else_refused() -> None:
    trainer = trainer_of()
    found = rl.view(trainer, wait=True)
    assert isinstance(found.run, Run)
    assert len(trainer.history) == STEPS
    with pytest.raises(TypeError, match=r"not a dict: give it trainer\.start"):
        rl.view({})


def test_a_view_keeps_no_run_alive() -> None:
    rl.view(trainer_of(), wait=True)
    gc.collect()
    assert not live._open


# in a kernel -------------------------------------------------------------------------------------

START = """import sys
sys.path.insert(0, {tests!r})
import torch, threading
torch.set_num_threads(1)
import rlteach as rl
from fakes import even_first, small_config, small_trainer
def trainer(judge=even_first):
    return small_trainer(small_config(total_steps=6, threads=1), judge)"""
THREADS = "print([t.name for t in threading.enumerate() if 'rlteach' in t.name])"


def executed(*cells: str, allow_errors: bool = False) -> list[list[dict[str, Any]]]:
    """The outputs that a notebook keeps which was run without a front end."""
    start = START.format(tests=str(cell.__file__).replace("rlteach/views/cell.py", "tests"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (start, *cells)])
    NotebookClient(notebook, timeout=GUARD, kernel_name="python3", store_widget_state=False,
                   allow_errors=allow_errors, extra_arguments=["--log-level=ERROR"]).execute()
    return [one.outputs for one in notebook.cells[1:]]


def pictures(outputs: list[dict[str, Any]]) -> list[bytes]:
    return [base64.b64decode(o["data"]["image/png"]) for o in outputs if "image/png" in o.get("data", {})]


def test_the_saved_notebook_holds_the_last_picture_and_nothing_else() -> None:
    shown, waited, threads, blocked, empty, same = executed(
        "run = trainer().start()\nrl.view(run)", "_ = run.wait()", THREADS,
        "view = rl.view(trainer(), wait=True)", THREADS,
        "import base64\nprint(base64.b64encode(view.png).decode())")
    assert [sorted(o["data"]) for o in shown] == [["text/plain"], ["image/png", "text/plain"]]
    assert [o["data"]["text/plain"] for o in shown] == ["", "curves of the run"]
    assert waited == []
    assert threads[0]["text"] == empty[0]["text"] == "[]\n"
    assert pictures(blocked) == [base64.b64decode(same[0]["text"])]
    assert pictures(shown) != [plots.png(plots.note(live.FIRST))]


def test_without_ipywidgets_there_is_the_picture_and_a_sentence() -> None:
    hide = "sys.modules['ipywidgets'] = None"
    (_, shown) = executed(hide, "_ = rl.view(trainer(), wait=True)")
    assert shown[0]["data"]["text/plain"] == cell.MISSING
    assert len(pictures(shown)) == 1


def test_an_error_of_the_run_is_raised_by_the_blocking_cell() -> None:
    code = "_ = rl.view(trainer(lambda s, a: 1 / 0), wait=True)"
    shown, threads = executed(code, THREADS, allow_errors=True)
    assert shown[-1]["ename"] == "ZeroDivisionError"
    assert len(pictures(shown)) == 1
    assert threads[0]["text"] == "[]\n"


def test_naming_rl_view_loads_no_widgets() -> None:
    code = ("import sys, rlteach as rl; rl.view; "
            "print({'ipywidgets', 'IPython', 'matplotlib.pyplot'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
