"""A plain function is a judger: (sample, trajectory) -> score from 0 to 1, True, False or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlteach.types import Group, Judgement, Judger, Sample, Trajectory


class FunctionJudger:
    """Calls a function once an answer. None means it could not judge; an exception is not hidden."""

    def __init__(self, function: Callable[[Sample, Trajectory], float | bool | None]) -> None:
        self.function = function

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        return tuple(self._judge(group.sample, t) for t in group.trajectories)

    def _judge(self, sample: Sample, trajectory: Trajectory) -> Judgement:
        name = getattr(self.function, "__name__", "function")
        score = self.function(sample, trajectory)
        if score is None:
            return Judgement(None, "unscorable", f"{name} gave no score", "plugin")
        if not isinstance(score, bool | int | float) or not 0 <= score <= 1:
            raise ValueError(f"{name} returned {score!r} for {sample.id!r}: a score is a number "
                             "from 0 to 1, or None when it cannot be judged")
        return Judgement(float(score), "correct" if score >= 1 else "incorrect", f"by {name}", "plugin")


def as_judger(judger: Judger | Callable[..., Any]) -> Judger:
    """The judger itself, or a function made into one."""
    if isinstance(judger, Judger):
        return judger
    if callable(judger):
        return FunctionJudger(judger)
    raise TypeError(f"a judger has a method grade(group), or is a function (sample, trajectory) -> "
                    f"score; got {type(judger).__name__}")
