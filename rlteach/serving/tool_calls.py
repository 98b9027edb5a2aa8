"""Tools over a chat template: what goes into the prompt, and calls found in the answer.

Understood are templates of the Hermes form (Qwen and many others): the model writes
<tool_call>{"name": ..., "arguments": {...}}</tool_call>.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from rlteach.agent import calls
from rlteach.messages import parsed
from rlteach.serving.wire import ChatMessage, WireError
from rlteach.types import Message


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
    made = [{"id": call.id, "type": "function", "function": {
        "name": call.function.name, "arguments": parsed(call.function.arguments)}}
        for call in message.tool_calls or []]
    role = "system" if message.role == "developer" else message.role
    return Message(role, message.text, tuple(made), message.tool_call_id)


def refuse_control_tokens(where: str, value: Any, control: Sequence[str]) -> None:
    """WireError where a string inside `value` holds a control token (agent/calls.py)."""
    try:
        calls.refuse_control_tokens(where, value, control)
    except calls.CallError as error:
        raise WireError(str(error), error.param) from None


def split_calls(text: str) -> tuple[str | None, list[dict[str, Any]]]:
    """(content, tool_calls in OpenAI's form) of an answer; a block that is no call stays text."""
    return calls.split_calls(text, lambda _: f"call_{uuid4().hex[:24]}")
