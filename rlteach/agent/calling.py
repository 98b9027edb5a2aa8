"""One call of a plug-in, and how it ended: sync functions on a thread, async ones on the loop.

    call -> SUCCESS | RETRY | DISCARD | FAILURE, with a reason; or an interrupt, which is no status

All plug-ins of a process share one event loop (a limiter or a client that a plug-in's module keeps
belongs to one loop). A call that runs out of time is given up: a coroutine is cancelled, a thread is
left to itself, and its proxy answers no more.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlteach.agent.plugins import Plugin
from rlteach.agent.types import PluginStatus, RolloutRetryException
from rlteach.judger.background import LoopThread

GRACE = 1.0  # seconds that a cancelled coroutine has to clean up before it is left behind
LOOP = LoopThread("rlteach-plugins")


class PluginStopError(ValueError):
    """A plug-in failed for good: the run stops before its update, so it can be resumed."""


class InterruptedPluginError(Exception):
    """Carries a CancelledError or KeyboardInterrupt of a plug-in to whoever called it; see `raised`."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(repr(original))
        self.original = original


@dataclass(frozen=True)
class Outcome:
    """How a call ended: its status, why, and (SUCCESS) what it returned."""

    status: PluginStatus
    reason: str = ""
    value: Any = None


class Caller:
    """Calls one plug-in, at most runtime.max_concurrency times at once.

    read: makes an Outcome of what the function returned; a ValueError or TypeError of it is a wrong
    type, and a FAILURE.
    """

    def __init__(self, function: Callable[..., Any], plugin: Plugin, read: Callable[[Any], Outcome],
                 at_once: int | None = None) -> None:
        reach_loopback()
        self.function, self.plugin, self.read = function, plugin, read
        self._free = asyncio.Semaphore(at_once or plugin.runtime.max_concurrency)

    async def call(self, *args: Any) -> Outcome:
        """Raises InterruptedPluginError for what must propagate."""
        limit = self.plugin.runtime.timeout
        async with self._free:
            work = self._on_loop(*args) if self.plugin.is_async else self._on_thread(*args)
            task = asyncio.ensure_future(work)
            try:
                if not await ended_within(task, limit):
                    why = f"timeout: {self.plugin.name} took longer than {limit:g} s"
                    return Outcome(PluginStatus.RETRY, why)
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task}, timeout=GRACE)
        return self._outcome(*task.result())

    def _outcome(self, value: Any, error: BaseException | None) -> Outcome:
        if isinstance(error, RolloutRetryException):
            return Outcome(PluginStatus.RETRY, f"RolloutRetryException: {error}")
        if isinstance(error, Exception):
            return Outcome(PluginStatus.FAILURE, f"{type(error).__name__}: {error}"[:2000])
        if error is not None:
            raise InterruptedPluginError(error)
        try:
            return self.read(value)
        except (ValueError, TypeError) as wrong:
            why = f"{self.plugin.name} returned what it may not: {wrong}"
            return Outcome(PluginStatus.FAILURE, why[:2000])

    async def _on_loop(self, *args: Any) -> tuple[Any, BaseException | None]:
        try:
            value = self.function(*args)
            return (await value if inspect.isawaitable(value) else value), None
        except BaseException as error:  # an interrupt would end the loop for everybody
            return None, error

    async def _on_thread(self, *args: Any) -> tuple[Any, BaseException | None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = contextvars.copy_context()

        def tell(result: tuple[Any, BaseException | None]) -> None:
            if not done.done():
                done.set_result(result)

        def work() -> None:
            try:
                result = context.run(self.function, *args), None
            except BaseException as error:  # handed over: a thread has nobody to raise it to
                result = None, error
            with suppress(RuntimeError):  # the loop is gone, and so is who asked
                loop.call_soon_threadsafe(tell, result)

        # a thread of its own: a pool would wait at exit for a tool that hangs
        threading.Thread(target=work, name=f"rlteach-{self.plugin.name}", daemon=True).start()
        return await done


def reach_loopback() -> None:
    """Clients that plug-ins make obey HTTP_PROXY, and a proxy cannot reach this machine's own loopback: it
    is left out by NO_PROXY from now on."""
    for name in ("NO_PROXY", "no_proxy"):
        known = [part for part in os.environ.get(name, "").split(",") if part.strip()]
        missing = [host for host in ("127.0.0.1", "localhost") if host not in known]
        if missing:
            os.environ[name] = ",".join([*known, *missing])


async def ended_within(task: asyncio.Future[Any], seconds: float) -> bool:
    await asyncio.wait({task}, timeout=seconds)
    return task.done()


async def all_or_raise(works: list[Awaitable[Any]]) -> list[Any]:
    """Results in order. The first error ends the others, and is raised when all of them have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()  # raises what it ended with
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(work: Any) -> Any:
    """Run a coroutine on the plug-ins' loop and wait; interrupts of plug-ins come out as themselves."""
    try:
        return LOOP.run(work)
    except InterruptedPluginError as carried:
        raise carried.original from None
