"""Looking inside a run with the mouse: choose step, question and answer, and read what became of it.

Core ipywidgets only, imported when a browser is made; without it the functions that it calls are there:
trajectories, one, group_table, token_probabilities, probability_heatmap, token_heatmap.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from rlteach.types import Group
from rlteach.views.inside import (
    Row,
    Source,
    ViewError,
    config_of,
    discarded,
    group_table,
    page,
    step_rows,
    steps_of,
    trainer_of,
)
from rlteach.views.plots import png
from rlteach.views.probabilities import probability_heatmap
from rlteach.views.token_rewards import token_heatmap
from rlteach.views.tokens import FirstWrong

ANSWER, GROUP, PROBABILITIES, REWARDS = "answer", "group", "probabilities", "token rewards"
GROUP_COLUMNS = ["member", "response", "score", "status", "advantage", "kept", "why"]
READING = "white-space: pre-wrap; line-height: 1.35; max-height: 40em; overflow: auto"


def browse(source: Source, *, first_wrong: FirstWrong = None) -> Any:
    """A widget over a trainer, a run (also one under way: press refresh), an experiment or a run directory.

    It shows one answer whole, or its group as a table; with a trainer in memory also the probability of
    every token, and what the token-level reward model says of it (first_wrong: as for `token_heatmap`).

    Raises:
        ImportError: ipywidgets is not installed.
        ViewError: this is no source, or it has no steps yet.
    """
    widgets = ipywidgets("without it, rl.trajectories(source) shows the same as a table")
    if not steps_of(source):
        raise ViewError("there are no answers to look at yet: let the run finish a step")
    return _Browser(widgets, source, first_wrong).box


def ipywidgets(otherwise: str) -> Any:
    """The package, or an ImportError that says how to get it and what works without it."""
    try:
        return import_module("ipywidgets")
    except ImportError as error:
        raise ImportError(f"this needs ipywidgets: pip install 'rlteach[notebook]'; {otherwise}") from error


def picture(widgets: Any) -> Any:
    """An empty image in its own size, never wider than its place."""
    layout = widgets.Layout(max_width="100%", object_fit="contain", align_self="flex-start")
    return widgets.Image(format="png", layout=layout)


class _Browser:
    """Three choices, four ways to look, and one place where the result stands."""

    def __init__(self, widgets: Any, source: Source, first_wrong: FirstWrong) -> None:
        self.source, self.first_wrong = source, first_wrong
        self.trainer, self.rows, self.busy = trainer_of(source), [], False
        views = [ANSWER, GROUP]
        if self.trainer is not None:
            views += [PROBABILITIES] + [REWARDS] * (self.trainer.token_reward_model is not None)
        choice = partial(widgets.Dropdown, style={"description_width": "initial"})
        self.step, self.prompt, self.member = (choice(description=d) for d in ("step", "question", "answer"))
        self.view = widgets.ToggleButtons(options=views, style={"button_width": "auto"})
        self.refresh = widgets.Button(description="refresh", tooltip="look for new steps")
        self.text, self.image = widgets.HTML(), picture(widgets)
        controls = widgets.HBox([self.step, self.prompt, self.member, self.refresh],
                                layout=widgets.Layout(flex_flow="row wrap"))
        self.box = widgets.VBox([controls, self.view, self.text, self.image])
        for control, react in ((self.step, self._choose_step), (self.prompt, self._choose_prompt),
                               (self.member, lambda: None), (self.view, lambda: None)):
            control.observe(partial(self._react, react), "value")
        self.refresh.on_click(lambda _: self._react(self._look_for_steps))
        self._react(self._look_for_steps)

    def _react(self, choose: Callable[[], None], _: Any = None) -> None:
        """Fill the choices below the one that changed, then draw once."""
        if self.busy:  # a choice that this method itself has made
            return
        self.busy = True
        try:
            choose()
            self._draw()
        except ValueError as error:  # a ViewError, or what first_wrong says
            self._show(f"<b>{html.escape(str(error))}</b>")
        finally:
            self.busy = False

    def _look_for_steps(self) -> None:
        chosen, steps = self.step.value, steps_of(self.source)
        self.step.options = steps
        self.step.value = chosen if chosen in steps else steps[-1]
        self._choose_step()

    def _choose_step(self) -> None:
        self.rows = step_rows(self.source, self.step.value)
        groups: dict[int, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(row["prompt"], []).append(row)
        _offer(self.prompt, [(_group_name(rows), place) for place, rows in groups.items()])
        self._choose_prompt()

    def _choose_prompt(self) -> None:
        _offer(self.member, [(_member_name(row), row["member"]) for row in self._group_rows()])

    def _group_rows(self) -> list[Row]:
        return [row for row in self.rows if row["prompt"] == self.prompt.value]

    def _draw(self) -> None:
        lost = {who: n for who, n in discarded(self.source, self.step.value).items() if n}
        note = "".join(f"<i>{n} questions of this step were discarded by the {who}.</i> "
                       for who, n in lost.items())
        rows = self._group_rows()
        if not rows:
            self._show(note or "<i>This step has no answers.</i>")
        elif self.view.value == ANSWER:
            self._show(note + _pre(page(rows[self.member.value])))
        elif self.view.value == GROUP:
            self._show(note + _pre(rows[0]["question"]) + self._table(rows))
        else:
            self._show(note, self._figure())

    def _show(self, text: str, figure: Figure | None = None) -> None:
        self.text.value = text
        self.image.value = b"" if figure is None else png(figure)
        self.image.layout.display = "none" if figure is None else ""

    def _table(self, rows: list[Row]) -> str:
        group = self._in_memory()
        frame = pd.DataFrame(rows)[GROUP_COLUMNS]
        if group is not None:
            frame = group_table(group, config_of(self.source)).assign(why=frame["why"])
        with pd.option_context("display.max_colwidth", None):
            return frame.to_html(index=False, na_rep="", justify="left", float_format="{:.3f}".format)

    def _in_memory(self) -> Group | None:
        history = self.trainer.history if self.trainer is not None else ()
        groups = next((r.groups for r in history if r.index == self.step.value), ())
        return groups[self.prompt.value] if self.prompt.value < len(groups) else None

    def _figure(self) -> Figure:
        group, member = self._in_memory(), self.member.value
        if group is None:
            raise ViewError("the tokens of this step are not in memory: it was trained before a resume")
        if self.view.value == PROBABILITIES:
            return probability_heatmap(self.trainer, group, member=member)
        return token_heatmap(self.trainer, group, member=member, first_wrong=self.first_wrong)


def _offer(choice: Any, options: list[tuple[str, int]]) -> None:
    """New options, the first of them chosen."""
    choice.options = options
    choice.index = 0 if options else None


def _group_name(rows: list[Row]) -> str:
    right = sum(row["status"] == "correct" for row in rows)
    return f"{rows[0]['prompt']}: {rows[0]['id']} ({right} of {len(rows)} right)"


def _member_name(row: Row) -> str:
    advantage = "" if row["advantage"] is None else f" {row['advantage']:+.2f}"
    return f"{row['member']}: {row['status']}{advantage}{', kept' if row['kept'] else ''}"


def _pre(text: str) -> str:
    return f'<pre style="{READING}">{html.escape(text)}</pre>'
