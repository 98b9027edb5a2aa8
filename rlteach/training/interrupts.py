"""When Ctrl-C (a notebook's stop button) may come: between two steps, never inside an update.

An interrupt is a signal, and Python hands signals to the main thread. In any other one nothing is
changed here, nor where interrupts are ignored, as in a job that runs in the background.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")
HEARD = "stopping after this step; interrupt again to give it up"
GIVING_UP = "giving this step up"
SLICE = 0.5  # seconds: on Windows, one long wait would hear no interrupt


def say(sentence: str) -> None:
    """On stderr, at once: a step may take long, and who sees nothing presses again."""
    with suppress(RuntimeError, ValueError, OSError):  # inside another write, closed, or no longer there
        sys.stderr.write(sentence + "\n")
        sys.stderr.flush()


@contextmanager
def interrupts_held(may_give_up: Callable[[], bool]) -> Iterator[None]:
    """An interrupt inside the block is raised at its end; a second one at once if `may_give_up()`."""
    asked = False

    def hear(count: int) -> None:
        nonlocal asked
        if count > 1 and may_give_up():
            say(GIVING_UP)
            raise KeyboardInterrupt
        asked = True
        say(HEARD)

    with _heard_by(hear):
        yield
    if asked:
        raise KeyboardInterrupt


@contextmanager
def interrupts_stop(begin: Callable[[], T]) -> Iterator[T]:
    """An interrupt inside the block stops what begin() gives: .stop(give_up=False), .stop(give_up=True) at
    the second one. A third one is raised: what is stopped does not end, so its caller may go."""
    what, pressed = None, 0

    def tell() -> None:
        if what is not None and pressed:
            what.stop(give_up=pressed > 1)

    def hear(count: int) -> None:
        nonlocal pressed
        if count > 2:
            raise KeyboardInterrupt
        pressed = count
        tell()
        say(HEARD if count == 1 else GIVING_UP)

    with _heard_by(hear):
        what = begin()
        tell()
        yield what


def wait_for(ended: threading.Event, timeout: float | None = None) -> None:
    """Until then, or `timeout` seconds."""
    end = float("inf") if timeout is None else time.monotonic() + timeout
    while not ended.is_set() and (left := end - time.monotonic()) > 0:
        ended.wait(min(left, SLICE))


@contextmanager
def _heard_by(hear: Callable[[int], None]) -> Iterator[None]:
    """The n-th interrupt inside the block calls hear(n). A block inside another leaves that to the outer."""
    before = signal.getsignal(signal.SIGINT)
    if (threading.current_thread() is not threading.main_thread()
            or before in (signal.SIG_IGN, None) or getattr(before, "hears", False)):
        yield
        return
    count = 0

    def handler(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        hear(count)

    handler.hears = True
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
