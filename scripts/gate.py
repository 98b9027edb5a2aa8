"""Run the long checks and keep what came of them: benchmarks/results/gate.json.

    python scripts/gate.py [PYTEST ARGUMENTS]      python scripts/gate.py -k learning

One entry a test: how it ended, its seconds, and the state of the code it was run on. A run of some tests
leaves the entries of the others as they are, so that a gate of an hour can be taken in parts; entries of
tests that are gone are dropped by a run of all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gate.json"


def state_of_the_code() -> str:
    """The commit, and whether files differ from it. Results themselves are not code."""
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return git("rev-parse", "--short=10", "HEAD") + (" with changes" if changed else "")


class Keep:
    """A pytest plugin: writes after each test, since a long run may be broken off."""

    def __init__(self, known: dict[str, Any], code: str) -> None:
        self.known, self.code, self.seen = known, code, set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.seen.add(report.nodeid)
            self.known[report.nodeid] = {
                "outcome": report.outcome, "seconds": round(report.duration, 1), "code": self.code}
            self.write()

    def write(self) -> None:
        RESULTS.write_text(json.dumps(dict(sorted(self.known.items())), indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    keep = Keep(known, state_of_the_code())
    code = pytest.main([str(ROOT / "tests"), "-m", "gate", *arguments], plugins=[keep])
    if not arguments and code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        for gone in set(known) - keep.seen:
            del known[gone]
        keep.write()
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
