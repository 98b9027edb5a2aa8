"""Checks that go wrong in every way; a worker process of tests/test_grading_pool.py loads them."""

from __future__ import annotations

import os
import sys
import time

calls = 0


class Stop(BaseException):
    """Not an Exception: what a library's own timeout may be."""


def check(gold: str, answer: str, lenient: bool) -> bool | None:
    """Do what the answer says."""
    global calls
    calls += 1
    if answer == "raise":
        raise ZeroDivisionError("in the comparer")
    if answer == "stop":
        raise Stop("not an Exception")
    if answer == "exit":
        sys.exit(3)
    if answer == "die":
        os._exit(1)
    if answer == "sleep":
        time.sleep(60)
    if answer == "nap":
        time.sleep(0.5)
        return True
    if answer == "power":  # one call into C: no signal handler runs before it returns
        return len(str(10 ** (10**9))) == 0
    if answer == "memory":
        return len(bytearray(4 << 30)) == 0
    if answer == "print":
        sys.stdout.write('{"id": 1, "verdict": true}\n')
        sys.stdout.flush()
        return False
    if answer == "write":
        with open(gold, "w") as file:
            file.write("x")
        return True
    if answer == "pid":
        return gold == str(os.getpid())
    if answer == "calls":
        return gold == str(calls)
    return gold == answer
