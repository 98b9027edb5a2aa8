"""When Ctrl-C (a notebook's stop button) may come: between two steps, never inside an update."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

HEARD = "stopping after this step; interrupt again to give it up"
GIVING_UP = "giving this step up"


def say(sentence: str) -> None:
    """On stderr, at once: a step may take long, and who sees nothing presses again."""
    with suppress(RuntimeError, ValueError, OSError):  # inside another write, closed, or no longer there
        sys.stderr.write(sentence + "\n")
        sys.stderr.flush()


def wait_or_stop(ended: threading.Event, stop: Callable[..., object], timeout: float | None = None) -> None:
    """Until `ended` (or `timeout` seconds). An interrupt calls stop(give_up=False) and waits on, a second
    one stop(give_up=True); a third one is raised: the stage under way does not end, so its caller may go."""
    pressed, over = 0, False
    while not over:
        try:
            if pressed:
                stop(give_up=pressed > 1)
                say(HEARD if pressed == 1 else GIVING_UP)
            over = ended.wait(None if pressed else timeout) or not pressed
        except KeyboardInterrupt:
            pressed += 1
            if pressed > 2:
                raise


@contextmanager
def interrupts_held(may_give_up: Callable[[], bool]) -> Iterator[None]:
    """An interrupt inside the block is heard (see `say`) and raised at its end; a second one at once if
    `may_give_up()`. A block inside another leaves all of that to the outer one.

    Python hands signals to the main thread; in any other one there is nothing to hold, nor where
    interrupts are ignored, as in a job that runs in the background.
    """
    before = signal.getsignal(signal.SIGINT)
    if (threading.current_thread() is not threading.main_thread()
            or before in (signal.SIG_IGN, None) or getattr(before, "holds", False)):
        yield
        return
    asked = False

    def remember(number: int, frame: Any) -> None:
        nonlocal asked
        if asked and may_give_up():
            say(GIVING_UP)
            raise KeyboardInterrupt
        asked = True
        say(HEARD)

    remember.holds = True
    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt
