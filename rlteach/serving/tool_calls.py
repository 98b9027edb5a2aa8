"""Tools over a chat template: what goes into the prompt, and calls found in the answer.

Understood are templates of the Hermes form (Qwen and many others): the model writes
<tool_call>{"name": ..., "arguments": {...}}</tool_call>.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from rlteach.serving.wire import ChatMessage, WireError
from rlteach.types import Message

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def check_template(template: str, name: str) -> None:
    """WireError for a template that tools cannot be used with."""
    if "tools" not in template:
        raise WireError(f"tools: the chat template of {name} has no place for tools", "tools",
                        code="unsupported_parameter")
    if "<tool_call>" not in template:
        raise WireError(f"tools: the chat template of {name} does not write calls as <tool_call>, and "
                        "other forms are not read here", "tools", code="unsupported_parameter")


def to_message(message: ChatMessage) -> Message:
    """The form that chat templates take: arguments as an object, `developer` under its older name."""
    calls = [{"id": call.id, "type": "function",
              "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)}}
             for call in message.tool_calls or []]
    role = "system" if message.role == "developer" else message.role
    return Message(role, message.text, tuple(calls), message.tool_call_id)


def refuse_control_tokens(where: str, value: Any, control: Sequence[str]) -> None:
    """WireError where a string inside `value` holds a control token: outside of a message's content
    the template writes it beside its own, and the model could not tell them apart."""
    for text in _strings(value):
        for token in control:
            if token in text:
                raise WireError(f"{where} holds the control token {token}: take it out", where)


def split_calls(text: str) -> tuple[str | None, list[dict[str, Any]]]:
    """(content, tool_calls in OpenAI's form) of an answer; a block that is no call stays text."""
    calls: list[dict[str, Any]] = []

    def take(found: re.Match[str]) -> str:
        try:
            call = json.loads(found[1])
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return found[0]
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return found[0]
        calls.append({"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": {
            "name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}})
        return ""

    rest = _BLOCK.sub(take, text)
    return (rest.strip() or None, calls) if calls else (text, [])


def _arguments(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
