"""The token record of one rollout: what the model saw and said, append-only. Nothing is ever decoded
and encoded again.

    forced text | sampled turn | forced text | sampled turn | forced text -> next answer

Forced text (prompts, tool replies, what the template writes between them) is encoded once, when it is
appended; a sampled turn keeps the sampler's ids and log-probabilities. A request whose conversation
goes on where the record ends is appended. One that changed its history cuts the record at the first
place that differs (the longest common prefix); what follows is then text like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlteach.agent.calls import Call
from rlteach.policy.chat import Piece, control_tokens
from rlteach.policy.engine import Engine
from rlteach.types import Message


@dataclass(frozen=True)
class Turn:
    """One answer of the policy: ids with the stop token, if one ended it. `at`: its place among the
    messages; `message`: as the plug-in was given it."""

    at: int
    message: Message
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    support: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True)
class Forced:
    """Text that the policy did not write, and its ids."""

    pieces: tuple[Piece, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """forced[i] stands before turns[i]; there is one more of it while an answer is being sampled."""

    forced: tuple[Forced, ...] = ()
    turns: tuple[Turn, ...] = ()
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self._columns()[0]

    @property
    def action_mask(self) -> tuple[bool, ...]:
        return self._columns()[1]

    @property
    def logprobs(self) -> tuple[float, ...]:
        return self._columns()[2]

    @property
    def support(self) -> tuple[tuple[int, ...], ...] | None:
        """One entry a sampled token, or None when the whole vocabulary was sampled from."""
        if any(turn.support is None for turn in self.turns):
            return None
        return tuple(ids for turn in self.turns for ids in turn.support or ())

    def _columns(self) -> tuple[tuple[int, ...], tuple[bool, ...], tuple[float, ...]]:
        ids: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        for i, forced in enumerate(self.forced):
            turn = self.turns[i] if i < len(self.turns) else None
            said = turn.ids if turn else ()
            ids += [*forced.ids, *said]
            mask += [False] * len(forced.ids) + [True] * len(said)
            logprobs += [0.0] * len(forced.ids) + [*(turn.logprobs if turn else ())]
        return tuple(ids), tuple(mask), tuple(logprobs)

    def extended(self, engine: Engine, call: Call) -> tuple[Record, dict[str, Any] | None]:
        """The record up to where the answer to this call begins, and what was cut (None: nothing).

        Raises:
            EngineError: the template cannot take the messages.
        """
        kept = self._same_turns(call.messages)
        while True:
            gaps = [turn.at for turn in self.turns[:kept]]
            messages = [m if i in gaps else in_words(m, engine) for i, m in enumerate(call.messages)]
            parts = engine.render(messages, call.tools, gaps)
            texts = [self._before(i, tuple(part), engine) for i, part in enumerate(parts)]
            same = self._same_forced(texts)
            if same >= kept:
                break
            kept = same  # the text before a turn changed: that turn is not what the model would say now
        forced = list(self.forced[:kept])
        forced += [self._encoded(text, i, engine) for i, text in enumerate(texts) if i >= kept]
        new = replace(self, forced=tuple(forced), turns=self.turns[:kept], messages=call.messages,
                      tools=call.tools)
        return new, self._cut(new, kept)

    def with_turn(self, turn: Turn) -> Record:
        return replace(self, turns=(*self.turns, turn), messages=(*self.messages, turn.message))

    def _same_turns(self, messages: Sequence[Message]) -> int:
        """How many of the sampled turns the messages still hold, unchanged and in their places."""
        for i, turn in enumerate(self.turns):
            if turn.at >= len(messages) or not same_message(messages[turn.at], turn.message):
                return i
        return len(self.turns)

    def _before(self, i: int, pieces: tuple[Piece, ...], engine: Engine) -> tuple[Piece, ...]:
        """The forced text after turn i - 1, without the end-of-turn token that the turn itself holds."""
        if i == 0 or not pieces:
            return pieces
        last = self.turns[i - 1].ids[-1]
        end = engine.decode([last], skip_special_tokens=False) if last in engine.policy.stop_ids else ""
        (text, typed), *rest = pieces
        return ((text[len(end):], typed), *rest) if end and text.startswith(end) and not typed else pieces

    def _same_forced(self, texts: Sequence[tuple[Piece, ...]]) -> int:
        """How many turns have the same text before them as when they were sampled."""
        for i, text in enumerate(texts[:len(self.turns)]):
            if text != self.forced[i].pieces:
                return i
        return len(self.turns)

    def _encoded(self, pieces: tuple[Piece, ...], i: int, engine: Engine) -> Forced:
        if i < len(self.forced) and self.forced[i].pieces == pieces:
            return self.forced[i]  # asked again: the same text is not encoded twice
        return Forced(pieces, tuple(engine.encode_pieces(pieces)))

    def _cut(self, new: Record, kept: int) -> dict[str, Any] | None:
        """What a changed history costs: turns that are no longer the policy's, and where it differs."""
        if kept == len(self.turns):
            return None
        old, now = self.token_ids, new.token_ids
        common = next((i for i, (a, b) in enumerate(zip(old, now, strict=False)) if a != b),
                      min(len(old), len(now)))
        return {"common_tokens": common, "lost_tokens": len(old) - common,
                "lost_turns": len(self.turns) - kept}


def same_message(given: Message, known: Message) -> bool:
    """The same role, text and calls. null and "" are one; a call's arguments are compared as objects."""
    return (given.role, given.content, _comparable(given)) == (known.role, known.content, _comparable(known))


def _comparable(message: Message) -> str:
    return json.dumps([dict(call) for call in message.tool_calls], sort_keys=True, ensure_ascii=False)


def in_words(message: Message, engine: Engine) -> Message:
    """A message whose calls hold a control token, with the calls as text: text is spelt out, a call would
    be written beside the template's own tokens."""
    control = control_tokens(engine.tokenizer)
    told = json.dumps([dict(call) for call in message.tool_calls], ensure_ascii=False)
    if not message.tool_calls or not any(token in told for token in control):
        return message
    blocks = [f"<tool_call>\n{json.dumps(dict(call['function']), ensure_ascii=False)}\n</tool_call>"
              for call in message.tool_calls]
    return replace(message, content="\n".join([message.content, *blocks]).strip(), tool_calls=())
