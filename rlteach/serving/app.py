"""The Starlette application: GET /health, GET /v1/models, POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rlteach.policy.decode import EngineError
from rlteach.policy.engine import EngineClosedError, EngineFullError
from rlteach.serving.guard import Guard, read_body, refuse
from rlteach.serving.wire import ChatRequest, WireError, read_request

log = logging.getLogger("rlteach.serving")
REQUEST_ID = "x-client-request-id"
SMALL = 50_000  # bytes that are read in less time than a thread takes to start on them
GONE = Response(status_code=499)  # nobody reads it


class Backend(Protocol):
    """What answers: the engine, or llama.cpp."""

    model: str

    @property
    def facts(self) -> dict[str, Any]: ...
    @property
    def load(self) -> dict[str, int]: ...
    async def answer(self, request: ChatRequest) -> dict[str, Any]: ...
    async def start(self, request: ChatRequest) -> AsyncIterator[dict[str, Any]]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Limits:
    """Of one request's body: bytes, and seconds until it is complete."""

    body_bytes: int = 4 * 2**20
    body_seconds: float = 20.0


class Api:
    """The endpoints over one backend."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self.backend, self.limits, self.since = backend, limits, int(time.time())

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "server": "rlteach", "model": self.backend.model,
                             "pid": os.getpid(), **self.backend.load})

    async def models(self, request: Request) -> Response:
        entry = {"id": self.backend.model, "object": "model", "created": self.since, "owned_by": "rlteach",
                 **self.backend.facts}
        asked = request.path_params.get("model")
        if asked is None:
            return JSONResponse({"object": "list", "data": [entry]})
        return JSONResponse(entry) if asked == self.backend.model else refuse(self._no_model(asked))

    async def chat(self, request: Request) -> Response:
        try:
            body = await read_body(request, limit=self.limits.body_bytes, seconds=self.limits.body_seconds)
            wanted = read_request(body) if len(body) < SMALL else await asyncio.to_thread(read_request, body)
            if wanted.model != self.backend.model:
                raise self._no_model(wanted.model)
            if wanted.stream:
                chunks = await self.backend.start(wanted)
                return StreamingResponse(events(chunks), media_type="text/event-stream",
                                         headers={"cache-control": "no-cache"})
            answer = await unless_gone(request, self.backend.answer(wanted))
            return GONE if answer is None else JSONResponse(answer, headers=echo(request))
        except ClientDisconnect:
            return GONE
        except Exception as error:
            return refuse(as_wire_error(error))

    def _no_model(self, name: str) -> WireError:
        return WireError(f"there is no model {name[:100]!r} here; this server has {self.backend.model!r}",
                         "model", status=404, code="model_not_found")


def echo(request: Request) -> dict[str, str]:
    """The client's own name of its request comes back: it sees that the answer is that of its question."""
    name = request.headers.get(REQUEST_ID, "")
    return {REQUEST_ID: name} if 0 < len(name) <= 128 and name.isascii() and name.isprintable() else {}


def as_wire_error(error: Exception) -> WireError:
    """Any failure as an answer that names no secret and shows no traceback."""
    if isinstance(error, WireError):
        return error
    if isinstance(error, EngineError):
        code = "context_length_exceeded" if "positions" in str(error) else None
        return WireError(str(error), str(error).split(":")[0], code=code)
    if isinstance(error, EngineFullError):
        return WireError(str(error), status=429, code="queue_full")
    if isinstance(error, EngineClosedError):
        return WireError(str(error), status=503, code="stopping")
    log.error("a request failed", exc_info=error)
    return WireError(f"the server failed ({type(error).__name__}); its log has the details", status=500)


async def unless_gone(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any] | None:
    """The result of `work`, or None when the client hangs up first; then the work is cancelled."""

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(hang_up())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else None
    finally:
        answer.cancel()
        gone.cancel()


async def events(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Server-sent events, and [DONE] at the end; an error in the middle is an event, too."""
    try:
        async for chunk in chunks:
            yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    except Exception as error:
        yield f"data: {json.dumps(as_wire_error(error).body(), ensure_ascii=False)}\n\n"
        return
    yield "data: [DONE]\n\n"


async def wrong_path(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse(WireError(f"{error.detail}: this server has GET /health, GET /v1/models and "
                            "POST /v1/chat/completions", status=error.status_code))


def build_app(backend: Backend, *, api_key: str, hosts: frozenset[str] | None, limits: Limits) -> Starlette:
    """The application behind its guard."""
    api = Api(backend, limits)
    return Starlette(
        routes=[
            Route("/health", api.health),
            Route("/v1/models", api.models),
            Route("/v1/models/{model:path}", api.models),
            Route("/v1/chat/completions", api.chat, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, api_key=api_key, hosts=hosts)],
        exception_handlers={HTTPException: wrong_path},
    )
