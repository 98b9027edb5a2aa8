"""Top-k and top-p: sampling from a part of the vocabulary, and keeping score of which part.

A log-probability that was renormalised over some ids can only be computed again over the same ids,
so the sampler stores them (Trajectory.support) and scoring uses them.
"""

from __future__ import annotations

import torch
from torch import Tensor

Supports = list[list[tuple[int, ...]]]


def truncate(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """-inf for the tokens that are cut: first by top-k (0: all), then by top-p (1: all). [N, V]"""
    if top_k and top_k < logits.shape[-1]:
        floor = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        cut = probs.cumsum(-1) - probs >= top_p  # the token that crosses top_p stays
        cut[:, 0] = False  # also where top_p is below the smallest float32
        logits = logits.masked_fill(cut.scatter(-1, order, cut), -torch.inf)
    return logits


def ids_left(logprobs: Tensor) -> tuple[int, ...]:
    """The ids that were not cut at one position. [V]"""
    return tuple(logprobs.isfinite().nonzero()[:, 0].tolist())


def record_support(supports: Supports, row: Tensor, logprobs: Tensor, running: Tensor) -> None:
    """Append the ids that are left at this position to each answer that is still running."""
    for line, (answer, on) in enumerate(zip(row.tolist(), running.tolist(), strict=True)):
        if on:
            supports[answer].append(ids_left(logprobs[line]))


def support_tensor(
    supports: list[tuple[tuple[bool, ...], tuple[tuple[int, ...], ...] | None]], longest: int
) -> Tensor | None:
    """(action mask, support) of each row -> [N, T, K] ids, -1 where empty; None without supports."""
    if all(support is None for _, support in supports):
        return None
    if any(support is None for _, support in supports):
        raise ValueError("some answers of this batch have a support and some have none: sample all of "
                         "them with the same top_p and top_k")
    most = max(len(ids) for _, support in supports for ids in support or ((),))
    out = torch.full((len(supports), longest, most), -1, dtype=torch.long)
    for row, (mask, support) in enumerate(supports):
        positions = [at for at, acted in enumerate(mask) if acted]
        for at, ids in zip(positions, support or (), strict=True):
            out[row, at, : len(ids)] = torch.tensor(ids)
    return out
