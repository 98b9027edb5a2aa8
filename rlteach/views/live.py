"""rl.view: a run's curves, its progress and its buttons in a notebook, while it trains."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from rich.console import Console

from rlteach.training.metrics import table
from rlteach.training.run import Run
from rlteach.training.trainer import OrealTrainer
from rlteach.types import StepRecord
from rlteach.views import cell, plots
from rlteach.views.doctor import Watch
from rlteach.views.moving import MovingFigure
from rlteach.views.pulse import Budget, Pulse

ENDED = ("stopped", "finished", "failed")
FIRST = "the first step is under way"
LONGEST, FOOT = 300, 150  # characters of an error above a picture, and of a line below it
_open: WeakValueDictionary[int, View] = WeakValueDictionary()  # by id of the run


def view(source: Run | OrealTrainer, *, wait: bool = False) -> View:
    """Show a run in the notebook's cell: curves, a progress bar, Pause / Step / Resume / Stop.

    The cell returns at once and the picture moves on while other cells run. It moves at most four times
    a second, and less often where drawing would take more than 2 % of the processor time of training (the
    first and the last picture come in any case: about half a second). When the run ends, the buttons go
    and a still picture stays, also in the saved notebook. `run.wait()` in the last cell keeps a notebook
    that is run without a front end (nbconvert, nbval) from ending before its run.

    Args:
        source: a run, or a trainer, which is started. A second view of the same run ends the first.
        wait: the cell ends with the run and raises what went wrong in it. A kernel reads no clicks while
            a cell runs, so there are no buttons then: interrupt the kernel to stop after the step.

    Raises:
        TypeError: `source` is neither.
    """
    if not isinstance(source, Run | OrealTrainer):
        raise TypeError(f"rl.view shows a run or a trainer, not a {type(source).__name__}: "
                        "give it trainer.start()")
    run = source.start() if isinstance(source, OrealTrainer) else source
    if earlier := _open.pop(id(run), None):
        earlier.close()
    found = View(run, Notebook(run, buttons=not wait) if cell.shell() else Nowhere())
    _open[id(run)] = found
    if wait:
        found.wait()
    return found


@dataclass(frozen=True)
class Status:
    """Where a run is: its state, steps done, steps in all, a line to read, and one of the doctor's."""

    state: str
    done: int
    total: int
    line: str
    advice: str = field(default="", compare=False)  # comes with a new step, and that is compared

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def status_of(run: Run) -> Status:
    """The state is read first: when it says that the run has ended, its history is whole."""
    state, error, waiting = run.state, run.error, run.trainer.grading.waiting
    done, total = run.trainer.step_index, run.trainer.config.total_steps
    if state == "failed":
        line = f"failed after step {done} of {total}: {type(error).__name__}: {error}"
    elif waiting is not None and state == "running":
        line = f"step {done} of {total}, waiting: {waiting}"
    else:
        line = f"{state}{' after' if state in ('paused', 'stopped') else ','} step {done} of {total}"
    return Status(state, done, total, line)


class View:
    """One run on one screen. `png` is the picture as it is now, `advice` what the doctor says of the steps
    so far, `error` what broke the view (or None)."""

    def __init__(self, run: Run, screen: Notebook | Nowhere) -> None:
        self.run, self.screen = run, screen
        self.png = plots.png(plots.note(FIRST))
        self.error: Exception | None = None
        self.budget = Budget()
        self._records: list[StepRecord] = []
        self._drawn, self._status = 0, None
        self.advice, self._watch, self._watched = "", Watch(run.trainer), 0
        self._figure = MovingFigure(
            lambda: plots.curves(table(self._records), steps=run.trainer.config.total_steps))
        screen.open(self.png, self.nudge)
        self._pulse = None if self.beat() else Pulse(self.beat, "rlteach-view")
        self._cells = cell.AfterCells(self._settled) if self._pulse else None

    def beat(self) -> bool:
        """Show what is new. True: there will be no more."""
        try:
            return self.budget.pay(self._beat)
        except Exception as error:  # a picture that fails must not take the run with it
            self.error = error
            self.screen.state(Status("failed", 0, 1, f"the view failed, the run goes on: {error}"))
            return True

    def _beat(self) -> bool:
        status, self._records = status_of(self.run), list(self.run.trainer.history)
        if status.ended or (len(self._records) != self._watched and self.budget.allows()):
            self._watched = len(self._records)
            self.advice = self._watch.line(self._records, self.run)
        status = replace(status, advice=self.advice)
        if status != self._status:
            self._status = status
            self.screen.state(status)
        if status.ended:
            self.png = self._figure.last(title(status.line), title(self.advice, FOOT))
            self.screen.last(self.png)
            return True
        if len(self._records) != self._drawn and self.budget.allows():
            self._drawn = len(self._records)
            self.png = self._figure.frame(plots.series(self._records))
            self.screen.show(self.png)
        return False

    def nudge(self) -> None:
        """Look now, and not in a quarter of a second."""
        if self._pulse is not None:
            self._pulse.nudge()

    def wait(self) -> View:
        """Until the run has ended and its last picture is drawn; raises what went wrong in the run."""
        try:
            self.run.wait()
        finally:
            if self._pulse is not None and self.run.state in ENDED:
                self._pulse.wait()
        return self

    def close(self) -> None:
        """Leave the picture as it is and end the thread; the run goes on."""
        for part in (self._pulse, self._cells):
            if part is not None:
                part.close()
        self.screen.last(self.png)

    def _settled(self) -> bool:
        return self.run.state in ENDED and self._pulse.wait()

    def _ipython_display_(self) -> None:
        """It is shown already, when it is also the last value of a cell."""


class Nowhere:
    """A script, or a terminal: pictures are kept in view.png."""

    def open(self, png: bytes, nudge: Callable[[], None]) -> None:
        Console().print("rl.view shows its picture in a notebook; here it is kept in `view.png`, as bytes")

    def state(self, status: Status) -> None: ...

    def show(self, png: bytes) -> None: ...

    def last(self, png: bytes) -> None: ...


class Notebook:
    """Two outputs of a cell: the panel, which is taken away at the end, and the picture, which stays."""

    def __init__(self, run: Run, *, buttons: bool) -> None:
        self.run, self.buttons = run, buttons
        self.panel: Panel | None = None

    def open(self, png: bytes, nudge: Callable[[], None]) -> None:
        if cell.widgets() is None:
            cell.Output(cell.MISSING)
        else:
            self.panel = Panel(self.run, nudge, buttons=self.buttons)
            self.controls = cell.Output("", cell.view_of(self.panel.box))
        self.picture = cell.Output("curves of the run", cell.picture(png))

    def state(self, status: Status) -> None:
        if self.panel is not None:
            self.panel.state(status)

    def show(self, png: bytes) -> None:
        self.picture.show(cell.picture(png))

    def last(self, png: bytes) -> None:
        self.show(png)
        if self.panel is not None:
            self.controls.show({})
            cell.close(self.panel.box)
            self.panel = None


class Panel:
    """Buttons, bar and state line of a run."""

    def __init__(self, run: Run, nudge: Callable[[], None], *, buttons: bool) -> None:
        w: Any = cell.widgets()
        self.bar = w.IntProgress(min=0, max=run.trainer.config.total_steps, layout={"width": "220px"})
        self.line = w.HTML()
        actions = {"Pause": run.pause, "Step": run.step, "Resume": run.resume, "Stop": run.stop}
        self.buttons = {name: w.Button(description=name, layout={"width": "84px"})
                        for name in actions if buttons}
        for name, button in self.buttons.items():
            button.on_click(lambda _, act=actions[name]: (act(), nudge()))
        self.box = w.VBox([w.HBox([*self.buttons.values(), self.bar]), self.line])

    def state(self, status: Status) -> None:
        self.bar.value = status.done
        self.bar.bar_style = {"paused": "warning", "failed": "danger", "finished": "success"}.get(
            status.state, "")
        self.line.value = "<br>".join(html.escape(line) for line in (status.line, status.advice) if line)
        for name, button in self.buttons.items():
            button.disabled = status.ended or ((name == "Resume") != (status.state == "paused") and name in (
                "Pause", "Resume"))


def title(line: str, width: int = 110) -> str:
    """In at most three lines and in signs that every font has."""
    plain = line.encode("ascii", "replace").decode("ascii")
    return textwrap.fill(textwrap.shorten(plain, LONGEST, placeholder=" ..."), width)
