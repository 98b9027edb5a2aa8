"""A Jupyter kernel as a front end has it: cells, clicks, interrupts, and every message with its time."""

from __future__ import annotations

import json
import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client import BlockingKernelClient, KernelManager

ROOT = Path(__file__).resolve().parents[1]
GUARD = 240  # seconds after which something has hung
START = f"""import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import json, os, threading, time
import torch
torch.set_num_threads(1)
import rlteach as rl"""


class Kernel:
    """One kernel. `messages` holds all that it published, as (time of arrival, message)."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, log: Path) -> None:
        self.manager, self.client, self.log = manager, client, log
        self.messages: list[tuple[float, dict[str, Any]]] = []

    @property
    def pid(self) -> int:
        return self.manager.provisioner.process.pid

    def read(self, seconds: float) -> None:
        """What arrives in this time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except queue.Empty:
                return
            self.messages.append((time.time(), message))

    def eventually(self, condition: Callable[[], Any], what: str) -> Any:
        """What the condition gives as soon as it is true; messages are read meanwhile."""
        end = time.monotonic() + GUARD
        while not (found := condition()):
            assert time.monotonic() < end, f"waited too long for {what}"
            self.read(0.02)
        return found

    def begin(self, code: str) -> str:
        """Start a cell; its id."""
        return self.client.execute(code)

    def of(self, cell: str | None, kind: str = "") -> list[tuple[float, dict[str, Any]]]:
        """What a cell published (None: anything), of this type of message."""
        return [(at, m) for at, m in list(self.messages)
                if cell in (None, m["parent_header"].get("msg_id")) and (not kind or m["msg_type"] == kind)]

    def ended(self, cell: str) -> float | None:
        """When the kernel was idle again, None while the cell runs."""
        return next((at for at, m in self.of(cell, "status")
                     if m["content"]["execution_state"] == "idle"), None)

    def wait(self, cell: str) -> float:
        return self.eventually(lambda: self.ended(cell), "the end of a cell")

    def run(self, code: str) -> str:
        """Run a cell that has to go well; what it printed."""
        self.wait(cell := self.begin(code))
        errors = [m["content"] for _, m in self.of(cell, "error")]
        assert not errors, "\n".join(errors[0]["traceback"])
        return self.text(cell, "stdout")

    def value(self, expression: str) -> Any:
        return json.loads(self.run(f"print(json.dumps({expression}))"))

    def text(self, cell: str | None, stream: str) -> str:
        return "".join(m["content"]["text"] for _, m in self.of(cell, "stream")
                       if m["content"]["name"] == stream)

    def interrupt(self) -> float:
        """The stop button; when it was pressed."""
        at = time.time()
        self.manager.interrupt_kernel()
        return at

    def widgets(self) -> dict[str, dict[str, Any]]:
        """Every widget that is open, by the id of its comm: its state as a front end has it now."""
        found: dict[str, dict[str, Any]] = {}
        for _, m in self.of(None):
            content = m["content"]
            if m["msg_type"] == "comm_open":
                found[content["comm_id"]] = dict(content["data"].get("state", {}))
            elif m["msg_type"] == "comm_msg" and content["data"].get("method") == "update":
                found.get(content["comm_id"], {}).update(content["data"]["state"])
            elif m["msg_type"] == "comm_close":
                found.pop(content["comm_id"], None)
        return found

    def widget(self, **state: Any) -> str | None:
        """The comm of the last open widget in this state."""
        found = [comm for comm, has in self.widgets().items()
                 if all(has.get(name) == value for name, value in state.items())]
        return found[-1] if found else None

    def said(self, words: str) -> bool:
        """Does a widget show these words?"""
        return any(words in str(state.get("value", "")) for state in self.widgets().values())

    def send(self, comm: str, **data: Any) -> None:
        """A message of a widget in the front end to its other half here."""
        content = {"comm_id": comm, "data": data}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))

    def click(self, name: str) -> None:
        comm = self.eventually(lambda: self.widget(description=name, _view_name="ButtonView"), name)
        self.send(comm, method="custom", content={"event": "click"})

    def turn(self, name: str, **state: Any) -> None:
        """Move a slider, choose an option."""
        comm = self.eventually(lambda: self.widget(description=name), f"the widget {name}")
        self.send(comm, method="update", state=state, buffer_paths=[])

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def kernel(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Kernel]:
    """A kernel of this environment in `folder`, with `env` added; its own stderr goes to kernel.log there."""
    manager = KernelManager(kernel_name="python3")
    log = folder / "kernel.log"
    with log.open("w") as stream:
        manager.start_kernel(
            cwd=str(folder), stdout=stream, stderr=stream, extra_arguments=["--log-level=WARN"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                 "IPYTHONDIR": str(folder / "ipython"), **(env or {})})
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=GUARD)
    found = Kernel(manager, client, log)
    try:
        yield found
    finally:
        found.close()
