"""Lesson 07: weights of tokens, one token against all others, and the AUC."""

from __future__ import annotations

import math
from typing import Any

from rlteach.course.checking import Exercise, call, number, numbers

ANSWERS = (([0.4, 0.1, -3.0], False), ([0.4, 0.1, -3.0], True), ([0.0, 0.0], False), ([5.0], True),
           ([-0.5, 2.0, -8.0, 1.0], False))
LENGTHS = (2, 35, 6, 1000)
SCORES = (([3.0, 1.0], [2.0, 0.0]), ([1.0, 1.0], [1.0]), ([0.0], [1.0, 2.0]), ([2.0, 2.0, 5.0], [2.0, 4.0]))


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def equation_10(w: list[float], right: bool) -> list[float]:
    sign = 1 if right else -1
    return [max(2 * sigma(sign * x) - 1, 0.0) for x in w]


def weights(answer: Any) -> str | None:
    for w, right in ANSWERS:
        found = numbers(call(answer, w, right), len(w), f"the weights of {w}")
        for x, mine, its in zip(w, found, equation_10(w, right), strict=True):
            if mine < 0:
                return f"a token with w = {x} has a weight below zero: that would turn its push round"
            if abs(mine - its) > 1e-6:
                return f"in a {'right' if right else 'wrong'} answer, w = {x} does not weigh {mine:.3f}"
    return None


def one_against_all(answer: Any) -> str | None:
    for length in LENGTHS:
        found = number(call(answer, length), f"w for T={length}")
        if abs(found - (1 - length)) > 1e-6:
            mean = (length - 1 + found) / length
            return f"for T={length} and w = {found:g}, the mean is {mean:.3f} and p(s) is {sigma(mean):.3f}"
    return None


def share_in_order(right: list[float], wrong: list[float]) -> float:
    return sum((a > b) + 0.5 * (a == b) for a in right for b in wrong) / (len(right) * len(wrong))


def area(answer: Any) -> str | None:
    for right, wrong in SCORES:
        found = number(call(answer, right, wrong), f"the area for {right} and {wrong}")
        if abs(found - share_in_order(right, wrong)) > 1e-6:
            pairs = len(right) * len(wrong)
            return f"for {right} and {wrong} it is not {found:.3f}: of {pairs} pairs, how many are in order?"
    return None


EXERCISES = (
    Exercise("07.1", weights, r'''
import math


def weights(w, right):
    sign = 1 if right else -1
    return [max(2 / (1 + math.exp(-sign * x)) - 1, 0.0) for x in w]
''', {
        "all alike": lambda w, right: [1.0] * len(w),
        "as if every answer were right": lambda w, right: equation_10(w, True),
        "not cut at zero": lambda w, right: [(2 * sigma(x) - 1) * (1 if right else -1) for x in w],
        "sigma alone": lambda w, right: [sigma(x if right else -x) for x in w],
    }),
    Exercise("07.2", one_against_all, r'''
def one_against_all(length):
    return -(length - 1)
''', {
        "its own size": lambda length: -1.0,
        "all tokens counted": lambda length: -length,
        "the sign": lambda length: length - 1,
    }),
    Exercise("07.3", area, r'''
def area(right_scores, wrong_scores):
    pairs = [(a, b) for a in right_scores for b in wrong_scores]
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
''', {
        "a tie counts nothing": lambda right, wrong: sum(a > b for a in right for b in wrong)
        / (len(right) * len(wrong)),
        "a tie counts whole": lambda right, wrong: sum(a >= b for a in right for b in wrong)
        / (len(right) * len(wrong)),
        "turned round": lambda right, wrong: 1 - share_in_order(right, wrong),
        "means compared": lambda right, wrong: float(sum(right) / len(right) > sum(wrong) / len(wrong)),
    }),
)
