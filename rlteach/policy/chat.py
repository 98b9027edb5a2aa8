"""From messages to the prompt's token ids, by the tokenizer's own chat template.

Text that somebody typed never becomes a control token: a question that contains "<|im_end|>"
is encoded as those ten characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from rlteach.config import ConfigError
from rlteach.policy.registry import ModelError
from rlteach.types import Message


def encode_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] = (),
    system_prompt: str | None = None,
) -> list[int]:
    """Ids of the conversation, ending where the assistant's answer begins."""
    if system_prompt is not None and not any(m.role == "system" for m in messages):
        messages = [Message("system", system_prompt), *messages]
    control = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    if any("\ud800" <= sign <= "\udfff" for m in messages for sign in m.content):
        raise ConfigError("a message holds half a character (a lone surrogate): write it as UTF-8 text")
    dicts, typed = [], {}
    for i, message in enumerate(messages):
        entry = message.as_dict()
        if any(token in message.content for token in control):
            hole = f"\ue000{i}\ue001"
            while any(hole in m.content for m in messages):  # somebody typed it
                hole = f"\ue000{hole}\ue001"
            typed[hole] = message.content
            entry["content"] = hole
        dicts.append(entry)
    try:
        text = tokenizer.apply_chat_template(
            dicts, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
        )
    except (TemplateError, ValueError) as error:
        raise ModelError(f"the chat template cannot be used ({error}): mend chat_template, or take a "
                         "model whose tokenizer has one") from None
    ids: list[int] = []
    for hole, content in typed.items():
        before, found, after = text.partition(hole)
        if not found:
            continue  # the template leaves this message out
        text = after
        ids += tokenizer.encode(before, add_special_tokens=False)
        ids += tokenizer.encode(content, add_special_tokens=False, split_special_tokens=True)
    return ids + tokenizer.encode(text, add_special_tokens=False)


def stop_ids(tokenizer: Any, stop_tokens: Sequence[str]) -> tuple[int, ...]:
    """Ids of the tokens that end an answer.

    Raises:
        ConfigError: one of them is not a single token of this tokenizer.
    """
    ids = []
    for token in stop_tokens:
        found = tokenizer.encode(token, add_special_tokens=False)
        if len(found) != 1:
            raise ConfigError(f"stop token {token!r} is {len(found)} tokens in this tokenizer, not "
                              "one: name a single token in stop_tokens")
        ids.append(found[0])
    return tuple(ids)
