"""Lesson 11: what a lucky trick is worth, when to stop, and what says nothing."""

from __future__ import annotations

from typing import Any

from rlteach.course.checking import Exercise, call, number
from rlteach.judger.candidates import has_content

SIZES = ((0, 16), (0, 2), (3, 4), (7, 8), (4, 9))  # right answers among the others, answers in the group
GAP = 0.1
RUNS: tuple[tuple[list[float], list[float], int | None], ...] = (  # reward, held-out accuracy, the alarm
    ([0.1, 0.2, 0.4], [0.6, 0.65, 0.7], None), ([0.1, 0.3, 0.6, 0.8], [0.6, 0.4, 0.2, 0.0], 1),
    ([0.1, 0.3, 0.5, 0.7], [0.3, 0.6, 0.45, 0.2], 2), ([0.5, 0.5, 0.51], [0.6, 0.3, 0.1], None),
    ([0.1, 0.15, 0.4, 0.1], [0.6, 0.4, 0.55, 0.1], None), ([0.2, 0.4, 0.9], [0.6, 0.58, 0.3], 2))
EMPTY = (":", "", " ", "}", "Solution", "solution:", "Thought process:", "**Solution**", "\\boxed{}", "...")
TELLING = ("7", "-5", "869", "x", "85 apples", "yes", "the solution is 12", "a solution of x = 3")


def worth_of_a_trick(answer: Any) -> str | None:
    for right, n in SIZES:
        found = number(call(answer, right, n), f"the advantage for right={right}, n={n}")
        wanted = 2 * (n - 1 - right) / (n - 1)
        if abs(found - wanted) > 1e-6:
            return (f"for right={right}, n={n} this is {found:.3f}, which is off: the baseline is the mean "
                    "reward of the others, and each of them has +1 or -1")
    return None


def first_alarm(answer: Any) -> str | None:
    for reward, accuracy, wanted in RUNS:
        found = call(answer, reward, accuracy, may_be_none=True)
        place = f"for reward {reward} and accuracy {accuracy}"
        if found is not None:
            found = number(found, f"the place {place}")
        if found == wanted:
            continue
        if wanted is None:
            return f"{place} this is {found:g}, and nothing is wrong there: both have to be so, at once"
        if found is None:
            return f"{place} there is no alarm: look at the best accuracy so far, not only at the first one"
        early = "too early" if found < wanted else "too late"
        return f"{place} the alarm comes at place {found:g}, which is {early} (the first place is 0)"
    return None


def tells_something(answer: Any) -> str | None:
    for texts, wanted in ((EMPTY, False), (TELLING, True)):
        for text in texts:
            found = call(answer, text)
            if not isinstance(found, bool):
                return f"for {text!r} it returns no True and no False"
            if found != wanted:
                return (f"{text!r} says something, and is refused" if wanted
                        else f"{text!r} says nothing, and a judge would have to read it")
    return None


def _letters(text: str) -> bool:
    return any(c.isalnum() for c in text)


EXERCISES = (
    Exercise("11.1", worth_of_a_trick, r'''
def worth(right, n):
    others = n - 1
    mean = (right - (others - right)) / others
    return 1 - mean
''', {
        "the trick is in its own baseline": lambda right, n: 1 - (2 * (right + 1) - n) / n,
        "rewards of 1 and 0": lambda right, n: 1 - right / (n - 1),
        "the others are all wrong": lambda right, n: 2.0,
        "the sign turned round": lambda right, n: -2 * (n - 1 - right) / (n - 1),
        "a sum, not a mean": lambda right, n: 1 - (2 * right - (n - 1)),
    }),
    Exercise("11.2", first_alarm, r'''
def alarm(reward, accuracy):
    for i in range(len(reward)):
        risen = reward[i] >= reward[0] + 0.1
        fallen = accuracy[i] <= max(accuracy[: i + 1]) - 0.1
        if risen and fallen:
            return i
    return None
''', {
        "the reward alone": lambda reward, accuracy: next(
            (i for i, r in enumerate(reward) if r >= reward[0] + GAP), None),
        "the accuracy alone": lambda reward, accuracy: next(
            (i for i, a in enumerate(accuracy) if a <= accuracy[0] - GAP), None),
        "against the first accuracy": lambda reward, accuracy: next(
            (i for i, (r, a) in enumerate(zip(reward, accuracy, strict=True))
             if r >= reward[0] + GAP and a <= accuracy[0] - GAP), None),
        "only at the end": lambda reward, accuracy: len(reward) - 1 if (
            reward[-1] >= reward[0] + GAP and accuracy[-1] <= max(accuracy) - GAP) else None,
        "counted from 1": lambda reward, accuracy: next(
            (i + 1 for i, (r, a) in enumerate(zip(reward, accuracy, strict=True))
             if r >= reward[0] + GAP and a <= max(accuracy[:i + 1]) - GAP), None),
    }),
    Exercise("11.3", tells_something, r'''
import re

OPENERS = {"solution", "thought process", "boxed"}


def says_something(text):
    words = " ".join(re.findall(r"\w+", text.lower()))
    return bool(words) and words not in OPENERS
''', {
        "not empty": lambda text: bool(text.strip()),
        "any letter or digit": _letters,
        "a digit is needed": lambda text: any(c.isdigit() for c in text),
        "a list of exact texts": lambda text: text not in (":", "", "Solution", "Thought process:"),
        "no word of the list anywhere": lambda text: (
            _letters(text) and not any(word in text.lower() for word in ("solution", "process", "boxed"))),
        "the library's own, which never sees a box": lambda text: has_content(text) or "boxed" in text,
    }),
)
