"""The proxy's faces: wrapped clients, HTTP, the raw protocol, many sessions at once (T11, faults I)."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from agent_fakes import (
    SEARCH,
    QuietEngine,
    ScriptedEngine,
    agent_config,
    agent_policy,
    ask,
    call_text,
    check_record,
    scripted,
    spelt,
    talk,
    turns_so_far,
)
from openai.types.chat import ChatCompletion

from rlteach.agent import (
    ChatCompletionMessage,
    ChatCompletionResponse,
    PluginRollout,
    PluginStatus,
    RolloutInferenceProxy,
    RolloutResult,
    Runtime,
    rollout,
    wrap_async_client_inplace,
    wrap_client_inplace,
    wrap_inplace_trace,
)
from rlteach.agent.calling import LOOP
from rlteach.agent.calls import CallError, split_calls
from rlteach.agent.search import SEARCH_TOOL
from rlteach.agent.session import PolicySide
from rlteach.agent.tools import ToolCallError, check_call, weather_tool
from rlteach.serving.proxy_http import ProxyFace

USER = {"role": "user", "content": "who?"}


def once(prompt: str) -> str:
    return "Ann" if turns_so_far(prompt) else call_text(Query="x")


@pytest.fixture
def side() -> Iterator[PolicySide]:
    side = PolicySide(ScriptedEngine(agent_policy(), once))
    yield side
    side.engine.close()


@pytest.fixture(scope="module")
def face() -> Iterator[ProxyFace]:
    face = ProxyFace()
    yield face
    face.close()


def proxy_of(side: PolicySide, face: ProxyFace, key: int = 1) -> RolloutInferenceProxy:
    return RolloutInferenceProxy(talk(side, key), lambda: face)


# what a plug-in may ask ---------------------------------------------------------------------------
SAMPLING = [("temperature", 0.7), ("top_p", 0.9), ("max_tokens", 5), ("max_completion_tokens", 5),
            ("seed", 1), ("stop", ["x"]), ("frequency_penalty", 0.5), ("presence_penalty", 1),
            ("logit_bias", {"1": 1}), ("reasoning_effort", "low"), ("temperature", 1.0), ("temperature", 0)]
EXTRA = [("top_k", 5), ("thinking", {"type": "enabled"}), ("repetition_penalty", 1.2), ("max_new_tokens", 5)]


@pytest.mark.parametrize(("field", "value"), [*SAMPLING, *EXTRA])
@pytest.mark.parametrize("way", ["wrapped", "http"])
def test_sampling_parameters_are_refused_and_told_where_they_belong(
    way: str, field: str, value: Any, side: PolicySide, face: ProxyFace
) -> None:
    proxy = proxy_of(side, face)
    given = {"extra_body": {field: value}} if (field, value) in EXTRA else {field: value}
    fields = {"model": "x", "messages": [USER], **given}
    if way == "wrapped":
        with pytest.raises(CallError, match=f"^{field}: .*data line or in the run's config"):
            proxy.rollout_client().chat.completions.create(**fields)
    else:
        with (openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token, max_retries=0) as client,
              pytest.raises(openai.BadRequestError, match="data line or in the run's config")):
            client.chat.completions.create(**fields)
    proxy.close()


NEUTRAL = {"temperature": None, "top_p": None, "max_tokens": None, "seed": None, "stop": None, "n": 1,
           "stream": False, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "user": "me",
           "tool_choice": "auto", "parallel_tool_calls": True, "response_format": None, "logprobs": None,
           "metadata": {"a": "b"}, "store": False, "reasoning_effort": None}


@pytest.mark.parametrize("way", ["wrapped", "http"])
def test_null_and_neutral_fields_are_fine(way: str, side: PolicySide, face: ProxyFace) -> None:
    proxy = proxy_of(side, face)
    with openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token, max_retries=0) as client:
        if way == "wrapped":
            wrap_client_inplace(client, proxy=proxy)
        reply = client.chat.completions.create(model="any", messages=[USER], tools=[SEARCH], **NEUTRAL)
    assert reply.choices[0].finish_reason == "tool_calls"
    ChatCompletion.model_validate(reply.model_dump(), strict=True)
    proxy.close()


@pytest.mark.parametrize(("fields", "why"), [
    ({"stream": True}, "stream has an effect"), ({"n": 2}, "n has an effect"),
    ({"response_format": {"type": "json_object"}}, "response_format has an effect"),
    ({"tool_choice": "required"}, "tool_choice has an effect"), ({"messages": []}, "at least one message"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content is missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content must be a text"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id is missing"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages.0.tool_calls"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content must be"),
    ({"tools": "x"}, "tools: give a list"),
    ({"extra_body": [1]}, "extra_body must be an object"), ({"made_up": 3}, "made_up has an effect"),
])
def test_requests_that_cannot_be_answered_say_which_field(fields: dict[str, Any], why: str,
                                                          side: PolicySide) -> None:
    with pytest.raises(CallError, match=why):
        talk(side).complete({"model": "x", "messages": [USER], **fields})


# wrapping ------------------------------------------------------------------------------------------
def test_wrapping_the_wrong_kind_of_client_says_which_function(side: PolicySide, face: ProxyFace) -> None:
    proxy = proxy_of(side, face)
    with pytest.raises(TypeError, match="use wrap_async_client_inplace"):
        wrap_client_inplace(proxy.async_rollout_client(), proxy=proxy)
    with pytest.raises(TypeError, match="use wrap_client_inplace"):
        wrap_async_client_inplace(proxy.rollout_client(), proxy=proxy)


def test_a_wrapped_client_is_the_same_client_and_ignores_model(side: PolicySide, face: ProxyFace) -> None:
    proxy = proxy_of(side, face)
    client = proxy.rollout_client()
    assert wrap_client_inplace(client, proxy=proxy) is client
    for model in ("doubao", "", "x" * 100):
        assert client.chat.completions.create(model=model, messages=[USER]).model == side.name


def test_a_traced_and_wrapped_client_is_traced_once(side: PolicySide) -> None:
    @rollout
    def plugin(context: Any, proxy: RolloutInferenceProxy, sample: Any) -> None:
        client = openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token)
        wrap_inplace_trace(client)
        wrap_client_inplace(client, proxy=proxy)
        wrap_inplace_trace(client)
        client.chat.completions.create(model="x", messages=[m.model_dump() for m in sample.messages])
        client.close()

    made, policy = scripted(plugin, lambda _: "yes")
    made(policy, [ask()], [[1]])
    assert [s.kind for s in made.tracer.spans] == ["model", "rollout", "sample"]
    made.close()


# HTTP ----------------------------------------------------------------------------------------------
def test_the_raw_protocol_over_http(face: ProxyFace) -> None:
    """SEEDS row 13: update_state_from_messages, create, process_completion; nothing is wrapped."""
    @rollout(runtime=Runtime(max_concurrency=4))
    def raw(context: Any, proxy: RolloutInferenceProxy, sample: Any) -> None:
        with openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token, max_retries=0) as client:
            messages = sample.model_dump()["messages"]
            for _ in range(4):
                proxy.update_state_from_messages([ChatCompletionMessage(**m) for m in messages])
                completion = client.chat.completions.create(
                    model="x", messages=messages, tools=[SEARCH], extra_body=proxy.get_extra_body(),
                    extra_headers=proxy.headers)
                proxy.process_completion(ChatCompletionResponse(**completion.model_dump()))
                messages.append(completion.choices[0].message.model_dump())
                if completion.choices[0].finish_reason != "tool_calls":
                    break
                for call in completion.choices[0].message.tool_calls:
                    messages.append({"role": "tool", "content": "hit", "tool_call_id": call.id})

    made, policy = scripted(raw, lambda p: "Ann" if turns_so_far(p) == 2 else call_text(Query="x"),
                            face=lambda: face)
    (found,) = made(policy, [ask()], [[1, 2]])
    for t in found.trajectories:
        assert t.usage["turns"] == 3
        assert t.response == "Ann"
        check_record(policy, t)
    assert [s.kind for s in made.tracer.spans].count("model") == 6, "calls over HTTP stand in the trace, too"
    made.close()


def test_http_and_wrapped_give_the_same_record(face: ProxyFace) -> None:
    side = PolicySide(ScriptedEngine(agent_policy(), once))
    found = []
    for wrapped in (False, True):
        proxy = proxy_of(side, face)
        with openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token, max_retries=0) as client:
            if wrapped:
                wrap_client_inplace(client, proxy=proxy)
            messages: list[Any] = [USER]
            for _ in range(2):
                reply = client.chat.completions.create(model="x", messages=messages, tools=[SEARCH])
                said = reply.choices[0].message
                messages += [said, *({"role": "tool", "content": "hit", "tool_call_id": c.id}
                                     for c in said.tool_calls or [])]
        found.append(proxy._session.trajectory())
        proxy.close()
    assert found[0] == found[1]
    side.engine.close()


def test_process_completion_of_another_answer_is_refused(side: PolicySide, face: ProxyFace) -> None:
    one, other = proxy_of(side, face, 1), proxy_of(side, face, 2)
    mine = one.rollout_client().chat.completions.create(model="x", messages=[USER])
    other.rollout_client().chat.completions.create(model="x", messages=[USER])
    one.process_completion(mine)
    with pytest.raises(CallError, match="not the last answer of this rollout"):
        other.process_completion(mine)


def status_of(face: ProxyFace, *, method: str = "POST", path: str = "/v1/chat/completions",
              body: bytes = b"{}", **headers: str) -> tuple[int, str]:
    port = int(face.url.split(":")[2].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_i04_a_token_for_each_rollout_and_loopback_only(side: PolicySide, face: ProxyFace) -> None:
    proxy = proxy_of(side, face)
    assert proxy.url.startswith("http://127.0.0.1:")
    good = f"Bearer {proxy.jwt_token}"
    assert len(proxy.jwt_token) >= 32
    for wrong in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": proxy.jwt_token},
                  {"Authorization": f"Basic {proxy.jwt_token}"}):
        assert status_of(face, **wrong)[0] == 401
    assert status_of(face, Authorization=good, Host="evil.example")[0] == 403
    assert status_of(face, Authorization=good)[0] == 400
    assert status_of(face, Authorization=good, body=b"{")[0] == 400
    assert status_of(face, Authorization=good, body=b"[1]")[0] == 400
    assert status_of(face, Authorization=good, body=b"x" * (5 * 2**20))[0] == 413
    assert status_of(face, method="GET", path="/v1/models", Authorization=good)[0] == 200
    assert status_of(face, method="GET", path="/v1/models")[0] == 401
    proxy.close()
    code, text = status_of(face, Authorization=good, body=json.dumps({"messages": [USER]}).encode())
    assert code == 401, "the rollout has ended"
    assert proxy.jwt_token not in text


def test_i03_a_dead_http_proxy_in_the_environment_is_in_nobody_s_way(
    side: PolicySide, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    face = ProxyFace()
    proxy = proxy_of(side, face)
    with openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token, max_retries=0) as client:
        assert client.chat.completions.create(model="x", messages=[USER]).choices
    face.close()


def test_no_room_over_http_is_a_400_with_the_usual_code(side: PolicySide, face: ProxyFace) -> None:
    proxy = proxy_of(side, face)
    with (openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token, max_retries=0) as client,
          pytest.raises(openai.BadRequestError) as caught):
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": "x" * 5000}])
    assert caught.value.code == "context_length_exceeded"
    proxy.close()


# T11, I01: many at once ----------------------------------------------------------------------------
TURNS, SESSIONS = 10, 64


def canary(name: str) -> str:
    return f"canary-{name}-"


def sync_talk(context: Any, proxy: RolloutInferenceProxy, sample: Any) -> RolloutResult:
    with openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token, max_retries=0, timeout=120) as client:
        messages = sample.model_dump()["messages"]
        for turn in range(TURNS):
            reply = client.chat.completions.create(model="x", messages=messages, tools=[SEARCH])
            messages.append(reply.choices[0].message.model_dump())
            for call in reply.choices[0].message.tool_calls or []:
                messages.append({"role": "tool", "content": f"{sample.extra['word']} {turn}",
                                 "tool_call_id": call.id})
    return RolloutResult(status=PluginStatus.SUCCESS)


async def async_talk(context: Any, proxy: RolloutInferenceProxy, sample: Any) -> RolloutResult:
    async with openai.AsyncOpenAI(base_url=proxy.url, api_key=proxy.jwt_token, max_retries=0,
                                  timeout=120) as client:
        messages = sample.model_dump()["messages"]
        for turn in range(TURNS):
            asking = asyncio.ensure_future(client.chat.completions.create(
                model="x", messages=messages, tools=[SEARCH]))
            if sample.extra["cancelled"] and turn == TURNS // 2:
                await asyncio.sleep(0.01)
                asking.cancel()  # in the middle of its request; the rollout asks again
                await asyncio.gather(asking, return_exceptions=True)
                asking = asyncio.ensure_future(client.chat.completions.create(
                    model="x", messages=messages, tools=[SEARCH]))
            reply = await asking
            messages.append(reply.choices[0].message.model_dump())
            for call in reply.choices[0].message.tool_calls or []:
                messages.append({"role": "tool", "content": f"{sample.extra['word']} {turn}",
                                 "tool_call_id": call.id})
    return RolloutResult(status=PluginStatus.SUCCESS)


def echo(prompt: str) -> str:
    """Calls the tool with the canary of the question, as a model does that copies."""
    word = prompt.split("<|im_start|>user\n")[1].split(" ")[0]
    return call_text(Query=word)


def check_sessions(made: PluginRollout, policy: Any, face: ProxyFace, sessions: int, cancelled: int) -> None:
    before = face.served
    names = [f"{i:02d}" for i in range(sessions)]
    samples = [ask(f"{canary(n)} who?", name=n, word=canary(n), cancelled=i < cancelled)
               for i, n in enumerate(names)]
    groups = made(policy, samples, [[i] for i in range(sessions)])
    assert [g.sample.id for g in groups] == names
    assert face.served - before == sessions, "every session is counted"
    assert face._sessions == {}, "and gone"
    engine = made._side.engine
    sampled = {(p, s) for p, s in zip(engine.prompts, engine.said, strict=True)}
    for name, found in zip(names, groups, strict=True):
        t = found.trajectories[0]
        text = spelt(policy, t)
        others = {other for other in names if canary(other) in text} - {name}
        assert not others, "no foreign canary"
        assert text.count(canary(name)) == 2 * TURNS, "one in each question, call and reply"
        last = len(t.token_ids) - t.action_mask[::-1].index(False)
        assert (t.token_ids[:last], t.token_ids[last:]) in sampled, "recorded ids are the sampler's"
        assert t.usage["turns"] == TURNS


def sockets() -> int:
    links = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))


def of_rollouts() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name in ("rlteach-sync_talk", "rlteach-async_talk")]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts sockets in /proc")
@pytest.mark.parametrize(("plugin", "sessions"), [
    (async_talk, 12), (sync_talk, 8), pytest.param(async_talk, SESSIONS, marks=pytest.mark.gate),
    pytest.param(sync_talk, SESSIONS, marks=pytest.mark.gate)])
def test_t11_sessions_never_mix(plugin: Any, sessions: int, face: ProxyFace) -> None:
    """Real OpenAI clients over HTTP, ten turns with tools, one in ten cancelled in a request."""
    assert face.url
    policy = agent_policy(agent_config(max_new_tokens=120), positions=6000)
    made = PluginRollout(rollout(runtime=Runtime(max_concurrency=64))(plugin), policy, face=lambda: face,
                         engine=lambda p: QuietEngine(p, echo))
    LOOP.run(asyncio.sleep(0))  # it has a pair of sockets of its own, for as long as the process lives
    gc.collect()
    open_sockets = sockets()
    check_sessions(made, policy, face, sessions, max(sessions // 10, 1))
    made.close()
    gc.collect()
    until = 200
    while until and (sockets() > open_sockets or of_rollouts()):
        threading.Event().wait(0.05)
        until -= 1
    assert sockets() <= open_sockets, "no socket is left open"
    assert of_rollouts() == [], "no thread of a rollout either"
    assert len(LOOP._tasks) == 0, "and no task"


def test_wrapped_sessions_of_a_real_model_never_mix(face: ProxyFace) -> None:
    """Batched together by one engine: each record is the policy's own, ratio 1."""
    @rollout(runtime=Runtime(max_concurrency=32))
    async def plugin(context: Any, proxy: RolloutInferenceProxy, sample: Any) -> None:
        client, messages = proxy.async_rollout_client(), sample.model_dump()["messages"]
        for turn in range(3):
            reply = await client.chat.completions.create(model="x", messages=messages)
            messages.append(reply.choices[0].message.model_dump())
            messages.append({"role": "user", "content": f"{sample.extra['word']} {turn}"})

    policy = agent_policy(agent_config(max_new_tokens=10))
    made = PluginRollout(plugin, policy)
    samples = [ask(canary(str(i)), name=str(i), word=canary(str(i))) for i in range(8)]
    groups = made(policy, samples, [[10 * i, 10 * i + 1] for i in range(8)])
    assert made._side.engine.largest_batch > 1
    assert len({t.token_ids for g in groups for t in g.trajectories}) == 16
    for i, found in enumerate(groups):
        for t in found.trajectories:
            text = spelt(policy, t)
            assert text.count(canary(str(i))) == 3
            assert not [j for j in range(8) if j != i and canary(str(j)) in text]
            check_record(policy, t)
    made.close()


@pytest.mark.parametrize("block", [
    '{"name": "web_search", "arguments": {"Query": "x"}',  # the last brace is missing
    '{"name": "web_search", "arguments": {"Query": "x"}}}',
    '"name": "web_search", "arguments": {"Query": "x"}',
    '{"name": "web_search", "arguments": "{\\"Query\\": \\"x\\"}"}',
    '{"name": "web_search", "arguments": {"Query": "x"}, }',
    '{"arguments": {"Query": "x"}}', '{"Query": "x"}', '["web_search", {"Query": "x"}]', "", "web_search"])
def test_a_broken_call_never_passes_for_a_right_one(block: str) -> None:
    """A plug-in sees that the model called; whoever checks the arguments finds out that it did so wrongly."""
    content, [call] = split_calls(f"<tool_call>{block}</tool_call>", lambda i: f"call_{i}", lenient=True)
    assert content is None
    with pytest.raises(ToolCallError):
        check_call(call, [SEARCH_TOOL, weather_tool])
    assert split_calls(f"<tool_call>{block}</tool_call>", lambda i: f"call_{i}") == (
        f"<tool_call>{block}</tool_call>", [])
