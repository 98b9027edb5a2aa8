"""The curves of a run, or of several, as one static figure (no pyplot: safe in threads, shown once).

Every line carries its column as gid, so that moving.py can give it new points.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rlteach.types import StepRecord

Series = Mapping[str, tuple[np.ndarray, ...]]  # gid -> (x, y) of a line, (x, low, high) of a band

BLUE, ORANGE, GREEN, RED, GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#7f7f7f"
SEVERAL = (BLUE, ORANGE, GREEN, RED, "#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", GREY)
BAND = "reward/ci95"
LOSSES = {
    "loss/positive": (GREEN, "positive"), "loss/negative": (RED, "negative"),
    "loss/kl": (ORANGE, "KL"), "loss/total": ("black", "total"),
    "loss/token_reward": (GREY, "token reward model")}
DISTANCE = {"kl/reference": (ORANGE, "KL to the reference"), "entropy": (BLUE, "entropy (nats a token)")}
LENGTH = {"response/length": (BLUE, "tokens an answer")}
LOST = {"response/truncated": (RED, "cut off"), "response/no_answer": (ORANGE, "no answer found"),
        "judge/unscorable": (GREY, "unscorable")}
ROOM_ABOVE = "room for the legend above"  # gid of axes whose lines stay in the lower four fifths
COLUMNS = ("reward/mean", BAND, "dev/accuracy", *LOSSES, *DISTANCE, *LENGTH, *LOST)
OVERLAID = {"reward/mean": "reward of the rollouts", "loss/total": "loss",
            "kl/reference": "KL to the reference", "entropy": "entropy (nats a token)"}


class Picture(Figure):
    """A figure that a notebook shows as it is: without pyplot nobody else would draw it."""

    def _repr_png_(self) -> bytes:
        return png(self)


def curves(
    history: pd.DataFrame, *, before: float | None = None, after: float | None = None, title: str = "",
    steps: int | None = None,
) -> Picture:
    """Reward and dev accuracy, loss terms, KL and entropy, length and truncation over the steps.

    Args:
        history: as `run.history` or `rl.table(trainer.history)` gives it.
        before, after: test accuracy, drawn as two levels.
        steps: the last step of the run, for a smaller picture whose axes stand still while it goes on.
    """
    figure, axes = _panels(still=steps is not None)
    _reward(axes[0, 0], history, before, after)
    _panel(axes[0, 1], history, "loss terms", LOSSES)
    _panel(axes[1, 0], history, "distance from the reference, and entropy", DISTANCE)
    _length(axes[1, 1], history)
    for ax in axes.flat:
        _finish(ax, steps)
    if title:
        figure.suptitle(title)
    return figure


def overlay(histories: Mapping[str, pd.DataFrame], *, steps: int | None = None) -> Picture:
    """Reward, loss, KL and entropy of several runs, one colour a run.

    Args:
        histories: name in the legend -> history.
        steps: the last step of the longest run, as in `curves`.
    """
    rows = -(-len(histories) // 2)  # of the legend, above the panels
    figure, axes = _panels(still=steps is not None, top=0.93 - 0.04 * rows)
    for ax, (column, name) in zip(axes.flat, OVERLAID.items(), strict=True):
        for i, (label, history) in enumerate(histories.items()):
            color = SEVERAL[i % len(SEVERAL)]
            if column == "reward/mean":
                _band(ax, history, color, "", gid=f"{i}:{BAND}")
            _line(ax, history, column, color, label, gid=f"{i}:{column}")
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("step", fontsize=8)
        ax.tick_params(labelsize=8)
        _finish(ax, steps)
    _to_one(axes[0, 0])
    if lines := axes[0, 0].get_lines():
        place = "outside upper left" if steps is None else "upper left"
        figure.legend(handles=lines, fontsize=8, loc=place, ncols=2, frameon=False)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def series(records: Sequence[StepRecord]) -> Series:
    """What curves draws of these steps, as moving lines take it; what was never measured is left out."""
    steps = np.array([r.index for r in records], float)
    found = {c: np.array([r.metrics.get(c) for r in records], float) for c in COLUMNS}  # None -> nan
    out: dict[str, tuple[np.ndarray, ...]] = {
        c: (steps[there], values[there]) if c == "dev/accuracy" else (steps, values)
        for c, values in found.items() if c != BAND and (there := np.isfinite(values)).any()}
    if np.isfinite(found[BAND]).any():
        out[BAND] = (steps, *band(found["reward/mean"], found[BAND]))
    return out


def band(mean: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the reward's interval; that of a share stays inside [0, 1]. Two arrays [steps]"""
    low, high = mean - half, mean + half
    return np.where(mean < 0, low, np.maximum(low, 0)), np.where(mean > 1, high, np.minimum(high, 1))


def small_figure() -> Picture:
    """768 x 432 pixels."""
    return Picture(figsize=(9.6, 5.4), dpi=80)


def note(text: str) -> Picture:
    """What stands there before there are curves, as large as they will be."""
    figure = small_figure()
    figure.text(0.5, 0.5, text, ha="center", color=GREY)
    return figure


def _panels(*, still: bool, top: float = 0.9) -> tuple[Picture, np.ndarray]:
    if not still:
        figure = Picture(figsize=(10, 6), dpi=100, layout="constrained")
        return figure, figure.subplots(2, 2)
    figure = small_figure()
    margins = {"left": 0.06, "right": 0.94, "top": top, "bottom": 0.14, "hspace": 0.48, "wspace": 0.22}
    return figure, figure.subplots(2, 2, gridspec_kw=margins)


def _finish(ax: Axes, steps: int | None) -> None:
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if steps is not None:
        ax.set_xlim(0, steps + 0.5)


def _reward(ax: Axes, history: pd.DataFrame, before: float | None, after: float | None) -> None:
    _lines(ax, history, "right answers", {"reward/mean": (BLUE, "reward of the rollouts")})
    _band(ax, history, BLUE, "95 % interval", gid=BAND)
    if known(history, "dev/accuracy"):
        dev = history["dev/accuracy"].dropna()
        ax.plot(dev.index, dev, color=GREEN, marker="o", markersize=4,
                label="dev, greedy", gid="dev/accuracy")
    for value, name, style in ((before, "before", ":"), (after, "after", "--")):
        if value is not None:
            ax.axhline(value, color=GREY, linestyle=style, linewidth=1)
            ax.annotate(f"test {name} {value:.1%}", (1, value), xycoords=("axes fraction", "data"),
                        ha="right", va="bottom", fontsize=8, color=GREY)
    _to_one(ax)
    _legend_above(ax, ax.get_legend_handles_labels()[0])
    low, high = ax.get_ylim()
    ax.set_gid(ROOM_ABOVE)
    ax.set_ylim(low, low + 1.25 * (high - low))
    if low == 0:
        ax.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _panel(ax: Axes, history: pd.DataFrame, title: str, wanted: dict[str, tuple[str, str]]) -> None:
    _lines(ax, history, title, wanted)
    _legend_above(ax, ax.get_lines())
    _leave_room(ax)


def _to_one(ax: Axes) -> None:
    """Shares lie between 0 and 1; rewards of plug-ins may lie below."""
    values = [np.asarray(line.get_ydata(), float) for line in ax.get_lines()]
    lowest = min([0.0, *(float(np.nanmin(y)) for y in values if np.isfinite(y).any())])
    ax.set_ylim(1.3 * lowest, 1.06)  # and their intervals


def _length(ax: Axes, history: pd.DataFrame) -> None:
    _lines(ax, history, "answer length and what was lost", LENGTH)
    right = ax.twinx()
    _lines(right, history, "", LOST)
    right.set_ylabel("share", fontsize=8)
    right.spines["top"].set_visible(False)
    _legend_above(right, [*ax.get_lines(), *right.get_lines()])
    if ax.get_lines():
        ax.set_ylim(bottom=0)  # lengths from 0
    _leave_room(ax)
    right.set_ylim(0, 1.25)
    right.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if ax.get_legend():
        ax.get_legend().remove()


def _legend_above(ax: Axes, lines: Sequence[Artist]) -> None:
    """In one row at the top, where `_leave_room` keeps the lines away."""
    if lines:
        ax.legend(lines, [line.get_label() for line in lines], fontsize=7, loc="upper center", ncols=5,
                  columnspacing=0.8, handlelength=1)


def _leave_room(ax: Axes) -> None:
    """The lines in the lower four fifths."""
    ax.set_gid(ROOM_ABOVE)
    values = [y for line in ax.get_lines() for y in line.get_ydata() if np.isfinite(y)]
    low, _ = ax.get_ylim()
    if values and max(values) > low:
        ax.set_ylim(low, low + 1.25 * (max(values) - low))


def known(history: pd.DataFrame, column: str) -> bool:
    """Was it ever measured?"""
    return column in history and bool(history[column].notna().any())


def _lines(ax: Axes, history: pd.DataFrame, title: str, wanted: dict[str, tuple[str, str]]) -> None:
    drawn = [_line(ax, history, column, color, label, gid=column)
             for column, (color, label) in wanted.items()]
    if title:
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("step", fontsize=8)
    ax.tick_params(labelsize=8)
    if any(drawn):
        ax.legend(fontsize=8)


def _line(ax: Axes, history: pd.DataFrame, column: str, color: str, label: str, *, gid: str) -> bool:
    if not known(history, column):
        return False
    ax.plot(history.index, history[column], color=color, label=label, linewidth=1.5, gid=gid,
            marker="o", markersize=2)  # a lone point is no line
    return True


def _band(ax: Axes, history: pd.DataFrame, color: str, label: str, *, gid: str) -> None:
    if known(history, BAND):
        low, high = band(history["reward/mean"].to_numpy(float), history[BAND].to_numpy(float))
        ax.fill_between(history.index, low, high, color=color, alpha=0.15, linewidth=0,
                        label=label or None, gid=gid)
