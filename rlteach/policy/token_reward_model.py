"""The token-level reward model: what is each token worth, if only the outcome is known?

A body like the policy's and one linear head: w_t for the answer up to and including token t.
It is trained so that sigma(mean_t w_t) predicts whether the answer is right (eq. 12).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from rlteach.config import Config
from rlteach.policy.policy import Policy


class TokenRewardModel(nn.Module):
    """w for every action token. Owns its weights: nothing is shared with the policy.

    head_init zero is the paper's (all weights start at 0, so the policy gets no token weight until
    this model has learned something: hence the freeze steps); normal is the released code's.
    """

    def __init__(self, body: nn.Module, *, head_init: str = "zero") -> None:
        super().__init__()
        self.body = copy.deepcopy(body).eval().requires_grad_(True)
        reference = next(self.body.parameters())
        self.head = nn.Linear(self.body.config.hidden_size, 1, bias=False).to(reference)
        if head_init == "zero":
            nn.init.zeros_(self.head.weight)

    def states(self, rows: Any) -> Tensor:
        """What the head reads, [N, T, H]."""
        return self.body(
            input_ids=rows.token_ids, attention_mask=rows.attention_mask, use_cache=False
        ).last_hidden_state

    def forward(self, rows: Any) -> Tensor:
        """w [N, T] of `rows` (training/batch.py), 0 outside the action mask."""
        return self.head(self.states(rows))[..., 0].float() * rows.action_mask

    def groups(self, lr: float, head_factor: float) -> list[dict[str, Any]]:
        """Parameter groups of the optimiser: body at lr, head at lr * head_factor."""
        return [
            {"params": list(self.body.parameters()), "lr": lr},
            {"params": list(self.head.parameters()), "lr": lr * head_factor},
        ]


def build_token_reward_model(policy: Policy, config: Config) -> TokenRewardModel | None:
    """As config.token_reward_model says: none, 'policy' (a copy of its body), or a model's body."""
    name = config.token_reward_model
    if name is None:
        return None
    source = policy if name == "policy" else Policy.load(name, config)
    with torch.random.fork_rng():  # head_init="normal" draws from it
        torch.manual_seed(config.seed)
        return TokenRewardModel(source.model.base_model, head_init=config.head_init)


class HeadMemory:
    """Mean states of the answers seen so far, and a head fitted to all of them at once.

    The head is linear, so mean_t w_t is the head's value of the mean state: with the body as it is,
    eq. 12 is a logistic regression, which is solved rather than approached. A departure from the
    paper, where only the newest answers count (config.token_reward_refit).
    """

    def __init__(self, capacity: int = 16_384, penalty: float = 1e-5) -> None:
        self.capacity, self.penalty = capacity, penalty
        self.states = torch.zeros(0, 0)  # [M, H]
        self.positive = torch.zeros(0, dtype=torch.bool)  # [M]

    def add(self, states: Tensor, mask: Tensor, positive: Tensor) -> None:
        """Mean over the action tokens of states [N, T, H]; the oldest answers leave first."""
        mean = (states.detach().float() * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        old = self.states if len(self.states) else mean[:0]
        self.states = torch.cat([old, mean])[-self.capacity :]
        self.positive = torch.cat([self.positive.to(positive.device), positive])[-self.capacity :]

    def fit(self, head: nn.Linear, row_weights: Tensor) -> float:
        """Minimise eq. 12 (plus penalty * |head|^2) over the memory, from where the head is."""
        weight = head.weight.detach().float().clone().requires_grad_(True)
        solver = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            solver.zero_grad()
            each = binary_cross_entropy_with_logits(
                (self.states @ weight[0]), self.positive.float(), reduction="none")
            total = (each * row_weights).sum() + self.penalty * weight.square().sum()
            total.backward()
            return total

        with torch.enable_grad():
            value = float(solver.step(loss).detach())
        head.weight.data.copy_(weight.detach())
        return value


@torch.no_grad()
def token_scores(model: TokenRewardModel, rows: Any) -> Tensor:
    """w without gradient, for weights and pictures. [N, T]"""
    return model(rows)
