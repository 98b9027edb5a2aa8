"""An event loop in a thread of its own: asynchronous work that a script, a notebook cell and another
running loop can all wait for, with one set of limits whoever asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoopThread:
    """Starts with the first use, ends with `close()`: what still runs is cancelled, then `at_end` runs."""

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]] | None = None) -> None:
        self.name, self._at_end = name, at_end
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work there; the future may be waited for anywhere, and cancelled."""
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError(f"{self.name} is closed")
            if self._thread is None:
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(self._owned(work), self._loop)

    def task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this loop, begun from inside it; `close()` ends it, too."""
        return asyncio.ensure_future(self._owned(work))

    async def _owned(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

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
                assert self._loop is not None
                assert self._stop is not None
                self._loop.call_soon_threadsafe(self._stop.set)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        ready = threading.Event()

        async def live() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            ready.set()
            await self._stop.wait()
            rest = list(self._tasks)  # ours only: the tasks below them are cancelled by them, in order
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)  # all were cancelled: no result is read
            if self._at_end is not None:
                await self._at_end()

        self._thread = threading.Thread(target=asyncio.run, args=(live(),), name=self.name, daemon=True)
        self._thread.start()
        ready.wait()


@dataclass
class _Entry(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0
    kept: bool = False


class SharedWork(Generic[T]):
    """Equal work is done once while anybody waits for it; of one event loop.

    Work that nobody waits for any more is cancelled, unless it was begun ahead of time: then it is
    kept until it is released.
    """

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._entries: dict[Hashable, _Entry[T]] = {}

    def begin(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], *, keep: bool) -> _Entry[T]:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(self._thread.task(work()))
        entry.kept = entry.kept or keep
        return entry

    async def result(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        entry = self.begin(key, work, keep=False)
        entry.waiting += 1
        try:
            return await asyncio.shield(entry.task)
        finally:
            entry.waiting -= 1
            self._let_go(key, entry)

    def release(self, key: Hashable) -> None:
        """Work that was begun ahead of time has been collected."""
        if entry := self._entries.get(key):
            entry.kept = False
            self._let_go(key, entry)

    def _let_go(self, key: Hashable, entry: _Entry[T]) -> None:
        if not entry.waiting and not entry.kept:
            entry.task.cancel()
            if self._entries.get(key) is entry:
                del self._entries[key]
