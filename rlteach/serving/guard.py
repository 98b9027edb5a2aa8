"""Who may ask, and how much: Host header, bearer token, size and time of a body."""

from __future__ import annotations

import asyncio
import secrets

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rlteach.serving.wire import WireError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
READ_AWAY = 256 * 2**20  # of a body that is too large: a client that still sends would not see the answer


class Guard:
    """ASGI: 403 for a Host that is not ours, 401 without the key. /health needs no key.

    hosts: names that may stand in the Host header (None: any). A page of somebody else's in the
    user's browser can reach a loopback port under a name of its own; that name is not among them.
    """

    def __init__(self, app: ASGIApp, *, api_key: str, hosts: frozenset[str] | None) -> None:
        self.app, self.hosts = app, hosts
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._refusal(Headers(scope=scope), scope["path"])
        await (self.app if refusal is None else refuse(refusal))(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> WireError | None:
        if self.hosts is not None and hostname(headers.get("host", "")) not in self.hosts:
            return WireError("the Host header names no loopback address: ask 127.0.0.1 or localhost, or "
                             "start the server with --host", status=403, code="host_not_allowed")
        if path == "/health":
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(key.strip().encode(), self._key):
            return WireError("the key is missing or wrong: send 'Authorization: Bearer KEY' with the key "
                             "that the server was started with", status=401, code="invalid_api_key")
        return None


def hostname(host: str) -> str:
    """The Host header without its port, in lower case.

    >>> hostname("LOCALHOST:80"), hostname("[::1]:80")
    ('localhost', '[::1]')
    """
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def refuse(error: WireError) -> JSONResponse:
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "5"},
               408: {"connection": "close"}, 413: {"connection": "close"}}.get(error.status)
    return JSONResponse(error.body(), error.status, headers)


async def read_body(request: Request, *, limit: int, seconds: float) -> bytes:
    """The body, at most `limit` bytes within `seconds`.

    Raises:
        WireError: 413 (larger), 408 (slower).
    """
    chunks, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limit:
                    chunks.append(chunk)
                elif size > READ_AWAY:
                    break
                else:
                    chunks.clear()
    except TimeoutError:
        raise WireError(f"the body was not complete after {seconds:g} s", status=408) from None
    if size > limit:
        raise WireError(f"the body is larger than {limit} bytes: send less", status=413)
    return b"".join(chunks)
