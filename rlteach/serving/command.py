"""`rlteach serve`: the server as a process of its own, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer


def serve_command(
    model: Annotated[str, typer.Argument(
        help="embedded model, model directory, run directory, hub id, or .gguf file")],
    port: Annotated[int, typer.Option(help="0: any free one")] = 10003,
    host: Annotated[str, typer.Option(help="another address than the loopback lets others in")] = "127.0.0.1",
    api_key: Annotated[str | None, typer.Option(
        envvar="RLTEACH_API_KEY", show_envvar=True, help="[default: a random one]")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto")] = None,
) -> None:
    """Serve a model over the OpenAI protocol."""
    from rlteach.serving.ports import listen

    listen(host, port).close()  # a busy port is told before torch is imported
    from rlteach.serving.server import serve

    stop = threading.Event()
    for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: stop.set())
    with serve(model, port=port, host=host, api_key=api_key, device=device) as server:
        typer.echo(f"{server.model} at {server.url}")
        if api_key is None:  # a key of the user's own is not shown
            typer.echo(f"key: {server.api_key}")
        typer.echo("Ctrl-C stops it")
        while not stop.wait(0.5):  # without a timeout, Windows would not let Ctrl-C through
            pass
    typer.echo("stopped")
