"""From groups to tensors: the one place where trajectories become rows.

Rows are padded on the right. What is trained is decided by the action mask that the sampler wrote,
never by the value of a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from rlteach.policy.truncation import support_tensor
from rlteach.types import Group, Trajectory


@dataclass(frozen=True)
class Rows:
    """N answers as tensors; N may be 0.

    token_ids, attention_mask, action_mask, sampled_logprobs  [N, T]
    positive [N] bool; advantages, coefficient [N]; weights, reference [N, T]
    support [N, T, K] ids that the sampler had left (-1: empty), or None: the whole vocabulary
    """

    token_ids: Tensor
    attention_mask: Tensor
    action_mask: Tensor
    sampled_logprobs: Tensor
    positive: Tensor
    advantages: Tensor
    pass_rates: Tensor
    support: Tensor | None = None
    coefficient: Tensor | None = None
    weights: Tensor | None = None
    reference: Tensor | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        n, t = self.token_ids.shape
        right, tokens = int(self.positive.sum()), int(self.action_mask.sum())
        return f"Rows(N={n}, T={t}, positive={right}, action_tokens={tokens})"

    def with_(self, **changes: Tensor) -> Rows:
        return replace(self, **changes)

    def micro_batches(self, size: int) -> Iterator[Rows]:
        """The same rows, `size` at a time."""
        for at in range(0, len(self), size):
            columns = {f.name: getattr(self, f.name) for f in fields(self)}
            yield Rows(**{k: v if v is None else v[at : at + size] for k, v in columns.items()})


@dataclass(frozen=True)
class Batch:
    """What `update` needs: the rows of the policy and of the token-level model, and their origin."""

    step: int
    policy_version: int
    groups: tuple[Group, ...]
    policy_rows: Rows
    reward_rows: Rows | None
    notes: dict[str, float | None]  # seconds/STAGE, and what a model judge says of itself

    def __repr__(self) -> str:
        return f"Batch(step={self.step}, policy_rows={self.policy_rows}, reward_rows={self.reward_rows})"


Member = tuple[Trajectory, bool, float, float]  # trajectory, positive, advantage, pass rate of its group


def collate(members: Sequence[Member], device: torch.device | str = "cpu") -> Rows:
    """Pad members on the right to one length. The padding id is 0 and means nothing."""
    longest = max((len(t.token_ids) for t, *_ in members), default=1)
    shape = (len(members), longest)
    ids = torch.zeros(shape, dtype=torch.long)
    attention = torch.zeros(shape, dtype=torch.long)
    action = torch.zeros(shape, dtype=torch.bool)
    logprobs = torch.zeros(shape)
    for i, (t, *_) in enumerate(members):
        n = len(t.token_ids)
        ids[i, :n] = torch.tensor(t.token_ids)
        attention[i, :n] = 1
        action[i, :n] = torch.tensor(t.action_mask)
        logprobs[i, :n] = torch.tensor(t.logprobs)
    columns = list(zip(*members, strict=True)) or [(), (), (), ()]
    support = support_tensor([(t.action_mask, t.support) for t, *_ in members], longest)
    return Rows(
        token_ids=ids.to(device), attention_mask=attention.to(device), action_mask=action.to(device),
        sampled_logprobs=logprobs.to(device),
        positive=torch.tensor(columns[1], dtype=torch.bool, device=device),
        advantages=torch.tensor(columns[2], dtype=torch.float32, device=device),
        pass_rates=torch.tensor(columns[3], dtype=torch.float32, device=device),
        support=None if support is None else support.to(device),
    )
