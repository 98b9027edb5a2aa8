"""rl.doctor: why a run learns nothing. Looks at the records of a run, trains nothing and changes nothing.

    rl.doctor(trainer)                                    # or a run, or a run directory
    rl.doctor(run, heldout={0: 0.41, 20: 0.40}).findings
    rl.doctor("runs/mine", honest=rl.RuleJudger()).table
"""

from __future__ import annotations

import html
import math
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rlteach.judger.compose import grade_all
from rlteach.judger.function import as_judger
from rlteach.training.experiment import Experiment
from rlteach.training.run import Run
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Group, Judger, StepRecord
from rlteach.views import probe, symptoms, training_symptoms
from rlteach.views.case import FIRST, LAST, Case, Finding, Opinion
from rlteach.views.inside import ViewError
from rlteach.views.salvage import read_run

if TYPE_CHECKING:
    import pandas as pd

_RUINED = ("truncated", "no_answer", "constant_reward", "entropy_collapse", "all_right", "all_wrong",
           "group_too_small", "frozen", "learning_rate_too_low")
# Most important first; a cause that was found makes those behind it superfluous: they are its consequences.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "judge_down": ("unscorable", *_RUINED),
    "unscorable": _RUINED,
    "reference_is_policy": ("learning_rate_too_low", "frozen"),  # it may also be why the run failed
    "failed": (),
    "random_reward": ("learning_rate_too_high", "reward_hacking", *_RUINED),
    "ratio_off": ("learning_rate_too_high", *_RUINED),
    "learning_rate_too_high": _RUINED,
    "truncated": ("no_answer", *_RUINED[2:]),
    "no_answer": _RUINED[2:],
    "constant_reward": ("reward_hacking", *_RUINED[3:]),
    "entropy_collapse": _RUINED[4:],
    "reward_hacking": ("all_right",),
    "all_right": ("group_too_small", "frozen", "learning_rate_too_low"),
    "all_wrong": ("group_too_small", "frozen", "learning_rate_too_low"),
    "group_too_small": ("frozen", "learning_rate_too_low"),
    "frozen": ("learning_rate_too_low",),
    "learning_rate_too_low": (),
}
CAUSES = tuple(EXPLAINS)
LONGEST = 220  # characters of the line under a live view


def doctor(
    source: Run | OrealTrainer | Experiment | str | Path, heldout: Mapping[int, float] | None = None,
    honest: Judger | Callable[..., Any] | None = None,
) -> Report:
    """What keeps a run from learning, most important first.

    While no thread trains it, 8 answers are sampled and scored again; a run that goes on is only read.

    Args:
        source: a run, a trainer (one that has not taken a step is checked for what can be known before),
            an experiment, or a run directory.
        heldout: step -> accuracy in [0, 1] under a judge that is trusted. None: the dev accuracies that the
            run measured, if it did.
        honest: a judger, or a function (sample, trajectory) -> score, that is trusted: the answers of the
            first and the last steps are judged again by it, and the means are compared with the reward.

    Raises:
        TypeError: `source` or `heldout` is of another kind.
        ViewError: the folder holds no run; ValueError: heldout is no accuracy.
    """
    case = _case(source)
    if heldout is not None:
        case.heldout = _accuracies(heldout)
    if honest is not None:
        case.honest = _opinions(case, as_judger(honest))
    return diagnose(case)


def diagnose(case: Case) -> Report:
    """All that was found in a case, without what something else explains."""
    checks = (*symptoms.SYMPTOMS, *training_symptoms.SYMPTOMS)
    seen = {finding.cause: finding for check in checks if (finding := check(case)) is not None}
    if not case.steps:
        seen |= {f.cause: f for f in case.beforehand if f.cause not in seen}
    told: list[Finding] = []
    for cause in CAUSES:
        if cause in seen and not any(cause in EXPLAINS[f.cause] for f in told if f.fault):
            told.append(seen[cause])
    return Report(tuple(sorted(told, key=lambda f: not f.fault)), len(case.steps), tuple(case.notes))


@dataclass(frozen=True, repr=False)
class Report:
    """findings: most important first. steps: how many were looked at. notes: what could not be read."""

    findings: tuple[Finding, ...]
    steps: int
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Nothing was found, or only what was asked for (freeze steps)."""
        return not any(f.fault for f in self.findings)

    @property
    def line(self) -> str:
        """One line, for under a picture."""
        seen = f"in {self.steps} step{'s' * (self.steps != 1)}" if self.steps else "before the first step"
        told = [f"{f.sentence} ({f.evidence})" for f in self.findings[:1]]
        if self.healthy:
            told.insert(0, f"nothing wrong found {seen}")
        text = " ".join("; ".join(told).split())
        return f"doctor: {text if len(text) <= LONGEST else text[: LONGEST - 4] + ' ...'}"

    @property
    def table(self) -> pd.DataFrame:
        """One row a finding: cause, sentence, evidence, remedy, fault."""
        import pandas as pd

        columns = ["cause", "sentence", "evidence", "remedy", "fault"]
        return pd.DataFrame([{c: getattr(f, c) for c in columns} for f in self.findings], columns=columns)

    def __repr__(self) -> str:
        seen = f"{self.steps} step{'s' * (self.steps != 1)}" if self.steps else "a run before its first step"
        lines = [f"doctor: {_count(self.findings)} in {seen}"]
        for number, f in enumerate(self.findings, 1):
            lines += [f"{number}. {f.cause}{'' if f.fault else ' (as it was asked for)'}",
                      *_wrapped("what", f.sentence), *_wrapped("seen", f.evidence), *_wrapped("do", f.remedy)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        items = [f"<li><b>{f.cause}</b>: {html.escape(f.sentence)}<br>seen: {html.escape(f.evidence)}<br>"
                 f"do: {html.escape(f.remedy)}</li>" for f in self.findings]
        notes = [f"<div>note: {html.escape(note)}</div>" for note in self.notes]
        found = f"<ol>{''.join(items)}</ol>" if items else ""
        return f"<div>{html.escape(repr(self).splitlines()[0])}</div>{found}{''.join(notes)}"


class Watch:
    """The line under a live view: each step is counted once, and no model is asked."""

    def __init__(self, trainer: OrealTrainer) -> None:
        self.case = Case(trainer.config, shared=probe.shared(trainer))
        self._turn = threading.Lock()

    def line(self, records: Sequence[StepRecord], run: Run | None = None) -> str:
        """What is to be said of the steps so far."""
        with self._turn:
            self.case.take(records)
            if run is not None:
                _how_it_stands(self.case, run)
            return diagnose(self.case).line if records or self.case.error else ""


def _case(source: Any) -> Case:
    if isinstance(source, str | Path):
        folder = Path(source)
        if not any((folder / name).is_file() for name in ("config.json", "metrics.jsonl")):
            raise ViewError(f"{folder}: there is no run (no config.json and no metrics.jsonl) in it")
        return read_run(folder)
    trainer = source if isinstance(source, OrealTrainer) else getattr(source, "trainer", None)
    if not isinstance(source, OrealTrainer | Run | Experiment) or not isinstance(trainer, OrealTrainer):
        raise TypeError("rl.doctor looks at a run, a trainer, an experiment or a run directory, not at a "
                        f"{type(source).__name__}")
    records = list(trainer.history)
    case = Case(trainer.config, shared=probe.shared(trainer))
    case.take(records)
    case.groups = {r.index: r.groups for r in (*records[:FIRST], *records[-LAST:])}
    run = source if isinstance(source, Run) else trainer._run
    if run is not None:
        _how_it_stands(case, run)
    probe.examine(case, trainer, busy=run is not None and not run.ended)
    return case


def _how_it_stands(case: Case, run: Run) -> None:
    case.ended = run.ended
    case.error, case.waiting = run.error, None if case.ended else run.trainer.grading.waiting


def _accuracies(heldout: Any) -> dict[int, float]:
    if not isinstance(heldout, Mapping):
        raise TypeError(f"heldout maps steps to accuracies, such as {{0: 0.41, 20: 0.40}}; got a "
                        f"{type(heldout).__name__}")
    for step, value in heldout.items():
        whole = isinstance(step, int) and not isinstance(step, bool)
        if not whole or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"heldout maps a step (a whole number) to an accuracy from 0 to 1; got "
                             f"{step!r}: {value!r}")
    return dict(heldout)


def _opinions(case: Case, judger: Judger) -> tuple[Opinion, ...]:
    """Of the first and the last steps whose answers are there."""
    there = [s for s in case.steps if case.groups.get(s)]
    if not there:
        case.notes.append("no answers were kept, so `honest` had nothing to judge")
    first = there[:FIRST]
    parts = [part for part in (first, [s for s in there[-LAST:] if s not in first]) if part]
    found = (_opinion(part, [g for s in part for g in case.groups[s]], judger) for part in parts)
    return tuple(o for o in found if o is not None)


def _opinion(steps: Sequence[int], groups: Sequence[Group], judger: Judger) -> Opinion | None:
    pairs = []
    for group, found in zip(groups, grade_all(judger, groups), strict=True):
        if len(found) != len(group.trajectories):
            raise ValueError(f"honest gave {len(found)} judgements for the {len(group.trajectories)} "
                             f"answers of {group.sample.id!r}: it needs one each")
        pairs += [(a, j.score) for a, j in zip(group.scores, found, strict=True)
                  if a is not None and j.score is not None]
    if len(pairs) < 2:
        return None
    name = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    rewards, others = zip(*pairs, strict=True)
    error = stdev(a - b for a, b in pairs) / math.sqrt(len(pairs))
    return Opinion(name, len(pairs), fmean(rewards), fmean(others), error)


def _count(findings: Sequence[Finding]) -> str:
    n = len(findings)
    return "nothing wrong found" if not n else f"{n} finding{'s' * (n != 1)}"


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=f"   {name:6}", subsequent_indent=" " * 9)
