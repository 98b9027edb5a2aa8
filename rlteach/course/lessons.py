"""`rlteach lessons DIR`: the lessons that ship with the package, as notebooks of one's own.

    rlteach lessons my_lessons

An installed package keeps them where nobody should write; whoever has a clone finds them in notebooks/.
"""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from rlteach.agent.workspace import new_or_empty


def lessons() -> list[Path]:
    """The notebooks NN_name.ipynb, in their order: inside an installed package, or of a checkout."""
    package = Path(str(files("rlteach")))
    inside, beside = package / "_notebooks", package.parent / "notebooks"
    return sorted((inside if inside.is_dir() else beside).glob("[0-9][0-9]_*.ipynb"))


def copy_lessons(folder: str | Path) -> list[Path]:
    """Copy all lessons into a folder that is new or empty; returns the copies.

    Raises:
        WorkspaceError: the folder holds something, perhaps somebody's work.
    """
    target = new_or_empty(folder)
    target.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(lesson, target / lesson.name)) for lesson in lessons()]


def lessons_command(folder: Annotated[Path, typer.Argument(help="a folder that is new or empty")]) -> None:
    """Copy the lessons into a folder of yours."""
    for copy in copy_lessons(folder):
        typer.echo(f"wrote {copy}")
    typer.echo(f"next:\n  python -m jupyterlab {folder}")
