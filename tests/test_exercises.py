"""Exercises: every check accepts its solution, rejects the named wrong answers, and survives anything.

Lessons and exercises name each other, and the folded solution in a lesson is the registered one.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import jupytext
import pytest
import torch

import rlteach as rl
from rlteach.course.checking import Exercise, NotYetError, call, number, numbers, registered

SOURCES = sorted((Path(__file__).resolve().parents[1] / "notebooks" / "src").glob("[0-9][0-9]_*.py"))
EXERCISES = registered()
each_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
each_wrong = pytest.mark.parametrize(
    ("exercise", "answer"), [(e, answer) for e in EXERCISES.values() for answer in e.wrong.values()],
    ids=[f"{e.id} {name}" for e in EXERCISES.values() for name in e.wrong])
each_source = pytest.mark.parametrize("source", SOURCES, ids=[path.stem for path in SOURCES])


class Stubborn:
    """Nothing can be done with it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")

    __float__ = __iter__ = __len__ = __eq__ = __bool__ = __call__ = lambda self, *words: self.no
    __hash__ = None


def fails(*words: Any) -> Any:
    raise ZeroDivisionError("planted")


JUNK: dict[str, Any] = {
    "None": None, "a text": "words", "an empty text": "", "an empty list": [], "an object": object(),
    "NaN": float("nan"), "infinity": float("inf"), "a list of NaN": [float("nan")] * 4, "a dict": {"a": 1},
    "a tensor": torch.zeros(2, 3), "raises": fails, "takes nothing": lambda: 1,
    "returns None": lambda *words: None, "returns NaN": lambda *words: float("nan"),
    "returns a text": lambda *words: "words", "a class": int, "stubborn": Stubborn(),
    "returns something stubborn": lambda *words: Stubborn(),
}


def solved(exercise: Exercise) -> tuple[str, Any]:
    """(name, value) of what the solution's last statement defines."""
    last = ast.parse(exercise.solution).body[-1]
    name = last.name if isinstance(last, ast.FunctionDef) else ast.unparse(last.targets[0])
    space: dict[str, Any] = {"rl": rl}
    exec(exercise.solution, space)
    return name, space[name]


@each_exercise
def test_the_solution_is_right(exercise: Exercise) -> None:
    assert exercise.verdict(solved(exercise)[1]) is None


@each_exercise
def test_three_wrong_answers_have_a_name(exercise: Exercise) -> None:
    assert len(exercise.wrong) >= 3
    assert all(name.strip() for name in exercise.wrong)


@each_wrong
def test_a_wrong_answer_is_told_what_is_off(exercise: Exercise, answer: Any) -> None:
    sentence = exercise.verdict(answer)
    assert isinstance(sentence, str)
    assert len(sentence.split()) >= 4
    assert "\n" not in sentence
    assert "cannot be read" not in sentence


@each_exercise
@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_nothing_breaks_a_check(exercise: Exercise, junk: Any) -> None:
    sentence = exercise.verdict(junk)
    assert isinstance(sentence, str)
    assert sentence.strip()


def handed_in(source: Path) -> list[tuple[str, str]]:
    """(id, name of the answer) of every rl.check in the code of a lesson."""
    code = [c.source for c in jupytext.read(source, fmt="py:percent").cells if c.cell_type == "code"]
    return [(found[1], found[2]) for cell in code
            for found in re.finditer(r'^rl\.check\("([^"]*)", (.+)\)$', cell, re.MULTILINE)]


def folded(source: Path) -> list[str]:
    """The code of every folded solution that has some, in order."""
    prose = [c.source for c in jupytext.read(source, fmt="py:percent").cells if c.cell_type == "markdown"]
    blocks = [cell for cell in prose if cell.startswith("<details><summary>") and cell.endswith("</details>")]
    return [found[1] for block in blocks for found in re.finditer(r"```python\n(.*?)\n```", block, re.DOTALL)]


@each_source
def test_a_lesson_has_exercises_and_their_solutions(source: Path) -> None:
    """Its ids are those that are registered for it, in order; each is followed by its solution, folded."""
    number, used = source.name[:2], handed_in(source)
    known = [e for e in EXERCISES.values() if e.id.startswith(f"{number}.")]
    assert [name for name, _ in used] == [e.id for e in known]
    assert [answer for _, answer in used] == [solved(e)[0] for e in known]
    assert folded(source) == [e.solution.strip() for e in known]
    if number != "00":
        assert 2 <= len(known) <= 4
        assert [e.id for e in known] == [f"{number}.{i + 1}" for i in range(len(known))]


def test_every_exercise_has_a_lesson() -> None:
    assert {name[:2] for name in EXERCISES} <= {source.name[:2] for source in SOURCES}


def double(answer: Any) -> str | None:
    return None if number(call(answer, 3)) == 6 else "3 should become 6"


def test_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = Exercise("98.1", double, "", {})
    monkeypatch.setattr("rlteach.course.checking.registered", lambda: {"98.1": exercise, "98.2": exercise})
    assert rl.check("98.1", lambda x: 2 * x) is None
    rl.check("98.1", lambda x: x)
    rl.check("98.2", fails)
    rl.check("98.2", lambda x: None)
    assert capsys.readouterr().out.splitlines() == [
        "98.1: right",
        "98.1: not yet: 3 should become 6",
        "98.2: not yet: called with (3), it raised ZeroDivisionError: planted",
        "98.2: not yet: called with (3), it returned None: does every path end with return?"]
    for unknown in ("98.3", 98.1, None):
        with pytest.raises(ValueError, match=r"there is no exercise '?.*'?: there are 98\.1, 98\.2"):
            rl.check(unknown, 1)


@pytest.mark.parametrize(
    "answer", [None, "6", True, [6, 7], float("nan"), float("inf"), torch.zeros(2), 10**400])
def test_no_number(answer: Any) -> None:
    with pytest.raises(NotYetError, match=r"number|zero"):
        number(answer)


def test_numbers_of_every_kind() -> None:
    assert number(torch.tensor([2.5])) == 2.5
    assert numbers(torch.tensor([1.0, 2.0]), 2) == numbers((1, 2), 2) == [1.0, 2.0]
    for answer, word in ((3, "a list of 2"), ([1], "holds 1 items: 2"), ([1, None], "item 1 of"),
                         ("12", "str")):
        with pytest.raises(NotYetError, match=word):
            numbers(answer, 2)


def test_a_call_cannot_spoil_its_inputs() -> None:
    inputs = [3, 1, 2]
    assert call(lambda x: (x.sort(), x)[1], inputs) == [1, 2, 3]
    assert inputs == [3, 1, 2]
    with pytest.raises(NotYetError, match="a function is asked for"):
        call(7, 1)
