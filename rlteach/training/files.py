"""Files and folders that are there whole or not at all: written beside their place and renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Nobody reads half of it: a reader sees the old file or the new one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """An object, indented, with a line's end."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill; it takes the place of `folder` when the block ends well."""
    part, old = (folder.with_name(folder.name + end) for end in (".part", ".old"))
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    yield part
    if folder.exists():  # a folder cannot be renamed onto one that holds something
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
