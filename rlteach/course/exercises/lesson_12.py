"""Lesson 12: what must hold before the first update, the canary, and scores at the wrong answer."""

from __future__ import annotations

import math
from typing import Any

from rlteach.course.checking import Exercise, call, number

FIRST: tuple[tuple[float, float, bool, str], ...] = (  # ratio, distance, healthy?, what it is
    (4e-6, 0.0, True, "a healthy first step"),
    (0.0, 0.0, True, "a healthy first step, exactly"),
    (8e-4, -2e-9, True, "a healthy first step with rounding errors"),
    (26.3, 0.0, False, "a ratio far from 1"),
    (0.02, 0.0, False, "a ratio that is off by two per cent"),
    (3e-6, 0.01, False, "a policy that is away from the reference before it was trained"),
    (3e-6, -0.01, False, "a distance below 0"),
    (0.5, 0.5, False, "both of them off"))
DEALT: tuple[tuple[list[str], list[float], bool, str], ...] = (
    (["12", "7", "12"], [1.0, 0.0, 1.0], True, "every score in its place"),
    (["12", "7", "12"], [0.0, 1.0, 1.0], False, "two scores exchanged"),
    (["12", "7", "12"], [1.0, 1.0, 0.0], False, "the last two exchanged"),
    (["7", "12"], [1.0, 0.0], False, "the two turned round"),
    (["7", "7"], [0.0, 0.0], True, "all wrong, and so scored"),
    (["12", "7"], [1.0], False, "a score too few"),
    (["12"], [0.0], False, "a right answer with score 0"))
LOGPROB = -math.log(math.exp(100) + 7)


def is_twelve(text: str) -> float:
    return float(text == "12")


def first_step_ok(answer: Any) -> str | None:
    for ratio, distance, healthy, what in FIRST:
        m = {"ratio/max_deviation": ratio, "kl/reference": distance, "reward/mean": 0.3}
        if bool(call(answer, m)) != healthy:
            return f"{what} ({ratio:g} and {distance:g}) should give {healthy}"
    return None


def logprob(answer: Any) -> str | None:
    found = number(answer, "the log-probability")
    if abs(found - LOGPROB) < 0.1:
        return None
    if found > 0:
        return f"a log-probability is never above 0, and this is {found:g}"
    if abs(found) < 0.1:
        return "this is the right label's: after the second shift the label is another token"
    return f"{found:g} is not it: which logit has the wrong label, and what is the sum over all eight?"


def dealt_right(answer: Any) -> str | None:
    for answers, scores, right, what in DEALT:
        if bool(call(answer, answers, scores, is_twelve)) != right:
            return f"{what}: {answers} with {scores} should give {right}"
    return None


EXERCISES = (
    Exercise("12.1", first_step_ok, r'''
def first_step_ok(m):
    return m["ratio/max_deviation"] < 1e-3 and abs(m["kl/reference"]) < 1e-6
''', {
        "exact equality": lambda m: m["ratio/max_deviation"] == 0 and m["kl/reference"] == 0,
        "only the ratio": lambda m: m["ratio/max_deviation"] < 1e-3,
        "only the distance": lambda m: abs(m["kl/reference"]) < 1e-6,
        "a distance above 0": lambda m: m["ratio/max_deviation"] < 1e-3 and m["kl/reference"] > 0,
        "a sign forgotten": lambda m: m["ratio/max_deviation"] < 1e-3 and m["kl/reference"] < 1e-6,
        "one of the two": lambda m: m["ratio/max_deviation"] < 1e-3 or abs(m["kl/reference"]) < 1e-6,
        "always content": lambda m: True,
    }),
    Exercise("12.2", logprob, r'''
import math

logprob = 0 - math.log(math.exp(100) + 7)
''', {
        "the right label": 0.0,
        "a uniform guess": -math.log(8),
        "the sign": 100.0,
        "the 30 of section 1": -30.0,
        "a mean over the vocabulary": -100 / 8,
    }),
    Exercise("12.3", dealt_right, r'''
def dealt_right(answers, scores, judge):
    return [judge(answer) for answer in answers] == list(scores)
''', {
        "sums": lambda answers, scores, judge: sum(map(judge, answers)) == sum(scores),
        "sorted": lambda answers, scores, judge: sorted(map(judge, answers)) == sorted(scores),
        "sets": lambda answers, scores, judge: set(map(judge, answers)) == set(scores),
        "only the first": lambda answers, scores, judge: judge(answers[0]) == scores[0],
        "places beyond the shorter list": lambda answers, scores, judge: all(
            judge(a) == s for a, s in zip(answers, scores, strict=False)),
        "always content": lambda answers, scores, judge: True,
    }),
)
