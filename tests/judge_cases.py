"""Answers for a judge model: unique sums with a known truth, and a judger that does not wait long."""

from __future__ import annotations

import random
from typing import Any

from rlteach.judger.llm import LLMJudger
from rlteach.serving.fake_judge import FakeJudge
from rlteach.types import Group, Judgement, Message, Sample, Trajectory

QUICK = {"timeout": 20.0, "attempt_timeout": 5.0, "backoff": (0.01, 0.05)}


def judger(server: FakeJudge | str, **arguments: Any) -> LLMJudger:
    return LLMJudger(getattr(server, "url", server), **{**QUICK, **arguments})


def said(text: str | None, *, finish: str = "stop", **fields: Any) -> Trajectory:
    """One answer; ids do not matter here."""
    last = Message("assistant", text, **fields)  # type: ignore[arg-type]
    return Trajectory((Message("user", "?"), last), (), (), (), 0, finish)  # type: ignore[arg-type]


def boxed(text: object) -> Trajectory:
    return said(f"so it is \\boxed{{{text}}}")


def asked(*answers: Trajectory, gold: tuple[str, ...] = ("7",), question: str = "3+4=?",
          name: str = "s0") -> Group:
    return Group(Sample(name, (Message("user", question),), gold), answers)


def sums(groups: int, size: int, seed: int) -> tuple[list[Group], list[list[float]]]:
    """Groups whose answers are all different, and the truth of each: about half of them right."""
    rng = random.Random(seed)
    made, truth = [], []
    for index in range(groups):
        number = str(1000 + index)
        gold = tuple(f"{number}.{'0' * member}" for member in range(1, size + 1))
        row = [float(rng.random() < 0.5) for _ in gold]
        texts = [right if score else f"{number}.{member + 1}"
                 for member, (right, score) in enumerate(zip(gold, row, strict=True))]
        made.append(asked(*map(boxed, texts), gold=gold, question=f"{index}+1000=?", name=f"q{index}"))
        truth.append(row)
    return made, truth


def scores(judged: tuple[Judgement, ...]) -> list[float | None]:
    return [j.score for j in judged]
