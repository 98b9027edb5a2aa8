"""What the doctor looks at: a run, from memory or from its directory, with what others say of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from rlteach.config import Config
from rlteach.types import Group, StepRecord
from rlteach.views.facts import Facts, facts_of, together

FIRST, LAST = 3, 5  # steps: where a run began, where it is now; few, so that a change shows soon


@dataclass(frozen=True)
class Finding:
    """One cause: what is wrong, the numbers that say so, what to do. fault: False when it was asked for."""

    cause: str
    sentence: str
    evidence: str
    remedy: str
    fault: bool = True


class Opinion(NamedTuple):
    """What the reward and a judger that is trusted say of the same answers of some steps, on average."""

    steps: str
    answers: int
    reward: float
    honest: float
    error: float  # standard error of the mean difference


@dataclass
class Case:
    """A run as the doctor sees it.

    metrics: step -> its numbers; facts: step -> what its answers came to; groups: step -> the answers, of
    the first and the last steps. ended: no further step will come (None: nobody knows). error, waiting: what
    ended the run, and why it waits. heldout: step -> accuracy. honest: of the first and the last steps.
    shared, unmoved: what says that the reference is the policy, or that the policy never moved; moved: the
    relative change of its weights; rescored: |ratio - 1| of answers sampled just now (-1: none were);
    beforehand: what can be said before the first step.
    notes: what could not be read.
    """

    config: Config
    metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    facts: dict[int, Facts] = field(default_factory=dict)
    groups: dict[int, Sequence[Group]] = field(default_factory=dict)
    ended: bool | None = None
    error: BaseException | None = None
    waiting: str | None = None
    heldout: Mapping[int, float] = field(default_factory=dict)
    honest: tuple[Opinion, ...] = ()
    shared: str = ""
    unmoved: str = ""
    moved: float | None = None
    rescored: float = -1.0
    beforehand: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _sums: dict[tuple[int, ...], Facts] = field(default_factory=dict)

    def take(self, records: Sequence[StepRecord]) -> None:
        """Count the steps that are new; of the others, take the numbers as they are now."""
        for record in records:
            self.metrics[record.index] = record.metrics
            if record.index not in self.facts:
                self.facts[record.index] = facts_of(record, self.config)
                self._sums.clear()
        self.heldout = {s: v for s, v in self.column("dev/accuracy") if 0 <= v <= 1}

    @property
    def steps(self) -> list[int]:
        return list(self.metrics)

    def first(self) -> Facts:
        """The first steps together."""
        return self._sum(self.steps[:FIRST])

    def last(self) -> Facts:
        """The last steps together."""
        return self._sum(self.steps[-LAST:])

    def recent(self, count: int) -> Facts:
        """The last `count` steps together."""
        return self._sum(self.steps[-count:])

    def _sum(self, steps: Sequence[int]) -> Facts:
        return self._sums.setdefault(tuple(steps), together(self.facts[s] for s in steps))

    def column(self, name: str) -> list[tuple[int, float]]:
        """(step, value) where it was measured."""
        found = ((s, m.get(name)) for s, m in self.metrics.items())
        return [(s, v) for s, v in found if v is not None and v == v]  # NaN is no measurement

    def windows(self) -> tuple[list[int], list[int]]:
        """The first and the last steps with a reward; none is in both."""
        steps = [s for s, _ in self.column("reward/mean")]
        early = steps[: min(FIRST, max(len(steps) // 2, 1))]
        return early, [s for s in steps[-LAST:] if s not in early]

    def mean(self, name: str, steps: Sequence[int]) -> float:
        """Of a column that was measured in these steps."""
        return fmean(float(self.metrics[s][name]) for s in steps)  # type: ignore[arg-type]
