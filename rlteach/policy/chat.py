"""From messages to the prompt's token ids, by the tokenizer's own chat template.

Text that somebody typed never becomes a control token: a question that contains "<|im_end|>"
is encoded as those ten characters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from jinja2 import TemplateError

from rlteach.config import ConfigError
from rlteach.policy.registry import ModelError
from rlteach.types import Message

Piece = tuple[str, bool]  # text; True where somebody typed it, so that it holds no control token


def encode_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] = (),
    system_prompt: str | None = None,
) -> list[int]:
    """Ids of the conversation, ending where the assistant's answer begins."""
    (pieces,) = chat_text(tokenizer, messages, tools=tools, system_prompt=system_prompt)
    return encode_pieces(tokenizer, pieces)


def control_tokens(tokenizer: Any) -> list[str]:
    """The texts of the tokenizer's control tokens, such as "<|im_end|>"."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def chat_text(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] = (),
    system_prompt: str | None = None,
    gaps: Collection[int] = (),
) -> list[list[Piece]]:
    """The conversation as the template writes it, ending where the assistant's answer begins.

    gaps: places of assistant messages whose text is left out, because their ids are known already;
    the text is split there, so the result has len(gaps) + 1 parts.
    """
    turns = [(message, i in gaps) for i, message in enumerate(messages)]
    if system_prompt is not None and not any(m.role == "system" for m in messages):
        turns.insert(0, (Message("system", system_prompt), False))
    control = control_tokens(tokenizer)
    if any("\ud800" <= sign <= "\udfff" for m, _ in turns for sign in m.content):
        raise ConfigError("a message holds half a character (a lone surrogate): write it as UTF-8 text")
    dicts, typed, left_out = [], {}, []
    for i, (message, gap) in enumerate(turns):
        entry = {"role": message.role, "content": ""} if gap else message.as_dict()
        if gap or any(token in message.content for token in control):
            hole = f"\ue000{i}\ue001"
            while any(hole in m.content for m, _ in turns):  # somebody typed it
                hole = f"\ue000{hole}\ue001"
            typed[hole] = message.content
            entry["content"] = hole
            left_out += [hole] if gap else []
        dicts.append(entry)
    return _split(_render(tokenizer, dicts, tools), typed, left_out)


def _split(text: str, typed: dict[str, str], left_out: list[str]) -> list[list[Piece]]:
    """Put what was typed into its holes, and divide the text at those that stay empty."""
    parts: list[list[Piece]] = [[]]
    # a template may leave a message out, repeat it, or put it elsewhere
    pieces = re.split(f"({'|'.join(map(re.escape, typed))})", text) if typed else [text]
    for piece in pieces:
        if piece in left_out:
            parts.append([])
        else:
            parts[-1].append((typed.get(piece, piece), piece in typed))
    if [piece for piece in pieces if piece in left_out] != left_out:
        raise ModelError("the chat template leaves out, repeats or moves what the assistant said: take a "
                         "template that writes each message once, in its place")
    return parts


def _render(tokenizer: Any, dicts: list[dict[str, Any]], tools: Sequence[Any]) -> str:
    try:
        return tokenizer.apply_chat_template(
            dicts, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
        )
    except (TemplateError, ValueError) as error:
        raise ModelError(f"the chat template cannot be used ({error}): mend chat_template, or take a "
                         "model whose tokenizer has one") from None


def encode_pieces(tokenizer: Any, pieces: Sequence[Piece]) -> list[int]:
    """Ids of the text: what somebody typed is spelt out, never a control token."""
    ids: list[int] = []
    for text, typed in pieces:
        ids += tokenizer.encode(text, add_special_tokens=False, split_special_tokens=typed)
    return ids


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
