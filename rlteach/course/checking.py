"""Exercises that check themselves: `rl.check("05.2", answer)`.

An answer is judged by what it does: a number within a tolerance, a function by what it returns for several
inputs. Exercises live in rlteach/course/exercises/, one module a lesson; every module that lies there counts.
"""

from __future__ import annotations

import copy
import math
import pkgutil
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rlteach.course import exercises
from rlteach.views.exercises import show_verdict


class NotYetError(Exception):
    """Why an answer is not right yet, in one sentence; `Exercise.verdict` hands the sentence on."""


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson.

    id: "05.2", the second of lesson 05.
    check: answer -> None (right), or one sentence that says what is off and does not give the solution away.
        It may raise NotYetError instead, and so do the readers below.
    solution: code that runs alone (`rl` is there). Its last statement assigns or defines what is handed in.
        The lesson shows the same code, folded.
    wrong: what a wrong answer stands for -> that answer; three or more.
    """

    id: str
    check: Callable[[Any], str | None]
    solution: str
    wrong: Mapping[str, Any]

    def verdict(self, answer: Any) -> str | None:
        """None for a right answer, else what is off. Raises nothing, whatever the answer is or does."""
        try:
            return self.check(answer)
        except NotYetError as reason:
            return str(reason)
        except Exception as error:
            return f"this answer cannot be read: {type(error).__name__}: {error}"


def check(name: str, answer: Any) -> None:
    """Print whether `answer` solves exercise `name` ("05.2"), and if not, what is off.

    Raises ValueError for an exercise that does not exist; the message names those that do.
    """
    known = registered()
    if name not in known:
        raise ValueError(f"there is no exercise {name!r}: there are {', '.join(known)}")
    show_verdict(name, known[name].verdict(answer))


def registered() -> dict[str, Exercise]:
    """id -> Exercise, for every exercise of every lesson, in the order of their numbers."""
    names = sorted(module.name for module in pkgutil.iter_modules(exercises.__path__))
    found = [e for name in names for e in import_module(f"{exercises.__name__}.{name}").EXERCISES]
    return {e.id: e for e in found}


def number(answer: Any, what: str = "the answer") -> float:
    """A finite number, be it an int, a float or a tensor of one element. Raises NotYetError."""
    if answer is None:
        raise NotYetError(f"{what} is None: a number is asked for")
    if isinstance(answer, str | bytes | bool):
        raise NotYetError(f"{what} is {reprlib.repr(answer)}: a number is asked for")
    try:
        value = float(answer)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise NotYetError(f"{what} is of type {type(answer).__name__}: a number is asked for") from None
    if not math.isfinite(value):
        raise NotYetError(f"{what} is {value}: something was divided by zero, or log(0) was taken")
    return value


def numbers(answer: Any, count: int, what: str = "the answer") -> list[float]:
    """`count` finite numbers, from a list, a tuple, an array or a tensor. Raises NotYetError."""
    if isinstance(answer, str | bytes | Mapping | set):
        raise NotYetError(f"{what} is a {type(answer).__name__}: a list of {count} numbers is asked for")
    try:
        items = list(answer)
    except TypeError:
        shown = reprlib.repr(answer)
        raise NotYetError(f"{what} is {shown}: a list of {count} numbers is asked for") from None
    if len(items) != count:
        raise NotYetError(f"{what} holds {len(items)} items: {count} are asked for")
    return [number(item, f"item {i} of {what}") for i, item in enumerate(items)]


def call(function: Any, *arguments: Any, may_be_none: bool = False) -> Any:
    """What the learner's function returns for copies of the arguments. Raises NotYetError."""
    if not callable(function):
        raise NotYetError(f"a function is asked for, and this is {reprlib.repr(function)}")
    shown = ", ".join(map(reprlib.repr, arguments))
    try:
        value = function(*copy.deepcopy(arguments))
    except Exception as error:
        raise NotYetError(f"called with ({shown}), it raised {type(error).__name__}: {error}") from None
    if value is None and not may_be_none:
        raise NotYetError(f"called with ({shown}), it returned None: does every path end with return?")
    return value
