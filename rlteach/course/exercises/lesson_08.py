"""Lesson 08: what may be reported, and how far it can be trusted."""

from __future__ import annotations

from typing import Any

from rlteach.course.checking import Exercise, call, number
from rlteach.training.evaluate import wilson

RUNS: tuple[tuple[list[float], list[float], float], ...] = (  # dev, test, the result
    ([0.5, 0.7, 0.6], [0.52, 0.66, 0.71], 0.66), ([0.8, 0.6, 0.8, 0.7], [0.75, 0.61, 0.78, 0.83], 0.78),
    ([0.9, 0.4, 0.3], [0.45, 0.5, 0.55], 0.45), ([0.61], [0.58], 0.58))
WIDTH, NARROWEST, WIDEST = 0.06, 0.0597, 0.0602  # a handful of questions more or less does not matter
MISSES = 1 - 0.95**20


def to_report(answer: Any) -> str | None:
    for dev, test, right in RUNS:
        found = number(call(answer, dev, test), "the share")
        if abs(found - right) < 1e-9:
            continue
        place = f"for dev {dev} and test {test} this is {found:g}"
        if found not in test:
            return f"{place}, which is no share of one checkpoint on test"
        if dev[test.index(found)] == max(dev):
            return f"{place}: of those that are equally good on dev the later is taken"
        if found == max(test):
            return f"{place}: here test has chosen, and then it is no measurement any more"
        return f"{place}: which set of questions chooses the checkpoint?"
    return None


def questions_needed(answer: Any) -> str | None:
    n = round(number(answer, "the number of questions"))
    if not 1 <= n <= 1e9:
        return f"a number of questions is asked for, 1 or more, and this is {n}"
    low, high = wilson(n / 2, n)
    if NARROWEST <= high - low <= WIDEST:
        return None
    return f"with {n} questions the interval goes from {low:.2%} to {high:.2%}, and is not {WIDTH:.0%} wide"


def some_miss(answer: Any) -> str | None:
    found = number(answer, "the chance")
    if not 0 <= found <= 1:
        return f"a probability lies between 0 and 1, and this is {found:g}"
    if abs(found - (1 - MISSES)) < 2e-3:
        return "this is the chance that all twenty intervals hold the truth: the question is the opposite"
    return None if abs(found - MISSES) < 2e-3 else (
        f"{found:.3g} is not it: how probable is it that all twenty intervals hold the truth?")


EXERCISES = (
    Exercise("08.1", to_report, r'''
def to_report(dev, test):
    best = max(range(len(dev)), key=lambda i: (dev[i], i))
    return test[best]
''', {
        "the best on test": lambda dev, test: max(test),
        "the last step": lambda dev, test: test[-1],
        "the share on dev": lambda dev, test: max(dev),
        "of equal ones the earlier": lambda dev, test: test[dev.index(max(dev))],
        "a mean over the run": lambda dev, test: sum(test) / len(test),
        "the place in place of the share": lambda dev, test: dev.index(max(dev)),
    }),
    Exercise("08.2", questions_needed, r'''
import math

n_test = math.ceil((1.96 / 0.03) ** 2 * 0.5 * 0.5)
''', {
        "the whole width for half of it": 267,
        "half the width for the whole": 4269,
        "one standard error": 278,
        "no square": 33,
        "the share in place of its variance": 2135,
        "a round number": 1000,
    }),
    Exercise("08.3", some_miss, r'''
chance = 1 - 0.95**20
''', {
        "one interval": 0.05,
        "chances added up": 1.0,
        "all of them hold": 0.95**20,
        "all of them miss": 0.05**20,
        "one tail only": 1 - 0.975**20,
    }),
)
