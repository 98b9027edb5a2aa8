"""A grader plug-in as a Judger: n trajectories in, n rewards out, statuses as the table says.

    SUCCESS needs one reward a trajectory (None: unscorable); DISCARD leaves the whole sample unscorable,
    marked so that training drops it (training/judging.py);
    RETRY and timeouts grade again, then discard; FAILURE grades again, then stops the run.

A reward that a rollout set itself (extra["reward"]) replaces the grader's for that member, after the
grader has seen all n.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from rlteach.agent import tracing
from rlteach.agent.calling import Caller, Outcome, PluginStopError, all_or_raise, run
from rlteach.agent.plugins import plugin_of
from rlteach.agent.rollouts import RETRIES
from rlteach.agent.tracing import Tracer
from rlteach.agent.types import (
    SPAN,
    ChatCompletionSample,
    GroupGraderResult,
    PluginContext,
    PluginStatus,
    Trajectory,
    is_number,
)
from rlteach.judger.function import DISCARD
from rlteach.types import Group, Judgement

SEVERITY = (PluginStatus.SUCCESS, PluginStatus.RETRY, PluginStatus.FAILURE, PluginStatus.DISCARD)
_ENVIRONMENT = threading.RLock()  # of the process there is one: graders with envs run one after another


class PluginJudger:
    """The judger of a function with @group_grader or @single_grader.

    envs: environment variables that are set while it runs (an argument-less AsyncOpenAI() reads its
    address and key there), and put back afterwards.
    """

    def __init__(self, function: Callable[..., Any], envs: Mapping[str, str] | None = None, *,
                 tracer: Tracer | None = None, phase: str = "train", job_id: str = "") -> None:
        self.plugin = plugin_of(function, "group_grader", "single_grader")
        self.envs, self.tracer = dict(envs or {}), tracer or Tracer()
        self.context = PluginContext(job_id=job_id, type=self.plugin.kind, phase=phase)
        self._single = self.plugin.kind == "single_grader"
        self._caller = Caller(function, self.plugin, read_single if self._single else read_group)
        self._metrics: dict[str, list[float]] = defaultdict(list)

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        """Raises PluginStopError when the plug-in failed for good; or whatever interrupted it."""
        return self.grade_all([group])[0]

    def grade_all(self, groups: Sequence[Group]) -> list[tuple[Judgement, ...]]:
        """All groups at once, as far as the plug-in's max_concurrency allows."""
        with environment(self.envs):
            return run(all_or_raise([self._group(group) for group in groups]))

    def take_metrics(self) -> dict[str, float]:
        """The largest, smallest and mean value of each metric that the plug-in gave since the last
        call: {"name/max": ..., "name/min": ..., "name/mean": ...}."""
        found = {f"{name}/{word}": float(of(values)) for name, values in sorted(self._metrics.items())
                 for word, of in (("max", max), ("min", min), ("mean", fmean))}
        self._metrics.clear()
        return found

    async def rewards(self, sample: ChatCompletionSample, views: Sequence[Trajectory]
                      ) -> list[float | None]:
        """The rewards alone, for trajectories that have no token record (agent/trial.py)."""
        outcome, _ = await self._until_settled(sample, views, "of the trial")
        return rewards_of(outcome, views)

    async def _group(self, group: Group) -> tuple[Judgement, ...]:
        sample, began = ChatCompletionSample.of(group.sample), time.perf_counter()
        views = [Trajectory.of(t) for t in group.trajectories]
        rollouts = [t.extra.get(SPAN) for t in group.trajectories]
        with self.tracer.span("grade", self.plugin.name, root=True, sample=group.sample.id,
                              rollouts=rollouts) as span:
            outcome, attempts = await self._until_settled(sample, views, group.sample.id)
            rewards = rewards_of(outcome, views)
            span.outputs = {"rewards": rewards}
            span.about |= {"status": outcome.status.value, "reason": outcome.reason, "attempts": attempts}
        seconds = (time.perf_counter() - began) / max(len(views), 1)
        discarded = outcome.status is PluginStatus.DISCARD
        return tuple(self._judgement(reward, outcome.reason if discarded else None, attempts, seconds)
                     for reward in rewards)

    async def _until_settled(self, sample: ChatCompletionSample, views: Sequence[Trajectory], name: str
                             ) -> tuple[Outcome, int]:
        """The plug-in again while it asks for that or fails: (SUCCESS or DISCARD, runs)."""
        for attempt in range(1, 2 + RETRIES):
            outcome = await self._once(sample, views)
            if outcome.status in (PluginStatus.SUCCESS, PluginStatus.DISCARD):
                return outcome, attempt
            tracing.event(outcome.status.value, reason=outcome.reason, run=attempt)
        if outcome.status is PluginStatus.RETRY:
            return Outcome(PluginStatus.DISCARD, f"RETRY {attempt} times: {outcome.reason}"), attempt
        raise PluginStopError(
            f"stopped: the grader {self.plugin.name!r} failed {attempt} times on sample {name!r} "
            f"({outcome.reason}): mend the plug-in and resume; the last update is kept")

    async def _once(self, sample: ChatCompletionSample, views: Sequence[Trajectory]) -> Outcome:
        """One run on all of them; its metrics are noted when it succeeds."""
        if self._single:
            parts = await all_or_raise([self._caller.call(self.context, sample.model_copy(deep=True), view)
                                        for view in copies(views)])
            outcome = joined(parts)
        else:
            outcome = needs(await self._caller.call(
                self.context, sample.model_copy(deep=True), copies(views)), len(views))
            parts = [outcome]
        if outcome.status is PluginStatus.SUCCESS:
            for part in parts:
                for name, value in part.value.metrics.items():
                    self._metrics[name].append(value)
        return outcome

    def _judgement(self, reward: float | None, discarded: str | None, attempts: int, seconds: float
                   ) -> Judgement:
        if reward is None:
            why = f"{self.plugin.name} gave no reward" if discarded is None else (
                f"sample discarded by {self.plugin.name}: {discarded}")
            return Judgement(None, "unscorable", why, "plugin", None if discarded is None else DISCARD,
                             attempts, seconds)
        return Judgement(float(reward), "correct" if reward >= 1 else "incorrect", f"by {self.plugin.name}",
                         "plugin", attempts=attempts, seconds=seconds)


def read_group(value: Any) -> Outcome:
    """What a group grader returned. Raises TypeError, ValueError when it is no GroupGraderResult."""
    if not isinstance(value, GroupGraderResult):
        raise TypeError(f"a group grader returns GroupGraderResult; got {type(value).__name__}")
    for reward in value.rewards:
        if reward is not None and not is_number(reward):
            raise ValueError(f"a reward must be a finite number or None; got {reward!r}")
    for name, metric in value.metrics.items():
        if not is_number(metric):
            raise ValueError(f"metric {name!r} must be a finite number; got {metric!r}")
    return Outcome(value.status, value.error or value.status.value, value)


def read_single(value: Any) -> Outcome:
    """What a single grader returned: a number, or GroupGraderResult with one reward."""
    if is_number(value):
        value = GroupGraderResult(rewards=[float(value)])
    elif not isinstance(value, GroupGraderResult):
        raise TypeError("a single grader returns a number, or GroupGraderResult with one reward; "
                        f"got {type(value).__name__}")
    return needs(read_group(value), 1)


def needs(outcome: Outcome, count: int) -> Outcome:
    """FAILURE for a SUCCESS with another number of rewards than trajectories."""
    if outcome.status is PluginStatus.SUCCESS and len(outcome.value.rewards) != count:
        return Outcome(PluginStatus.FAILURE, f"SUCCESS needs one reward for each of {count} trajectories; "
                                             f"got {len(outcome.value.rewards)}")
    return outcome


def joined(parts: Sequence[Outcome]) -> Outcome:
    """One outcome for a single grader's on all trajectories: SUCCESS with their rewards, or the worst."""
    worst = max(parts, key=lambda part: SEVERITY.index(part.status))
    if worst.status is not PluginStatus.SUCCESS:
        return worst
    rewards = [part.value.rewards[0] for part in parts]
    return Outcome(PluginStatus.SUCCESS, value=GroupGraderResult(rewards=rewards))


def rewards_of(outcome: Outcome, views: Sequence[Trajectory]) -> list[float | None]:
    """The grader's rewards, but what a rollout set in extra["reward"] where it did; of DISCARD none."""
    if outcome.status is PluginStatus.DISCARD:
        return [None] * len(views)
    own = [(view.extra or {}).get("reward") for view in views]
    return [given if mine is None else float(mine)
            for given, mine in zip(outcome.value.rewards, own, strict=True)]


def copies(views: Sequence[Trajectory]) -> list[Trajectory]:
    """For one attempt: a plug-in may change what it is given, and the next attempt must not see it."""
    return [view.model_copy(deep=True) for view in views]


@contextmanager
def environment(envs: Mapping[str, str]) -> Iterator[None]:
    """The environment with these variables in it, for the length of the block."""
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in envs}
        os.environ.update(envs)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
