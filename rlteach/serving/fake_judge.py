"""A judge that knows the truth and breaks on purpose: a real HTTP server for lessons and tests.

    with FakeJudge(faults=("reset", "busy", "prose"), share=0.3) as judge:
        LLMJudger(judge.url).grade(group)

`faults` are names of `FAULTS`; `share` of the requests are broken, always the same ones for a seed.
It is written on bare sockets, because a connection that is reset half-way, a body of one byte a
second or no answer at all are not things that a web framework can be asked for.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from rlteach.judger.background import LoopThread
from rlteach.serving import fake_replies as replies
from rlteach.serving.fake_replies import FAULTS, TRANSPORT, Answer, Asked
from rlteach.serving.fake_wire import MOST, read, reset, send, wire


@dataclass(frozen=True)
class Seen:
    """One request as it came, and the fault that it met (None: it was answered as it should be)."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    fault: str | None


class FakeJudge:
    """Starts with `with` or `start()`; `url` is its base URL.

    Args:
        oracle: (question, gold, candidate) -> right?; none: equal to an accepted answer, letter for letter.
        reply: what it says, when you want to write that yourself (a judge that is easily persuaded, say).
        faults: names of faults; share: of the requests that meet one of them.
        json_schema: False: it drops response_format without a word, as some servers do.
        refuses: fields that it answers with 400, as strict servers do.
        api_key: the key that it wants (none: any).
        delay: seconds that every answer takes; pace: seconds of Retry-After, between two bytes of a
            `drip`, and before a `late` answer (ten of them).
    """

    def __init__(self, oracle: Callable[[str, tuple[str, ...], str], bool] | None = None,
                 faults: Iterable[str] = (), seed: int = 0, share: float = 0.3, port: int = 0, *,
                 model: str = "fake-judge", api_key: str | None = None, json_schema: bool = True,
                 delay: float = 0.0, pace: float = 1.0,
                 reply: Callable[[Asked], str | None] | None = None, refuses: Iterable[str] = ()) -> None:
        self.oracle, self.seed, self.port, self.model = oracle or replies.exact, seed, port, model
        self.api_key, self.json_schema, self.delay, self.pace = api_key, json_schema, delay, pace
        self.refuses = tuple(refuses)
        self.reply = reply or replies.verdict_text
        self.requests: list[Seen] = []
        self.busiest = 0  # most answers that were being worked on at the same time
        self._busy = 0
        self._times: Counter[str] = Counter()
        self._open: dict[socket.socket, asyncio.Task[None]] = {}
        self._listener: socket.socket | None = None
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()
        self.set(faults, share)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def set(self, faults: Iterable[str] = (), share: float | None = None) -> None:
        """Other faults from now on; () for none."""
        chosen = (faults,) if isinstance(faults, str) else tuple(faults)
        if unknown := sorted(set(chosen) - set(FAULTS)):
            raise ValueError(f"no such fault: {', '.join(unknown)}; choose from {', '.join(FAULTS)}")
        self.faults = chosen
        if share is not None:
            if not 0 <= share <= 1:
                raise ValueError(f"share is a part of all requests, from 0 to 1; got {share!r}")
            self.share = share

    def start(self) -> Self:
        if self._thread is None:
            self._thread = LoopThread("rlteach-fake-judge", self._hang_up)
            self._thread.run(self._listen())
        return self

    def go_down(self) -> None:
        """Refuse every connection, and drop the open ones."""
        self._running().run(self._hang_up())

    def come_back(self) -> None:
        """Listen again, on the same port."""
        self._running().run(self._listen())

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise ValueError("this fake judge is not running: use it as `with FakeJudge() as judge:`")
        return self._thread

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._accepting = asyncio.ensure_future(self._accept(self._listener))

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            held, _ = await asyncio.get_running_loop().sock_accept(listener)
            if self._listener is not listener:
                return held.close()
            self._open[held] = asyncio.ensure_future(self._serve(held))

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            try:  # wake `_accept`: a cancelled one could lose a client that was just let in
                socket.create_connection(("127.0.0.1", self.port)).close()
                await asyncio.shield(self._accepting)
            finally:
                listener.close()

    async def _hang_up(self) -> None:
        await self._stop_listening()
        tasks = dict(self._open)
        for held, task in tasks.items():
            reset(held)
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)  # all were cancelled
        for held in tasks:
            if self._open.pop(held, None) is not None:
                held.close()  # its task had not begun
        await asyncio.sleep(0)  # the other sockets are closed in the next turn of the loop

    async def _serve(self, held: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=held, limit=MOST)
        try:
            while not writer.is_closing() and (request := await read(reader)):
                await self._answer(*request, reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        except (OSError, EOFError, ValueError):
            pass  # the client hung up, or it does not speak HTTP
        finally:
            self._open.pop(held, None)
            writer.close()

    async def _answer(self, path: str, headers: dict[str, str], raw: bytes, reader: asyncio.StreamReader,
                      writer: asyncio.StreamWriter) -> None:
        mark = headers.get("x-client-request-id")
        echo = {} if mark is None else {"X-Client-Request-Id": mark}
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            return await send(writer, replies.refusal(401, "Incorrect API key provided", **echo))
        if path.endswith("/models"):
            listed = [{"id": self.model, "object": "model", "created": 0, "owned_by": "rlteach"}]
            return await send(writer, replies.as_json(200, {"object": "list", "data": listed}))
        try:
            body = json.loads(raw)
            asked = Asked.read(body if self.json_schema else {**body, "response_format": None}, self.oracle)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return await send(writer, replies.refusal(400, "expected a rubric and one JSON object"))
        if body.get("model") != self.model:
            gone = f"The model `{body.get('model')}` does not exist"
            return await send(writer, replies.refusal(404, gone, **echo))
        if unwanted := [field for field in self.refuses if field in body]:
            return await send(writer, replies.refusal(400, f"unsupported parameter: {unwanted[0]}", **echo))
        fault = self._fault(raw)
        self.requests.append(Seen(path, headers, body, fault))
        good = replies.as_json(200, replies.completion(self.reply(asked), self.model), **echo)
        if fault in TRANSPORT:
            return await self._break(fault, asked, good, reader, writer)
        if fault is not None:
            status, made, content = replies.broken(fault, asked, self.model, self.pace)
            good = status, {**made, **echo}, content
        self._busy += 1
        self.busiest = max(self.busiest, self._busy)
        await asyncio.sleep(self.delay)
        self._busy -= 1
        await send(writer, good)

    def _fault(self, raw: bytes) -> str | None:
        """By content and how often it came: the same requests break in every run, in any order."""
        key = raw.decode("utf-8", "replace")
        self._times[key] += 1
        draw = random.Random(f"{self.seed}|{self._times[key]}|{key}")
        return draw.choice(self.faults) if self.faults and draw.random() < self.share else None

    async def _break(self, fault: str, asked: Asked, good: Answer, reader: asyncio.StreamReader,
                     writer: asyncio.StreamWriter) -> None:
        if fault == "refuse":  # nobody can connect for a moment
            await self._stop_listening()
            _drop(writer)
            await asyncio.sleep(0.1)
            await self._listen()
        elif fault == "reset_body":
            data = wire(good)
            writer.write(data[: len(data) - len(good[2]) // 2])
            await writer.drain()
        elif fault in ("silent", "late"):
            seconds = None if fault == "silent" else 10 * self.pace
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), seconds)  # ends when the client hangs up
            if fault == "late":
                return await send(writer, good)
        elif fault == "drip":
            for byte in wire(good):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(self.pace)
        elif fault == "duplicate":
            await send(writer, good)
            await asyncio.sleep(0.02)
            return await send(writer, good)
        elif fault == "swapped":  # the verdict of another request, which bears that request's id
            said = replies.completion(replies.verdict_text(asked, not asked.verdict), self.model)
            return await send(writer, replies.as_json(200, said, **{"X-Client-Request-Id": "another"}))
        _drop(writer)


def _drop(writer: asyncio.StreamWriter) -> None:
    reset(writer.get_extra_info("socket"))
    writer.transport.abort()
