"""Lesson 09: whose tokens are trained, what an edit costs, and how many calls get through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlteach.course.checking import Exercise, NotYetError, call, number

Part = tuple[str, list[int]]
Piece = tuple[bool, list[int]]
ROLLOUTS: tuple[list[Part], ...] = (
    [("prompt", [4, 8]), ("model", [5, 2]), ("tool", [7, 7]), ("template", [3]), ("model", [6, 2])],
    [("prompt", [1]), ("model", [2])],
    [("template", [1]), ("prompt", [4]), ("template", [1]), ("model", []), ("tool", [5, 5])],
)
RECORD: list[Piece] = [(False, [1, 4, 8]), (True, [5, 6, 2]), (False, [3, 7, 9]), (True, [8, 6, 2])]
EDITS: tuple[tuple[list[int], int, str], ...] = (  # what is shown now, sampled tokens that stay, what it is
    ([1, 4, 8, 5, 6, 2, 3, 7, 9, 8, 6, 2, 3, 3], 6, "nothing was edited, and the talk went on"),
    ([1, 4, 8, 5, 6, 2, 3, 9, 9, 8, 6, 2], 3, "the tool's reply was edited"),
    ([1, 4, 8, 5, 7, 2, 3, 7, 9, 8, 6, 2], 0, "a token of the first answer was edited"),
    ([1, 4, 9, 5, 6, 2, 3, 7, 9, 8, 6, 2], 0, "the question was edited"),
    ([1, 4, 8, 5, 6, 2, 3, 7, 9, 8, 6], 3, "the last answer lost its last token"),
    ([1, 4, 8, 3, 7, 9, 8, 6, 2], 0, "the first answer was dropped"),
    ([], 0, "everything was dropped"),
)
CHANCES = ((2 / 3, 1, 8), (2 / 3, 2, 8), (0.5, 3, 4), (0.1, 2, 1), (0.0, 5, 2), (1.0, 1, 16))


def action_mask(answer: Any) -> str | None:
    for parts in ROLLOUTS:
        ids = [(who, i) for who, its in parts for i in its]
        found = call(answer, parts)
        if isinstance(found, str | bytes) or not isinstance(found, Sequence) or len(found) != len(ids):
            raise NotYetError(f"for {parts} a list of {len(ids)} truth values is asked for, one a token")
        for at, ((who, _), mine) in enumerate(zip(ids, found, strict=True)):
            if not isinstance(mine, bool | int) or mine not in (0, 1):
                raise NotYetError(f"item {at} for {parts} is {mine!r}: True or False is asked for")
            if bool(mine) != (who == "model"):
                whose = f"token {at} of {parts} is the {who}'s"
                return f"{whose}: " + ("who chose it?" if mine else "the model chose it, and it is left out")
    return None


def still_trained(answer: Any) -> str | None:
    for now, right, what in EDITS:
        found = number(call(answer, RECORD, now), "the number of tokens")
        if found != right:
            return f"{what}, from {RECORD} to {now}: {found:g} sampled tokens is not what stays"
    return None


def one_gets_through(answer: Any) -> str | None:
    for bad, hops, size in CHANCES:
        right = 1 - (1 - (1 - bad) ** hops) ** size
        found = number(call(answer, bad, hops, size), "the chance")
        if abs(found - right) > 1e-6:
            case = f"for bad={bad:.2f}, hops={hops}, size={size}"
            if not 0 <= found <= 1:
                return f"{case} this is {found:.3f}, and a probability lies between 0 and 1"
            return f"{case} this is {found:.3f}: begin with one rollout, all calls of which are well formed"
    return None


def by_value(record: list[Piece], now: list[int]) -> int:
    """Turns that stand anywhere in what is shown now."""
    places = range(len(now))
    return sum(len(ids) for own, ids in record if own and any(now[i : i + len(ids)] == ids for i in places))


def by_prefix(record: list[Piece], now: list[int]) -> int:
    """Sampled tokens inside the common prefix, a part of a turn among them."""
    old = [(own, i) for own, ids in record for i in ids]
    same = next((at for at, ((_, a), b) in enumerate(zip(old, now, strict=False)) if a != b),
                min(len(old), len(now)))
    return sum(own for own, _ in old[:same])


EXERCISES = (
    Exercise("09.1", action_mask, r'''
def action_mask(parts):
    return [who == "model" for who, ids in parts for i in ids]
''', {
        "everything": lambda parts: [True for who, ids in parts for _ in ids],
        "all but the prompt": lambda parts: [who != "prompt" for who, ids in parts for _ in ids],
        "the call and its reply": lambda parts: [who in ("model", "tool") for who, ids in parts for _ in ids],
        "the tool in place of the model": lambda parts: [who == "tool" for who, ids in parts for _ in ids],
        "one a part": lambda parts: [who == "model" for who, _ in parts],
        "the last answer only": lambda parts: [
            i == len(parts) - 1 and who == "model" for i, (who, ids) in enumerate(parts) for _ in ids],
    }),
    Exercise("09.2", still_trained, r'''
def still_trained(record, now):
    at = kept = 0
    for sampled, ids in record:
        if list(now[at : at + len(ids)]) != list(ids):
            break
        at += len(ids)
        kept += len(ids) if sampled else 0
    return kept
''', {
        "all that was ever sampled": lambda record, now: sum(len(ids) for own, ids in record if own),
        "wherever it stands": by_value,
        "parts of a turn, too": by_prefix,
        "the length of the prefix": lambda record, now: len(now),
        "turns in place of tokens": lambda record, now: sum(own for own, _ in record),
        "nothing, once anything was edited": lambda record, now: 6 * (
            now[:12] == [i for _, ids in record for i in ids]),
    }),
    Exercise("09.3", one_gets_through, r'''
def one_gets_through(bad, hops, size):
    return 1 - (1 - (1 - bad) ** hops) ** size
''', {
        "one rollout": lambda bad, hops, size: (1 - bad) ** hops,
        "one call": lambda bad, hops, size: 1 - bad**size,
        "all rollouts": lambda bad, hops, size: (1 - bad) ** (hops * size),
        "chances added up": lambda bad, hops, size: size * (1 - bad) ** hops,
        "calls that are all malformed": lambda bad, hops, size: 1 - (bad**hops) ** size,
    }),
)
