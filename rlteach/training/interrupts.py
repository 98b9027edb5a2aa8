"""When Ctrl-C (a notebook's stop button) may come: between two steps, never inside an update."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_held(may_give_up: Callable[[], bool]) -> Iterator[None]:
    """An interrupt inside the block is raised at its end; a second one at once if `may_give_up()`.

    Python hands signals to the main thread; in any other one there is nothing to hold, nor where
    interrupts are ignored, as in a job that runs in the background.
    """
    if (threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)):
        yield
        return
    asked = False

    def remember(number: int, frame: Any) -> None:
        nonlocal asked
        if asked and may_give_up():
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt
