"""An event loop in a thread of its own: asynchronous work that a script, a notebook cell and another
running loop can all wait for, with one set of limits whoever asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Starts with the first use, ends with `close()`; what still runs then is cancelled."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work there; the future may be waited for anywhere, and cancelled."""
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError(f"{self.name} is closed")
            if self._thread is None:
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work; an interrupt while waiting cancels it and propagates."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(f"{self.name} cannot wait for itself: use the async method")
        future = self.submit(work)
        try:
            while not wait([future], timeout=0.5).done:
                pass  # in short turns: a lock without a time limit cannot be interrupted on Windows
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what runs, close the loop, wait for the thread. Closing twice is allowed."""
        with self._lock:
            thread, self._closed = self._thread, True
            if thread is not None and thread.is_alive():
                assert self._loop is not None and self._stop is not None
                self._loop.call_soon_threadsafe(self._stop.set)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        ready = threading.Event()

        async def live() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            ready.set()
            await self._stop.wait()

        self._thread = threading.Thread(target=asyncio.run, args=(live(),), name=self.name, daemon=True)
        self._thread.start()
        ready.wait()
