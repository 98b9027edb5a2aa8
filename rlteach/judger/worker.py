"""One worker process: reads jobs as JSON lines, answers each with one JSON line.

It is a plain program, not a spawned function: nothing is pickled and the caller's __main__ is not
run again, so it works from a notebook, a script without a guard, a thread, or an event loop. Where
the system has such limits, it may not use more memory than it was given, write a file, or outlive
its processor time. It ends when its standard input does.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import signal
import sys
import threading
from typing import Any


def main(target: str, memory_mb: int, seconds: float) -> None:
    """Serve `target` ("module:function") until standard input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)  # whatever a library prints goes nowhere near the answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the caller
    logging.disable(logging.CRITICAL)
    try:
        module, _, name = target.partition(":")
        loaded = importlib.import_module(module)
        function = getattr(loaded, name)
        getattr(loaded, "self_test", lambda: None)()
    except BaseException as error:
        send(out, {"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    limit(memory_mb)
    send(out, {"ready": True})
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(jobs,), daemon=True).start()
    while True:
        job = jobs.get()
        limit_processor_time(seconds)
        try:
            reply = {"verdict": function(job["gold"], job["answer"], job["lenient"])}
        except BaseException as error:
            kind = "memory" if isinstance(error, MemoryError) else type(error).__name__
            reply = {"verdict": None, "error": kind, "why": str(error)[:200]}
        send(out, {"id": job["id"], **reply})


def send(out: Any, reply: dict[str, Any]) -> None:
    out.write(json.dumps(reply) + "\n")
    out.flush()


def listen(jobs: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass jobs on; when the caller is gone, be gone, even in the middle of one."""
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)


def limit(memory_mb: int) -> None:
    """No more memory than this, no file, no core dump; nothing where the system has no limits."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for what, most in ((resource.RLIMIT_AS, memory_mb << 20), (resource.RLIMIT_FSIZE, 0),
                       (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(what, (most, most))
        except (ValueError, OSError):  # a smaller limit holds already, or macOS has none of this kind
            continue


def limit_processor_time(seconds: float) -> None:
    """End this process when one job takes much longer than it may and nobody ended it."""
    try:
        import resource
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 3
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
