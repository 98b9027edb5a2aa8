"""The curves of a run as one static figure (no pyplot: safe in threads, nothing shown twice)."""

from __future__ import annotations

import io

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

BLUE, ORANGE, GREEN, RED, GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#7f7f7f"


def curves(
    history: pd.DataFrame, *, before: float | None = None, after: float | None = None, title: str = ""
) -> Figure:
    """Reward and dev accuracy, loss terms, KL and entropy, length and truncation over the steps.

    Args:
        history: as `run.history` or `rl.table(trainer.history)` gives it.
        before, after: test accuracy, drawn as two levels.
    """
    figure = Figure(figsize=(10, 6), dpi=100, layout="constrained")
    axes = figure.subplots(2, 2)
    _reward(axes[0, 0], history, before, after)
    _lines(axes[0, 1], history, "loss terms", {
        "loss/positive": (GREEN, "positive"), "loss/negative": (RED, "negative"),
        "loss/kl": (ORANGE, "KL"), "loss/total": ("black", "total"),
        "loss/token_reward": (GREY, "token reward model")})
    _lines(axes[1, 0], history, "distance from the reference, and entropy", {
        "kl/reference": (ORANGE, "KL to the reference"), "entropy": (BLUE, "entropy (nats a token)")})
    _length(axes[1, 1], history)
    for ax in axes.flat:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if title:
        figure.suptitle(title)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _reward(ax: Axes, history: pd.DataFrame, before: float | None, after: float | None) -> None:
    _lines(ax, history, "right answers", {"reward/mean": (BLUE, "reward of the rollouts")})
    if "dev/accuracy" in history and history["dev/accuracy"].notna().any():
        dev = history["dev/accuracy"].dropna()
        ax.plot(dev.index, dev, color=GREEN, marker="o", markersize=4, label="dev, greedy")
    for value, name, style in ((before, "before", ":"), (after, "after", "--")):
        if value is not None:
            ax.axhline(value, color=GREY, linestyle=style, linewidth=1)
            ax.annotate(f"test {name} {value:.1%}", (1, value), xycoords=("axes fraction", "data"),
                        ha="right", va="bottom", fontsize=8, color=GREY)
    ax.set_ylim(0, 1.06)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=8, loc="lower right")


def _length(ax: Axes, history: pd.DataFrame) -> None:
    _lines(ax, history, "answer length and what was lost", {"response/length": (BLUE, "tokens an answer")})
    right = ax.twinx()
    _lines(right, history, "", {
        "response/truncated": (RED, "cut off"), "response/no_answer": (ORANGE, "no answer found"),
        "judge/unscorable": (GREY, "unscorable")})
    right.set_ylabel("share", fontsize=8)
    right.spines["top"].set_visible(False)
    lines = [*ax.get_lines(), *right.get_lines()]
    right.legend(lines, [line.get_label() for line in lines], fontsize=8, loc="upper center", ncols=4,
                 columnspacing=1, handlelength=1.2)
    if ax.get_lines():
        ax.set_ylim(0, 1.25 * history["response/length"].max())  # room for the legend; lengths from 0
    right.set_ylim(0, 1.25)
    right.set_yticks([0, 0.25, 0.5, 0.75, 1])
    if ax.get_legend():
        ax.get_legend().remove()


def _lines(ax: Axes, history: pd.DataFrame, title: str, wanted: dict[str, tuple[str, str]]) -> None:
    drawn = False
    for column, (color, label) in wanted.items():
        if column in history and history[column].notna().any():
            ax.plot(history.index, history[column], color=color, label=label, linewidth=1.5,
                    marker="o" if len(history) == 1 else None)
            drawn = True
    if title:
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("step", fontsize=8)
    ax.tick_params(labelsize=8)
    if drawn:
        ax.legend(fontsize=8)
