"""What a view leaves in a notebook's cell: a picture that is replaced in place, and widgets that go
when they have no more to do, so that the saved notebook shows the picture and no dead buttons.

Where no front end listens (nbval, nbconvert) the same messages go out and nothing waits for an answer.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

MISSING = "no buttons here: install ipywidgets (pip install ipywidgets) and restart the kernel"
WIDGET = "application/vnd.jupyter.widget-view+json"


def shell() -> Any | None:
    """IPython's shell when this code runs in a notebook's kernel, else None."""
    ipython = sys.modules.get("IPython")
    found = None if ipython is None else ipython.get_ipython()
    return found if hasattr(found, "kernel") else None


def widgets() -> ModuleType | None:
    """ipywidgets, or None where it is not installed."""
    try:
        import ipywidgets
    except ModuleNotFoundError:
        return None
    return ipywidgets


class Output:
    """One output of the cell that is being run; `show` replaces what it holds, from any thread.

    Its text never changes: nbval compares the text, and the picture and the widget are not compared.
    """

    def __init__(self, text: str, data: dict[str, Any] | None = None) -> None:
        from IPython.display import display

        self.text = text
        self.handle = display({"text/plain": text, **(data or {})}, raw=True, display_id=True)

    def show(self, data: dict[str, Any]) -> None:
        self.handle.update({"text/plain": self.text, **data}, raw=True)


def picture(png: bytes) -> dict[str, str]:
    """As an output holds it."""
    return {"image/png": base64.b64encode(png).decode("ascii")}


def view_of(widget: Any) -> dict[str, Any]:
    """The widget as an output holds it."""
    return {WIDGET: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


def close(widget: Any) -> None:
    """The widget and all it is made of: nothing of it is left in the kernel or the front end."""
    for child in getattr(widget, "children", ()):
        close(child)
    for part in (widget.layout, getattr(widget, "style", None), widget):
        if part is not None:
            part.close()


class AfterCells:
    """Calls `look` when a cell has been run, before the kernel says that it is idle, until it returns True.

    A front end that reads outputs only while a cell runs (nbconvert) so gets the last picture with the
    cell that waited for the run.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        self.look, self.shell = look, shell()
        if self.shell is not None:
            self.shell.events.register("post_run_cell", self._after)

    def _after(self, _result: Any) -> None:
        if self.look():
            self.close()

    def close(self) -> None:
        """Call it no more."""
        if self.shell is not None:
            found, self.shell = self.shell, None
            found.events.unregister("post_run_cell", self._after)
