"""Messages in OpenAI's form, as files and clients write them, made into the one form that is rendered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlteach.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")


class MessageError(ValueError):
    """A message that cannot be used; `field` is the place of what is wrong in it."""

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field


def to_message(entry: Mapping[str, Any], where: str) -> Message:
    """One message; several pieces of text become one, and a developer is the system.

    Raises:
        MessageError: it has no such form; `where` is named in the message.
    """
    role, content, calls = entry.get("role"), entry.get("content"), entry.get("tool_calls")
    if role not in ROLES:
        raise MessageError(f"{where}.role must be one of {', '.join(ROLES)}; got {role!r}", f"{where}.role")
    if isinstance(content, list | tuple):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        content = "".join(parts) if all(isinstance(part, str) for part in parts) else content
    if not isinstance(content, str | None):
        raise MessageError(f"{where}.content must be a text; got {type(content).__name__}",
                           f"{where}.content")
    if content is None and not calls and role != "assistant":
        raise MessageError(f"{where}.content is missing", f"{where}.content")
    if role == "tool" and not isinstance(entry.get("tool_call_id"), str):
        raise MessageError(f"{where}.tool_call_id is missing: a tool's reply names the call that it answers",
                           f"{where}.tool_call_id")
    try:
        made = tuple({"id": call.get("id") or "", "type": "function", "function": {
            "name": call["function"]["name"], "arguments": parsed(call["function"]["arguments"])}}
            for call in calls or ())
    except (TypeError, KeyError, AttributeError):
        raise MessageError(f"{where}.tool_calls: each needs function.name and function.arguments",
                           f"{where}.tool_calls") from None
    return Message("system" if role == "developer" else role, content or "", made, entry.get("tool_call_id"))


def parsed(text: Any) -> Any:
    """Arguments as an object, as chat templates take them; what is no JSON object stays text."""
    if not isinstance(text, str):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
