"""From a checked request to an answer of the engine: whole, or piece by piece."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

from rlteach.policy.chat import control_tokens
from rlteach.policy.decode import Row, RowParams
from rlteach.policy.detokenize import settled, text_of
from rlteach.policy.engine import Engine
from rlteach.policy.grammar import GrammarError
from rlteach.serving.replies import choice, chunk_choice, head, token_logprobs, usage
from rlteach.serving.tool_calls import check_template, refuse_control_tokens, split_calls, to_message
from rlteach.serving.wire import ChatRequest, WireError


class EngineBackend:
    """Answers requests over an Engine. `model` is the served name."""

    def __init__(self, engine: Engine, model: str) -> None:
        self.engine, self.model = engine, model

    @property
    def facts(self) -> dict[str, Any]:
        """What /v1/models says beside the name (max_model_len is vLLM's word)."""
        return {"max_model_len": self.engine.limit}

    @property
    def load(self) -> dict[str, int]:
        return self.engine.load

    def close(self) -> None:
        self.engine.close()

    async def answer(self, request: ChatRequest) -> dict[str, Any]:
        """The body of a whole answer. A caller that goes away takes its rows with it."""
        rows = self._submit(request) if request.brief else await asyncio.to_thread(self._submit, request)
        try:
            await asyncio.gather(*(asyncio.wrap_future(row.done) for row in rows))
        finally:
            self.engine.cancel(rows)
        return self._body(request, rows)

    async def start(self, request: ChatRequest) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a streamed answer; what is wrong with the request is raised here, at once."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        rows = await asyncio.to_thread(self._submit, request, lambda: loop.call_soon_threadsafe(news.set))
        return self._chunks(request, rows, news)

    def _submit(self, request: ChatRequest, watch: Any = None) -> list[Row]:
        engine, tools = self.engine, request.offered
        control = control_tokens(engine.tokenizer)
        if tools:
            check_template(engine.template, self.model)
            refuse_control_tokens("tools", tools, control)
        messages = [to_message(message) for message in request.messages]
        for i, message in enumerate(messages):
            refuse_control_tokens(f"messages.{i}.tool_calls", message.tool_calls, control)
        try:
            prompt = engine.encode(messages, tools)
            params = RowParams(
                max_tokens=engine.room(prompt, request.longest),
                temperature=1.0 if request.temperature is None else request.temperature,
                top_p=1.0 if request.top_p is None else request.top_p, top_k=max(request.top_k or 0, 0),
                stop=request.stops, top_logprobs=request.top_logprobs or 0)
            seed = secrets.randbits(62) if request.seed is None else request.seed
            return engine.submit(prompt, params, seed, request.n or 1,
                                 schema=request.schema_wanted, watch=watch)
        except GrammarError as error:
            raise WireError(f"response_format: {error}", "response_format") from None

    def _body(self, request: ChatRequest, rows: list[Row]) -> dict[str, Any]:
        vocabulary = self.engine.vocabulary if request.logprobs else None
        ids = bool(request.return_token_ids)
        choices = [choice(i, row, vocabulary=vocabulary, tools=bool(request.offered), ids=ids)
                   for i, row in enumerate(rows)]
        body = head("chat.completion", self.model, self.engine.policy.version)
        body |= {"choices": choices, "usage": usage(rows)}
        return body | ({"prompt_token_ids": list(rows[0].prompt)} if ids else {})

    async def _chunks(self, request: ChatRequest, rows: list[Row], news: asyncio.Event
                      ) -> AsyncIterator[dict[str, Any]]:
        counted = bool(request.stream_options and request.stream_options.include_usage)
        first = head("chat.completion.chunk", self.model, self.engine.policy.version)
        first |= {"usage": None} if counted else {}
        prompt = {"prompt_token_ids": list(rows[0].prompt)} if request.return_token_ids else {}
        pieces = [_Pieces(self.engine, request, i, row) for i, row in enumerate(rows)]
        try:
            for i in range(len(rows)):
                opening = chunk_choice(i, {"role": "assistant", "content": ""})
                yield first | {"choices": [opening]} | prompt
            open_ = list(pieces)
            while open_:
                await news.wait()
                news.clear()
                for piece in list(open_):
                    ended = piece.row.done.done()  # before its text is read
                    if ended:
                        piece.row.done.result()  # raises what went wrong
                        open_.remove(piece)
                    for part in piece.next(ended):
                        yield first | {"choices": [part]}
            if counted:
                yield first | {"choices": [], "usage": usage(rows)}
        finally:
            self.engine.cancel(rows)


class _Pieces:
    """What of one row has been sent."""

    def __init__(self, engine: Engine, request: ChatRequest, index: int, row: Row) -> None:
        self.engine, self.request, self.index, self.row = engine, request, index, row
        self.sent, self.tokens = "", 0

    def next(self, ended: bool) -> list[dict[str, Any]]:
        """The choices of the next chunks: new text if there is any, and the finish when ended."""
        count = len(self.row.ids)
        if ended:
            text = self.row.text or ""
        elif self.request.offered or self.row.finish:
            return []  # a call is sent whole; and what ends a row is no text
        else:
            text = settled(text_of(self.engine, self.row.ids[:count]), self.row.params.stop)
            if len(text) <= len(self.sent) or not text.startswith(self.sent):
                return []
        delta, finish = {"content": text[len(self.sent):]}, self.row.finish
        if ended and self.request.offered:
            content, calls = split_calls(text)
            delta = {"content": content}
            if calls:
                numbered = [{"index": i, **call} for i, call in enumerate(calls)]
                delta, finish = delta | {"tool_calls": numbered}, "tool_calls"
        out = [self._choice(delta, count)] if count > self.tokens or any(delta.values()) else []
        self.sent = text
        return [*out, chunk_choice(self.index, {}, finish=finish)] if ended else out

    def _choice(self, delta: dict[str, Any], count: int) -> dict[str, Any]:
        start, self.tokens = self.tokens, count
        logprobs = None
        if self.request.logprobs:
            logprobs = token_logprobs(self.row, self.engine.vocabulary, start, count)
        ids = self.row.ids[start:count] if self.request.return_token_ids else None
        return chunk_choice(self.index, delta, logprobs=logprobs, ids=ids)
