"""Token weights: which tokens of an answer earned its outcome (paper section 3.3).

The token-level reward model gives every token a number w; sigma(mean of w over the answer) is its
guess that the answer is right (eq. 12). Read the other way round, w says how much each token
speaks for a right answer: tokens of a right answer are weighted by how good they look, tokens of a
wrong answer by how bad they look (eq. 10).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def running_mean(scores: Tensor, mask: Tensor) -> Tensor:
    """Mean of w over the action tokens up to and including t. [N, T], [N, T] bool -> [N, T]

    The released code weighs tokens by this cumulative mean, the paper's eq. 10 by w itself.
    Positions outside the mask give 0.
    """
    total = (scores * mask).cumsum(-1)
    return torch.where(mask, total / mask.cumsum(-1).clamp(min=1), torch.zeros_like(total))


def token_weights(
    scores: Tensor,
    mask: Tensor,
    positive: Tensor,
    *,
    weighting: str,
    score: str,
    positive_threshold: float = 0.5,
    negative_threshold: float = 0.5,
    topk_ratio: float = 0.25,
) -> Tensor:
    """omega+ for the rows of right answers, omega- for the others (eq. 10). No gradient.

    Args:
        scores: [N, T] the token-level model's w.
        mask: [N, T] True on action tokens; the weight is 0 elsewhere.
        positive: [N] True where the answer is right.
        weighting: none (every action token weighs 1), threshold, topk.
        score: running_mean (released code) or per_token (paper).
        positive_threshold, negative_threshold: of the rescaling, in [0, 1); 0.5 gives eq. 10.
        topk_ratio: share of a row's tokens that keep a weight under topk.

    Returns:
        [N, T] in [0, 1].
    """
    if weighting == "none":
        return mask.to(scores.dtype)
    scores = scores.detach()
    if score == "running_mean":
        scores = running_mean(scores, mask)
    good = torch.sigmoid(scores)
    believed = torch.where(positive[:, None], good, 1 - good)
    if weighting == "topk":
        weights = topk_rescale(believed, mask, topk_ratio)
    else:
        limits = scores.new_tensor([negative_threshold, positive_threshold])
        threshold = limits[positive.long()]
        weights = threshold_rescale(believed, threshold[:, None])
    return weights * mask


def threshold_rescale(x: Tensor, threshold: Tensor | float) -> Tensor:
    """clamp((x - threshold) / (1 - threshold), 0, 1): at 0.5 this is max(2x - 1, 0), eq. 10.

    >>> threshold_rescale(torch.tensor([0.0, 0.5, 0.75, 1.0]), 0.5).tolist()
    [0.0, 0.0, 0.5, 1.0]
    """
    return ((x - threshold) / (1 - threshold)).clamp(0, 1)


def topk_rescale(x: Tensor, mask: Tensor, ratio: float) -> Tensor:
    """Keep each row's floor(ratio * length) largest values, stretched to [0, 1]; the rest is 0.

    Kept values that are all equal become 1. A row too short to keep one token keeps none.
    """
    out = torch.zeros_like(x)
    for row in range(len(x)):
        where = mask[row].nonzero()[:, 0]
        count = int(ratio * len(where) + 1e-9)  # 0.29 * 100 is 28.999999999999996 in binary
        if count == 0:
            continue
        values, order = x[row, where].topk(count)
        low, high = values.min(), values.max()
        flat = torch.ones_like(values)
        out[row, where[order]] = (values - low) / (high - low) if high > low else flat
    return out


def token_reward_loss(scores: Tensor, mask: Tensor, positive: Tensor) -> Tensor:
    """Eq. 12: cross-entropy of sigma(MEAN of w over the answer) against the outcome. -> [N]

    One number a row, so that the caller divides by the rows of the whole batch. Rows without
    action tokens count as mean 0.
    """
    return binary_cross_entropy_with_logits(
        sequence_score(scores, mask), positive.to(scores.dtype), reduction="none"
    )


def sequence_score(scores: Tensor, mask: Tensor) -> Tensor:
    """(1/T) sum_t w_t over the action tokens: the logit of 'this answer is right'. -> [N]"""
    return (scores * mask).sum(-1) / mask.sum(-1).clamp(min=1)
