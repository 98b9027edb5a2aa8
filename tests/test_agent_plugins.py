"""Plug-ins as the first source document has them (SEEDS rows 5-46): decorators, types, tools, graders,
tracing, trials; and its own plug-ins, in our words, on nothing but the public names."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from agent_fakes import (
    SEARCH,
    agent_config,
    agent_policy,
    ask,
    call_text,
    check_record,
    scripted,
    turns_so_far,
)
from fakes import group, trajectory
from pydantic import ValidationError

import rlteach.agent
from rlteach import graders
from rlteach.agent import (
    ChatCompletionMessage,
    ChatCompletionSample,
    GroupGraderResult,
    PluginContext,
    PluginError,
    PluginInstance,
    PluginJudger,
    PluginRollout,
    PluginStatus,
    PluginStopError,
    RolloutInferenceProxy,
    RolloutResult,
    RolloutRetryException,
    Runtime,
    ToolCallError,
    Tracer,
    Trajectory,
    check_call,
    coze_monitor,
    get_current_weather,
    group_grader,
    observe,
    rollout,
    single_grader,
    weather_tool,
    wrap_async_client_inplace,
    wrap_client_inplace,
    wrap_inplace_trace,
)
from rlteach.agent.plugins import plugin_of
from rlteach.agent.twin import Twin
from rlteach.judger.function import as_judger
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Message
from rlteach.views.trace import TraceError, read_trace, rollout_table, trace_tree

ARK_NAMES = (
    "rollout", "group_grader", "single_grader", "Runtime", "PluginInstance", "PluginContext", "PluginStatus",
    "RolloutInferenceProxy", "RolloutResult", "RolloutRetryException", "GroupGraderResult",
    "ChatCompletionSample", "ChatCompletionMessage", "ChatCompletionResponse", "Trajectory",
    "wrap_client_inplace", "wrap_async_client_inplace", "wrap_inplace_trace", "observe", "coze_monitor",
    "test_with_dataset")


def test_the_names_of_the_ark_sdk_are_there() -> None:
    for name in ARK_NAMES:
        assert getattr(rlteach.agent, name) is not None
        assert name in rlteach.agent.__all__


# decorators (rows 5, 6, 11) -------------------------------------------------------------------------
def test_a_decorated_function_is_the_function() -> None:
    def plain(context: Any, proxy: Any, sample: Any) -> str:
        return f"called with {sample}"

    made = rollout(name="mine", description="d", runtime=Runtime(timeout=5))(plain)
    assert made is plain
    assert made(None, None, "x") == "called with x"
    found = plugin_of(made, "rollout")
    assert (found.name, found.description, found.runtime.timeout, found.is_async) == ("mine", "d", 5, False)


def test_names_default_and_decorators_work_bare_and_over_a_monitor() -> None:
    @rollout
    @coze_monitor
    async def search(context: Any, proxy: Any, sample: Any) -> None:
        """Doc."""

    assert plugin_of(search, "rollout").name == "search"
    assert plugin_of(search, "rollout").is_async
    assert search.__doc__ == "Doc."


def test_what_is_no_plug_in_says_which_decorator() -> None:
    def bare(context: Any, proxy: Any, sample: Any) -> None:
        return None

    with pytest.raises(PluginError, match="bare is no plug-in: put @rollout above"):
        PluginRollout(bare)
    with pytest.raises(PluginError, match="is a rollout: @group_grader or @single_grader is needed"):
        PluginJudger(rollout(bare))
    with pytest.raises(PluginError, match=r"takes \(context, proxy, sample\)"):
        rollout(lambda sample: None)


@pytest.mark.parametrize("wrong", [
    {"timeout": 901}, {"timeout": 0}, {"max_concurrency": 101}, {"max_concurrency": 0},
    {"instance": "CPU3MEM1"}, {"min_replicas": 0}, {"made_up": 1}])
def test_runtime_has_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Runtime(**wrong)


def test_runtime_of_the_document() -> None:
    runtime = Runtime(instance=PluginInstance.CPU1MEM2, max_concurrency=100, min_replicas=1, max_replicas=10,
                      timeout=900)
    assert runtime.instance is PluginInstance.CPU1MEM2
    assert Runtime().max_concurrency == 10
    assert {"CPU2MEM4", "CPU16MEM128"} <= {i.name for i in PluginInstance}
    with pytest.raises(PluginError, match="min_replicas 5 is above max_replicas 1"):
        rollout(runtime=Runtime(min_replicas=5))(lambda context, proxy, sample: None)


def test_h04_a_redefined_plug_in_replaces_the_first() -> None:
    for version in (1, 2):
        @group_grader(name="same")
        def grader(context: Any, sample: Any, trajectories: Any, version: int = version) -> GroupGraderResult:
            return GroupGraderResult(rewards=[version / 2] * len(trajectories))

    found = as_judger(grader).grade(group([trajectory([5], [6])], [None]))
    assert found[0].score == 1


def test_max_concurrency_is_never_exceeded() -> None:
    running, most, lock, together = 0, 0, threading.Lock(), threading.Event()

    @rollout(runtime=Runtime(max_concurrency=3))
    def plugin(context: Any, proxy: RolloutInferenceProxy, sample: Any) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                together.set()
        proxy.rollout_client().chat.completions.create(model="x", messages=sample.model_dump()["messages"])
        together.wait(30)
        with lock:
            running -= 1

    made, policy = scripted(plugin, lambda _: "yes")
    made(policy, [ask(name=str(i)) for i in range(4)], [[1, 2, 3]] * 4)
    assert most == 3
    made.close()


# samples and results (rows 6-9, 18) -----------------------------------------------------------------
def test_a_sample_as_a_plug_in_sees_it() -> None:
    made = ask("q?", n=3, temperature=0.5, thinking={"type": "enabled"}, prompt_id=7)
    view = ChatCompletionSample.of(made)
    assert (view.n, view.temperature, view.thinking) == (3, 0.5, {"type": "enabled"})
    assert view.extra == {"prompt_id": 7, "answer": "Ann"}
    assert (view.messages[-1].role, view.messages[-1].content) == ("user", "q?")
    dumped = view.model_dump()
    assert (dumped.pop("tools") or []) == []
    assert dumped.pop("messages")[0]["content"] == "q?"


def test_what_a_plug_in_changes_stays_with_it() -> None:
    """Row 7: n calls a sample, each with its own sample, context and proxy."""
    seen = []

    @rollout
    def plugin(context: PluginContext, proxy: RolloutInferenceProxy, sample: ChatCompletionSample) -> None:
        seen.append((len(sample.messages), context.phase, proxy.jwt_token))
        one_turn(context, proxy, sample)
        sample.messages.append(ChatCompletionMessage(role="user", content="mine"))

    made, policy = scripted(plugin, lambda _: "yes")
    made(policy, [ask()], [[1, 2, 3]], phase="test")
    assert [(length, phase) for length, phase, _ in seen] == [(1, "test")] * 3
    assert len({token for *_, token in seen}) == 3
    made.close()


def one_turn(context: Any, proxy: RolloutInferenceProxy, sample: ChatCompletionSample) -> None:
    messages = [m.model_dump() for m in sample.messages]
    proxy.rollout_client().chat.completions.create(model="x", messages=messages)


def test_a_sample_s_own_numbers_are_honoured() -> None:
    made, policy = scripted(rollout(one_turn), lambda _: "y" * 40)
    groups = made(policy, [ask(n=3, max_new_tokens=7), ask(name="s1")], [[1, 2], [3, 4]])
    assert [len(g.trajectories) for g in groups] == [3, 2]
    assert groups[0].trajectories[0].usage["completion_tokens"] == 7
    assert groups[1].trajectories[0].usage["completion_tokens"] == 41
    with pytest.raises(ValueError, match=r"asks for temperature 0\.5, the run samples and scores at 1"):
        made(policy, [ask(temperature=0.5)], [[1, 2]])
    made.close()


@pytest.mark.parametrize("reward", ["much", float("nan"), float("inf"), [1]])
def test_a_reward_of_a_rollout_is_a_finite_number(reward: Any) -> None:
    with pytest.raises(ValidationError, match="must be a finite number"):
        RolloutResult(extra={"reward": reward})


def test_extra_reaches_the_grader_and_extra_reward_replaces_its_value() -> None:
    """Row 18: after the grader ran on all n."""
    seen = []

    @rollout
    def plugin(context: Any, proxy: RolloutInferenceProxy, sample: ChatCompletionSample) -> RolloutResult:
        one_turn(context, proxy, sample)
        return RolloutResult(status=PluginStatus.SUCCESS, extra={"reward": -1, "why": "bad call"})

    @group_grader
    def grader(context: Any, sample: Any, trajectories: list[Trajectory]) -> GroupGraderResult:
        seen.append([t.extra for t in trajectories])
        return GroupGraderResult(rewards=[1.0] * len(trajectories))

    made, policy = scripted(plugin, lambda _: "yes")
    (found,) = made(policy, [ask()], [[1, 2]])
    judgements = PluginJudger(grader).grade(found)
    assert seen == [[{"reward": -1, "why": "bad call"}] * 2], "and nothing of ours in it"
    assert [(j.score, j.status) for j in judgements] == [(-1, "incorrect")] * 2
    made.close()


# tools (rows 15-17, bad input) ----------------------------------------------------------------------
@pytest.mark.parametrize(("name", "arguments", "why"), [
    ("web_search", '{"Query": "x"', "not JSON"), ("web_search", "", "not JSON"),
    ("web_search", '{"Query": NaN}', "not JSON"), ("web_search", '["x"]', "not a JSON object"),
    ("web_search", "{}", "'Query' is a required property"), ("web_search", '{"Query": 5}', "Query: 5 is not"),
    ("web_search", '{"Query": "x", "Count": "ten"}', "Count: 'ten'"),
    ("web_search", '{"Query": "x", "Page": 2}', "no argument 'Page'"),
    ("search", '{"Query": "x"}', "there is no tool 'search'"), ("", "{}", "there is no tool"),
    ("web_search", "[" * 100_000, "not JSON"),
])
def test_wrong_calls_say_what_is_wrong(name: str, arguments: str, why: str) -> None:
    with pytest.raises(ToolCallError, match=why):
        check_call({"function": {"name": name, "arguments": arguments}}, [SEARCH])


def test_right_calls_pass() -> None:
    call = {"function": {"name": "web_search", "arguments": '{"Query": "谁?", "Count": 3}'}}
    assert check_call(call, [SEARCH]) == ("web_search", {"Query": "谁?", "Count": 3})


@pytest.mark.parametrize(("said", "name", "arguments"), [
    ('<tool_call>\n{"name": "web_search", "arguments": {"Query": "x"\n</tool_call>', "web_search",
     '{"name": "web_search", "arguments": {"Query": "x"'),
    ("<tool_call>who is it</tool_call>", "", "who is it"),
    ('<tool_call>{"name": "web_search", "arguments": "x"}</tool_call>', "web_search",
     '{"name": "web_search", "arguments": "x"}'),
    ("<tool_call></tool_call>", "", ""),
])
def test_a_broken_call_reaches_the_plug_in_as_a_call(said: str, name: str, arguments: str) -> None:
    """Row 21: a call with malformed arguments is a negative to learn from, so the plug-in has to see it."""
    seen = []

    @rollout
    def plugin(context: Any, proxy: RolloutInferenceProxy, sample: Any) -> RolloutResult:
        reply = proxy.rollout_client().chat.completions.create(
            model="x", messages=sample.model_dump()["messages"], tools=[SEARCH])
        (call,) = reply.choices[0].message.tool_calls
        seen.append((reply.choices[0].finish_reason, call.function.name, call.function.arguments))
        with pytest.raises(ToolCallError):
            check_call(call, [SEARCH])
        return RolloutResult(extra={"reward": -1})

    made, policy = scripted(plugin, lambda _: said)
    (found,) = made(policy, [ask()], [[1]])
    assert seen == [("tool_calls", name, arguments)]
    check_record(policy, found.trajectories[0])
    made.close()


def test_the_weather_is_the_same_each_time_and_fits_its_description() -> None:
    call = {"function": {"name": "get_current_weather", "arguments": '{"location": "北京"}'}}
    name, arguments = check_call(call, [weather_tool])
    told = json.loads(get_current_weather(**arguments))
    assert name == "get_current_weather"
    assert told == json.loads(get_current_weather("北京", unit="celsius"))
    assert told["location"] == "北京"
    warmer = json.loads(get_current_weather("北京", unit="fahrenheit"))
    assert warmer["temperature"] == round(told["temperature"] * 9 / 5 + 32)


# graders (rows 26-36) -------------------------------------------------------------------------------
def test_metrics_come_out_as_max_min_and_mean() -> None:
    @group_grader
    def grader(context: Any, sample: ChatCompletionSample, trajectories: Any) -> GroupGraderResult:
        return GroupGraderResult(rewards=[0.0] * len(trajectories), metrics={"calls": sample.extra["calls"]})

    judger = PluginJudger(grader)
    answer = group([trajectory([5], [6])], [None])
    judger.grade_all([answer.with_(sample=ask(calls=n)) for n in (1, 2, 6)])
    assert judger.take_metrics() == {"calls/max": 6, "calls/min": 1, "calls/mean": 3}
    assert judger.take_metrics() == {}


def test_weights_and_envs_of_graders_each_its_own() -> None:
    """Row 4: graders((fn, weight, envs), ...). The variables are set for that grader only, then put back."""
    seen = {}

    def make(name: str, reward: float) -> Any:
        @group_grader(name=name)
        async def grader(context: Any, sample: Any, trajectories: Any) -> GroupGraderResult:
            await asyncio.sleep(0)
            seen[name] = (os.environ.get("OPENAI_BASE_URL"), os.environ.get("ONLY_A"))
            return GroupGraderResult(rewards=[reward] * len(trajectories))

        return grader

    os.environ["OPENAI_BASE_URL"] = "http://before"
    try:
        judger = graders((make("a", 1.0), 0.75, {"OPENAI_BASE_URL": "http://a", "ONLY_A": "1"}),
                         (make("b", 0.0), 0.25))
        found = judger.grade_all([group([trajectory([5], [6])] * 2, [None] * 2)] * 3)
        assert os.environ["OPENAI_BASE_URL"] == "http://before"
    finally:
        del os.environ["OPENAI_BASE_URL"]
    assert seen == {"a": ("http://a", "1"), "b": ("http://before", None)}
    assert "ONLY_A" not in os.environ
    assert [[j.score for j in row] for row in found] == [[0.75, 0.75]] * 3


def test_a_single_grader_sees_one_trajectory_at_a_time() -> None:
    @single_grader
    def grader(context: Any, sample: Any, trajectory: Trajectory) -> float:
        return float(trajectory.messages[-1].content == "!")

    found = as_judger(grader).grade(group([trajectory([5], [6])] * 2, [None] * 2))
    assert [j.score for j in found] == [1, 1]


def test_a_grader_can_be_tried_by_hand() -> None:
    """Row 25: with trajectories made in a cell, and no context."""
    sample = ChatCompletionSample(**{"messages": [{"role": "user", "content": "who?"}], "thinking": {
        "type": "enabled"}, "extra": {"answer": "Ann and Bo"}})
    made = [Trajectory(**{"messages": [{"role": "assistant", "content": text}], "finish_reason": "stop",
                          "usage": {}}) for text in ("It is Ann and Bo.", "Ann")]

    @group_grader
    async def grader(context: Any, sample: ChatCompletionSample, trajectories: list[Trajectory]
                     ) -> GroupGraderResult:
        return GroupGraderResult(rewards=[float(sample.extra["answer"] in t.messages[-1].content)
                                          for t in trajectories])

    assert asyncio.run(grader({}, sample, made)).rewards == [1, 0]


# the document's plug-ins, in our words --------------------------------------------------------------
MAX_STEPS = 6
LIBRARY = {"who leads Acme": "Ann Lee leads Acme"}


@observe(process_inputs=lambda d: {key: d["kwargs"][key] for key in ["name", "arguments"]})
async def exec_tool_call(name: str, arguments: dict[str, Any]) -> str:
    await asyncio.sleep(0)
    if arguments["Query"] == "crash":
        raise RolloutRetryException("web_search: no Result")
    return json.dumps({"Result": LIBRARY.get(arguments["Query"], "nothing")}, ensure_ascii=False)


@rollout(name="search", description="search", runtime=Runtime(instance=PluginInstance.CPU2MEM4, timeout=900))
@coze_monitor
async def search_rollout(context: PluginContext, proxy: RolloutInferenceProxy, sample: ChatCompletionSample
                         ) -> RolloutResult | None:
    tools = [SEARCH]
    req = sample.model_dump()
    messages = req.pop("messages")
    client = openai.AsyncOpenAI(base_url=proxy.url, api_key=proxy.jwt_token)
    wrap_inplace_trace(client)
    wrap_async_client_inplace(client, proxy=proxy)
    step = 0
    while True:
        completion = await client.chat.completions.create(model="any", messages=messages, tools=tools)
        messages.append(completion.choices[0].message.model_dump())
        step += 1
        if step >= MAX_STEPS or completion.choices[0].finish_reason != "tool_calls":
            break
        for tool_call in completion.choices[0].message.tool_calls or []:
            try:
                name, params = check_call(tool_call, tools)
            except ToolCallError:
                return RolloutResult(status=PluginStatus.SUCCESS, extra={"reward": -1})
            res = await exec_tool_call(name=name, arguments=params)
            messages.append({"role": "tool", "content": res, "tool_call_id": tool_call.id})
    return RolloutResult(status=PluginStatus.SUCCESS)


@rollout(runtime=Runtime(instance=PluginInstance.CPU1MEM2, max_concurrency=100, max_replicas=10))
@coze_monitor
def weather_rollout(context: PluginContext, proxy: RolloutInferenceProxy, sample: ChatCompletionSample
                    ) -> RolloutResult | None:
    client = openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token)
    wrap_client_inplace(client, proxy=proxy)
    req = sample.model_dump()
    messages, tools = req.pop("messages"), (req.pop("tools") or []) + [weather_tool]
    for _ in range(MAX_STEPS):
        completion = client.chat.completions.create(model="any", messages=messages, tools=tools)
        messages.append(completion.choices[0].message.model_dump())
        if completion.choices[0].finish_reason != "tool_calls":
            break
        for tool_call in completion.choices[0].message.tool_calls or []:
            try:
                _, arguments = check_call(tool_call, tools)
            except ToolCallError:
                return RolloutResult(status=PluginStatus.SUCCESS, extra={"reward": -1})
            messages.append({"role": "tool", "content": get_current_weather(**arguments),
                             "tool_call_id": tool_call.id})
    return None


@group_grader(name="random_reward", runtime=Runtime(timeout=300))
def random_reward(context: PluginContext, sample: ChatCompletionSample, trajectories: list[Trajectory]
                  ) -> GroupGraderResult:
    rewards = [t.extra["reward"] if (t.extra and "reward" in t.extra) else random.random()
               for t in trajectories]
    return GroupGraderResult(rewards=rewards, status=PluginStatus.SUCCESS, error="", metrics={})


def format_penalty(t: Trajectory) -> float | None:
    if t.messages[-1].tool_calls:
        try:
            for call in t.messages[-1].tool_calls:
                check_call(call, [SEARCH])
        except ToolCallError:
            return -1.0
        return 0.0
    if not t.messages[-1].content or all(not m.tool_calls for m in t.messages):
        return -1.0
    return None


@group_grader
async def rule_grader(context: PluginContext, sample: ChatCompletionSample, trajectories: list[Trajectory]
                      ) -> GroupGraderResult:
    if not sample.extra or "answer" not in sample.extra or sample.messages[-1].role != "user":
        return GroupGraderResult(rewards=[], status=PluginStatus.DISCARD, error="sample is not valid")
    rewards = []
    for t in trajectories:
        penalty = format_penalty(t)
        right = float(sample.extra["answer"] in (t.messages[-1].content or ""))
        rewards.append(right if penalty is None else penalty)
    return GroupGraderResult(rewards=rewards, metrics={"right": sum(r == 1 for r in rewards)})


def search_script(prompt: str) -> str:
    if "Ann Lee leads" in prompt:
        return "It is Ann Lee"
    return call_text(Query="who leads Acme") if "Acme" in prompt else "no idea"


class Pretended:
    """An address for clients that a wrapped plug-in makes; nobody is asked there."""

    url = "http://127.0.0.1:9/v1"

    def add(self, session: Any) -> None: ...
    def remove(self, session: Any) -> None: ...


def test_the_search_plug_in_of_the_document(tmp_path: Path) -> None:
    """Rollout, tools, penalties, grader, trace and its tree, from end to end."""
    tracer = Tracer(tmp_path / "trace.jsonl")
    policy = agent_policy(agent_config(max_new_tokens=100))
    made, policy = scripted(search_rollout, search_script, policy, face=Pretended, tracer=tracer)
    samples = [ask("who leads Acme?", name="right"), ask("who?", name="lazy")]
    groups = made(policy, samples, [[1, 2], [3, 4]])
    judger = PluginJudger(rule_grader, tracer=tracer)
    rewards = [[j.score for j in row] for row in judger.grade_all(groups)]
    assert rewards == [[1, 1], [-1, -1]], "answering without a search is punished"
    for found in groups:
        for t in found.trajectories:
            check_record(policy, t)
    assert [m.role for m in groups[0].trajectories[0].messages] == ["user", "assistant", "tool", "assistant"]
    spans = read_trace(tmp_path)
    kinds = [s["kind"] for s in spans]
    assert {k: kinds.count(k) for k in ("sample", "rollout", "model", "tool", "grade")} == {
        "sample": 2, "rollout": 4, "model": 6, "tool": 2, "grade": 2}
    shown = drawn(trace_tree(spans, sample="right", member=0))
    order = ["user: who leads Acme?", "-> web_search(", "tool exec_tool_call", "Ann Lee leads Acme",
             "assistant: It is Ann Lee", "grade rule_grader", "reward 1"]
    assert [w for w in order if w not in shown] == []
    assert sorted(order, key=shown.index) == order
    assert shown.count(" ms") >= 4
    assert "lazy" in drawn(rollout_table(spans))
    with pytest.raises(TraceError, match="the trace has 4 of them"):
        trace_tree(spans, at=9)
    made.close()


def drawn(thing: Any) -> str:
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=200, legacy_windows=False)
    console.print(thing)
    return console.file.getvalue()


def test_the_weather_plug_in_of_the_document() -> None:
    def script(prompt: str) -> str:
        if turns_so_far(prompt):
            return "snow"
        unit = {"unit": "kelvin"} if "wrong" in prompt else {}
        return call_text("get_current_weather", location="Oslo", **unit)

    made, policy = scripted(weather_rollout, script, face=Pretended)
    right, wrong = made(policy, [ask("weather?"), ask("wrong?", name="s1")], [[1], [2]])
    assert json.loads(right.trajectories[0].messages[2].content)["location"] == "Oslo"
    assert [m.role for m in right.trajectories[0].messages] == ["user", "assistant", "tool", "assistant"]
    assert wrong.trajectories[0].extra["reward"] == -1
    (score,) = as_judger(random_reward).grade(wrong)
    assert score.score == -1
    (score,) = as_judger(random_reward).grade(right)
    assert 0 <= score.score <= 1
    made.close()


def test_a_tool_that_asks_for_a_retry_discards_in_the_end() -> None:
    made, policy = scripted(search_rollout, lambda _: call_text(Query="crash"), face=Pretended)
    assert made(policy, [ask()], [[1, 2]]) == []
    assert made.take_metrics()["rollout/discarded"] == 1
    made.close()


def test_steps_end_at_the_limit_with_a_call_left_open() -> None:
    """Row 16 and 35: a rollout that runs out of steps is 0, not -1."""
    made, policy = scripted(search_rollout, lambda _: call_text(Query="x"), agent_policy(positions=4000),
                            face=Pretended)
    (found,) = made(policy, [ask()], [[1]])
    assert found.trajectories[0].usage["turns"] == MAX_STEPS
    assert found.trajectories[0].finish_reason == "tool_calls"
    assert [j.score for j in PluginJudger(rule_grader).grade(found)] == [0]
    check_record(policy, found.trajectories[0])
    made.close()


# a training step ------------------------------------------------------------------------------------
def test_a_plug_in_trains_through_the_six_stages() -> None:
    """Only the model's tokens get gradient; a discarded sample leaves no row."""
    @rollout
    def plugin(context: Any, proxy: RolloutInferenceProxy, sample: Any) -> RolloutResult | None:
        client, messages = proxy.rollout_client(), sample.model_dump()["messages"]
        for turn in range(2):
            reply = client.chat.completions.create(model="x", messages=messages)
            messages += [reply.choices[0].message.model_dump(), {"role": "user", "content": f"and {turn}?"}]
        return RolloutResult(status=PluginStatus.DISCARD) if sample.extra["bad"] else None

    @group_grader
    def grader(context: Any, sample: Any, trajectories: list[Trajectory]) -> GroupGraderResult:
        return GroupGraderResult(rewards=[float(i % 2) for i in range(len(trajectories))])

    config = agent_config(max_new_tokens=8, group_size=4, selection="all")
    policy = agent_policy(config)
    made = PluginRollout(plugin, policy)
    data = [ask(name="good", bad=False), ask("who else?", name="bad", bad=True)]
    trainer = OrealTrainer(policy, grader, data, config, rollout=made)
    groups = trainer.select(trainer.grade(trainer.rollout(trainer.draw())))
    assert [g.sample.id for g in groups] == ["good"]
    batch = trainer.shape(groups)
    rows = batch.policy_rows
    assert len(rows) == 4
    assert int(rows.action_mask.sum()) == sum(t.usage["completion_tokens"] for t in groups[0].trajectories)
    record = trainer.update(batch)
    assert record.metrics["ratio/max_deviation"] <= 1e-5
    assert policy.version == 1
    again = trainer.step()
    assert again.metrics["ratio/max_deviation"] <= 1e-5, "the engine samples from the new weights"
    assert again.groups[0].trajectories[0].policy_version == 1
    made.close()


def test_a_rollout_is_the_same_again_whatever_the_delays() -> None:
    """Tools that take their time put rows into other company; the cell run twice gives the same result."""
    rng = random.Random(0)

    @rollout(runtime=Runtime(max_concurrency=100))
    async def plugin(context: Any, proxy: RolloutInferenceProxy, sample: ChatCompletionSample) -> None:
        client, messages = proxy.async_rollout_client(), sample.model_dump()["messages"]
        for turn in range(3):
            reply = await client.chat.completions.create(model="x", messages=messages)
            messages += [reply.choices[0].message.model_dump(), {"role": "user", "content": f"and {turn}?"}]
            await asyncio.sleep(rng.random() / 50)

    policy = agent_policy(agent_config(max_new_tokens=12))
    made = PluginRollout(plugin, policy)
    questions, keys = [ask(f"{i}?", name=str(i)) for i in range(6)], [[2 * i, 2 * i + 1] for i in range(6)]
    runs = [made(policy, questions, keys) for _ in range(3)]
    recorded = [[(t.token_ids, t.action_mask) for g in run for t in g.trajectories] for run in runs]
    assert recorded[0] == recorded[1] == recorded[2]
    for t in runs[0][0].trajectories:
        check_record(policy, t)
    made.close()


def test_rollouts_sample_from_a_copy_in_double_precision_that_follows_the_policy() -> None:
    policy = agent_policy()
    twin = Twin(policy)
    assert twin.policy.model.dtype == torch.float64
    assert policy.model.dtype == torch.float32
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight += 1
    policy.version = 3
    twin.sync()
    assert twin.policy.version == 3
    for mine, theirs in zip(policy.model.parameters(), twin.policy.model.parameters(), strict=True):
        assert torch.equal(mine.double(), theirs)
    assert not any(weight.requires_grad for weight in twin.policy.model.parameters())
    double = agent_policy(double=True)
    assert Twin(double).policy is double, "nothing to gain from a copy"


def test_d05_rewards_stay_with_their_trajectories_whatever_the_delays() -> None:
    rng = random.Random(0)

    @group_grader
    async def grader(context: Any, sample: ChatCompletionSample, trajectories: Any) -> GroupGraderResult:
        await asyncio.sleep(rng.random() / 50)
        return GroupGraderResult(rewards=[sample.extra["number"] / 100] * len(trajectories))

    answer = group([trajectory([5], [6])] * 2, [None] * 2)
    found = PluginJudger(grader).grade_all([answer.with_(sample=ask(number=n)) for n in range(30)])
    assert [[j.score for j in row] for row in found] == [[n / 100] * 2 for n in range(30)]


def test_h02_a_plug_in_runs_inside_a_running_event_loop() -> None:
    """A notebook's cell: its own loop runs already."""
    made, policy = scripted(rollout(one_turn), lambda _: "yes")

    async def cell() -> int:
        (found,) = made(policy, [ask()], [[1, 2]])
        return len(PluginJudger(random_reward).grade(found))

    assert asyncio.run(cell()) == 2
    made.close()


def test_all_samples_discarded_is_a_step_without_an_update() -> None:
    @rollout
    def plugin(context: Any, proxy: Any, sample: Any) -> RolloutResult:
        return RolloutResult(status=PluginStatus.DISCARD, error="no good")

    config = agent_config()
    policy = agent_policy(config)
    made = PluginRollout(plugin, policy)
    trainer = OrealTrainer(policy, random_reward, [ask(), ask("x?", name="s1")], config, rollout=made)
    record = trainer.step()
    assert record.groups == ()
    assert record.metrics["groups/kept"] == 0
    assert policy.version == 0
    made.close()


def test_a_failing_plug_in_stops_the_run_where_it_can_go_on() -> None:
    broken = True

    @rollout
    def plugin(context: Any, proxy: RolloutInferenceProxy, sample: ChatCompletionSample) -> None:
        if broken:
            raise ZeroDivisionError("a bug")
        one_turn(context, proxy, sample)

    config = agent_config(max_new_tokens=8)
    policy = agent_policy(config)
    made = PluginRollout(plugin, policy)
    trainer = OrealTrainer(policy, random_reward, [ask(), ask("x?", name="s1")], config, rollout=made)
    with pytest.raises(PluginStopError, match="ZeroDivisionError: a bug"):
        trainer.fit()
    assert trainer.step_index == 0
    broken = False
    assert trainer.step().index == 1
    made.close()


# tracing --------------------------------------------------------------------------------------------
def test_i08_no_token_and_no_key_in_a_trace(tmp_path: Path) -> None:
    tokens = []

    @rollout
    def plugin(context: Any, proxy: RolloutInferenceProxy, sample: ChatCompletionSample) -> None:
        tokens.append(proxy.jwt_token)
        one_turn(context, proxy, sample)

    made, policy = scripted(plugin, lambda _: "yes",
                            tracer=Tracer(tmp_path / "trace.jsonl"))
    made(policy, [ask()], [[1]])
    assert tokens[0] not in (tmp_path / "trace.jsonl").read_text(encoding="utf-8")
    made.close()


def test_a_trace_survives_any_value_and_a_cut_last_line(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path / "trace.jsonl", keep=3)
    for value in (float("nan"), "x" * 10**6, "\ud800", {1: object()}, [Message("user", "x")], b"x"):
        with tracer.span("tool", "t", inputs=value) as span:
            span.event("e", value=value)
    assert len(tracer.spans) == 3
    with (tmp_path / "trace.jsonl").open("a") as file:
        file.write('{"trace": "cut o')
    spans = read_trace(tmp_path)
    assert len(spans) == 6
    assert (tmp_path / "trace.jsonl").stat().st_size < 200_000
    (tmp_path / "trace.jsonl").write_text("nonsense\n{}\n")
    with pytest.raises(TraceError, match=r"trace.jsonl:1: not a JSON object"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="there is no trace"):
        read_trace(tmp_path / "nowhere")


def test_observe_keeps_errors_and_works_outside_of_a_rollout() -> None:
    @observe
    def tool(x: int) -> int:
        return 1 // x

    assert tool(1) == 1, "where nobody traces, it is the function"
    tracer = Tracer()
    with tracer.span("rollout", "r"), pytest.raises(ZeroDivisionError):
        tool(0)
    found = tracer.spans[0]
    assert (found.kind, found.name, found.parent) == ("tool", "tool", tracer.spans[1].span)
    assert "ZeroDivisionError" in found.error


# trials ---------------------------------------------------------------------------------------------
def test_a_trial_runs_the_same_plug_ins_against_any_server(tmp_path: Path) -> None:
    from rlteach.serving import serve

    data = tmp_path / "dev.jsonl"
    data.write_text(json.dumps({"messages": [{"role": "user", "content": "who?"}], "extra": {"answer": "Ann"},
                                "max_new_tokens": 5}) + "\n\n"
                    + json.dumps({"question": "where?", "gold_answer": "Rome", "max_new_tokens": 5}) + "\n")
    seen = []

    @rollout
    def plugin(context: PluginContext, proxy: RolloutInferenceProxy, sample: Any) -> RolloutResult:
        reply = proxy.rollout_client().chat.completions.create(
            model="tiny", messages=sample.model_dump()["messages"])
        seen.append((context.is_mock, sample.extra["answer"], reply.usage.completion_tokens))
        return RolloutResult(extra={"reward": 0.5} if sample.extra["answer"] == "Rome" else None)

    @group_grader
    def grader(context: Any, sample: Any, trajectories: list[Trajectory]) -> GroupGraderResult:
        return GroupGraderResult(rewards=[1.0 for t in trajectories if t.messages[-1].role == "assistant"])

    with serve(agent_policy(), name="tiny") as server:
        report = rlteach.agent.test_with_dataset(
            data, plugin, grader, url=server.url, api_key=server.api_key, n_sample=2)
    assert report.rewards == ((1, 1), (0.5, 0.5))
    assert report.mean_reward == 0.75
    assert report.statuses == {"SUCCESS": 4}
    assert all(mock and used <= 5 for mock, _, used in seen), "the sample's own length"
    assert "mean reward 0.750" in str(report)


def test_a_trial_counts_failures_and_names_bad_lines(tmp_path: Path) -> None:
    data = tmp_path / "dev.jsonl"
    data.write_text('{"question": "who?", "gold_answer": "Ann"}\n')

    @rollout
    def plugin(context: Any, proxy: Any, sample: Any) -> None:
        raise LookupError("no such thing")

    report = rlteach.agent.test_with_dataset(data, plugin, url="http://127.0.0.1:9/v1", n_sample=3)
    assert report.statuses == {"FAILURE": 3}
    assert report.mean_reward is None
    assert "3 x LookupError: no such thing" in str(report)
    data.write_text('{"question": "who?", "gold_answer": "Ann"}\n{"question": "x"}\n')
    with pytest.raises(ValueError, match=r"dev.jsonl:2: the field 'gold_answer' is missing"):
        rlteach.agent.test_with_dataset(data, plugin, url="http://127.0.0.1:9/v1")
    with pytest.raises(ValueError, match="url is missing"):
        rlteach.agent.test_with_dataset(data, plugin)
