"""Selection: which members of a group are trained on.

Selection returns indices and never drops anything: the group keeps all its members, and its
advantages were taken from all of them before. A group without both a right and a wrong answer
says nothing about what to change, so `one_pair` and `mixed` keep none of it (Alg. 1: 0 < p < 1).
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def select(
    positive: Sequence[bool | None], rule: str, rng: random.Random
) -> tuple[int, ...]:
    """Indices of the kept members, in ascending order; () when the group is not kept.

    Args:
        positive: [G] True / False / None (unscorable).
        rule: one_pair (one right and one wrong member, drawn at random: the paper's Alg. 1),
            mixed (every scorable member of a group with both), all (every scorable member).
        rng: used by one_pair only.

    >>> select([True, False, None, False], "mixed", random.Random(0))
    (0, 1, 3)
    >>> select([True, True, None], "one_pair", random.Random(0))
    ()
    """
    right = [i for i, p in enumerate(positive) if p]
    wrong = [i for i, p in enumerate(positive) if p is not None and not p]
    if len(right) + len(wrong) < 2 or (rule != "all" and not (right and wrong)):
        return ()
    if rule == "one_pair":
        return tuple(sorted((rng.choice(right), rng.choice(wrong))))
    if rule in ("mixed", "all"):
        return tuple(sorted(right + wrong))
    raise ValueError(f"selection must be one_pair, mixed or all; got {rule!r}")
