"""Lesson 03: judgers, what fools them, and how many answers a share needs."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from rlteach.course.checking import Exercise, NotYetError, call, number
from rlteach.data import load_samples
from rlteach.judger.rule import RuleJudger
from rlteach.training.evaluate import wilson
from rlteach.types import FinishReason, Message, Sample, Trajectory

Case = tuple[str, str, FinishReason, float | None, str]  # gold, answer, how it ended, score, what it is about
CASES: tuple[Case, ...] = (
    ("85", r"7+8=15, 4+3+1=8, \boxed{85}", "stop", 1.0, "this is right"),
    ("85", r"\boxed{85}, in 2 steps", "stop", 1.0, "what stands after the box is no answer"),
    ("85", "so it is 85", "stop", 0.0, "there is no box"),
    ("85", r"85 is too much, \boxed{75}", "stop", 0.0, "the box holds something else"),
    ("85", r"\boxed{185}", "stop", 0.0, "85 is only a part of what the box holds"),
    ("85", r"\boxed{75} no, \boxed{85}", "stop", 1.0, "the last box counts"),
    ("85", r"\boxed{85} no, \boxed{75}", "stop", 0.0, "the last box counts"),
    ("-3", r"\boxed{-3}", "stop", 1.0, "a whole number may be below zero"),
    ("85", r"\boxed{85} then", "length", 0.0, "it was cut off"),
    ("see solution", r"\boxed{85}", "stop", None, "this gold answer is no whole number"),
    ("85", "", "stop", 0.0, "there is no box"),
)


def answered(gold: str, text: str, ended: FinishReason = "stop") -> tuple[Sample, Trajectory]:
    """A question with this gold answer, and this text as an answer to it."""
    asked = Message("user", "What is 47 + 38?")
    return (Sample("exercise", (asked,), (gold,)),
            Trajectory((asked, Message("assistant", text)), (), (), (), 0, ended))


def own_judger(answer: Any) -> str | None:
    for gold, text, ended, wanted, about in CASES:
        found = call(answer, *answered(gold, text, ended), may_be_none=True)
        case = f"gold {gold!r}, answer {text!r}, finish reason {ended}"
        score = found if found is None else number(
            float(found) if isinstance(found, bool) else found, f"the score for {case}")
        if score != wanted:
            return f"{case}: it gives {score}, but {about}"
    return None


def width(n: int) -> float:
    """Of the Wilson interval when half of n answers are right."""
    low, high = wilson(n / 2, n)  # type: ignore[arg-type]
    return high - low


def enough_answers(answer: Any) -> str | None:
    found = number(answer)
    if found != int(found) or found < 1:
        return f"{found:g} answers cannot be given: a whole number above 0 is asked for"
    n = int(found)
    if width(n) > 0.1:
        return f"with {n} answers the interval is {100 * width(n):.1f} points wide: that is too wide"
    if n > 2 and width(n - 2) <= 0.1:
        return f"with {n} answers the interval is {100 * width(n):.1f} points wide, but fewer would do"
    return None


@cache
def sums_of_two_digits() -> tuple[Sample, ...]:
    return tuple(s for s in load_samples("prompts/dev.jsonl") if s.extra["level"] == 2)


def fooling_text(answer: Any) -> str | None:
    if not isinstance(answer, str):
        raise NotYetError(f"a text is asked for, and this is of type {type(answer).__name__}")
    questions = sums_of_two_digits()
    won = sum(s.gold[0] in answer for s in questions)
    if won < len(questions):
        return f"the naive rule accepts this for {won} of {len(questions)} questions"
    judger = RuleJudger()
    right = sum(judger.judge(s, answered(s.gold[0], answer)[1]).score == 1 for s in questions)
    return f"RuleJudger calls this right for {right} questions: leave out the box" if right else None


def by_box(which: int, strict: bool = True) -> Any:
    """A judger that reads box `which` of an answer; unless strict, it takes every gold and every end."""
    def judge(sample: Sample, trajectory: Trajectory) -> float | None:
        if strict and (trajectory.finish_reason == "length" or not re.fullmatch(r"-?\d+", sample.gold[0])):
            return 0.0 if trajectory.finish_reason == "length" else None
        boxes = re.findall(r"\\boxed\{([^{}]*)\}", trajectory.response)
        return float(bool(boxes) and boxes[which] == sample.gold[0])
    return judge


def last_number(sample: Sample, trajectory: Trajectory) -> float:
    found = re.findall(r"-?\d+", trajectory.response)
    return float(bool(found) and found[-1] == sample.gold[0])


EXERCISES = (
    Exercise("03.1", own_judger, r'''
import re


def judge(sample, trajectory):
    [gold] = sample.gold
    if not re.fullmatch(r"-?\d+", gold):
        return None
    if trajectory.finish_reason == "length":
        return 0.0
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", trajectory.response)
    return 1.0 if boxes and boxes[-1] == gold else 0.0
''', {
        "the gold answer anywhere in the text": lambda s, t: float(s.gold[0] in t.response),
        "the last number": last_number,
        "the first box": by_box(0),
        "an answer that was cut off, and a gold answer that nobody can read": by_box(-1, strict=False),
        "right for everybody": lambda s, t: 1.0,
        "unscorable for everybody": lambda s, t: None,
    }),
    Exercise("03.2", enough_answers, r'''
from rlteach.training.evaluate import wilson


def width(n):
    low, high = wilson(n // 2, n)
    return high - low


n = next(n for n in range(2, 10_000, 2) if width(n) <= 0.10)
''', {
        "one over the width": 10,
        "ten points to each side": 93,
        "the rule of thumb 1 / 0.05 squared": 400,
        "two and a half points to each side": 1533,
        "half an answer": 381.5,
    }),
    Exercise("03.3", fooling_text, r'''
text = " ".join(str(n) for n in range(199))
''', {
        "nothing": "",
        "all digits": "0123456789",
        "one right answer": r"7+8=15, 4+3+1=8, \boxed{85}",
        "numbers that stop too early": " ".join(str(n) for n in range(100)),
        "a number in place of a text": 85,
    }),
)
