"""Rollouts by a plug-in, for OrealTrainer(rollout=...): n calls a sample, each with a proxy of its own.

    SUCCESS keeps the trajectory; RETRY and timeouts run this rollout again, then discard the sample;
    DISCARD drops the sample; FAILURE runs the sample again, then stops the run.

Of the members of a sample one DISCARD counts before any FAILURE: a sample that is dropped needs no
second try.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rlteach.agent import tracing
from rlteach.agent.calling import Caller, Outcome, PluginStopError, all_or_raise, run
from rlteach.agent.plugins import plugin_of
from rlteach.agent.proxy import Face, RolloutInferenceProxy
from rlteach.agent.session import PolicySide, Sampling, Session
from rlteach.agent.tracing import Span, Tracer
from rlteach.agent.twin import Twin
from rlteach.agent.types import (
    SPAN,
    ChatCompletionSample,
    PluginContext,
    PluginStatus,
    RolloutResult,
    check_reward,
)
from rlteach.config import ConfigError
from rlteach.policy.engine import Engine, row_key
from rlteach.policy.policy import Policy
from rlteach.types import Group, Sample, Trajectory

RETRIES = 3  # after the first run


class PluginRollout:
    """rollout(policy, samples, keys) -> groups, by a function with @rollout. Discarded samples have no
    group. `take_metrics()` gives what happened since it was last asked.

    face: gives the HTTP face of proxies (serving/proxy_http.py); None: wrapped clients only.
    """

    def __init__(self, function: Callable[..., Any], policy: Policy | None = None, *,
                 face: Callable[[], Face] | None = None, tracer: Tracer | None = None,
                 job_id: str = "", engine: Callable[[Policy], Engine] = Engine) -> None:
        self.plugin = plugin_of(function, "rollout")
        self.caller = Caller(function, self.plugin, read_result)
        self.face, self.tracer, self.job_id, self._engine = face, tracer or Tracer(), job_id, engine
        self.counts: Counter[str] = Counter()
        self._twin: Twin | None = None
        self._side: PolicySide | None = None
        if policy is not None:
            self.prepare(policy)

    def prepare(self, policy: Policy) -> PolicySide:
        """The engine over this policy, made once.

        Raises:
            ModelError: the chat template is not fit for many turns.
        """
        if self._side is None or self._twin is None or self._twin.original is not policy:
            self.close()
            self._twin = Twin(policy)
            engine = self._engine(self._twin.policy)
            try:
                self._side = PolicySide(engine, policy.config.policy)
            except BaseException:
                engine.close()
                raise
            self._forgotten = weakref.finalize(self, _stop, engine)  # a notebook's cell may be run again
        self._twin.sync()
        return self._side

    def __call__(self, policy: Policy, samples: Sequence[Sample], keys: Sequence[Sequence[int]], *,
                 phase: str = "train", greedy: bool = False) -> list[Group]:
        """The groups of the samples that were kept, in their order; keys: one noise key a member.

        Raises:
            PluginStopError: the plug-in failed for good; or whatever interrupted it.
            ConfigError: a sample asks for another temperature than the run's, in training.
        """
        side = self.prepare(policy)
        context = PluginContext(job_id=self.job_id, model=side.name, type="rollout", phase=phase)
        views = [ChatCompletionSample.of(sample) for sample in samples]
        if phase == "train":
            for sample, view in zip(samples, views, strict=True):
                check_temperature(sample, view, policy.config.temperature)
        before = self.counts.copy()
        try:
            found = run(self._all(side, context, samples, views, keys, greedy))
        except BaseException:
            since = self.counts - before
            self.counts["failed"] += len(samples) - since["kept"] - since["discarded"] - since["failed"]
            raise
        finally:
            self.counts["started"] += len(samples)
        return [group for group in found if group is not None]

    def take_metrics(self) -> dict[str, float]:
        """rollout/started, kept, discarded, failed, retries, timeouts, history_cuts; starts again at 0."""
        names = ("started", "kept", "discarded", "failed", "retries", "timeouts", "history_cuts")
        found = {f"rollout/{name}": float(self.counts[name]) for name in names}
        self.counts.clear()
        return found

    def close(self) -> None:
        """Stop the engine; the next call starts another."""
        if self._side is not None:
            self._forgotten.detach()
            self._side.engine.close()
            self._side = self._twin = None

    async def _all(self, side: PolicySide, context: PluginContext, samples: Sequence[Sample],
                   views: Sequence[ChatCompletionSample], keys: Sequence[Sequence[int]], greedy: bool
                   ) -> list[Group | None]:
        works = []
        for sample, view, own in zip(samples, views, keys, strict=True):
            sampling = Sampling.of(view, side.engine.policy.config, greedy=greedy)
            wanted = view.n if context.phase == "train" else None  # a measurement says how often it asks
            works.append(self._sample(_Task(side, context, sample, view, sampling), member_keys(own, wanted)))
        return await all_or_raise(works)

    async def _sample(self, task: _Task, keys: Sequence[int]) -> Group | None:
        """All n rollouts of one sample, again while one of them fails."""
        reason = ""
        with self.tracer.span("sample", task.sample.id, root=True, sample=task.sample.id) as span:
            for again in range(1 + RETRIES):
                outcomes = await all_or_raise(
                    [self._member(task, i, key, again) for i, key in enumerate(keys)])
                worst = worst_of(outcomes)
                if worst.status is not PluginStatus.FAILURE:
                    return self._settled(task, outcomes, worst, span)
                reason = worst.reason
                self.counts["retries"] += again < RETRIES
                span.event("FAILURE", reason=reason, run=again + 1)
            self.counts["failed"] += 1
            span.about["status"] = "failed"
            raise PluginStopError(
                f"stopped: the rollout {self.plugin.name!r} failed {1 + RETRIES} times on sample "
                f"{task.sample.id!r} ({reason}): mend the plug-in and resume; the last update is kept")

    def _settled(self, task: _Task, outcomes: Sequence[Outcome], worst: Outcome, span: Span) -> Group | None:
        kept = worst.status is PluginStatus.SUCCESS
        self.counts["kept" if kept else "discarded"] += 1
        span.about |= {"status": "kept" if kept else "discarded", "reason": worst.reason}
        return Group(task.sample, tuple(outcome.value for outcome in outcomes)) if kept else None

    async def _member(self, task: _Task, index: int, key: int, again: int) -> Outcome:
        """One rollout, again while it asks for that; its value is the trajectory."""
        reason = ""
        for attempt in range(1 + RETRIES):
            outcome = await self._attempt(task, index, derived(key, again, attempt), attempt)
            if outcome.status is not PluginStatus.RETRY:
                return outcome
            reason = outcome.reason
            self.counts["retries"] += attempt < RETRIES
            self.counts["timeouts"] += reason.startswith("timeout")
        return Outcome(PluginStatus.DISCARD, f"RETRY {1 + RETRIES} times: {reason}")

    async def _attempt(self, task: _Task, index: int, key: int, attempt: int) -> Outcome:
        about = {"sample": task.sample.id, "member": index, "attempt": attempt + 1,
                 "phase": task.context.phase}
        question = [m.model_dump(exclude_none=True) for m in task.view.messages]
        with tracing.span("rollout", self.plugin.name, inputs=question, **about) as span:
            assert span is not None
            session = Session(task.side, task.sampling, key)
            proxy = RolloutInferenceProxy(session, self.face)
            try:
                outcome = await self.caller.call(task.context, proxy, task.view.model_copy(deep=True))
            finally:
                proxy.close()
                self.counts["history_cuts"] += len(session.cuts)
            if outcome.status is PluginStatus.SUCCESS:
                outcome = finished(outcome, session, span.span)
            span.about |= {"status": outcome.status.value, "reason": outcome.reason}
            if (done := outcome.value) is not None:
                span.outputs = tracing.plain(done.messages[-1].as_dict())
                span.about |= {"finish_reason": done.finish_reason, **done.usage}
            return outcome


def _stop(engine: Engine) -> None:
    """Without waiting: garbage is collected on any thread, the engine's own among them."""
    with suppress(RuntimeError):
        engine.close(timeout=0)


class _Task:
    """What all rollouts of one sample share."""

    def __init__(self, side: PolicySide, context: PluginContext, sample: Sample,
                 view: ChatCompletionSample, sampling: Sampling) -> None:
        self.side, self.context, self.sample, self.view, self.sampling = side, context, sample, view, sampling


def read_result(value: Any) -> Outcome:
    """What a rollout returned; None is SUCCESS. Raises TypeError when it is something else."""
    if value is None:
        return Outcome(PluginStatus.SUCCESS, value={})
    if not isinstance(value, RolloutResult):
        raise TypeError(f"a rollout returns RolloutResult or None; got {type(value).__name__}")
    check_reward(value.extra)
    kept = value.status is PluginStatus.SUCCESS
    return Outcome(value.status, value.error or value.status.value, dict(value.extra or {}) if kept else None)


def finished(outcome: Outcome, session: Session, span: str) -> Outcome:
    """SUCCESS with the trajectory as its value; FAILURE when the policy was never asked."""
    trajectory: Trajectory | None = session.trajectory({**outcome.value, SPAN: span})
    if trajectory is None:
        return Outcome(PluginStatus.FAILURE, "SUCCESS, but the policy gave no answer: call "
                                             "chat.completions.create of a wrapped client")
    return Outcome(PluginStatus.SUCCESS, outcome.reason, trajectory)


def worst_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome that decides about the sample: DISCARD, then FAILURE, then SUCCESS."""
    order = (PluginStatus.DISCARD, PluginStatus.FAILURE, PluginStatus.SUCCESS)
    return min(outcomes, key=lambda outcome: order.index(outcome.status))


def check_temperature(sample: Sample, view: ChatCompletionSample, temperature: float) -> None:
    """ConfigError for a temperature that scoring would not use: trained is what was sampled."""
    if view.temperature not in (None, temperature):
        raise ConfigError(f"sample {sample.id!r} asks for temperature {view.temperature:g}, the run samples "
                          f"and scores at {temperature:g}: set config.temperature, or leave it out there")


def member_keys(keys: Sequence[int], n: int | None) -> list[int]:
    """One noise key a rollout; a sample's own n takes fewer of them, or more made from the first."""
    wanted = len(keys) if n is None else n
    return [keys[i] if i < len(keys) else derived(keys[0], i, -1) for i in range(wanted)]


def derived(key: int, again: int, attempt: int) -> int:
    """The key of a repeated rollout: other noise than the first time, the same in every run."""
    return key if (again, attempt) == (0, 0) else row_key(key, again, attempt)
