"""Verdicts on disk, found again by their content: a resumed run asks no question twice.

SQLite, because it is safe with several processes at once and after a kill. Only real verdicts are
kept; a failure is never a memory.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlteach.judger.hosts import JudgeError

_VERSION = 1


class Remembered(NamedTuple):
    correct: bool
    reason: str
    raw: str


def cache_key(question: str, gold: Sequence[str], candidate: str, prompt_id: str, model: str) -> str:
    """Everything that a verdict depends on, as one hash."""
    parts = json.dumps([question, list(gold), candidate, prompt_id, model])
    return hashlib.sha256(parts.encode("ascii")).hexdigest()


class VerdictCache:
    """One file. Usable from any thread; other processes see an entry as soon as it is written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._warned = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.path, timeout=30, check_same_thread=False, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise JudgeError(f"the judge's cache {self.path} cannot be opened: {error}") from None
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._base.close()
            raise JudgeError(f"the judge's cache {self.path} cannot be used ({error}): remove the file, or "
                             "name another one") from None
        except JudgeError:
            self._base.close()
            raise

    def _prepare(self) -> None:
        version = self._base.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise JudgeError(f"the judge's cache {self.path} is of another version ({version}): name another "
                             "file")
        self._base.execute("PRAGMA journal_mode=WAL")  # one writer and many readers; whole after a kill
        self._base.execute("PRAGMA synchronous=NORMAL")
        self._base.execute(
            "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, correct INTEGER NOT NULL "
            "CHECK (correct IN (0, 1)), reason TEXT NOT NULL, raw TEXT NOT NULL)")
        self._base.execute("SELECT key, correct, reason, raw FROM verdicts LIMIT 1")
        self._base.execute(f"PRAGMA user_version={_VERSION}")

    def get(self, key: str) -> Remembered | None:
        with self._lock:
            try:
                row = self._base.execute("SELECT correct, reason, raw FROM verdicts WHERE key=?",
                                         (key,)).fetchone()
            except sqlite3.Error as error:
                return self._warn(error)
        return None if row is None else Remembered(bool(row[0]), row[1], row[2])

    def put(self, key: str, verdict: Remembered) -> None:
        """The first entry of a key stays: what was said once is what a resumed run hears again."""
        with self._lock:
            try:
                self._base.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?)",
                                   (key, int(verdict.correct), verdict.reason, verdict.raw))
            except sqlite3.Error as error:
                self._warn(error)

    def __len__(self) -> int:
        with self._lock:
            return self._base.execute("SELECT count(*) FROM verdicts").fetchone()[0]

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def _warn(self, error: sqlite3.Error) -> None:
        """A full disk must not stop a run that only wanted to remember: say so once, and ask again."""
        if not self._warned:
            self._warned = True
            warnings.warn(f"the judge's cache {self.path} does not work ({error}): verdicts are asked for "
                          "again", RuntimeWarning, stacklevel=4)
