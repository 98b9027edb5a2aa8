"""`rlteach init`: a folder with data, plug-ins, a job and its test, ready to run.

    rlteach init my_search --template search

A template is a folder of this package; what all of them share, and data that rlteach has already, is put
beside it when a workspace is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlteach.config import data_path

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
SHARED = "shared"
# template -> file of the workspace -> (file under data/, how many lines of it; None: all)
COPIES: dict[str, dict[str, tuple[str, int | None]]] = {
    "search": {f"data/{name}.jsonl": (f"search/{name}.jsonl", None)
               for name in ("search_dataset", "search_dataset_dev_100", "search_dataset_test")},
    "weather": {},
    "random_reward": {"data/questions.jsonl": ("prompts/train.jsonl", 400),
                      "data/dev.jsonl": ("prompts/dev.jsonl", 50)},
}
NEXT = ("python -m pytest -q test_local.py", "python job.py")


class WorkspaceError(ValueError):
    """A workspace that cannot be made there; the message says why, and what to do."""


def create_workspace(folder: str | Path, template: str) -> list[Path]:
    """Write a template into a folder that is new or empty; returns what was written, below it.

    Raises:
        WorkspaceError: there is no such template, or the folder holds something.
    """
    if template not in COPIES:
        raise WorkspaceError(f"there is no template {template!r}: choose {', '.join(COPIES)}")
    target = new_or_empty(folder)
    contents = {name: data_path(source).read_bytes() if most is None else first_lines(source, most)
                for name, (source, most) in COPIES[template].items()}
    for source in (TEMPLATES / SHARED, TEMPLATES / template):
        contents |= {name: (source / name).read_bytes() for name in files_of(source)}
    for name, data in contents.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
    return [Path(name) for name in sorted(contents)]


def new_or_empty(folder: str | Path) -> Path:
    """A folder into which many files may be written. Raises WorkspaceError when it holds something."""
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise WorkspaceError(f"{target} is a file: name a new folder")
    if target.is_dir() and (held := sorted(target.iterdir())):
        raise WorkspaceError(f"{target} is not empty (it holds {held[0].name}): name a new folder; nothing "
                             "was written")
    return target


def files_of(template: Path) -> list[str]:
    """The files of a template, without what Python leaves beside modules that were run."""
    found = (path.relative_to(template) for path in template.rglob("*") if path.is_file())
    return [path.as_posix() for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc"]


def first_lines(name: str, most: int) -> bytes:
    return b"".join(data_path(name).read_bytes().splitlines(keepends=True)[:most])


def init_command(
    folder: Annotated[Path, typer.Argument(help="a folder that is new or empty")],
    template: Annotated[str, typer.Option(help=", ".join(COPIES))] = "search",
) -> None:
    """Make a workspace: data, plug-ins, a job and its test."""
    for name in create_workspace(folder, template):
        typer.echo(f"wrote {folder / name}")
    typer.echo(f"next:\n  cd {folder}")
    for command in NEXT:
        typer.echo(f"  {command}")
