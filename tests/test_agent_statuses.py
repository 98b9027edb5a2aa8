"""T13: the status table of plug-ins, every cell. {outcome} x {rollout, grader} x {first, middle, last of
the group} x {bad once, as often as may be, once too often} x {sync, async} = 360 cells."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from agent_fakes import QuietEngine, ScriptedEngine, agent_policy, ask, check_record
from fakes import group, trajectory

from rlteach.agent import (
    GroupGraderResult,
    PluginJudger,
    PluginRollout,
    PluginStatus,
    PluginStopError,
    RolloutResult,
    RolloutRetryException,
    Runtime,
    calling,
    group_grader,
    rollout,
    single_grader,
    tracing,
)
from rlteach.policy.policy import Policy

LIMIT = 3  # retries after the first run
OUTCOMES = ("SUCCESS", "None", "RETRY", "DISCARD", "FAILURE", "Exception", "CancelledError",
            "KeyboardInterrupt", "timeout", "wrong type")
FAILS, REPEATS = ("FAILURE", "Exception", "wrong type"), ("RETRY", "timeout")
INTERRUPTS = {"CancelledError": asyncio.CancelledError, "KeyboardInterrupt": KeyboardInterrupt}
CELLS = list(itertools.product(OUTCOMES, (0, 1, 2), (1, LIMIT, LIMIT + 1), (False, True)))


@pytest.fixture(scope="module")
def policy() -> Policy:
    return agent_policy()


@pytest.fixture(scope="module")
def engine(policy: Policy) -> Iterator[QuietEngine]:
    engine = QuietEngine(policy, lambda _: "yes")
    yield engine
    engine.close()


TASK: ContextVar[asyncio.Task[Any]] = ContextVar("task")  # of the call that the plug-in runs in


class Hangs:
    """Stands in for the clock: a call is out of time when its plug-in says that it hangs."""

    def __init__(self) -> None:
        self.tasks, self.end = set(), threading.Event()

    def hang(self) -> None:
        self.tasks.add(TASK.get())
        self.end.wait(60)

    async def hang_async(self) -> None:
        self.tasks.add(TASK.get())
        await asyncio.sleep(60)

    async def ended_within(self, task: asyncio.Future[Any], seconds: float) -> bool:
        while not task.done() and task not in self.tasks:
            await asyncio.wait({task}, timeout=0.002)
        return task.done()


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hangs]:
    def marked(method: Callable[..., Any]) -> Callable[..., Any]:
        async def run(self: Any, *args: Any) -> Any:
            TASK.set(asyncio.current_task())
            return await method(self, *args)

        return run

    hangs = Hangs()
    monkeypatch.setattr(calling, "ended_within", hangs.ended_within)
    for name in ("_on_loop", "_on_thread"):
        monkeypatch.setattr(calling.Caller, name, marked(getattr(calling.Caller, name)))
    yield hangs
    hangs.end.set()


def happens(outcome: str, result: Callable[..., Any], hangs: Hangs) -> Any:
    """What a plug-in does that ends so; `hang` for a timeout is done by the caller (sync or async)."""
    if outcome in ("SUCCESS", "RETRY", "DISCARD", "FAILURE"):
        return result(status=PluginStatus[outcome], error=f"told {outcome}")
    if outcome == "Exception":
        raise LookupError("a bug of the plug-in")
    if outcome in INTERRUPTS:
        raise INTERRUPTS[outcome]
    return {"None": None, "wrong type": {"status": "SUCCESS"}}[outcome]


def a_rollout(outcome: str, place: int, often: int, is_async: bool, hangs: Hangs, runs: Counter) -> Any:
    """Member `place` of sample s0 ends badly in its first `often` runs."""

    def count() -> bool:
        about = tracing.current()[1].about
        member = (about["sample"], about["member"])
        runs[member] += 1
        return member == ("s0", place) and runs[member] <= often

    if is_async:
        @rollout
        async def plugin(context: Any, proxy: Any, sample: Any) -> Any:
            messages = [m.model_dump() for m in sample.messages]
            await proxy.async_rollout_client().chat.completions.create(model="x", messages=messages)
            bad = count()
            if bad and outcome == "timeout":
                await hangs.hang_async()
            return happens(outcome, RolloutResult, hangs) if bad else None
    else:
        @rollout
        def plugin(context: Any, proxy: Any, sample: Any) -> Any:
            messages = [m.model_dump() for m in sample.messages]
            proxy.rollout_client().chat.completions.create(model="x", messages=messages)
            bad = count()
            if bad and outcome == "timeout":
                hangs.hang()
            return happens(outcome, RolloutResult, hangs) if bad else None
    return plugin


@pytest.mark.parametrize(("outcome", "place", "often", "is_async"), CELLS)
def test_rollout_cells(outcome: str, place: int, often: int, is_async: bool, policy: Policy,
                       engine: QuietEngine, hangs: Hangs) -> None:
    runs: Counter[Any] = Counter()
    plugin = PluginRollout(a_rollout(outcome, place, often, is_async, hangs, runs), policy,
                           engine=lambda _: engine)
    samples, keys = [ask(name="s0"), ask(name="s1")], [[1, 2, 3], [4, 5, 6]]
    mine = [("s0", i) for i in range(3)]
    others = [member for member in mine if member[1] != place]
    stops = outcome in FAILS and often > LIMIT
    if outcome in INTERRUPTS or stops:
        with pytest.raises(INTERRUPTS.get(outcome, PluginStopError)) as caught:
            plugin(policy, samples, keys)
        if stops:
            assert "s0" in str(caught.value)
            assert [runs[m] for m in mine] == [LIMIT + 1] * 3
        else:
            assert runs["s0", place] == 1
        kept = None
    else:
        kept = [g.sample.id for g in plugin(policy, samples, keys)]
        assert [runs["s1", i] for i in range(3)] == [1, 1, 1], "the other sample is none of its business"
    if outcome in ("SUCCESS", "None"):
        assert kept == ["s0", "s1"]
        assert runs["s0", place] == 1
    elif outcome == "DISCARD":
        assert kept == ["s1"]
        assert runs["s0", place] == 1
    elif outcome in REPEATS:
        assert kept == (["s1"] if often > LIMIT else ["s0", "s1"])
        assert runs["s0", place] == min(often, LIMIT) + 1
        assert all(runs[m] == 1 for m in others), "only this rollout again"
    elif outcome in FAILS and not stops:
        assert kept == ["s0", "s1"]
        assert all(runs[m] == often + 1 for m in mine), "the whole sample again"
    told = plugin.take_metrics()
    assert told["rollout/kept"] + told["rollout/discarded"] + told["rollout/failed"] == 2
    assert told["rollout/started"] == 2
    if outcome not in ("SUCCESS", "None"):
        about = [s for s in plugin.tracer.spans if s.kind == "rollout" and s.about["sample"] == "s0"
                 and s.about["member"] == place]
        assert any(s.about.get("reason") or s.error for s in about), "every cell leaves a reason"


def a_grader(outcome: str, place: int, often: int, is_async: bool, hangs: Hangs, runs: Counter) -> Any:
    """Trajectory `place` is graded badly in its first `often` runs; else the reward is its place / 2."""

    def count(view: Any) -> int | None:
        mine = int(view.messages[-1].content)
        runs[mine] += 1
        return None if mine == place and runs[mine] <= often else mine

    def result(**fields: Any) -> GroupGraderResult:
        return GroupGraderResult(rewards=[place / 2], **fields)

    if is_async:
        @single_grader
        async def plugin(context: Any, sample: Any, view: Any) -> Any:
            mine = count(view)
            if mine is None and outcome == "timeout":
                await hangs.hang_async()
            return happens(outcome, result, hangs) if mine is None else mine / 2
    else:
        @single_grader
        def plugin(context: Any, sample: Any, view: Any) -> Any:
            mine = count(view)
            if mine is None and outcome == "timeout":
                hangs.hang()
            return happens(outcome, result, hangs) if mine is None else mine / 2
    return plugin


def three() -> Any:
    """A group whose answers say their places."""
    made = [trajectory([5], [6 + i]) for i in range(3)]
    for i, t in enumerate(made):
        object.__setattr__(t, "messages", (t.messages[0], type(t.messages[0])("assistant", str(i))))
    return group(made, [None] * 3).with_(judgements=None)


@pytest.mark.parametrize(("outcome", "place", "often", "is_async"), CELLS)
def test_grader_cells(outcome: str, place: int, often: int, is_async: bool, hangs: Hangs) -> None:
    runs: Counter[int] = Counter()
    judger = PluginJudger(a_grader(outcome, place, often, is_async, hangs, runs))
    fails = outcome in (*FAILS, "None")  # a grader has to return something
    if outcome in INTERRUPTS or (fails and often > LIMIT):
        with pytest.raises(INTERRUPTS.get(outcome, PluginStopError)):
            judger.grade(three())
        assert runs[place] == (1 if outcome in INTERRUPTS else LIMIT + 1)
    else:
        scores = [j.score for j in judger.grade(three())]
        if outcome == "DISCARD" or (outcome in REPEATS and often > LIMIT):
            assert scores == [None] * 3
            assert runs[place] == (1 if outcome == "DISCARD" else LIMIT + 1)
        else:
            assert scores == [0, 0.5, 1]
            assert runs[place] == (1 if outcome == "SUCCESS" else often + 1)
    if outcome != "SUCCESS":
        (span,) = [s for s in judger.tracer.spans if s.kind == "grade"]
        assert span.about.get("reason") or span.error or span.events


# beside the table ---------------------------------------------------------------------------------
@pytest.mark.parametrize("rewards", [[1.0], [1.0, 0.0, 0.0, 0.0], [], [float("nan"), 0.0, 1.0]])
def test_a_group_grader_gives_n_finite_rewards(rewards: list[float]) -> None:
    calls = []

    @group_grader
    def plugin(context: Any, sample: Any, trajectories: Any) -> GroupGraderResult:
        calls.append(len(trajectories))
        return GroupGraderResult(rewards=rewards)

    with pytest.raises(PluginStopError, match="plugin"):
        PluginJudger(plugin).grade(three())
    assert calls == [3] * (LIMIT + 1)


def test_an_element_none_is_one_unscorable_member() -> None:
    @group_grader
    def plugin(context: Any, sample: Any, trajectories: Any) -> GroupGraderResult:
        return GroupGraderResult(rewards=[1.0, None, 0.0])

    found = PluginJudger(plugin).grade(three())
    assert [(j.score, j.status) for j in found] == [(1, "correct"), (None, "unscorable"), (0, "incorrect")]


def test_a_discard_with_no_rewards_leaves_everybody_unscorable_with_the_reason() -> None:
    @group_grader
    async def plugin(context: Any, sample: Any, trajectories: Any) -> GroupGraderResult:
        return GroupGraderResult(rewards=[], status=PluginStatus.DISCARD, error="no answer in the data")

    assert all("no answer in the data" in j.reason for j in PluginJudger(plugin).grade(three()))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_real_timeout(is_async: bool, policy: Policy, engine: QuietEngine) -> None:
    """By the clock, and the proxy of a rollout that was given up answers no more."""
    proxies, late = [], threading.Event()
    short = Runtime(timeout=0.2)

    if is_async:
        @rollout(runtime=short)
        async def plugin(context: Any, proxy: Any, sample: Any) -> None:
            proxies.append(proxy)
            await asyncio.sleep(60)
    else:
        @rollout(runtime=short)
        def plugin(context: Any, proxy: Any, sample: Any) -> None:
            proxies.append(proxy)
            late.wait(60)

    made = PluginRollout(plugin, policy, engine=lambda _: engine)
    began = time.monotonic()
    assert made(policy, [ask()], [[1]]) == []
    assert time.monotonic() - began < 10
    assert made.take_metrics()["rollout/timeouts"] == LIMIT + 1
    late.set()
    with pytest.raises(RuntimeError, match="answers no more"):
        proxies[0].rollout_client().chat.completions.create(model="x", messages=[
            {"role": "user", "content": "?"}])


def test_the_exception_of_a_retry_is_a_retry(policy: Policy, engine: QuietEngine) -> None:
    @rollout
    def plugin(context: Any, proxy: Any, sample: Any) -> None:
        raise RolloutRetryException("the search is away")

    made = PluginRollout(plugin, policy, engine=lambda _: engine)
    assert made(policy, [ask()], [[1, 2]]) == []
    (span,) = [s for s in made.tracer.spans if s.kind == "sample"]
    assert "the search is away" in span.about["reason"]


def test_d07_success_without_a_model_call_is_a_failure(policy: Policy, engine: QuietEngine) -> None:
    @rollout
    def plugin(context: Any, proxy: Any, sample: Any) -> None:
        return None

    with pytest.raises(PluginStopError, match="no answer"):
        PluginRollout(plugin, policy, engine=lambda _: engine)(policy, [ask()], [[1]])


def test_no_repeated_run_has_the_noise_of_the_first(policy: Policy) -> None:
    """A deterministic model would fail the same way four times; and a run is the same when it is repeated."""
    seen: list[int] = []

    @rollout
    def plugin(context: Any, proxy: Any, sample: Any) -> RolloutResult:
        seen.append(proxy._session.key)
        return RolloutResult(status=PluginStatus.RETRY)

    for _ in range(2):
        PluginRollout(plugin, policy, engine=lambda p: QuietEngine(p, lambda _: "x"))(policy, [ask()], [[7]])
    assert seen[:4] == seen[4:]
    assert len(set(seen)) == 4
    assert seen[0] == 7


def test_records_of_repeated_runs_hold_the_last_run_only(policy: Policy) -> None:
    """A rollout that is run again starts from an empty record."""
    runs = []

    @rollout
    def plugin(context: Any, proxy: Any, sample: Any) -> RolloutResult | None:
        messages = [m.model_dump() for m in sample.messages]
        proxy.rollout_client().chat.completions.create(model="x", messages=messages)
        runs.append(1)
        return RolloutResult(status=PluginStatus.RETRY) if len(runs) < 3 else None

    made = PluginRollout(plugin, policy, engine=lambda p: ScriptedEngine(p, lambda _: "yes"))
    (found,) = made(policy, [ask()], [[1]])
    assert found.trajectories[0].usage["turns"] == 1
    check_record(policy, found.trajectories[0])
    made.close()
