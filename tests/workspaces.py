"""Workspaces for tests: made once by `create_workspace`, entered one at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


def forget() -> None:
    """The modules of the workspace that was entered last."""
    for name in [n for n in sys.modules if n in ("plugins", "job") or n.startswith("plugins.")]:
        del sys.modules[name]


@contextmanager
def entered(folder: Path) -> Iterator[Any]:
    """A function that imports the modules of this workspace."""
    forget()
    sys.path.insert(0, str(folder))
    try:
        yield import_module
    finally:
        sys.path.remove(str(folder))
        forget()
