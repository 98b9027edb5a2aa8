"""Text on a figure, one cell a token, coloured by a number: what every picture over an answer is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rlteach.views.glyphs import MISSING, columns, drawable, families
from rlteach.views.plots import Picture

SIZE = 10.0  # points
COLUMN, LINE = 0.602 * SIZE / 72, 1.7 * SIZE / 72  # inches of a cell; 0.602 is DejaVu Sans Mono's width
WIDTH = 88  # columns
MOST = 800  # tokens that are drawn
LEFT, RIGHT, TOP, GAP, BAR = 0.15, 0.75, 0.3, 0.35, 0.55  # inches
Cell = tuple[int, int, int]  # line, column, width


@dataclass(frozen=True)
class Panel:
    """The text once, in the colours of one number: `values` has one a token, NaN where there is none."""

    title: str
    values: Sequence[float]
    colours: str  # a matplotlib colour map
    low: float
    high: float


def text_panels(texts: Sequence[str], panels: Sequence[Panel], *, framed: int | None = None,
                title: str = "", note: str = "") -> Figure:
    """The same text under each other, once a panel; the cell `framed` has a black frame.

    texts: readable tokens (views/tokens.py). Only the first MOST are drawn, and the figure says so.
    title, note: above and below the blocks.
    """
    drawn = [drawable(text) for text in texts[:MOST]]
    shown = [text if columns(text) <= WIDTH else text[: WIDTH // 2] + "\N{HORIZONTAL ELLIPSIS}"
             for text, _ in drawn]
    notes = [note] * bool(note) + [MISSING] * any(missing for _, missing in drawn)
    notes += [f"the first {MOST} of {len(texts)} tokens"] * (len(texts) > MOST)
    cells = layout(shown)
    lines = 1 + max((line for line, *_ in cells), default=0)
    wide = max([60, *(column + width for _, column, width in cells)])  # columns
    block, above, below = max(lines * LINE, BAR), TOP * bool(title), 0.1 + 0.2 * len(notes)
    height = above + len(panels) * (GAP + block) + below
    figure = Picture(figsize=(LEFT + wide * COLUMN + RIGHT, height), dpi=100)
    left = LEFT / figure.get_figwidth()
    if title:
        figure.text(left, 1 - 0.2 / height, drawable(title)[0], family=families(), fontsize=SIZE + 1,
                    va="center", parse_math=False)
    for i, panel in enumerate(panels):
        bottom = height - above - (i + 1) * (GAP + block)
        _panel(figure, panel, shown, cells, framed, (bottom, block, wide))
    for i, note in enumerate(notes):
        figure.text(left, (0.08 + 0.2 * i) / height, note, fontsize=8, color="dimgrey")
    return figure


def layout(texts: Sequence[str]) -> list[Cell]:
    """Where each text stands; a line ends at WIDTH columns, and after a token that holds a line end.

    >>> layout(["a", "bc↵", "d"])
    [(0, 0, 1), (0, 1, 3), (1, 0, 1)]
    """
    cells, line, column = [], 0, 0
    for text in texts:
        width = max(columns(text), 1)
        if column and column + width > WIDTH:
            line, column = line + 1, 0
        cells.append((line, column, width))
        column += width
        if "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}" in text:
            line, column = line + 1, 0
    return cells


def _panel(figure: Figure, panel: Panel, texts: Sequence[str], cells: Sequence[Cell], framed: int | None,
           place: tuple[float, float, int]) -> None:
    """One block of text, `place` = (bottom, height) in inches and its columns, with its colour bar."""
    (bottom, block, wide), (width, height) = place, figure.get_size_inches()
    ax = figure.add_axes((LEFT / width, bottom / height, wide * COLUMN / width, block / height))
    ax.set(xlim=(0, wide), ylim=(block / LINE, 0), xticks=[], yticks=[])
    ax.set_frame_on(False)
    ax.set_title(panel.title, fontsize=9, loc="left", parse_math=False)
    colours, scale = colormaps[panel.colours], Normalize(panel.low, panel.high, clip=True)
    for at, (text, cell) in enumerate(zip(texts, cells, strict=True)):
        _cell(ax, text, cell, panel.values[at], colours, scale)
    if framed is not None and framed < len(cells):
        line, column, size = cells[framed]
        ax.add_patch(Rectangle((column, line), size, 1, fill=False, edgecolor="black", linewidth=2.5,
                               zorder=3, clip_on=False))
    tall = min(block, 3 * BAR)  # of the colour bar
    bar = figure.add_axes(((LEFT + wide * COLUMN + 0.15) / width, (bottom + block - tall) / height,
                           0.12 / width, tall / height))
    figure.colorbar(ScalarMappable(scale, colours), cax=bar)
    bar.set_yticks([panel.low, (panel.low + panel.high) / 2, panel.high])
    bar.tick_params(labelsize=7)


def _cell(ax: Axes, text: str, cell: Cell, value: float, colours: Colormap, scale: Normalize) -> None:
    """One token; white letters where its colour is dark, grey ones where it has none."""
    line, column, width = cell
    letters = "grey"
    if not math.isnan(value):
        red, green, blue, _ = colour = colours(scale(value))
        letters = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        ax.add_patch(Rectangle((column, line), width, 1, facecolor=colour, edgecolor="white", linewidth=0.6))
    ax.text(column + width / 2, line + 0.5, text, ha="center", va="center", fontsize=SIZE, color=letters,
            family=families(), parse_math=False)
