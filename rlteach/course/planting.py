"""Putting a fault back from outside, and taking it away again; and what a fault is in the museum.

No line of the library knows of any of this. A function that other modules imported by name is replaced
wherever a module holds it, a notebook's own names included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal
from unittest import mock


class Patch:
    """What a fault replaces; everything goes back in the opposite order."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def replace(self, owner: ModuleType | type | dict[str, Any], name: str, fault: Any) -> None:
        """Put `fault` where owner's `name` is: an entry of a dict, an attribute of a class or a module, or a
        function of a module, there and in every module that imported it."""
        if isinstance(owner, dict):
            self._undo.enter_context(mock.patch.dict(owner, {name: fault}))
        elif isinstance(owner, ModuleType) and callable(original := getattr(owner, name)):
            _swap(original, fault)
            self._undo.callback(_swap, fault, original)
        else:
            self._undo.enter_context(mock.patch.object(owner, name, fault))

    def around(self, owner: ModuleType | type, name: str, fault: Callable[..., Any]) -> None:
        """Put fault(original, *arguments) there."""
        original = getattr(owner, name)

        def instead(*arguments: Any, **named: Any) -> Any:
            return fault(original, *arguments, **named)

        self.replace(owner, name, instead)


def _swap(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name in [n for n, value in vars(module).items() if value is old]:
                setattr(module, name, new)


@contextmanager
def planted(plant: Callable[[Patch], None]) -> Iterator[None]:
    """The fault inside, none outside, also after an exception. It holds for the whole process: a run in
    another thread meets it, too. May be nested; what was planted last goes first."""
    with ExitStack() as undo:
        plant(Patch(undo))
        yield


def hold(true: bool, otherwise: str) -> None:
    """`assert`, which `python -O` does not take away."""
    if not true:
        raise AssertionError(otherwise)


@dataclass(frozen=True)
class Curve:
    """What shows a fault in a short run (short_run.py).

    metric: the column to look at; within: the step in which it is apart from the healthy run at the latest.
    apart: (healthy value, value under the fault) of one step -> plainly different? NaN: nothing to measure.
    says: how it looks, in a few words.
    settings: config fields of both runs; judger: gives their judge (None: the rule).
    """

    metric: str
    says: str
    apart: Callable[[float, float], bool]
    within: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    judger: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Bug:
    """A fault that a system of this kind really had.

    rows: where it is written down: B1 ... B18 are those of the tutorial's single_train.py, O1 ... O11
        those of the released OREAL code, S1.7 and the like the same with more detail, C04 ... E05 those
        of other systems.
    plant: puts it back. invariant: raises AssertionError under it, and nothing without it.
    explanation: what the code did, and why nobody noticed; a line each.
    curve: what shows it in a short run; None: the curves look as they should.
    """

    name: str
    rows: tuple[str, ...]
    plant: Callable[[Patch], None]
    invariant: Callable[[], None]
    explanation: tuple[str, str]
    curve: Curve | None = None

    @property
    def kind(self) -> Literal["curve", "invariant"]:
        return "invariant" if self.curve is None else "curve"

    @property
    def shown_by(self) -> str:
        """The metric and how it looks, or what its invariant holds."""
        if self.curve is not None:
            return f"{self.curve.metric} {self.curve.says}"
        return " ".join((self.invariant.__doc__ or "").split()).rstrip(".")
