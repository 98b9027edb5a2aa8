"""The grade stage: sampling and judging overlap, a judge that is away is waited for, nothing is guessed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rlteach.config import Config
from rlteach.judger.compose import grade_all, members, merge, submit
from rlteach.judger.function import is_discarded
from rlteach.judger.rule import RuleJudger
from rlteach.training.plugins import grader_metrics, walk
from rlteach.types import Group, Judgement, Judger, Sample

LOG = logging.getLogger("rlteach")
LOG.addHandler(logging.NullHandler())  # a notebook's cell is no place for lines of another thread
PAUSE = 5.0  # seconds between two looks at a judge that is away


class JudgeAwayError(ValueError):
    """A model judge gave no verdicts for config.judge_wait seconds; nothing was changed meanwhile."""


class Grading:
    """What stands between the loop and its judger. `waiting` says why a run waits, None while it does not."""

    def __init__(self, judger: Judger, samples: Sequence[Sample], config: Config) -> None:
        self.config, self.waiting = config, None
        self.give_up = False  # set from another thread: stop waiting
        for part in walk(judger):
            if hasattr(part, "check"):
                part.check(samples)

    def sample(
        self, judger: Judger, rollout: Callable[..., list[Group]], policy: Any,
        samples: Sequence[Sample], keys: Sequence[Sequence[int]],
    ) -> list[Group]:
        """rollout(policy, samples, keys), in config.judge_parts parts when the judger can work meanwhile."""
        if not any(hasattr(part, "submit") for part in walk(judger) if not hasattr(part, "children")):
            return rollout(policy, samples, keys)
        size = max(-(-len(samples) // self.config.judge_parts), 1)
        groups: list[Group] = []
        for at in range(0, len(samples), size):
            part = rollout(policy, samples[at : at + size], keys[at : at + size])
            submit(judger, part)
            groups += part
        return groups

    def grade(self, judger: Judger, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float | None]]:
        """The groups with judgements, and the judgers' own numbers for metrics.jsonl. A sample that a
        grader discards has no group any more.

        Raises:
            JudgeAwayError: too many answers stayed without a verdict.
        """
        found = grade_all(judger, groups)
        graded = [g.with_(judgements=_checked(g, j)) for g, j in zip(groups, found, strict=True)]
        began, waited = time.monotonic(), 0.0
        while cause := self._too_many(graded):
            waited = time.monotonic() - began
            self._wait(judger, cause, self.config.judge_wait - waited)
            graded = [self._again(judger, g) for g in graded]
        self.waiting = None
        rule = RuleJudger(self.config.rule_mode)
        notes = numbers(judger, graded, waited, rule) | grader_metrics(judger)
        kept = [g for g in graded if not any(map(is_discarded, g.judgements or ()))]
        if any(hasattr(part, "plugin") for part in walk(judger)):
            notes["grader/discarded"] = float(len(graded) - len(kept))
        return kept, notes

    def _again(self, judger: Judger, group: Group) -> Group:
        """Ask once more about the members that the model left without a verdict."""
        at = [i for i, j in enumerate(group.judgements or ()) if left_open(j)]
        if not at:
            return group
        open_ones = members(group, at)
        again = _checked(open_ones, judger.grade(open_ones))
        return group.with_(judgements=merge(group.judgements, at, again))

    def _too_many(self, graded: Sequence[Group]) -> str | None:
        """The commonest cause, when more than max_unscorable of the answers have no verdict of the model."""
        everyone = [j for g in graded for j in g.judgements or ()]
        causes = Counter(j.reason for j in everyone if left_open(j))
        if causes.total() <= self.config.max_unscorable * len(everyone):
            return None
        return causes.most_common(1)[0][0]

    def _wait(self, judger: Judger, cause: str, left: float) -> None:
        """Until the judge answers again, looking every few seconds; `left` seconds at most."""
        end = time.monotonic() + left
        while True:
            left = end - time.monotonic()
            if left <= 0 or self.give_up:
                raise JudgeAwayError(
                    f"stopped: no verdicts for {self.config.judge_wait:.0f} s ({cause}): start the judge "
                    "again and go on with --resume; config.judge_wait is how long a run waits")
            self.waiting = f"{cause}; waiting, {left:.0f} s left"
            LOG.warning("%s", self.waiting)
            for _ in range(10):
                time.sleep(min(PAUSE, left) / 10)
                if self.give_up:
                    break
            else:
                if all(part.alive() is None for part in walk(judger) if hasattr(part, "alive")):
                    return


def _checked(group: Group, found: Sequence[Judgement]) -> tuple[Judgement, ...]:
    """One judgement for each answer. Raises ValueError when there are more or fewer."""
    if len(found) != len(group.trajectories):
        raise ValueError(f"the judger gave {len(found)} judgements for the {len(group.trajectories)} "
                         f"answers of {group.sample.id!r}: it needs one each")
    return tuple(found)


def left_open(judgement: Judgement) -> bool:
    """Was a model asked, and gave no verdict?"""
    return judgement.score is None and judgement.source == "llm"


def numbers(judger: Judger, graded: Sequence[Group], waited: float, rule: RuleJudger
            ) -> dict[str, float | None]:
    """What model judges did since the last call; nothing when there are none."""
    models = [part.statistics() for part in walk(judger) if hasattr(part, "statistics")]
    if not models:
        return {}
    out: dict[str, float | None] = {"judge/waited": waited, "judge/disagreement": disagreement(graded, rule)}
    for name in models[0]:
        known = [m[name] for m in models if m[name] is not None]
        total = max if "seconds" in name else sum  # of several judges: the slowest, all questions
        out[name] = total(known) if known else None
    return out


def disagreement(graded: Sequence[Group], rule: RuleJudger) -> float | None:
    """Share of the model's verdicts that the rule contradicts, of those where the rule has one."""
    apart = []
    for group in graded:
        at = [i for i, j in enumerate(group.judgements or ()) if j.source == "llm" and j.score is not None]
        for i, said in zip(at, rule.grade(members(group, at)) if at else (), strict=True):
            if said.score is not None:
                apart.append((said.score >= 1) != ((group.judgements or ())[i].score >= 1))
    return sum(apart) / len(apart) if apart else None
