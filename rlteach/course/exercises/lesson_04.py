"""Lesson 04: reading a verdict, and what a judge's errors do to rewards."""

from __future__ import annotations

import json
from typing import Any

from rlteach.course.checking import Exercise, NotYetError, call, number, numbers

REPLIES = (
    ('{"rationale": "the same", "judgement": "correct"}', 1.0),
    ('{"rationale": "it differs", "judgement": "incorrect"}', 0.0),
    ("correct", None), ("It is incorrect.", None), ("", None), ("[]", None), ("3", None), ("null", None),
    ('{"rationale": "the answer is correct"}', None),
    ('{"rationale": "the same", "judgement": "Correct, I think"}', None),
    ('{"rationale": "the same", "judgement": true}', None),
    ('{"rationale": "the same", "judgement": ["correct"]}', None),
    ('{"rationale": "the same", "judgement": "corr', None),
)
MATRICES = ((707, 43, 30, 720), (10, 0, 5, 5), (1, 9, 0, 90), (3, 1, 1, 1))
JUDGES = ((0.05, 0.95, 0.04), (0.5, 0.95, 0.04), (0.5, 1.0, 0.0), (0.01, 0.5, 0.5), (0.9, 0.6, 0.2))


def read(answer: Any) -> str | None:
    if not callable(answer):
        raise NotYetError(f"a function of one text is asked for, and this is of type {type(answer).__name__}")
    for text, wanted in REPLIES:
        try:
            found = answer(text)
        except Exception as error:
            raise NotYetError(f"for the reply {text!r} it raised {type(error).__name__}: {error}") from None
        if wanted is None and found is not None:
            return f"the reply {text!r} is no verdict in the form that was asked for: there None is due"
        if wanted is not None and (found is None or number(found, f"the score of {text!r}") != wanted):
            return f"the reply {text!r} is a verdict, and its score is another one"
    return None


def quality(answer: Any) -> str | None:
    for matrix in MATRICES:
        accuracy, false = numbers(call(answer, *matrix), 2, f"what it returns for {matrix}")
        if abs(accuracy - (matrix[0] + matrix[3]) / sum(matrix)) > 1e-6:
            return f"for {matrix}, {accuracy:.3f} is not the share of true verdicts: which two are true?"
        if abs(false - matrix[2] / (matrix[2] + matrix[3])) > 1e-6:
            return f"for {matrix}, the false positive rate is not {false:.3f}: it is a share of wrong answers"
    return None


def truly_right(answer: Any) -> str | None:
    for p, hit, false in JUDGES:
        found = number(call(answer, p, hit, false), f"the share for p={p}, hit={hit}, false={false}")
        if abs(found - p * hit / (p * hit + (1 - p) * false)) > 1e-6:
            return (f"for p={p}, hit={hit}, false={false} it is not {found:.3f}: of 1000 answers, how many "
                    "are accepted, and how many of those are right?")
    return None


def _word(text: str) -> float:
    return 1.0 if "correct" in text else 0.0


def _other_word(text: str) -> float:
    return 0.0 if "incorrect" in text else 1.0


def _trusting(text: str) -> float:
    return 1.0 if json.loads(text)["judgement"] == "correct" else 0.0


def _zero_for_none(text: str) -> float:
    try:
        return _trusting(text)
    except (ValueError, LookupError, TypeError):
        return 0.0


EXERCISES = (
    Exercise("04.1", read, r'''
import json


def read(text):
    try:
        said = json.loads(text)["judgement"]
    except (ValueError, KeyError, TypeError):
        return None
    if said == "correct":
        return 1.0
    return 0.0 if said == "incorrect" else None
''', {
        "the word anywhere": _word, "the other word anywhere": _other_word, "every reply is JSON": _trusting,
        "no verdict is a zero": _zero_for_none,
    }),
    Exercise("04.2", quality, r'''
def quality(right_accepted, right_rejected, wrong_accepted, wrong_rejected):
    true, wrong = right_accepted + wrong_rejected, wrong_accepted + wrong_rejected
    return true / (wrong + right_accepted + right_rejected), wrong_accepted / wrong
''', {
        "a share of all": lambda a, b, c, d: ((a + d) / (a + b + c + d), c / (a + b + c + d)),
        "a share of the accepted": lambda a, b, c, d: ((a + d) / (a + b + c + d), c / (a + c)),
        "accepted for true": lambda a, b, c, d: ((a + c) / (a + b + c + d), c / (c + d)),
    }),
    Exercise("04.3", truly_right, r'''
def truly_right(p, hit, false):
    return p * hit / (p * hit + (1 - p) * false)
''', {
        "the judge's hits": lambda p, hit, false: hit,
        "one minus the false ones": lambda p, hit, false: 1 - false,
        "p forgotten": lambda p, hit, false: hit / (hit + false),
        "the share that is accepted": lambda p, hit, false: p * hit + (1 - p) * false,
    }),
)
