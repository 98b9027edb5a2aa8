"""Judgers made of judgers: the rule first and a model after it, weighted sums, one for each data source.

    judger = RuleThenLLM(RuleJudger(), LLMJudger(url))
    judger = graders((is_right, 0.9), (is_short, 0.1))
    judger = Router({"math": RuleJudger(), "essay": LLMJudger(url)})
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from rlteach.judger.function import DISCARD, as_judger, is_discarded
from rlteach.types import Group, Judgement, Judger, Sample

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


async def agrade(judger: Judger, group: Group) -> tuple[Judgement, ...]:
    """`judger.grade` as a coroutine: its own agrade where it has one, else in a thread."""
    if hasattr(judger, "agrade"):
        return await judger.agrade(group)
    return await asyncio.to_thread(judger.grade, group)


def submit(judger: Judger, groups: Sequence[Group]) -> None:
    """Let a judger that takes its time begin now; `grade` then collects. Others are left alone."""
    if groups and hasattr(judger, "submit"):
        judger.submit(groups)


def grade_all(judger: Judger, groups: Sequence[Group]) -> list[tuple[Judgement, ...]]:
    """Judgements of each group; a judger that takes its time works on all of them at once."""
    if hasattr(judger, "grade_all"):
        return judger.grade_all(groups)
    submit(judger, groups)
    return [judger.grade(group) for group in groups]


class RuleThenLLM:
    """The rule first; a model judges what it left open (SEEDS row 62).

    Args:
        ask_llm_when: "unscorable" asks where the rule could not decide; "not_correct" also asks where
            it said incorrect, as the released OREAL code does. What the model leaves open, too,
            is unscorable: an answer that was to be asked about is never scored by a guess.
    """

    def __init__(
        self, rule: Judger, llm: Judger,
        ask_llm_when: Literal["unscorable", "not_correct"] = "unscorable",
    ) -> None:
        if ask_llm_when not in ("unscorable", "not_correct"):
            raise ValueError(f"ask_llm_when must be 'unscorable' or 'not_correct'; got {ask_llm_when!r}")
        self.rule, self.llm, self.ask_llm_when = rule, llm, ask_llm_when

    def children(self) -> tuple[Judger, ...]:
        return self.rule, self.llm

    def _open(self, judgements: Sequence[Judgement]) -> list[int]:
        """Members to ask about; one without a final answer is wrong, and no model is asked."""
        return [i for i, j in enumerate(judgements) if j.status == "unscorable" or (
            self.ask_llm_when == "not_correct" and j.status == "incorrect"
            and not j.reason.startswith(("no final answer", "truncated")))]

    def submit(self, groups: Sequence[Group]) -> None:
        parts = [members(g, self._open(self.rule.grade(g))) for g in groups]
        submit(self.llm, [part for part in parts if part.trajectories])

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        return self.grade_all([group])[0]

    def grade_all(self, groups: Sequence[Group]) -> list[tuple[Judgement, ...]]:
        first = grade_all(self.rule, groups)
        at = [self._open(judgements) for judgements in first]
        asked = iter(grade_all(self.llm, [members(g, a) for g, a in zip(groups, at, strict=True) if a]))
        return [merge(f, a, next(asked) if a else ()) for f, a in zip(first, at, strict=True)]

    async def agrade(self, group: Group) -> tuple[Judgement, ...]:
        first = await agrade(self.rule, group)
        at = self._open(first)
        return merge(first, at, await agrade(self.llm, members(group, at)) if at else ())


class RandomJudger:
    """A coin for every answer: the null baseline (SEEDS row 36). Asked again, it says the same."""

    def __init__(self, seed: int = 0, share: float = 0.5) -> None:
        self.seed, self.share = seed, share

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        def toss(at: int) -> Judgement:
            answer = group.trajectories[at]
            rng = random.Random(f"{self.seed} {group.sample.id} {at} {answer.token_ids} {answer.response}")
            right = rng.random() < self.share
            return Judgement(float(right), "correct" if right else "incorrect", "a coin", "random")

        return tuple(toss(at) for at in range(len(group.trajectories)))


class WeightedSum:
    """score = sum(weight * score) / sum(weight); unscorable when one of its graders is."""

    def __init__(self, parts: Sequence[tuple[Judger, float]]) -> None:
        if not parts or any(not weight > 0 for _, weight in parts):
            raise ValueError("graders(...) needs at least one (grader, weight), every weight above 0")
        self.parts = list(parts)

    def children(self) -> tuple[Judger, ...]:
        return tuple(judger for judger, _ in self.parts)

    def submit(self, groups: Sequence[Group]) -> None:
        for judger, _ in self.parts:
            submit(judger, groups)

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        return self._sum([judger.grade(group) for judger, _ in self.parts])

    def grade_all(self, groups: Sequence[Group]) -> list[tuple[Judgement, ...]]:
        self.submit(groups)  # to all of them, before the first is waited for
        columns = [grade_all(judger, groups) for judger, _ in self.parts]
        return [self._sum(rows) for rows in zip(*columns, strict=True)]

    async def agrade(self, group: Group) -> tuple[Judgement, ...]:
        return self._sum(await asyncio.gather(*(agrade(judger, group) for judger, _ in self.parts)))

    def _sum(self, columns: Sequence[Sequence[Judgement]]) -> tuple[Judgement, ...]:
        weights = [weight for _, weight in self.parts]
        return tuple(_weighted(row, weights) for row in zip(*columns, strict=True))


def graders(*parts: tuple[Any, ...]) -> WeightedSum:
    """(grader, weight) or (plug-in, weight, envs), as the Ark SDK's pipeline takes them (SEEDS row 4).

    envs: environment variables that are set while this plug-in runs, and for it only.
    """
    for part in parts:
        if not isinstance(part, tuple) or len(part) not in (2, 3):
            raise ValueError("graders(...) takes (grader, weight) or (plug-in, weight, envs); "
                             f"got {part!r}")
    return WeightedSum([(as_judger(part[0], *part[2:]), part[1]) for part in parts])


def _weighted(row: Sequence[Judgement], weights: Sequence[float]) -> Judgement:
    reason = "; ".join(j.reason for j in row if j.reason)
    more = {"attempts": max(j.attempts for j in row), "seconds": sum(j.seconds for j in row)}
    source = row[0].source if len({j.source for j in row}) == 1 else "plugin"
    scores = [j.score for j in row if j.score is not None]
    if any(map(is_discarded, row)):
        return Judgement(None, "unscorable", reason, "plugin", raw=DISCARD, **more)
    if len(scores) < len(row):
        return Judgement(None, "unscorable", reason, source, **more)
    score = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
    return Judgement(score, "correct" if score >= 1 else "incorrect", reason, source, **more)


REGISTRY: dict[str, Judger] = {}


def register_judger(data_source: str) -> Callable[[Decorated], Decorated]:
    """Decorator: judge samples of `data_source` with this. Again is allowed: the last one counts."""
    def keep(judger: Decorated) -> Decorated:
        REGISTRY[data_source] = as_judger(judger() if isinstance(judger, type) else judger)
        return judger

    return keep


class Router:
    """The judger of a sample's data_source (SEEDS row 61); without one the sample is unscorable."""

    def __init__(self, judgers: Mapping[str, Judger | Callable[..., Any]] | None = None) -> None:
        found = REGISTRY if judgers is None else judgers
        self.judgers = {source: as_judger(judger) for source, judger in found.items()}

    def children(self) -> tuple[Judger, ...]:
        return tuple(self.judgers.values())

    def check(self, samples: Sequence[Sample]) -> None:
        """Warn of data sources without a judger, and of judgers without data."""
        sources = {s.data_source for s in samples}
        for text, names in (("no judger for data_source %s: its answers are unscorable; give Router one",
                             sources - set(self.judgers)),
                            ("the judger for %s is unused: no sample has this data_source",
                             set(self.judgers) - sources)):
            if names:
                warnings.warn(text % ", ".join(map(repr, sorted(names))), RuntimeWarning, stacklevel=2)

    def submit(self, groups: Sequence[Group]) -> None:
        for source, judger in self.judgers.items():
            submit(judger, [g for g in groups if g.sample.data_source == source])

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        source = group.sample.data_source
        if source in self.judgers:
            return self.judgers[source].grade(group)
        nobody = Judgement(None, "unscorable", f"no judger for data_source {source!r}")
        return (nobody,) * len(group.trajectories)


def members(group: Group, at: Sequence[int]) -> Group:
    """The group with only these trajectories, not yet judged."""
    return Group(group.sample, tuple(group.trajectories[i] for i in at))


def merge(
    first: Sequence[Judgement], at: Sequence[int], second: Sequence[Judgement]
) -> tuple[Judgement, ...]:
    """`first` with the judgements of the members `at` replaced."""
    new = dict(zip(at, second, strict=True))
    return tuple(
        replace(new[i], seconds=j.seconds + new[i].seconds) if i in new else j for i, j in enumerate(first))
