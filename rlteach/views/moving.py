"""A figure whose lines get new points: what stands still is drawn once, so a frame takes milliseconds.

A full drawing of four panels is mostly text and takes 50 times as long as the lines. Axes are drawn
again only when a line has left them, and then only the panel that it left.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

from rlteach.views.plots import Series

Cell = tuple[float, float, float, float]


class MovingFigure:
    """PNG frames of one picture.

    Args:
        build: makes the figure, of a fixed layout (a constrained one measures every text whenever it is
            drawn), with a line for each name of the series, by gid. Called again for other names.
    """

    def __init__(self, build: Callable[[], Figure]) -> None:
        self.build, self.names = build, frozenset[str]()
        self.figure: Figure | None = None

    def frame(self, series: Series) -> bytes:
        """The lines as they are now, on axes that stand still as long as they can."""
        if self.figure is None or self.names != frozenset(series):
            self._new(series)
        changed = self._put(series)
        canvas = self.canvas
        if changed:
            canvas.restore_region(self.ground)
            for cell in changed:
                self._draw_cell(cell)
            for legend in self.figure.legends:  # it may stand in those cells
                legend.draw(canvas.get_renderer())
            self.ground = canvas.copy_from_bbox(self.figure.bbox)
        canvas.restore_region(self.ground)
        for artist in self.artists.values():
            artist.axes.draw_artist(artist)
        return _encode(canvas, compress_level=1)

    def last(self, title: str = "", foot: str = "") -> bytes:
        """The picture that stays: built anew, drawn whole, with `title` above it and `foot` below it."""
        figure = self.build()
        if foot:
            figure.text(0.01, 0.008, foot, fontsize=8, va="bottom", parse_math=False)
        if title:
            figure.suptitle(title, fontsize=10, parse_math=False)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return _encode(canvas, compress_level=6)

    def _new(self, series: Series) -> None:
        """Build, take the moving lines out, and draw the rest once."""
        self.figure, self.names = self.build(), frozenset(series)
        self.canvas = FigureCanvasAgg(self.figure)
        self.artists = {artist.get_gid(): artist for ax in self.figure.axes
                        for artist in (*ax.get_lines(), *ax.collections) if artist.get_gid() in series}
        for artist in self.artists.values():
            artist.set_animated(True)
        self.cells: dict[Cell, list[Axes]] = {}
        for ax in self.figure.axes:
            self.cells.setdefault(self._cell(ax), []).append(ax)
        self.canvas.draw()
        self.ground = self.canvas.copy_from_bbox(self.figure.bbox)

    def _cell(self, ax: Axes) -> Cell:
        """The part of the picture that belongs to these axes, labels and all, in pixels."""
        spec = ax.get_subplotspec()
        rows, columns = spec.get_gridspec().get_geometry()
        row, column = spec.rowspan.start, spec.colspan.start
        width, height = self.figure.bbox.width / columns, self.figure.bbox.height / rows
        left, top = column * width, self.figure.bbox.height - row * height
        return (left, top - height, left + width, top)

    def _draw_cell(self, cell: Cell) -> None:
        left, bottom, right, top = (round(edge) for edge in cell)
        height = round(self.figure.bbox.height)
        np.asarray(self.canvas.buffer_rgba())[height - top : height - bottom, left:right] = 255
        for ax in self.cells[cell]:
            ax.draw(self.canvas.get_renderer())

    def _put(self, series: Series) -> list[Cell]:
        """New points into the lines; the cells whose limits no longer hold them."""
        for name, (x, *ys) in series.items():
            if artist := self.artists.get(name):
                _set(artist, np.asarray(x, float), [np.asarray(y, float) for y in ys])
        widened = {cell: [_widen(ax) for ax in axes] for cell, axes in self.cells.items()}
        return [cell for cell, axes in widened.items() if any(axes)]


def _encode(canvas: FigureCanvasAgg, compress_level: int) -> bytes:
    buffer = io.BytesIO()
    imsave(buffer, np.asarray(canvas.buffer_rgba()), format="png",
           pil_kwargs={"compress_level": compress_level})
    return buffer.getvalue()


def _set(artist: Any, x: np.ndarray, ys: list[np.ndarray]) -> None:
    if len(ys) == 1:
        artist.set_data(x, ys[0])
        return
    there = np.isfinite(ys[0]) & np.isfinite(ys[1])
    x, low, high = x[there], ys[0][there], ys[1][there]
    artist.set_verts([np.column_stack([np.r_[x, x[::-1]], np.r_[low, high[::-1]]])] if len(x) else [])


def _widen(ax: Axes) -> bool:
    """Make room for the lines, and some to spare. False: they are inside."""
    values = [y[np.isfinite(y)] for y in (np.asarray(line.get_ydata(), float) for line in ax.get_lines())]
    there = np.concatenate(values) if values else np.empty(0)
    low, high = ax.get_ylim()
    if not len(there) or (low <= there.min() and there.max() <= high):
        return False
    bottom, top = min(there.min(), low), max(there.max(), high)
    spare = 0.4 * (top - bottom)
    keeps_zero = low == 0 and bottom >= 0
    ax.set_ylim(0 if keeps_zero else bottom - spare * (bottom < low), top + spare * (top > high))
    return True
