"""What a judge did, counted and written down: one JSON line an answer, never a key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlteach.judger.failures import UNAVAILABLE
from rlteach.types import Judgement


@dataclass
class Seen:
    """Answers since the last look."""

    answers: int = 0
    blocked: int = 0  # graded without asking the judge
    cached: int = 0
    unavailable: int = 0
    no_verdict: int = 0

    def add(self, asked: Sequence[Any], judged: Sequence[Judgement]) -> None:
        """`asked` holds, for each answer, the question, or the judgement that made one needless."""
        for question, judgement in zip(asked, judged, strict=True):
            self.answers += 1
            self.blocked += isinstance(question, Judgement) and judgement.score is not None
            self.cached += (not isinstance(question, Judgement) and judgement.score is not None
                            and judgement.attempts == 0)
            out = judgement.status == "unscorable" and judgement.reason.startswith(UNAVAILABLE)
            self.unavailable += out
            self.no_verdict += judgement.status == "unscorable" and not out


class JudgeLog:
    """A JSONL file; opened for each write, so that nothing is left open and processes may share it."""

    def __init__(self, path: str | Path, prompt_id: str) -> None:
        self.path, self.prompt_id = Path(path), prompt_id
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, sample: str, judged: Sequence[Judgement], model: str | None) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = [json.dumps({
            "time": now, "prompt_id": self.prompt_id, "model": model, "sample": sample, "member": member,
            "status": j.status, "score": j.score, "reason": j.reason, "raw": j.raw, "attempts": j.attempts,
            "seconds": round(j.seconds, 4)}, ensure_ascii=False) for member, j in enumerate(judged)]
        text = "".join(line + "\n" for line in lines).encode("utf-8", "replace")
        with self.path.open("ab") as file:
            file.write(text)
