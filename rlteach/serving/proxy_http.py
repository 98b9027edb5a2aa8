"""The HTTP face of rollouts' proxies: one small server, a session for each bearer token.

    Authorization: Bearer TOKEN -> the session with this token -> its chat.completions

It answers on 127.0.0.1 only, under a port that the system chooses. A token that it does not know, or
whose rollout has ended, gets 401.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rlteach.agent.calls import CallError
from rlteach.agent.rollouts import PluginRollout
from rlteach.agent.session import Session, SessionClosedError
from rlteach.agent.tracing import Tracer
from rlteach.policy.policy import Policy
from rlteach.serving.app import GONE, Limits, as_wire_error, unless_gone, wrong_path
from rlteach.serving.guard import LOOPBACK, hostname, read_body, refuse
from rlteach.serving.server import AppThread
from rlteach.serving.wire import WireError, read_object


def plugin_rollout(function: Callable[..., Any], policy: Policy | None = None, *,
                   tracer: Tracer | None = None, job_id: str = "") -> PluginRollout:
    """OrealTrainer's `rollout` of a function with @rollout; all of them share one HTTP face.

    Raises:
        PluginError: it is not decorated; ModelError: the policy's template is not fit for many turns.
    """
    return PluginRollout(function, policy, face=_face, tracer=tracer, job_id=job_id)


@cache
def _face() -> ProxyFace:
    return ProxyFace()


class ProxyFace:
    """Serves sessions until `close()`; starts with the first one. Thread-safe."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.served = 0  # sessions so far
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._server: Any = None

    @property
    def url(self) -> str:
        with self._lock:
            if self._server is None:
                self._server = AppThread(self._app(), "127.0.0.1", 0, "rlteach-proxy")
                reach_loopback()
            return f"http://127.0.0.1:{self._server.port}/v1"

    def add(self, session: Session) -> None:
        with self._lock:
            self._sessions[session.token] = session
            self.served += 1

    def remove(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session.token, None)

    def close(self) -> None:
        """Stop; may be called again."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/models", self._models),
                                 Route("/v1/chat/completions", self._chat, methods=["POST"])],
                         exception_handlers={HTTPException: wrong_path})

    def _session(self, request: Request) -> Session:
        if hostname(request.headers.get("host", "")) not in LOOPBACK:
            raise WireError("the Host header names no loopback address: ask 127.0.0.1", status=403,
                            code="host_not_allowed")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        with self._lock:  # a token of 24 random bytes: looking it up tells nothing about the others
            found = self._sessions.get(token.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise WireError("no rollout has this token, or it has ended: send 'Authorization: Bearer' with "
                            "proxy.jwt_token", status=401, code="invalid_api_key")
        return found

    async def _models(self, request: Request) -> Response:
        try:
            name = self._session(request).side.name
        except WireError as error:
            return refuse(error)
        entry = {"id": name, "object": "model", "created": 0, "owned_by": "rlteach"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def _chat(self, request: Request) -> Response:
        try:
            session = self._session(request)
            body = await read_body(request, limit=self.limits.body_bytes, seconds=self.limits.body_seconds)
            answer = await unless_gone(request, session.acomplete(read_object(body)))
            return GONE if answer is None else JSONResponse(answer)
        except ClientDisconnect:
            return GONE
        except CallError as error:
            return refuse(WireError(str(error), error.param, code=error.code))
        except SessionClosedError as error:
            return refuse(WireError(str(error), status=401, code="rollout_ended"))
        except Exception as error:
            return refuse(as_wire_error(error))


def reach_loopback() -> None:
    """Clients that plug-ins make obey HTTP_PROXY; a proxy cannot reach this machine's own loopback."""
    for name in ("NO_PROXY", "no_proxy"):
        known = [part for part in os.environ.get(name, "").split(",") if part.strip()]
        missing = [host for host in ("127.0.0.1", "localhost") if host not in known]
        if missing:
            with suppress(OSError):
                os.environ[name] = ",".join([*known, *missing])
