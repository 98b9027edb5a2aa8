"""One rollout at the policy: requests in, answers out, and the token record of what the last one saw.

    request -> record up to the answer -> Engine -> sampled ids -> record with one more turn -> reply

Sessions share an engine and nothing else. A session that is closed answers no more, so that a plug-in
that ran out of time cannot go on in the background.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from rlteach.agent import tracing
from rlteach.agent.calls import Call, CallError, read_call, split_calls, to_messages
from rlteach.agent.record import Record, Turn
from rlteach.agent.template import check_template, offers_tools
from rlteach.agent.types import ChatCompletionSample
from rlteach.config import Config
from rlteach.policy.chat import control_tokens
from rlteach.policy.decode import EngineError, Row, RowParams
from rlteach.policy.engine import Engine, row_key
from rlteach.types import Message, Trajectory


class SessionClosedError(RuntimeError):
    """The rollout that this session belonged to has ended."""


@dataclass(frozen=True)
class Sampling:
    """How the answers of one rollout are sampled: the sample's own numbers, or else the config's.
    max_new_tokens is for one turn; temperature 0 takes the most likely token."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int

    @classmethod
    def of(cls, sample: ChatCompletionSample, config: Config, *, greedy: bool = False) -> Sampling:
        own = {name: getattr(sample, name) for name in ("temperature", "top_p", "top_k", "max_new_tokens")}
        found = {k: getattr(config, k) if v is None else v for k, v in own.items()}
        return cls(**found | ({"temperature": 0.0, "top_p": 1.0, "top_k": 0} if greedy else {}))


class PolicySide:
    """What all sessions of a policy share: its engine, and what its tokenizer and template can do.

    Raises:
        ModelError: the chat template is not prefix-preserving, or writes no tool calls.
    """

    def __init__(self, engine: Engine, name: str = "policy") -> None:
        self.engine, self.name = engine, name
        check_template(engine.tokenizer, name, engine.policy.config.system_prompt)
        self.offers_tools = offers_tools(engine.tokenizer)
        self.control = control_tokens(engine.tokenizer)
        longest = max(map(len, engine.tokenizer.get_vocab()))
        self.characters = None if engine.limit is None else engine.limit * longest


@dataclass
class _Pending:
    """An answer under way: the record that it continues; `row` None: there is no room for it."""

    number: int
    record: Record
    prompt: tuple[int, ...]
    row: Row | None


class Session:
    """The policy's side of one rollout. `token` lets an HTTP client in; `key` fixes all noise."""

    def __init__(self, side: PolicySide, sampling: Sampling, key: int) -> None:
        self.side, self.sampling, self.key = side, sampling, key
        self.token, self.scope = secrets.token_urlsafe(24), tracing.current()
        self.version = side.engine.policy.version
        self.record, self.finish, self.last_id = Record(), None, ""
        self.cuts: list[dict[str, Any]] = []
        self.closed: str | None = None
        self._calls = self._committed = 0
        self._rows: list[Row] = []
        self._lock = threading.Lock()

    def complete(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a chat.completion for these fields of a request; waits for the answer.

        Raises:
            CallError, EngineError: the request is wrong; SessionClosedError: the rollout has ended.
        """
        with tracing.under(self.scope), tracing.span("model", "chat") as span:
            pending = self._begin(fields, span)
            try:
                if pending.row is not None:
                    pending.row.done.result()
                return self._end(pending, span)
            finally:
                self._let_go(pending)

    async def acomplete(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """`complete` for an event loop; a caller that is cancelled takes its answer with it."""
        with tracing.under(self.scope), tracing.span("model", "chat") as span:
            pending = self._begin(fields, span)
            try:
                if pending.row is not None:
                    await asyncio.wrap_future(pending.row.done)
                return self._end(pending, span)
            finally:
                self._let_go(pending)

    def align(self, messages: Sequence[Any]) -> None:
        """Cut the record where these messages leave what was sampled, before the next request does."""
        with self._lock:
            self._refuse_when_closed()
            call = Call(to_messages(messages), self.record.tools)
            new, cut = self.record.extended(self.side.engine, call)
            if cut is not None:
                self._note(cut)
                kept = len(new.turns)
                last = new.turns[-1].at + 1 if kept else 0
                self.record = replace(new, forced=new.forced[:kept], messages=call.messages[:last])

    def trajectory(self, extra: Mapping[str, Any] | None = None) -> Trajectory | None:
        """The context of the last call, as training takes it; None when there was no answer."""
        record = self.record
        if not record.turns:
            return None
        sampled = sum(len(turn.ids) for turn in record.turns)
        return Trajectory(
            messages=record.messages, token_ids=record.token_ids, action_mask=record.action_mask,
            logprobs=record.logprobs, policy_version=self.version, finish_reason=self.finish or "stop",
            usage={"prompt_tokens": len(record.token_ids) - sampled, "completion_tokens": sampled,
                   "turns": len(record.turns)},
            extra=dict(extra or {}), support=record.support)

    def close(self, why: str = "its rollout has ended") -> None:
        """Answer no more, and give up what is being sampled."""
        with self._lock:
            self.closed = self.closed or why
            self.side.engine.cancel(self._rows)

    def _begin(self, fields: Mapping[str, Any], span: tracing.Span | None) -> _Pending:
        call = read_call(fields, self.side.control)
        if call.tools and not self.side.offers_tools:
            raise CallError(f"tools: the chat template of {self.side.name} has no place for tools", "tools")
        if span is not None:
            span.inputs = tracing.plain([m.as_dict() for m in call.messages[len(self.record.messages):]])
        with self._lock:
            self._refuse_when_closed()
            self._calls += 1
            return self._submit(call)

    def _submit(self, call: Call) -> _Pending:
        engine, limit = self.side.engine, self.side.characters
        if limit is not None and sum(len(m.content) for m in call.messages) > limit:
            return self._full(call, f"messages: more than {limit} characters leave no room for an answer in "
                                    f"the model's {engine.limit} positions: shorten them")
        record, cut = self.record.extended(engine, call)
        prompt = record.token_ids
        try:
            room = engine.room(prompt, self.sampling.max_new_tokens)
        except EngineError as error:
            return self._full(call, str(error))
        if cut is not None:
            self._note(cut)
        s = self.sampling
        params = RowParams(room, s.temperature, s.top_p, s.top_k, keep_support=True)
        # another seed for each answer of a rollout, the same in each run
        (row,) = engine.submit(prompt, params, row_key(self.key, self._calls))
        self._rows.append(row)
        return _Pending(self._calls, record, prompt, row)

    def _full(self, call: Call, why: str) -> _Pending:
        """No room for another turn: the answer is empty and cut off. With no turn before it, the
        question itself is too long, and that is not the model's doing."""
        if not self.record.turns:
            raise EngineError(why)
        tracing.event("no room", reason=why)
        return _Pending(self._calls, replace(self.record, messages=call.messages), (), None)

    def _end(self, pending: _Pending, span: tracing.Span | None) -> dict[str, Any]:
        row, record = pending.row, pending.record
        ids = () if row is None else tuple(row.ids)
        stem = blake2b(f"{self.key},{pending.number}".encode(), digest_size=8).hexdigest()
        text = "" if row is None else row.text or ""
        content, calls = split_calls(text, lambda i: f"call_{stem}_{i}", lenient=True) if record.tools \
            else (text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        message |= {"tool_calls": calls} if calls else {}
        finish = "tool_calls" if calls else "length" if row is None else row.finish
        with self._lock:
            self._refuse_when_closed()
            if pending.number > self._committed:
                self._committed, self.finish, self.last_id = pending.number, finish, f"chatcmpl-{stem}"
                self.record = self._with_answer(record, row, message)
        if span is not None:
            span.outputs = tracing.plain({k: v for k, v in message.items() if v})
            span.about |= {"finish_reason": finish, "prompt_tokens": len(pending.prompt),
                           "completion_tokens": len(ids)}
        usage = {"prompt_tokens": len(pending.prompt), "completion_tokens": len(ids),
                 "total_tokens": len(pending.prompt) + len(ids)}
        return {"id": f"chatcmpl-{stem}", "object": "chat.completion", "created": int(time.time()),
                "model": self.side.name, "usage": usage, "choices": [
                    {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}]}

    def _with_answer(self, record: Record, row: Row | None, message: dict[str, Any]) -> Record:
        (said,) = to_messages([message])
        if row is None:
            return replace(record, messages=(*record.messages, Message("assistant", "")))
        support = tuple(row.support) if row.params.cut != (0, 1.0) else None
        at = len(record.messages)
        return record.with_turn(Turn(at, said, tuple(row.ids), tuple(row.logprobs), support))

    def _let_go(self, pending: _Pending) -> None:
        if pending.row is not None:
            self.side.engine.cancel([pending.row])
            self._rows = [row for row in self._rows if row is not pending.row]

    def _note(self, cut: dict[str, Any]) -> None:
        self.cuts.append(cut)
        tracing.event("history changed: record cut", **cut)

    def _refuse_when_closed(self) -> None:
        if self.closed is not None:
            raise SessionClosedError(f"this rollout's proxy answers no more: {self.closed}")
