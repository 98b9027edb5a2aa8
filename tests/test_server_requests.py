"""Property: no request whatever gives a 500, and every answer has one of two forms.

Requests are generated: each field takes good values, odd ones, and values of the wrong type; bodies
are also generated as bytes. A 200 is parsed by the official types, anything else names what is wrong.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
from fakes import EARLY_STOPS, SPECIAL, tiny_policy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from rlteach.config import Config
from rlteach.serving import Server, serve
from rlteach.serving.wire import NEUTRAL, WITHOUT_EFFECT, ChatRequest

QUICK = settings(max_examples=100, deadline=None, derandomize=True, database=None,
                 suppress_health_check=list(HealthCheck))
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "1+1=?"}]}
odd_texts = st.sampled_from(["", *SPECIAL, "\ue0000\ue001", "{{ 1 }}", "正确", "\0", "\ud800"])
texts = st.one_of(st.text(max_size=30), odd_texts)
words = st.text(min_size=1, max_size=4)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6)
schemas = st.one_of(st.sampled_from([
    {"type": "object", "properties": {"a": {"enum": ["x", "正"]}}, "required": ["a"]}, {"type": "integer"},
    {"enum": ["yes", "no"]}, {"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}, {"const": 1}, {},
    {"type": "string", "pattern": "(((a+)+)+)+$"}, {"type": "string", "maxLength": 10**9}, {"anyOf": []},
    {"type": "object", "x-guidance": {"whitespace_pattern": "("}}, {"enum": []}, {"type": "null"},
    {"type": "string", "minLength": 5, "maxLength": 4}, {"type": "number", "minimum": 2, "maximum": 1},
    {"type": "array", "minItems": 3, "maxItems": 2}, {"type": "boolean"}]), values)
calls = st.lists(st.fixed_dictionaries({
    "id": texts, "type": st.just("function"), "function": st.fixed_dictionaries(
        {"name": texts, "arguments": st.one_of(texts, values.map(str))})}), max_size=2)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
message = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "developer", "assistant"]),
                           "content": st.one_of(texts, parts)}),
    st.fixed_dictionaries({"role": st.just("assistant")}, optional={"content": texts, "tool_calls": calls}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": texts, "content": texts}))
formats = st.one_of(
    st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": st.fixed_dictionaries(
        {"name": st.just("x"), "schema": schemas})}))
good = st.fixed_dictionaries({}, optional={
    "messages": st.lists(message, min_size=1, max_size=4), "n": st.integers(1, 4),
    "temperature": st.floats(0, 5), "top_p": st.floats(0, 1, exclude_min=True), "top_k": st.integers(-1, 300),
    "max_tokens": st.integers(1, 30), "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.one_of(words, st.lists(words, max_size=4)), "return_token_ids": st.booleans(),
    "parallel_tool_calls": st.booleans(), "response_format": formats, "user": texts})
with_logprobs = st.one_of(st.just({}), st.builds(lambda k: {"logprobs": True, "top_logprobs": k},
                                                 st.integers(0, 20)))
sound = st.builds(lambda a, b: ASK | a | b, good, with_logprobs)
fields = st.one_of(st.sampled_from([*ChatRequest.model_fields, *NEUTRAL, *WITHOUT_EFFECT]), texts)
odd = st.builds(dict.__or__, sound, st.dictionaries(fields, values, min_size=1, max_size=2))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(tiny_policy(Config(stop_tokens=EARLY_STOPS)), name="tiny") as server:
        yield server


def post(server: Server, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", body, {
            "Authorization": f"Bearer {server.api_key}", "Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def check(status: int, body: bytes, request: dict[str, Any] | None = None) -> None:
    if status != 200:
        assert status in (400, 404), body
        error = json.loads(body)["error"]
        assert error["message"]
        assert error["param"] is not None or request is None or "not JSON" in error["message"]
        return
    reply = ChatCompletion.model_validate_json(body)
    assert len(reply.choices) == (request.get("n") or 1)
    longest = request.get("max_completion_tokens") or request.get("max_tokens") or 256
    assert reply.usage.completion_tokens <= longest * len(reply.choices)
    for choice in reply.choices:
        for entry in choice.logprobs.content if choice.logprobs else []:
            assert math.isfinite(entry.logprob)
            assert entry.logprob <= 1e-6
        bound = (request.get("response_format") or {}).get("type", "text") != "text"
        if bound and choice.finish_reason == "stop" and not request.get("stop"):
            json.loads(choice.message.content)  # raises for what is no JSON


def written(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()  # NaN and half characters among it


@given(request=sound)
@QUICK
def test_sound_requests_are_answered(server: Server, request: dict[str, Any]) -> None:
    """All but those that no answer can satisfy: an impossible schema, no room, half a character."""
    status, body = post(server, written(request))
    check(status, body, request)
    if status != 200:
        assert "response_format" in request or "messages" in request or b"not JSON" in body, body


@given(request=odd)
@QUICK
def test_any_json_is_answered_or_refused_by_name(server: Server, request: dict[str, Any]) -> None:
    check(*post(server, written(request)), request)


@pytest.mark.gate
@given(request=st.one_of(sound, odd))
@settings(QUICK, max_examples=3000)
def test_many_more_requests(server: Server, request: dict[str, Any]) -> None:
    check(*post(server, written(request)), request)


@given(request=st.builds(dict.__or__, sound, st.just({"stream": True})))
@settings(QUICK, max_examples=15)
def test_streams_end_with_done_or_an_error(server: Server, request: dict[str, Any]) -> None:
    status, body = post(server, written(request))
    if status != 200:
        return check(status, body, request)
    last = body.decode().split("\n\n")[-2]
    assert last == "data: [DONE]" or "error" in json.loads(last.removeprefix("data: "))


@given(body=st.one_of(st.binary(max_size=60), values.map(json.dumps).map(str.encode)))
@settings(QUICK, max_examples=80)
def test_any_bytes_are_refused(server: Server, body: bytes) -> None:
    status, reply = post(server, body)
    assert status == 400
    check(status, reply)


@pytest.mark.parametrize("body", [
    b"[" * 100_000, b'{"a":' * 50_000,
    b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "tiny", "messages": 1e999}', b"\xff\xfe{}", b"", b'{"model": "tiny"} x',
    json.dumps(ASK | {"response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {
            f"f{i}": {"type": "string", "pattern": f"a{{1,{i}}}b"} for i in range(3000)}}}}}).encode(),
], ids=["brackets", "nested", "surrogate", "infinity", "utf-16", "nothing", "more", "huge grammar"])
def test_hostile_bodies(server: Server, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        status, reply = post(server, body)
    assert status in (200, 400), reply
    assert not caplog.records


def test_the_server_is_still_there_afterwards(server: Server) -> None:
    status, _ = post(server, written(ASK))
    assert status == 200
    assert server.backend.load == {"running": 0, "waiting": 0}
