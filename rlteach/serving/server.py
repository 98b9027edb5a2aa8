"""`serve(...)`: a running server as an object. Own thread and event loop, so it works in a notebook."""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
import time
from typing import Any

import uvicorn

from rlteach.serving.app import Backend, Limits, build_app
from rlteach.serving.guard import LOOPBACK
from rlteach.serving.loading import load_backend
from rlteach.serving.ports import ServeError, listen


class AppThread:
    """An application on its own thread and event loop; `port` is where it listens."""

    def __init__(self, app: Any, host: str, port: int, name: str) -> None:
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            proxy_headers=False, server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=2)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what clients do wrong is no news
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._uvicorn.run, args=([self._socket],), name=name, daemon=True)
        self._thread.start()
        while not self._uvicorn.started:
            if not self._thread.is_alive():
                self._socket.close()
                raise ServeError(f"the server did not start at {host}, port {self.port}")
            time.sleep(0.005)
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Close the connections and wait for the thread. May be called again."""
        atexit.unregister(self.close)
        self._uvicorn.should_exit = True
        self._thread.join(10)
        self._socket.close()


class Server:
    """A server that runs until `close()`, the end of its `with` block, or the end of the process."""

    def __init__(self, backend: Backend, host: str, port: int, api_key: str, limits: Limits) -> None:
        self.backend, self.api_key, self.model = backend, api_key, backend.model
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)
        hosts = LOOPBACK if shown in LOOPBACK and host not in ("0.0.0.0", "::") else None
        app = build_app(backend, api_key=api_key, hosts=hosts, limits=limits)
        self._app = AppThread(app, host, port, "rlteach-server")
        self.port = self._app.port
        self.url = f"http://{shown}:{self.port}/v1"
        atexit.register(self.close)

    def close(self) -> None:
        """Stop: running requests get 503, then connections are closed. May be called again."""
        atexit.unregister(self.close)
        self.backend.close()
        self._app.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._app.alive else ", closed"
        return f"Server({self.model!r} at {self.url}{state})"


def serve(
    model: Any, port: int = 0, host: str = "127.0.0.1", api_key: str | None = None, *,
    name: str | None = None, device: str | None = None, body_bytes: int = Limits.body_bytes,
    body_seconds: float = Limits.body_seconds,
) -> Server:
    """Serve a model over the OpenAI protocol; returns at once, with `url`, `api_key`, `model`, `close()`.

        with serve("tiny-judge") as server:
            client = openai.OpenAI(base_url=server.url, api_key=server.api_key)

    model: a Policy, an embedded name, a directory, a run directory, a hub id, or a .gguf file.
    port 0 takes a free one. api_key None: a random one. device: of the model (default: the CPU, or
    what a run's config says). On a loopback host only requests whose Host header names it are answered.

    Raises:
        ServeError: the port is taken (the message says by whom), or the host or the key is no good.
        ModelError: the model is not there, or a part of it is missing.
    """
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key
                                    and api_key):
        raise ServeError("api_key: give printable ASCII characters, or leave it out for a random key")
    listen(host, port).close()  # a busy port is told before a model is loaded
    backend = load_backend(model, name=name, device=device)
    try:
        return Server(backend, host, port, api_key or secrets.token_urlsafe(24),
                      Limits(body_bytes, body_seconds))
    except BaseException:
        backend.close()
        raise
