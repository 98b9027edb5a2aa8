"""The bug museum: faults that systems of this kind really had, each behind a name.

    with rl.museum.bug("double_shift"):       put it back, and take it away at the end of the block
        history = rl.museum.run("double_shift")
    rl.museum.bugs()                          the catalogue
    rl.museum.invariant("double_shift")       the check that catches it: raises AssertionError, or holds
    with rl.museum.mystery(3): ...            one of them, and you do not know which
    rl.museum.guess(3, "double_shift")
    rl.museum.explain("double_shift")

A fault is planted from outside, for the whole process (planting.py). The exhibits are in course/bugs/.
"""

from __future__ import annotations

import difflib
import pkgutil
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING

from rlteach.course import bugs as rooms
from rlteach.course.planting import Bug, planted
from rlteach.course.short_run import short_run
from rlteach.views.exercises import say, show_verdict

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Bug", "bug", "bugs", "catalogue", "explain", "guess", "invariant", "mystery", "run"]


@cache
def catalogue() -> dict[str, Bug]:
    """name -> Bug, for every module of course/bugs/, in order."""
    names = sorted(module.name for module in pkgutil.iter_modules(rooms.__path__))
    found = [b for name in names for b in import_module(f"{rooms.__name__}.{name}").BUGS]
    return {b.name: b for b in found}


def bug(name: str) -> AbstractContextManager[None]:
    """`with bug("double_shift"):` the fault is there inside the block, also for what runs in other threads.

    Raises:
        ValueError: there is no such bug; the message lists the names.
    """
    return planted(_named(name).plant)


def bugs() -> pd.DataFrame:
    """One row a bug: name, row (where it is written down), kind, shown by, within (steps)."""
    import pandas as pd

    frame = pd.DataFrame([{
        "name": b.name, "row": ", ".join(b.rows), "kind": b.kind, "shown by": b.shown_by,
        "within": b.curve.within if b.curve else None} for b in catalogue().values()])
    return frame.astype({"within": "Int64"}).set_index("name")


def run(which: str | int, *, seed: int = 0, steps: int | None = None) -> pd.DataFrame:
    """The history of the short run that shows bug `which` (a name, or the number of a mystery), or of its
    first `steps`. It plants nothing: run it outside `with bug(...)` for the healthy curves, and inside for
    the others."""
    curve = _named(which).curve
    if curve is None:
        return short_run(seed=seed, steps=steps)
    judger = curve.judger() if curve.judger else None
    dev = curve.metric == "dev/accuracy"
    return short_run(judger, dev=dev, seed=seed, steps=steps, **curve.settings)


def invariant(which: str | int) -> None:
    """Check what bug `which` breaks; print that it holds.

    Raises:
        AssertionError: it does not hold.
    """
    found = _named(which)
    found.invariant()
    what = found.shown_by if found.curve is None else " ".join((found.invariant.__doc__ or "").split())
    say("holds" if isinstance(which, int) else f"holds: {what}")


def mystery(number: int) -> AbstractContextManager[None]:
    """Bug number 1, 2, ... of an order that was shuffled once and stays; `guess` says whether you know it."""
    return planted(_named(number).plant)


def guess(number: int, name: str) -> None:
    """Print whether mystery `number` is bug `name`; the answer is not given away."""
    thought, really = _named(name), _named(number)
    off = None if thought is really else f"{thought.name} is not it"
    if off and thought.kind == really.kind == "curve" and thought.curve.metric == really.curve.metric:
        off += ", but it shows in the same metric"
    show_verdict(f"mystery {number}", off)


def explain(which: str | int) -> None:
    """Print the two lines about a bug, and where it is written down."""
    found = _named(which)
    say("\n".join((f"{found.name} ({', '.join(found.rows)})", *found.explanation)))


def _named(which: str | int) -> Bug:
    known = catalogue()
    if isinstance(which, int) and not isinstance(which, bool):
        if not 1 <= which <= len(known):
            raise ValueError(f"there is no mystery {which}: they go from 1 to {len(known)}")
        return known[Random("museum").sample(sorted(known), len(known))[which - 1]]
    if which not in list(known):  # a list has no hash
        near = difflib.get_close_matches(str(which), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"there is no bug {which!r}{hint}: there are {', '.join(sorted(known))}")
    return known[which]
