"""The token-level reward model: what is each token worth, if only the outcome is known?

A body like the policy's and one linear head: w_t for the answer up to and including token t.
It is trained so that sigma(mean_t w_t) predicts whether the answer is right (eq. 12).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

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

    def forward(self, rows: Any) -> Tensor:
        """w [N, T] of `rows` (training/batch.py), 0 outside the action mask."""
        hidden = self.body(
            input_ids=rows.token_ids, attention_mask=rows.attention_mask, use_cache=False
        ).last_hidden_state
        return self.head(hidden)[..., 0].float() * rows.action_mask

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


@torch.no_grad()
def token_scores(model: TokenRewardModel, rows: Any) -> Tensor:
    """w without gradient, for weights and pictures. [N, T]"""
    return model(rows)
