"""Lesson 06: the best of n, what a term is divided by, and where k3 pulls."""

from __future__ import annotations

from typing import Any

import torch

from rlteach.course.checking import Exercise, NotYetError, call, numbers
from rlteach.oreal.losses import Normalizers

LAWS = (([0.1, 0.25, 0.05, 0.6], [True, False, True, False], 4), ([0.5, 0.5], [True, False], 4),
        ([0.2, 0.3, 0.5], [True, True, False], 1), ([0.9, 0.1], [False, True], 16))
BATCHES = (([4, 6, 10], [True, True, False]), ([7, 3], [False, False]),
           ([5, 5, 5, 9], [True, False, True, True]))
PAIRS = (([0.1, 0.25, 0.65], [0.3, 0.3, 0.4]), ([0.5, 0.5], [0.9, 0.1]), ([0.2, 0.8], [0.2, 0.8]))


def best_of_n(pi: list[float], right: list[bool], n: int) -> list[float]:
    p = sum(q for q, good in zip(pi, right, strict=True) if good)
    up, down = (1 - (1 - p) ** n) / p, (1 - p) ** (n - 1)
    return [q * (up if good else down) for q, good in zip(pi, right, strict=True)]


def law(answer: Any) -> str | None:
    for pi, right, n in LAWS:
        found = numbers(call(answer, pi, right, n), len(pi), f"the law for n={n}")
        if abs(sum(found) - 1) > 1e-6:
            return f"for n={n} these probabilities add up to {sum(found):.3f}, and a law adds up to 1"
        for i, (mine, its) in enumerate(zip(found, best_of_n(pi, right, n), strict=True)):
            if abs(mine - its) > 1e-6:
                kind = "right" if right[i] else "wrong"
                return (f"for {pi}, n={n}, answer {i} ({kind}) has {mine:.4f}, which is off: when is such an "
                        "answer handed in?")
    return None


def divisors(answer: Any) -> str | None:
    for lengths, right in BATCHES:
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        count = Normalizers.count(mask, torch.tensor(right), "token_class")
        found = numbers(call(answer, lengths, right), 3, "the answer")
        names = ("positive", "negative", "KL")
        for name, mine, its in zip(names, found, (count.positive, count.negative, count.kl), strict=True):
            if mine == 0:
                return f"for lengths {lengths} the {name} term is divided by zero: which divisor is safe?"
            if abs(mine - its) > 1e-9:
                return f"for lengths {lengths}, right {right}, the {name} term is not divided by {mine:g}"
    return None


def pull(answer: Any) -> str | None:
    for pi, reference in PAIRS:
        found = numbers(call(answer, pi, reference), len(pi), f"the gradient for {pi}")
        wanted = [a - b for a, b in zip(pi, reference, strict=True)]
        if all(abs(a + b) < 1e-6 for a, b in zip(found, wanted, strict=True)) and any(wanted):
            raise NotYetError(f"for {pi} the sign is turned round: the gradient is where the loss grows")
        if any(abs(a - b) > 1e-6 for a, b in zip(found, wanted, strict=True)):
            return f"for pi {pi} and reference {reference} this is not the gradient of KL(ref, pi)"
    return None


def _softmax_of_infinitely_many(pi: list[float], right: list[bool], n: int) -> list[float]:
    p = sum(q for q, good in zip(pi, right, strict=True) if good)
    return [q / p if good else 0.0 for q, good in zip(pi, right, strict=True)]


EXERCISES = (
    Exercise("06.1", law, r'''
def best_of(pi, right, n):
    p = sum(q for q, good in zip(pi, right) if good)
    up, down = (1 - (1 - p) ** n) / p, (1 - p) ** (n - 1)
    return [q * (up if good else down) for q, good in zip(pi, right)]
''', {
        "the policy itself": lambda pi, right, n: pi,
        "the best of infinitely many": _softmax_of_infinitely_many,
        "wrong ones to the power n": lambda pi, right, n: [
            x * (1 - sum(q for q, g in zip(pi, right, strict=True) if g)) ** (not good)
            for x, good in zip(best_of_n(pi, right, n), right, strict=True)],
        "only right ones scaled": lambda pi, right, n: [
            x if good else q for x, q, good in zip(best_of_n(pi, right, n), pi, right, strict=True)],
    }),
    Exercise("06.2", divisors, r'''
def divisors(lengths, right):
    up = sum(n for n, good in zip(lengths, right) if good)
    down = sum(n for n, good in zip(lengths, right) if not good)
    return [max(up, 1), max(down, 1), max(up + down, 1)]
''', {
        "answers for tokens": lambda lengths, right: [max(sum(right), 1), max(len(right) - sum(right), 1),
                                                      len(right)],
        "all tokens for every term": lambda lengths, right: [sum(lengths)] * 3,
        "zero for a class without answers": lambda lengths, right: [
            sum(n for n, good in zip(lengths, right, strict=True) if good),
            sum(n for n, good in zip(lengths, right, strict=True) if not good), sum(lengths)],
    }),
    Exercise("06.3", pull, r'''
def pull(pi, reference):
    return [p - r for p, r in zip(pi, reference)]
''', {
        "towards the loss": lambda pi, reference: [r - p for p, r in zip(pi, reference, strict=True)],
        "k1's": lambda pi, reference: [0.0] * len(pi),
        "ratios": lambda pi, reference: [p / r - 1 for p, r in zip(pi, reference, strict=True)],
        "weighed by the policy": lambda pi, reference: [
            p * (p - r) for p, r in zip(pi, reference, strict=True)],
    }),
)
