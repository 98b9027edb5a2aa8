"""Lesson 08 in fifty random orders: each cell works, or its error names what is missing.

A name that no cell has set yet is a NameError with that name; a stage that came too early is a ValueError
with the call to make. Runs are made short from outside: Config.preset, and a data folder of few questions.
"""

from __future__ import annotations

import ast
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import jupytext
import pytest

import rlteach as rl
from rlteach.training.run import Run

pytestmark = pytest.mark.gate
ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "notebooks" / "src" / "08_training_and_an_honest_evaluation.py"
CELLS = [cell.source for cell in jupytext.read(SOURCE, fmt="py:percent").cells if cell.cell_type == "code"]
ORDERS, QUESTIONS, STEPS = 50, 12, 2


def names_set(cells: list[str]) -> set[str]:
    """Every name that a cell assigns, imports or defines."""
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell))]
    return ({n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            | {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
            | {alias.asname or alias.name.split(".")[0] for n in nodes
               if isinstance(n, ast.Import | ast.ImportFrom) for alias in n.names})


SET = names_set(CELLS)


@pytest.fixture(scope="module")
def few_questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the lesson, with so few questions that an exam takes no time."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copytree(rl.data_path("models/tiny-math"), folder / "models" / "tiny-math")
    (folder / "prompts").mkdir()
    for path in rl.data_path("prompts").glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = lines if path.stem == "train" else lines[:QUESTIONS]
        (folder / "prompts" / path.name).write_text("".join(kept), encoding="utf-8")
    return folder


@pytest.fixture
def short(few_questions: Path, monkeypatch: pytest.MonkeyPatch) -> list[rl.Config]:
    """Every preset that is asked for takes two steps of four questions; the configs that were made."""
    made, preset = [], rl.Config.preset

    def small(name: str = "tiny", **changes: object) -> rl.Config:
        made.append(preset(name, **{**changes, "total_steps": STEPS, "batch_size": 4}))
        return made[-1]

    monkeypatch.setenv("RLTEACH_DATA", str(few_questions))
    monkeypatch.setattr(rl.Config, "preset", staticmethod(small))
    return made


class Kept(tempfile.TemporaryDirectory):
    """Not forgotten: pytest counts a folder that the collector of garbage has to remove."""

    folders: ClassVar[list[Kept]] = []

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.folders.append(self)


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the cells share, like a kernel's; a run that was left under way is ended."""
    names: dict[str, Any] = {}
    monkeypatch.setattr(tempfile, "TemporaryDirectory", Kept)
    yield names
    while Kept.folders:
        Kept.folders.pop().cleanup()
    if isinstance(run := names.get("run"), Run):
        run.stop()
        run.wait()


def run_cell(at: int, space: dict[str, Any]) -> Exception | None:
    try:
        exec(compile(CELLS[at], f"cell {at}", "exec"), space)
    except Exception as error:
        return error
    return None


def names_what_is_missing(error: Exception) -> bool:
    """NameError: a name that a cell sets. ValueError: a sentence with the call to make."""
    if isinstance(error, NameError):
        return error.name in SET and f"'{error.name}'" in str(error)
    return isinstance(error, ValueError) and re.search(r"\bcall \w+(\.\w+)*\(", str(error)) is not None


def test_from_top_to_bottom_every_cell_works(short: list[rl.Config], space: dict[str, Any]) -> None:
    for at in range(len(CELLS)):
        assert run_cell(at, space) is None, CELLS[at]
    assert {config.total_steps for config in short} == {STEPS}
    assert len(space["exam"]) == QUESTIONS
    assert all(record.index <= STEPS for record in space["run"].trainer.history)


@pytest.mark.parametrize("seed", range(ORDERS))
def test_in_any_order(seed: int, short: list[rl.Config], space: dict[str, Any]) -> None:
    """Half of the orders begin with the imports: without them nearly every cell stops at `rl`. After every
    tenth the whole lesson works, in the kernel that the order left behind."""
    order = random.Random(seed).sample(range(len(CELLS)), len(CELLS))
    if seed % 2:
        order.remove(0)
        order.insert(0, 0)
    worked = []
    for at in order:
        error = run_cell(at, space)
        if error is None:
            worked.append(at)
        elif not names_what_is_missing(error):
            raise AssertionError(f"order {order}, cell {at}:\n{CELLS[at]}") from error
    assert 0 in worked
    for at in range(len(CELLS) if seed % 10 == 0 else 0):  # whatever happened before
        assert run_cell(at, space) is None, f"from top to bottom, after order {order}:\n{CELLS[at]}"


def test_what_counts_as_naming_it(space: dict[str, Any]) -> None:
    last = next(at for at, cell in enumerate(CELLS) if "rl.check" in cell)
    error = run_cell(last, space)
    assert names_what_is_missing(error)
    assert error.name == "rl"
    for other in (NameError("name 'nobody' is not defined", name="nobody"), ValueError("no"), KeyError("a"),
                  IndexError("list index out of range"), ValueError("not enough values to unpack")):
        assert not names_what_is_missing(other)
    assert names_what_is_missing(ValueError("not yet: call trainer.grade(groups) first"))
