"""How long and how often a judge is asked, and the count of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """Time in seconds; `backoff` is (first, longest) wait, of which a random part is waited."""

    timeout: float = 60.0
    attempt_timeout: float = 30.0
    in_flight: int = 32
    rate: float | None = None  # requests a second
    retries: int = 8
    backoff: tuple[float, float] = (0.5, 8.0)
    max_tokens: int = 512

    def checked(self) -> Limits:
        """Itself, when every limit makes sense."""
        rules = {"timeout": self.timeout > 0, "attempt_timeout": self.attempt_timeout > 0,
                 "in_flight": self.in_flight >= 1, "rate": self.rate is None or self.rate > 0,
                 "retries": self.retries >= 0, "backoff": len(self.backoff) == 2 and min(self.backoff) >= 0,
                 "max_tokens": self.max_tokens >= 1}
        for name, holds in rules.items():
            if not holds:
                raise ValueError(f"{name} of a judge is out of bounds: {getattr(self, name)!r}")
        return self


@dataclass
class Counts:
    """Since the last look; read by `LLMJudger.statistics`."""

    calls: int = 0
    retries: int = 0
    repairs: int = 0
    seconds: list[float] = field(default_factory=list)  # of each answer that was asked for


class Clock:
    """The time and the attempts of one question."""

    def __init__(self, timeout: float) -> None:
        self.timeout, self.began, self.attempts, self.url = timeout, time.monotonic(), 0, ""

    def passed(self) -> float:
        return time.monotonic() - self.began

    def left(self) -> float:
        return self.timeout - self.passed()
