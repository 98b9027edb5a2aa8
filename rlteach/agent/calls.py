"""What a plug-in may ask of the policy, and tool calls found in what it answered.

Sampling parameters belong to the sample or to the run: a plug-in that set them would train on
something else than it sampled from. Fields that clients send again with null in them are fine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlteach.messages import MessageError, to_message
from rlteach.types import Message

# the record needs these to be the run's own
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "max_new_tokens", "seed",
            "stop", "thinking", "reasoning_effort", "reasoning", "min_p", "repetition_penalty",
            "frequency_penalty", "presence_penalty", "logit_bias")
# field -> values (beside null) that ask for nothing
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,), "min_p": (0,),
    "logit_bias": ({},), "n": (1,), "stream": (False,), "stream_options": (), "logprobs": (False,),
    "top_logprobs": (0,), "tool_choice": ("auto", "none"), "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},), "store": (False,), "modalities": (["text"],),
    "functions": ([],), "function_call": ("none",), "service_tier": ("auto", "default"),
    "verbosity": ("medium",)}
# They say nothing about the answer; `model` counts only where a plug-in is tried without training, and
# how long a call may take is the plug-in's own timeout.
IGNORED = ("model", "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
           "prompt_cache_options", "extra_headers", "extra_query", "timeout")
_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


class CallError(ValueError):
    """A request of a plug-in that cannot be answered; `param` is the field."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


@dataclass(frozen=True)
class Call:
    """One checked request."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def read_call(fields: Mapping[str, Any], control: Sequence[str] = ()) -> Call:
    """The request in these fields of chat.completions.create; `control`: tokens that no tool may hold.

    Raises:
        CallError: a sampling parameter, a field with an effect that a rollout does not have, or a
            message that is none.
    """
    more = fields.get("extra_body") or {}
    if not isinstance(more, Mapping):
        raise CallError("extra_body must be an object with fields", "extra_body")
    given = {k: v for k, v in {**fields, **more}.items() if not unset(v)}
    messages, tools = given.pop("messages", None), given.pop("tools", None) or []
    for name in ("extra_body", *IGNORED):
        given.pop(name, None)
    if given.get("tool_choice") == "none":
        tools = []
    for name, value in given.items():
        if value in NEUTRAL.get(name, ()):
            continue
        if name in SAMPLING:
            raise CallError(f"{name}: a plug-in does not choose how the policy samples, or what is trained "
                            "would not be what was sampled: leave it out, and set temperature, top_p, top_k "
                            "or max_new_tokens in the sample's data line or in the run's config", name,
                            "sampling_parameter")
        raise CallError(f"{name} has an effect that a rollout does not have: leave it out", name,
                        "unsupported_parameter")
    if not isinstance(messages, list | tuple) or not messages:
        raise CallError("messages: give a list with at least one message", "messages")
    if not isinstance(tools, list | tuple) or not all(isinstance(t, Mapping) for t in tools):
        raise CallError("tools: give a list of function descriptions in OpenAI's form", "tools")
    offered = tuple(without_nulls(dict(tool)) for tool in tools)
    refuse_control_tokens("tools", offered, control)
    return Call(to_messages(messages), offered)


def to_messages(messages: Sequence[Any]) -> tuple[Message, ...]:
    """Messages of any client (dicts or its objects) in the one form that is rendered and compared."""
    return tuple(_to_message(given, f"messages.{i}") for i, given in enumerate(messages))


def _to_message(given: Any, where: str) -> Message:
    entry = given if isinstance(given, Mapping) else getattr(given, "model_dump", dict)()
    try:
        return to_message(entry, where)
    except MessageError as error:
        raise CallError(str(error), error.field) from None


def unset(value: Any) -> bool:
    """null, or one of the markers by which OpenAI's client says that nothing was given."""
    return value is None or type(value).__name__ in ("Omit", "NotGiven")


def without_nulls(value: Any) -> Any:
    """The same without keys that hold null: clients write fields out that were never set."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def split_calls(text: str, new_id: Callable[[int], str], *, lenient: bool = False
                ) -> tuple[str | None, list[dict[str, Any]]]:
    """(content, tool_calls in OpenAI's form) of an answer in the Hermes form
    <tool_call>{"name": ..., "arguments": {...}}</tool_call>. A block that is no call stays text;
    lenient: it becomes a call with the whole block as arguments, for a plug-in that punishes such calls.
    """
    calls: list[dict[str, Any]] = []

    def take(found: re.Match[str]) -> str:
        name, arguments = _well_formed(found[1]) or (_broken(found[1]) if lenient else (None, ""))
        if name is None:
            return found[0]
        calls.append({"id": new_id(len(calls)), "type": "function",
                      "function": {"name": name, "arguments": arguments}})
        return ""

    rest = _BLOCK.sub(take, text)
    return (rest.strip() or None, calls) if calls else (text, [])


def _well_formed(block: str) -> tuple[str, str] | None:
    try:
        call = json.loads(block)
        name, arguments = call["name"], call.get("arguments", {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)


def _broken(block: str) -> tuple[str, str]:
    """The name, if one can be read, and the whole block as arguments: they never pass for right ones. Half
    of it might: a call that only lacks its last brace has arguments that are whole, and a model that is
    rewarded for such calls learns to write them."""
    name = _NAME.search(block)
    return (name[1] if name else ""), block.strip()


def refuse_control_tokens(where: str, value: Any, control: Sequence[str]) -> None:
    """CallError where a string inside `value` holds a control token: outside of a message's content the
    template writes it beside its own, and the model could not tell them apart."""
    for text in _strings(value):
        for token in control:
            if token in text:
                raise CallError(f"{where} holds the control token {token}: take it out", where)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
