"""Is a chat template fit for many turns? What it wrote once must stay as it was when the talk goes on.

A template that, say, strips the thinking out of earlier answers shows the model another past than the
one it lived through: the ids that were sampled would no longer be those that are trained. Such a
template is refused before the first rollout, with the first place that changes.
"""

from __future__ import annotations

from typing import Any

from rlteach.policy.chat import chat_text
from rlteach.policy.registry import ModelError
from rlteach.types import Message

TOOL = {"type": "function", "function": {"name": "look_up", "description": "", "parameters": {
    "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}}
CALL = {"id": "call_0", "type": "function", "function": {"name": "look_up", "arguments": {"name": "x"}}}
WORDS = '<tool_call>\n{"name": "look_up", "arguments": {"name": "x"}}\n</tool_call>'
_TALK = (Message("user", "one?"), Message("assistant", "<think>\nso\n</think>\n\nfirst"),
         Message("user", "two?"), Message("assistant", "second"), Message("user", "three?"),
         Message("assistant", "third"))
_TOOLS = (Message("user", "who?"), Message("assistant", f"<think>\nask\n</think>\n\n{WORDS}"),
          Message("tool", "found", tool_call_id="call_0"), Message("tool", "more", tool_call_id="call_0"),
          Message("assistant", "it is x"), Message("user", "and?"), Message("assistant", "no more"))
_CALLS = (_TOOLS[0], Message("assistant", "", (CALL,)), *_TOOLS[2:])


def check_template(tokenizer: Any, name: str, system_prompt: str | None = None) -> None:
    """Pass, or say why not.

    Raises:
        ModelError: the template is not prefix-preserving, or has no place for tool calls.
    """
    template = str(tokenizer.chat_template or "")
    talks = [(_TALK, ())]
    if "tools" in template:
        if "<tool_call>" not in template:
            raise ModelError(f"the chat template of {name} does not write calls as <tool_call>, and other "
                             "forms are not read here: give another one (config.chat_template)")
        talks += [(_TOOLS, (TOOL,)), (_CALLS, (TOOL,))]
    for talk, tools in talks:
        shown = {at: _text(tokenizer, talk[:at], tools, system_prompt)
                 for at in range(1, len(talk) + 1) if at == len(talk) or talk[at].role == "assistant"}
        for at in list(shown)[:-1]:
            said = shown[at] + talk[at].content
            for later in (text for place, text in shown.items() if place > at):
                _same(said, later, name)


def offers_tools(tokenizer: Any) -> bool:
    return "tools" in str(tokenizer.chat_template or "")


def _text(tokenizer: Any, messages: tuple[Message, ...], tools: tuple[Any, ...], system: str | None) -> str:
    (pieces,) = chat_text(tokenizer, messages, tools=tools, system_prompt=system)
    return "".join(text for text, _ in pieces)


def _same(before: str, after: str, name: str) -> None:
    if after.startswith(before):
        return
    at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
              min(len(before), len(after)))
    was, becomes = before[max(at - 20, 0) : at + 30], after[max(at - 20, 0) : at + 30]
    raise ModelError(
        f"the chat template of {name} is not prefix-preserving: when the conversation goes on, what the "
        f"model has seen changes at character {at}: {was!r} becomes {becomes!r}. Set config.chat_template "
        "to one that leaves earlier turns as they were")
