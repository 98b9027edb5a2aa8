"""What a step's groups say in numbers: rewards, kept groups, lengths, what could not be judged."""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rlteach.config import Config
from rlteach.training.batch import Batch
from rlteach.types import StepRecord

if TYPE_CHECKING:
    import pandas as pd


def group_metrics(batch: Batch, config: Config) -> dict[str, float | int | None]:
    """The part of metrics.jsonl that the rollouts decide. None: there was nothing to measure."""
    groups = batch.groups
    judged = [(t, j) for g in groups for t, j in zip(g.trajectories, g.judgements or (), strict=True)]
    scores = [j.score for _, j in judged if j.score is not None]
    right = [s >= config.positive_threshold for s in scores]
    advantages = [a for g in groups for a in g.advantages or () if a is not None]
    lengths = [t.usage.get("completion_tokens", sum(t.action_mask)) for t, _ in judged]
    flat = [len({s for s in g.scores if s is not None}) < 2 for g in groups]
    share = 1 / max(len(judged), 1)
    return {
        "reward/mean": fmean(scores) if scores else None,
        "reward/ci95": half_width(scores),
        "pass_rate": fmean(right) if right else None,
        "groups/kept": sum(bool(g.kept) for g in groups),
        "groups/zero_std": sum(flat),
        "advantage/mean": fmean(advantages) if advantages else None,
        "response/length": fmean(lengths) if lengths else None,
        "response/truncated": share * sum(t.finish_reason == "length" for t, _ in judged),
        "response/no_answer": share * sum(j.reason.startswith("no final answer") for _, j in judged),
        "judge/unscorable": share * sum(j.score is None for _, j in judged),
        "judge/seconds": sum(j.seconds for _, j in judged),
        "tokens/rollout": sum(lengths),
        "memory/peak": peak_memory(),
        **batch.notes,
    }


def half_width(scores: Sequence[float]) -> float | None:
    """Half the normal 95 % interval of the mean: 1.96 standard errors, over the answers as they came.

    Answers to one question are alike, so it says how sure the mean of these questions is, and less
    about other questions. 0 when all scores are equal. None: fewer than two scores.
    """
    return 1.96 * stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None


def warn_if_flat(history: Sequence[StepRecord], config: Config, steps: int = 3) -> None:
    """A loud warning when the last steps held nothing to learn from: a flat curve is no failed algorithm."""
    last = history[-steps:]
    limit = config.positive_threshold
    signs = [{s >= limit for s in g.scores if s is not None} for r in last for g in r.groups]
    if config.control == "own_samples":  # it learns from every answer, whatever its sign
        return
    if len(last) == steps and all(r.groups for r in last) and all(len(s) < 2 for s in signs):
        warnings.warn(
            f"in the last {steps} steps no group has both right and wrong answers, so nothing was "
            f"learned (reward/mean {last[-1].metrics['reward/mean']}): all right means the questions are "
            "too easy; all wrong means too hard, cut off, or answers that the judger does not find",
            RuntimeWarning, stacklevel=3)


def table(history: Sequence[StepRecord]) -> pd.DataFrame:
    """One row a step, one column a metric; what was not measured is NaN."""
    import pandas as pd

    frame = pd.DataFrame([{"step": r.index, **r.metrics} for r in history])
    return frame.set_index("step").apply(pd.to_numeric) if len(frame) else frame


def peak_memory() -> int | None:
    """Largest resident size of this process so far, in bytes."""
    if sys.platform == "win32":
        return None  # not measured there
    resource = importlib.import_module("resource")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
