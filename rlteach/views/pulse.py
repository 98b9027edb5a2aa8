"""A thread that looks a few times a second, and spends no more time on drawing than it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL = 0.25  # seconds between two looks
SHARE, AT_ONCE = 0.02, 0.3  # of the process's processor time; seconds granted at the beginning


class Budget:
    """May something be drawn now? Drawing gets a share of the processor time that training uses."""

    def __init__(self, share: float = SHARE, at_once: float = AT_ONCE) -> None:
        self.share, self.at_once = share, at_once
        self.began, self.spent = time.process_time(), 0.0  # spent: processor seconds of drawing

    def allows(self) -> bool:
        return self.spent <= self.at_once + self.share * (time.process_time() - self.began)

    def pay(self, work: Callable[[], T]) -> T:
        """work(), on the bill of this budget."""
        began = time.thread_time()
        try:
            return work()
        finally:
            self.spent += time.thread_time() - began


class Pulse:
    """Calls `beat` every INTERVAL seconds, and when nudged, until it returns True."""

    def __init__(self, beat: Callable[[], bool], name: str) -> None:
        self.beat, self._closed = beat, False
        self._nudged = threading.Event()
        self._thread = threading.Thread(target=self._go, name=name, daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Look now."""
        self._nudged.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Until the last beat is over (or `timeout` seconds); True when it is."""
        self._nudged.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        """No further beat; returns when the thread has ended."""
        self._closed = True
        self.wait()

    def _go(self) -> None:
        while not self._closed and not self.beat():
            self._nudged.wait(INTERVAL)
            self._nudged.clear()
