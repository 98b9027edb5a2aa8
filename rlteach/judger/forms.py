r"""The form of an answer: a number, a list, a set, a tuple, an interval, a matrix, a word, or opaque.

    "x = 3 or x = -1"   Named("x", Items("list", (3, -1)))
    "[2, 7)"            Items("[)", (2, 7))
    "\sqrt{2}"          Opaque: left to the symbolic check

judger/reading.py reads them, judger/exact.py compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlteach.judger.quantity import Based, Number
from rlteach.judger.units import Unit


@dataclass(frozen=True)
class Word:
    """An answer in a word, without case: east, yes, 奇数."""

    text: str


@dataclass(frozen=True)
class Limit:
    """Infinity, with its sign."""

    sign: int


@dataclass(frozen=True)
class Opaque:
    r"""What is not read here, as 18\pi; prose marks running text, which no algebra should see either."""

    text: str
    prose: bool = False
    unit: Unit | None = None


@dataclass(frozen=True)
class Items:
    """Several things. kind: list, set, union, and (any order); (), [], (], [), row, matrix (in order)."""

    kind: str
    items: tuple[Form, ...]
    text: str = ""


@dataclass(frozen=True)
class Named:
    """x = 5: a value and the name it was given."""

    name: str
    item: Form
    text: str = ""


Form = Number | Based | Word | Limit | Opaque | Items | Named


def leaves(form: Form) -> Iterator[Form]:
    """What an answer is made of, without the Named and Items around it; an empty Items is a leaf itself."""
    if isinstance(form, Named):
        yield from leaves(form.item)
    elif isinstance(form, Items) and form.items:
        for item in form.items:
            yield from leaves(item)
    else:
        yield form


def is_interval(form: Form) -> bool:
    return isinstance(form, Items) and form.kind in ("()", "[]", "(]", "[)")


def squeezed(text: str) -> str:
    return "".join(text.split())
