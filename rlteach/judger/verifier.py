"""A small pool of worker processes for what may hang, crash or eat memory, and that can be killed.

    with Verifier() as verifier:
        verifier.check(r"\\sqrt{8}", r"2\\sqrt{2}").verdict     True

The time limit is kept from outside, by ending the process: no signal is used, so any thread may
call, and one call into C cannot outlast it. Whatever goes wrong is an outcome without a verdict.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # where the package lies; the worker needs the same one
START_SECONDS = 60.0  # until a worker has loaded its libraries; on two busy cores it takes two or three


class VerifierError(ValueError):
    """The symbolic check cannot start here: a mistake of the installation, not of an answer."""


@dataclass(frozen=True)
class Outcome:
    """verdict True, False, or None with the reason: timeout, memory, a crash, not readable."""

    verdict: bool | None
    reason: str = ""


class Worker:
    """One process, and a thread that reads its lines."""

    def __init__(self, target: str, path: Sequence[str], memory_mb: int, timeout: float) -> None:
        code = (f"import sys; sys.path[:0] = {[str(ROOT), *path]!r}; from rlteach.judger.worker import main; "
                f"main({target!r}, {memory_mb}, {timeout})")
        # a group of its own: an interrupt, which a kernel's whole group gets, would end one that still starts
        apart = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP} \
            if sys.platform == "win32" else {"process_group": 0}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, **apart)  # type: ignore[call-overload]
        self.lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.jobs, self.ready = 0, False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(ValueError, OSError):  # closed while being read
            for line in self.process.stdout or ():
                self.lines.put(json.loads(line))
        self.lines.put(None)

    def wait_until_ready(self) -> None:
        if self.ready:
            return
        try:
            hello = self.lines.get(timeout=START_SECONDS)
        except queue.Empty:
            hello = None
        if hello is not None and not hello.get("ready"):
            raise VerifierError("the symbolic check of answers needs math-verify, which does not work here: "
                                f"{hello['error']}; install it with: pip install 'math-verify>=0.9,<0.10'")
        self.ready = hello is not None

    def run(self, gold: str, answer: str, lenient: bool, timeout: float) -> Outcome:
        """One job. A worker that did not answer in time or at all is of no more use."""
        self.jobs += 1
        job = {"id": self.jobs, "gold": gold, "answer": answer, "lenient": lenient}
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()
            reply = self.lines.get(timeout=timeout)
        except queue.Empty:
            return Outcome(None, f"timeout: the symbolic check took longer than {timeout:g} s")
        except OSError:
            reply = None
        if reply is None:
            return Outcome(None, "crash: the worker process of the symbolic check ended")
        if "error" not in reply:
            return Outcome(reply["verdict"])
        if reply["error"] == "UnreadableError":
            return Outcome(None, f"not readable: {reply['why']}")
        if reply["error"] == "memory":
            return Outcome(None, "memory: the symbolic check needed more than it may use")
        return Outcome(None, f"error: {reply['error']} in the symbolic check: {reply['why']}")

    def end(self) -> None:
        """Kill it, and leave nothing behind: no zombie, no open pipe."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class Verifier:
    """Checks pairs of answers in worker processes; started on first use, closed at exit.

    Args:
        timeout: seconds one check may take.
        workers: processes at most; with two, one is ready when the other had to be ended.
        memory_mb: address space of a worker, where the system can limit it.
        jobs_per_worker: after so many a fresh process takes over.
        target: module:function (gold, answer, lenient) -> bool or None, and path to find it.
    """

    def __init__(self, timeout: float = 3.0, workers: int = 2, memory_mb: int = 512,
                 jobs_per_worker: int = 2000, target: str = "rlteach.judger.symbolic:check",
                 path: Sequence[str] = ()) -> None:
        self.timeout, self.workers, self.jobs_per_worker = timeout, workers, jobs_per_worker
        self._start = lambda: Worker(target, path, memory_mb, timeout)
        self.failures: Counter[str] = Counter()  # cause -> how many checks ended without a verdict
        self._forget()
        atexit.register(self.close)

    def _forget(self) -> None:
        """The state of a pool that has no process (also: in a forked child, whose parent owns them)."""
        self._pid, self._changed = os.getpid(), threading.Condition()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()

    def check(self, gold: str, answer: str, lenient: bool = False) -> Outcome:
        """Whether the two are equal.

        Raises:
            VerifierError: math-verify is missing or does not fit its parser.
        """
        worker = self._take()
        keep = False
        try:
            worker.wait_until_ready()
            outcome = worker.run(gold, answer, lenient, self.timeout) if worker.ready else \
                Outcome(None, f"start: the worker process ended, or was not ready in {START_SECONDS:.0f} s")
            cause = outcome.reason.partition(":")[0]
            keep = cause in ("", "not readable", "error") and worker.jobs < self.jobs_per_worker
        finally:  # also when the caller is interrupted: its answer would be taken for the next one's
            self._give_back(worker, keep)
        if cause:
            self.failures[cause] += 1
        return outcome

    def _take(self) -> Worker:
        if self._pid != os.getpid():
            self._forget()
        with self._changed:
            while not self._idle and len(self._busy) >= self.workers:
                self._changed.wait()
            self._idle.sort(key=lambda worker: worker.ready)
            worker = self._idle.pop() if self._idle else self._start()
            self._busy.add(worker)
            if not self._idle and len(self._busy) < self.workers:
                self._idle.append(self._start())  # it loads its libraries meanwhile
            return worker

    def _give_back(self, worker: Worker, keep: bool) -> None:
        with self._changed:
            wanted = worker in self._busy  # else the pool was closed meanwhile
            self._busy.discard(worker)
            if keep and wanted:
                self._idle.append(worker)
            elif wanted and worker.ready:
                self._idle.append(self._start())
            self._changed.notify()
        if not keep or not wanted:
            worker.end()

    def close(self) -> None:
        """End all processes. A later check starts new ones."""
        if self._pid != os.getpid():
            return
        with self._changed:
            workers, self._idle, self._busy = [*self._idle, *self._busy], [], set()
            self._changed.notify_all()
        for worker in workers:
            worker.end()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        atexit.unregister(self.close)


_shared: Verifier | None = None
_shared_lock = threading.Lock()


def shared_verifier() -> Verifier:
    """The pool of this process, for all rule judgers that were not given their own."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Verifier()
        return _shared


def close_shared_verifier() -> None:
    """End the processes of the shared pool now rather than at exit."""
    if _shared is not None:
        _shared.close()
