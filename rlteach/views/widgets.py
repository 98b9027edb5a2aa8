"""rl.widgets.Lab: knobs before a training run, and the curves of every setting that was tried.

    lab = rl.widgets.Lab("tiny")
    lab                                   # in a notebook: the knobs
    lab.set(group_size=4); lab.run(wait=True); lab.results      # without a hand on them
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from rlteach.config import Config, ConfigError
from rlteach.training.metrics import table
from rlteach.views import cell, knobs, plots
from rlteach.views.moving import MovingFigure
from rlteach.views.pulse import Budget, Pulse
from rlteach.views.report import share
from rlteach.views.settings import KNOBS, Knob, knob
from rlteach.views.trials import BusyError, Trial, Trials

EMPTY = "press Run: each setting that was tried gets its curves here"


class Lab:
    """Turn knobs, train in the background, compare. One setting is trained at a time.

    Each setting is shown as the Python line that reproduces it, with its accuracy on dev. Everything the
    buttons do is a method here, and works without a front end.

    Args:
        preset: the config to begin with.
        fields: those of the config that get a knob: numbers, choices, yes or no.
        changes: fields that are different from the beginning.

    Raises:
        ConfigError: there is no such preset or field, or the combination is refused.
    """

    def __init__(self, preset: str = "tiny", *, fields: Sequence[str] = KNOBS, **changes: object) -> None:
        self.trials = Trials(preset, **changes)
        self.png = plots.png(plots.note(EMPTY))
        self._picture: cell.Output | None = None
        self._pulse: Pulse | None = None
        self._cells: cell.AfterCells | None = None
        self._drawn: list[int] = []
        self._figure = MovingFigure(self._overlay)
        self.panel = Panel(self, [knob(name, self.config) for name in fields])

    @property
    def config(self) -> Config:
        """The present setting."""
        return self.trials.config

    @property
    def results(self) -> pd.DataFrame:
        """See Trials.results."""
        return self.trials.results

    def set(self, **changes: object) -> Lab:
        """Change the present setting, knobs included. Raises ConfigError when it is refused."""
        self.trials.set(**changes)
        self.panel.turn_to(self.config)
        return self

    def run(self, *, wait: bool = False) -> Trial:
        """Train the present setting and measure it on dev.

        Args:
            wait: until then, and raise what went wrong. Clicks are not read while a cell waits.

        Raises:
            BusyError: another setting is under way.
        """
        trial = self.trials.start()
        self._budget, self._drawn = Budget(), []
        self.panel.busy(True)
        self._pulse = Pulse(self._beat, "rlteach-lab-view")
        self._cells = cell.AfterCells(lambda: trial.ended and self._pulse.wait())
        return self.wait() if wait else trial

    def wait(self) -> Trial | None:
        """Until the setting under way has been measured; raises what went wrong."""
        pulse, last = self._pulse, self.trials.all[-1] if self.trials.all else None
        try:
            return None if last is None else last.wait()
        finally:
            if pulse is not None:
                pulse.wait()

    def stop(self) -> None:
        """End the training under way after its step; it is not measured then."""
        if self.trials.present is not None:
            self.trials.present.stop()

    def compare(self) -> pd.DataFrame:
        """See Trials.comparison."""
        return self.trials.comparison()

    def clear(self) -> None:
        """Forget the settings that were tried; one under way is stopped."""
        self.trials.clear()
        if self._pulse is not None:
            self._pulse.wait()
        self._show(plots.png(plots.note(EMPTY)))
        self.panel.tell()

    def _beat(self) -> bool:
        try:
            return self._look()
        except Exception as error:  # a picture that fails must not take the training with it
            self.panel.say(f"the picture failed, the training goes on: {error}")
            self.panel.busy(False)
            return True

    def _look(self) -> bool:
        present, ended = self.trials.all, self.trials.present is None
        counts = [len(trial.records) for trial in present]
        if ended or (counts != self._drawn and any(counts) and self._budget.allows()):
            self._drawn = counts
            self._budget.pay(lambda: self._draw(ended))
        self.panel.tell()
        if ended:
            self.panel.busy(False)
        return ended

    def _draw(self, ended: bool) -> None:
        if not ended:
            self.trials.all[-1].look()
        self._show(self._figure.last() if ended else self._frame())

    def _frame(self) -> bytes:
        return self._figure.frame({
            f"{i}:{name}": points for i, trial in enumerate(self.trials.all)
            for name, points in plots.series(trial.records).items()
            if name in (*plots.OVERLAID, plots.BAND)})

    def _overlay(self) -> Any:
        names = {f"{t.number}: {t.label}": table(t.records) for t in self.trials.all}
        return plots.overlay(names, steps=max((t.config.total_steps for t in self.trials.all), default=1))

    def _show(self, png: bytes) -> None:
        self.png = png
        if self._picture is not None:
            self._picture.show(cell.picture(png))

    def _ipython_display_(self) -> None:
        """Knobs above, curves below; the curves stay in the saved notebook."""
        cell.Output("", cell.view_of(self.panel.box))
        self._picture = cell.Output("curves of the settings", cell.picture(self.png))


class Panel:
    """The knobs, the buttons, and what is said below them."""

    def __init__(self, lab: Lab, settings: Sequence[Knob]) -> None:
        self.lab = lab
        self._wanted: dict[str, Any] | None = {}  # moved and refused so far; None: turned from here
        self.knobs = {k.name: knobs.control(k, getattr(lab.config, k.name)) for k in settings}
        for widget in self.knobs.values():
            widget.observe(self._moved, names="value")
        w = knobs.ipywidgets
        self.sentence, self.state, self.list, self.table = (w.HTML() for _ in range(4))
        actions: dict[str, Callable[[], object]] = {
            "Run": self._run, "Stop": lab.stop, "Compare": self._compare, "Clear": self._clear}
        self.buttons = {name: w.Button(description=name) for name in actions}
        for name, button in self.buttons.items():
            button.on_click(lambda _, act=actions[name]: act())
        rows = w.GridBox(list(self.knobs.values()), layout={"grid_template_columns": "repeat(2, 380px)"})
        self.box = w.VBox([rows, self.sentence, w.HBox(list(self.buttons.values())), self.state, self.list,
                           self.table])
        self.busy(False)
        self.tell()

    def turn_to(self, config: Config) -> None:
        """Knobs as the config says; a slider that ends before the value is made longer."""
        self._wanted = None
        for name, widget in self.knobs.items():
            knobs.put(widget, getattr(config, name))
        self._wanted = {}
        self.say("")

    def busy(self, training: bool) -> None:
        self.buttons["Run"].disabled, self.buttons["Stop"].disabled = training, not training

    def tell(self) -> None:
        """The present setting, what is under way, what the doctor says, every setting with its accuracy."""
        present = self.lab.trials.present
        done = "" if present is None else f"{present.number}: {present.state}, step " \
            f"{len(present.records)} of {present.config.total_steps}"
        advice = self.lab.trials.all[-1].advice if self.lab.trials.all else ""
        self.state.value = "<br>".join(
            [f"<code>{html.escape(self.lab.trials.line)}</code>", html.escape(done), html.escape(advice)])
        self.list.value = "".join(f"<div>{told(trial)}</div>" for trial in self.lab.trials.all)

    def say(self, sentence: str) -> None:
        """A sentence below the knobs, or none."""
        self.sentence.value = f"<b>{html.escape(sentence)}</b>" if sentence else ""
        self.tell()

    def _moved(self, change: Any) -> None:
        if self._wanted is None:
            return
        self._wanted[change.owner.description] = knobs.read(change.owner)
        try:
            self.lab.trials.set(**self._wanted)
        except ConfigError as error:
            self.say(str(error))
        else:
            self._wanted = {}
            self.say("")

    def _run(self) -> None:
        if self._wanted:  # the knobs show what was refused
            return
        try:
            self.lab.run()
        except BusyError as error:
            self.say(str(error))

    def _compare(self) -> None:
        self.table.value = self.lab.compare().to_html(
            float_format="%.3g", na_rep="", border=0, index_names=False)

    def _clear(self) -> None:
        self.table.value = ""
        self.lab.clear()


def told(trial: Trial) -> str:
    """1: <code>rl.Config.preset("tiny")</code> dev 98.5 % [95.7, 99.5]"""
    if trial.error is not None:
        end = html.escape(f"failed: {trial.error}")
    elif trial.dev is not None:
        end = f"dev {share(trial.dev.accuracy, trial.dev.ci95)}"
    else:
        end = f"{trial.state}, not measured" if trial.ended else trial.state
    return f"{trial.number}: <code>{html.escape(trial.line)}</code> {end}"
