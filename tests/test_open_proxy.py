"""A rollout by hand: the open proxy, the record as a table and a picture, plug-ins tried on a script."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import Any

import pytest
from agent_fakes import SEARCH, agent_policy, ask, check_record, scripted
from matplotlib.patches import Rectangle

import rlteach as rl
from rlteach.agent import (
    ChatCompletionSample,
    GroupGraderResult,
    PluginError,
    PluginRollout,
    PluginStatus,
    PluginStopError,
    RolloutResult,
    RolloutRetryException,
    Runtime,
    group_grader,
    open_proxy,
    rollout,
    tracing,
)
from rlteach.course import scripted as scripts
from rlteach.course.exercises import lesson_10
from rlteach.course.scripted import ScriptedProxy, outcome_of
from rlteach.policy.policy import Policy
from rlteach.types import Trajectory
from rlteach.views.trace import read_trace, trace_tree


@pytest.fixture(scope="module")
def policy() -> Policy:
    return agent_policy()


@rollout
def two_turns(context: Any, proxy: Any, sample: Any) -> RolloutResult:
    client, messages = proxy.rollout_client(), [m.model_dump(exclude_none=True) for m in sample.messages]
    for _ in range(2):
        said = client.chat.completions.create(model="any", messages=messages).choices[0].message
        messages += [said.model_dump(exclude_none=True), {"role": "user", "content": "and?"}]
    return RolloutResult(extra={"phase": context.phase})


@rollout
async def async_turn(context: Any, proxy: Any, sample: Any) -> None:
    messages = [m.model_dump(exclude_none=True) for m in sample.messages]
    await proxy.async_rollout_client().chat.completions.create(model="any", messages=messages)


def played(policy: Policy, key: int = 1, **how: Any) -> Trajectory:
    with open_proxy(policy, ask(max_new_tokens=9), key=key, **how) as proxy:
        assert proxy.run(two_turns).status is PluginStatus.SUCCESS
        return proxy.trajectory


# the open proxy ------------------------------------------------------------------------------------
def test_a_rollout_by_hand_is_the_one_that_a_run_would_take(policy: Policy) -> None:
    """Same key, same noise: ids, mask and log-probabilities are those of PluginRollout."""
    made = PluginRollout(two_turns, policy)
    (group,) = made(policy, [ask(max_new_tokens=9)], [[1, 7]])
    made.close()
    for key, theirs in zip((1, 7), group.trajectories, strict=True):
        mine = played(policy, key)
        assert (mine.token_ids, mine.action_mask) == (theirs.token_ids, theirs.action_mask)
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-9)
        check_record(policy, mine)
    assert played(policy, 1, greedy=True).token_ids == played(policy, 2, greedy=True).token_ids


def test_run_works_for_both_kinds_inside_a_running_loop(policy: Policy) -> None:
    async def cell() -> list[Any]:
        with open_proxy(policy, ask(max_new_tokens=3)) as proxy:
            return [proxy.run(plugin) for plugin in (two_turns, async_turn)]

    one, other = asyncio.run(cell())
    assert (one.status, one.value) == (PluginStatus.SUCCESS, {"phase": "test"})
    assert other.status is PluginStatus.SUCCESS


def test_the_record_is_open_and_closes_with_the_block(policy: Policy) -> None:
    with open_proxy(policy, ask(max_new_tokens=3)) as proxy:
        assert proxy.trajectory is None
        assert proxy.cuts == ()
        proxy.run(async_turn)
        before = proxy.trajectory
        proxy.run(async_turn)  # the same question once more: the first answer is no part of it
        assert [cut["lost_turns"] for cut in proxy.cuts] == [1]
        assert proxy.trajectory.usage["turns"] == before.usage["turns"] == 1
        with pytest.raises(PluginError, match="put @rollout above"):
            proxy.run(lambda context, proxy, sample: None)
    with pytest.raises(RuntimeError, match="answers no more"):
        proxy.rollout_client().chat.completions.create(model="x", messages=[{"role": "user", "content": "?"}])


# the record, seen ----------------------------------------------------------------------------------
def test_the_record_as_a_table(policy: Policy) -> None:
    trajectory = played(policy)
    table = rl.record_table(policy, trajectory)
    assert tuple(table["id"]) == trajectory.token_ids
    assert tuple(table["sampled"]) == trajectory.action_mask
    parts = table.groupby("part")["sampled"].agg(["all", "any"])
    assert list(parts.index) == [0, 1, 2, 3]
    assert list(parts["all"]) == list(parts["any"]) == [False, True, False, True]
    own = table[table["sampled"]]
    pairs = zip(trajectory.logprobs, trajectory.action_mask, strict=True)
    assert list(own["logprob"]) == [value for value, sampled in pairs if sampled]
    assert table[~table["sampled"]]["logprob"].isna().all()
    assert "".join(table[table["part"] == 0]["token"]).startswith("<|im_start|>user↵who?")


def test_a_record_of_nothing_is_an_empty_table(policy: Policy) -> None:
    table = rl.record_table(policy, Trajectory((), (), (), (), 0, "stop"))
    assert list(table.columns) == ["part", "sampled", "id", "token", "logprob"]
    assert len(table) == 0


def test_only_sampled_tokens_have_a_colour(policy: Policy) -> None:
    trajectory = played(policy)
    text, *_ = rl.record_picture(policy, trajectory).axes
    coloured = [patch for patch in text.patches if isinstance(patch, Rectangle) and patch.get_width() > 0]
    assert len(coloured) == sum(trajectory.action_mask)
    assert len(text.texts) == len(trajectory.token_ids)


def test_spans_in_memory_are_read_like_those_of_a_file() -> None:
    made, policy = scripted(async_turn, lambda _: "yes")
    made(policy, [ask()], [[1, 2]])
    spans = read_trace(made.tracer)
    made.close()
    assert [s["kind"] for s in spans] == ["sample", *["rollout"] * 2, *["model"] * 2]
    assert [s["start"] for s in spans] == sorted(s["start"] for s in spans)
    assert "member 1" in str(trace_tree(spans, member=1).label)
    assert not any(math.isnan(s["ms"]) for s in spans)


# a script in place of a policy ---------------------------------------------------------------------
def test_a_script_is_played_in_order_and_what_was_asked_is_kept() -> None:
    proxy = ScriptedProxy([{"content": "first"}, {"content": "last"}])
    client, messages = proxy.rollout_client(), [{"role": "user", "content": "?"}]
    said = [client.chat.completions.create(model="x", messages=messages, tools=[SEARCH]) for _ in range(3)]
    messages.append({"role": "user", "content": "!"})
    assert [s.choices[0].message.content for s in said] == ["first", "last", "last"]
    assert [len(r["messages"]) for r in proxy.requests] == [1, 1, 1]
    assert proxy.requests[0]["tools"] == (SEARCH,)
    with pytest.raises(ValueError, match="temperature: a plug-in does not choose"):
        client.chat.completions.create(model="x", messages=messages, temperature=0.5)


def test_an_outcome_of_each_kind_of_plug_in_inside_a_running_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "SECONDS", 0.3)
    late = threading.Event()

    @rollout(runtime=Runtime(timeout=900))
    def hangs(context: Any, proxy: Any, sample: Any) -> None:
        late.wait(60)

    @group_grader
    async def fails(context: Any, sample: Any, trajectories: Any) -> GroupGraderResult:
        raise LookupError("a bug")

    async def cell() -> list[Any]:
        proxy = ScriptedProxy([{"content": "x"}])
        sample = ChatCompletionSample.of(ask())
        return [outcome_of(async_turn, "rollout", proxy, sample), outcome_of(hangs, "rollout", proxy, sample),
                outcome_of(fails, "group_grader", sample, [])]

    good, hung, failed = asyncio.run(cell())
    late.set()
    assert good.status is PluginStatus.SUCCESS
    assert (hung.status, hung.reason.split(":")[0]) == (PluginStatus.RETRY, "timeout")
    assert (failed.status, failed.reason) == (PluginStatus.FAILURE, "LookupError: a bug")
    with pytest.raises(PluginError, match="@group_grader is needed"):
        outcome_of(async_turn, "group_grader")


# exercises -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", ["SUCCESS", "RETRY", "timeout", "DISCARD", "FAILURE", "exception"])
@pytest.mark.parametrize("n", [1, 3])
def test_exercise_10_3_counts_what_a_run_does(status: str, n: int) -> None:
    members = []

    @rollout
    def plugin(context: Any, proxy: Any, sample: Any) -> Any:
        members.append(tracing.current()[1].about["member"])
        if members[-1] != 0 or status == "SUCCESS":
            return two_turns(context, proxy, sample)
        if status == "exception":
            raise LookupError("a bug")
        if status == "timeout":
            raise RolloutRetryException("the table has both in one row")
        return RolloutResult(status=PluginStatus[status])

    made, policy = scripted(plugin, lambda _: "yes")
    try:
        made(policy, [ask()], [[100 + i for i in range(n)]])
    except PluginStopError:
        assert status in ("FAILURE", "exception")
    made.close()
    assert len(members) == lesson_10.runs_of(status, n)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_exercise_10_2_takes_both_kinds_of_functions(kind: str) -> None:
    """An async solution is right, too; one that hangs is told so, and does not hang the notebook."""
    plain = lesson_10.rollout_with()

    @rollout
    async def as_coroutine(context: Any, proxy: Any, sample: Any) -> Any:
        return await asyncio.to_thread(plain, context, proxy, sample)

    async def cell() -> str | None:
        return lesson_10.own_rollout(plain if kind == "sync" else as_coroutine)

    assert asyncio.run(cell()) is None
