"""Lesson 05: baselines, advantages, and groups that say something."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rlteach.course.checking import Exercise, NotYetError, call, number
from rlteach.oreal.advantage import code_rewards, rloo

GROUPS = ([1, 0, 0, 0], [1, 1, 0], [1, None, 0, 0, 1], [0, 0, 0, 0], [None, 1, 0])
WANTED = ((0.5, 0.9), (0.1, 0.9), (0.1, 0.5), (0.9, 0.5), (0.02, 0.95))
POLICIES = (([0.2, 0.3, 0.5], [1.0, -1.0, -1.0]), ([0.7, 0.2, 0.1], [1.0, 0.0, 0.5]),
            ([0.5, 0.5], [1.0, -1.0]))


def advantages(answer: Any) -> str | None:
    for scores in GROUPS:
        found = call(answer, scores)
        if isinstance(found, str | bytes) or not isinstance(found, Sequence) or len(found) != len(scores):
            raise NotYetError(f"for {scores} a list of {len(scores)} advantages is asked for")
        wanted = rloo(code_rewards([None if s is None else s == 1 for s in scores], "plus_minus"))
        for i, (score, mine, its) in enumerate(zip(scores, found, wanted, strict=True)):
            if score is None:
                if mine is not None:
                    return f"for {scores}, nobody judged answer {i}: what may be said of it is None"
                continue
            if abs(number(mine, f"advantage {i} for {scores}") - its) > 1e-6:
                return (f"for {scores}, advantage {i} is {mine:.3f}, which is off: which rewards are its "
                        "baseline, and how many are they?")
    return None


def mixed(p: float, size: int) -> float:
    return 1 - p**size - (1 - p) ** size


def smallest_group(answer: Any) -> str | None:
    for p, share in WANTED:
        found = number(call(answer, p, share), f"the size for p={p}, share={share}")
        if found != int(found) or found < 1:
            return f"for p={p} this is {found:g}, and a group has a whole number of answers"
        if mixed(p, int(found)) < share:
            return f"for p={p}, groups of {found:g} are mixed {mixed(p, int(found)):.1%} of the time: too few"
        if mixed(p, int(found) - 1) >= share:
            return f"for p={p}, {found:g} answers are enough for {share:.0%}, and a smaller group is, too"
    return None


def best_baseline(answer: Any) -> str | None:
    for pi, reward in POLICIES:
        squares = [sum(q * q for q in pi) + 1 - 2 * q for q in pi]  # |one-hot - pi|^2
        weights = [q * s for q, s in zip(pi, squares, strict=True)]
        best = sum(w * r for w, r in zip(weights, reward, strict=True)) / sum(weights)
        found = number(call(answer, pi, reward), f"the baseline for {pi}")
        if abs(found - best) > 0.005:
            mean = sum(q * r for q, r in zip(pi, reward, strict=True))
            near = " (it is the expected reward)" if math.isclose(found, mean, abs_tol=1e-6) else ""
            return f"for {pi} and rewards {reward}, {found:.3f}{near} is not where the noise is least"
    return None


def _own_mean(scores: list[int | None]) -> list[float | None]:
    known = [2 * s - 1 for s in scores if s is not None]
    return [None if s is None else 2 * s - 1 - sum(known) / len(known) for s in scores]


def _fixed_size(p: float, share: float) -> int:
    return 16


EXERCISES = (
    Exercise("05.1", advantages, r'''
def advantages(scores):
    rewards = [None if s is None else 2 * s - 1 for s in scores]
    known = [r for r in rewards if r is not None]
    total, others = sum(known), len(known) - 1
    return [None if r is None else r - (total - r) / others for r in rewards]
''', {
        "its own reward in the baseline": _own_mean,
        "None counts as wrong": lambda scores: rloo([1.0 if s else -1.0 for s in scores]),
        "rewards 1 and 0": lambda scores: rloo([None if s is None else float(s) for s in scores]),
        "no baseline": lambda scores: [None if s is None else 2 * s - 1 for s in scores],
        "unjudged answers dropped": lambda scores: [2.0 * s - 1 for s in scores if s is not None],
    }),
    Exercise("05.2", smallest_group, r'''
def smallest_group(p, share):
    G = 2
    while 1 - p**G - (1 - p) ** G < share:
        G += 1
    return G
''', {
        "a right answer alone": lambda p, share: math.ceil(math.log(1 - share) / math.log(1 - p)),
        "always the preset's": _fixed_size,
        "one too many": lambda p, share: next(n for n in range(2, 999) if mixed(p, n) >= share) + 1,
        "not a whole number": lambda p, share: math.log(1 - share) / math.log(max(p, 1 - p)),
    }),
    Exercise("05.3", best_baseline, r'''
def best_baseline(pi, reward):
    length = sum(p * p for p in pi)
    weights = [p * (length + 1 - 2 * p) for p in pi]  # pi(s) |grad log pi(s)|^2
    return sum(w * r for w, r in zip(weights, reward)) / sum(weights)
''', {
        "the expected reward": lambda pi, reward: sum(p * r for p, r in zip(pi, reward, strict=True)),
        "none": lambda pi, reward: 0.0,
        "the plain mean": lambda pi, reward: sum(reward) / len(reward),
        "weighed by the length alone": lambda pi, reward: sum(
            r * (sum(q * q for q in pi) + 1 - 2 * p) for p, r in zip(pi, reward, strict=True)) / sum(
            sum(q * q for q in pi) + 1 - 2 * p for p in pi),
    }),
)
