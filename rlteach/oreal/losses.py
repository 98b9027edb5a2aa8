"""The policy's loss (eq. 11) as three sums over tokens: positive, negative, KL.

    L = f+ sum_{right} c_i sum_t w+_t (-log pi_t) / N+            push right answers up
      - f- sum_{wrong} c_i sum_t w-_t  pi_t / pi_old_t  / N-      push wrong answers down (c_i < 0)
      + beta sum_kept  sum_t k_t / N                              stay near the reference

pi_t is the policy's probability of token t, c_i the row's coefficient, w the token weights of
token_weights.py. The N are counts over the WHOLE batch, so that a batch cut into micro-batches
has the same gradient (`Normalizers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlteach.config import Config


@dataclass(frozen=True)
class Normalizers:
    """What each term is divided by: counts over the whole batch, never under 1."""

    positive: float
    negative: float
    kl: float

    @classmethod
    def count(cls, mask: Tensor, positive: Tensor, loss_norm: str) -> Normalizers:
        """token_class: action tokens of right / wrong / all rows (released code);
        sequence: rows, for every term (eq. 11 is a mean over answers). mask [N, T], positive [N]
        """
        if loss_norm == "sequence":
            rows = max(len(mask), 1)
            return cls(rows, rows, rows)
        tokens = mask.sum(-1)
        return cls(
            max(int(tokens[positive].sum()), 1),
            max(int(tokens[~positive].sum()), 1),
            max(int(tokens.sum()), 1),
        )


def policy_loss(
    sampling: Tensor, full: Tensor, rows: Any, count: Normalizers, config: Config
) -> Tensor:
    """[positive, negative, KL] terms of L for some `rows` (training/batch.py) of the batch. -> [3]

    sampling, full: [N, T] log-probabilities of the tokens, of the distribution that was sampled
    from and over the whole vocabulary; they differ only under top-p or top-k.
    """
    arguments = (sampling, rows.weights, rows.coefficient, rows.positive)
    # with one update a batch, pi_old is the policy itself: k2 and k3 then have no gradient at all
    target = rows.reference if config.kl_target == "initial" else full.detach()
    kl = kl_term(full, target, rows.action_mask, config.kl_estimator)
    return torch.stack([
        config.positive_factor * positive_term(*arguments) / count.positive,
        config.negative_factor * negative_term(*arguments) / count.negative,
        config.kl_coefficient * kl / count.kl,
    ])


def coefficients(
    advantages: Tensor,
    positive: Tensor,
    pass_rates: Tensor,
    *,
    positive_weight: str,
    negative_shaping: str,
) -> Tensor:
    """The factor of each row's tokens. All [N] -> [N]; right rows >= 0, wrong rows <= 0.

    positive_weight: advantage (released code) or one (paper: behaviour cloning of the best).
    negative_shaping: rloo (the group's own advantage), one_minus_p (eq. 6: -(1 - p), p the share
        of right answers in the group) or none (-1).
    """
    up = advantages if positive_weight == "advantage" else torch.ones_like(advantages)
    down = {
        "rloo": advantages,
        "one_minus_p": pass_rates - 1,
        "none": -torch.ones_like(advantages),
    }[negative_shaping]
    return torch.where(positive, up, down)


def positive_term(
    logprobs: Tensor, weights: Tensor, coefficient: Tensor, positive: Tensor
) -> Tensor:
    """sum over right rows of c_i sum_t w_t (-log pi_t). [N, T], [N, T], [N], [N] -> scalar"""
    rows = (weights * -logprobs).sum(-1) * coefficient
    return torch.where(positive, rows, torch.zeros_like(rows)).sum()


def negative_term(
    logprobs: Tensor, weights: Tensor, coefficient: Tensor, positive: Tensor
) -> Tensor:
    """-sum over wrong rows of c_i sum_t w_t pi_t/pi_old_t. Shapes as positive_term.

    There is one update a batch, so pi_old is the policy itself: the ratio is 1 in value, and its
    gradient is that of log pi.
    """
    ratio = torch.exp(logprobs - logprobs.detach())
    rows = (weights * ratio).sum(-1) * -coefficient
    return torch.where(positive, torch.zeros_like(rows), rows).sum()


def kl_term(logprobs: Tensor, reference: Tensor, mask: Tensor, estimator: str) -> Tensor:
    """sum_t k_t over the action tokens, with d = log pi_ref - log pi at the sampled token.

    k1 = -d: its mean is KL(pi || ref), but its gradient is 0 on average. k2 = d^2/2: gradient of
    KL(pi || ref). k3 = e^d - d - 1: never negative; as a loss it has the gradient of the forward
    KL(ref || pi). (docs: lesson 06; the released code's "kl" had the sign of k1 turned round.)
    """
    d = torch.where(mask, reference - logprobs, torch.zeros_like(logprobs))
    if estimator == "k1":
        return (-d).sum()
    if estimator == "k2":
        return (d * d / 2).sum()
    return (torch.exp(d) - d - 1).sum()
