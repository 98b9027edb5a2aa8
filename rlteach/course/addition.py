"""The task of the embedded model: column addition, written out from the last digit to the first.

    What is 478 + 391?
    8+1=9, 7+9=16, 4+3+1=8, \\boxed{869}

A slip that is noticed is followed by " no, " and the step is written again:

    8+1=9, 7+9=15 no, 7+9=16, 4+3+1=8, \\boxed{869}

Because the working is known exactly, so is the first wrong character of any answer: this is
what a token-level reward model should find (docs/token-reward.md).
"""

from __future__ import annotations

import random

from rlteach.types import Trajectory

MENDED = " no"


def question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def operands(text: str) -> tuple[int, int]:
    """The two numbers of `question(a, b)`.

    >>> operands("What is 478 + 391?")
    (478, 391)
    """
    left, right = text.removeprefix("What is ").removesuffix("?").split(" + ")
    return int(left), int(right)


def steps(a: int, b: int) -> list[str]:
    """The working, one string a step; the last step is the boxed answer.

    >>> steps(478, 391)
    ['8+1=9', '7+9=16', '4+3+1=8', '\\\\boxed{869}']
    """
    out, carry = [], 0
    width = max(len(str(a)), len(str(b)))
    for x, y in zip(reversed(str(a).zfill(width)), reversed(str(b).zfill(width)), strict=True):
        total = int(x) + int(y) + carry
        out.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry = total // 10
    return [*out, f"\\boxed{{{a + b}}}"]


def demonstration(a: int, b: int, slip: float, rng: random.Random) -> list[tuple[str, bool]]:
    """(text, learn it?) pieces of one worked answer that ends right.

    With probability `slip` each step holds one wrong digit that is noticed at once. Nothing is
    learned from the wrong digit itself: the model learns to notice, never to slip.
    """
    pieces: list[tuple[str, bool]] = []
    for i, step in enumerate(steps(a, b)):
        lead = ", " if i else ""
        if rng.random() < slip:
            at = rng.choice([j for j, c in enumerate(step) if c.isdigit()])
            wrong = rng.choice([d for d in "0123456789" if d != step[at]])
            pieces += [(lead + step[:at], True), (wrong, False), (MENDED, True)]
            lead = ", "
        pieces.append((lead + step, True))
    return pieces


def first_wrong(a: int, b: int, answer: str) -> int | None:
    """Index of the first wrong character that was not mended, or None when all is right.

    >>> first_wrong(478, 391, r"8+1=9, 7+9=15 no, 7+9=16, 4+3+1=8, \\boxed{869}") is None
    True
    >>> first_wrong(478, 391, r"8+1=9, 7+9=15, 4+3+1=8, \\boxed{859}")
    12
    """
    at = 0
    for step in steps(a, b):
        while True:
            end = answer.find(", ", at)
            attempt = answer[at:] if end < 0 else answer[at:end]
            if not attempt.endswith(MENDED):
                break
            at = len(answer) if end < 0 else end + 2
        if attempt != step:
            same = zip(attempt, step, strict=False)
            wrong = next((j for j, (x, y) in enumerate(same) if x != y), min(len(attempt), len(step)))
            return at + wrong
        at = len(answer) if end < 0 else end + 2
    return None


def first_wrong_of(trajectory: Trajectory) -> int | None:
    """`first_wrong` of an answer to one of these questions; None when all is right.

    Raises:
        ValueError: it answers another kind of question.
    """
    asked = next(m.content for m in reversed(trajectory.messages) if m.role == "user")
    try:
        a, b = operands(asked)
    except ValueError:
        raise ValueError("only a question like 'What is 1 + 2?' has a known working; "
                         f"got {asked!r}") from None
    return first_wrong(a, b, trajectory.response)
