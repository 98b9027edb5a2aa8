"""A plain function is a judger: (sample, trajectory) -> score, or (group) -> one score for each answer.

A score is a number from 0 to 1, True, False, or None for an answer that it could not judge.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlteach.types import Group, Judgement, Judger, Sample, Trajectory

Score = float | bool | None
DISCARD = "DISCARD"  # Judgement.raw of each member of a sample that a grader drops (agent/graders.py)


class FunctionJudger:
    """Calls a function once an answer; an exception in it is not hidden."""

    def __init__(self, function: Callable[[Sample, Trajectory], Score]) -> None:
        self.function = function

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        name, sample = name_of(self.function), group.sample
        return tuple(to_judgement(self.function(sample, t), name, sample.id) for t in group.trajectories)


class GroupFunctionJudger:
    """Calls a function once a group; it gives one score for each answer, in their order."""

    def __init__(self, function: Callable[[Group], Sequence[Score]]) -> None:
        self.function = function

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        name, scores = name_of(self.function), self.function(group)
        if not isinstance(scores, Sequence) or isinstance(scores, str):
            raise ValueError(f"{name} returned {scores!r} for {group.sample.id!r}: a function of a group "
                             "gives a list with one score for each answer")
        return tuple(to_judgement(score, name, group.sample.id) for score in scores)


def to_judgement(score: Score, name: str, sample_id: str) -> Judgement:
    """What a function returned, as a judgement. Raises ValueError when it is no score."""
    if score is None:
        return Judgement(None, "unscorable", f"{name} gave no score", "plugin")
    if not isinstance(score, bool | int | float) or not 0 <= score <= 1:
        raise ValueError(f"{name} returned {score!r} for {sample_id!r}: a score is a number "
                         "from 0 to 1, or None when it cannot be judged")
    return Judgement(float(score), "correct" if score >= 1 else "incorrect", f"by {name}", "plugin")


def is_discarded(judgement: Judgement) -> bool:
    """Did a grader plug-in drop the whole sample?"""
    return judgement.score is None and judgement.source == "plugin" and judgement.raw == DISCARD


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "function")


def as_judger(judger: Judger | Callable[..., Any], envs: Mapping[str, str] | None = None) -> Judger:
    """The judger itself, or a function made into one.

    A decorated grader of rlteach.agent says itself which judger it makes (`__judger__`); only there
    do envs, the environment variables it is run with, mean anything.
    """
    if hasattr(judger, "__judger__"):
        return judger.__judger__(envs)
    if envs:
        raise ValueError("envs are for graders with @group_grader or @single_grader")
    if isinstance(judger, type):
        raise TypeError(f"a judger is an object, not a class: give {judger.__name__}() in place of "
                        f"{judger.__name__}")
    if isinstance(judger, Judger):
        return judger
    if callable(judger):
        return GroupFunctionJudger(judger) if _takes_one(judger) else FunctionJudger(judger)
    raise TypeError(f"a judger has a method grade(group), or is a function (sample, trajectory) -> "
                    f"score or (group) -> scores; got {type(judger).__name__}")


def _takes_one(function: Callable[..., Any]) -> bool:
    """Does it have exactly one parameter that has to be given by position?"""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in functions do not say
        return False
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (
        p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(needed) == 1
