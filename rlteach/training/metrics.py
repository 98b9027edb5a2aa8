"""What a step's groups say in numbers: rewards, kept groups, lengths, what could not be judged."""

from __future__ import annotations

import resource
import sys
from statistics import fmean

from rlteach.config import Config
from rlteach.training.batch import Batch


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
        **{f"seconds/{stage}": seconds for stage, seconds in batch.seconds.items()},
    }


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
