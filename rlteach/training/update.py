"""The update: one optimiser step of the policy and of the token-level reward model.

Gradients are summed over micro-batches and every term is divided by counts of the whole batch, so
the cut into micro-batches changes the memory that is used and nothing else.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlteach.config import Config
from rlteach.oreal import losses
from rlteach.oreal.token_weights import token_reward_loss
from rlteach.policy.policy import Policy
from rlteach.policy.token_reward_model import HeadMemory, TokenRewardModel
from rlteach.training.batch import Batch, Rows

Metrics = dict[str, float | int | None]


class Learner:
    """Owns the optimisers and their learning rates."""

    def __init__(
        self, policy: Policy, token_model: TokenRewardModel | None, config: Config
    ) -> None:
        self.policy, self.token_model, self.config = policy, token_model, config
        if config.threads:
            torch.set_num_threads(config.threads)
        settings = {"betas": config.adam_betas, "weight_decay": config.weight_decay}
        self.optimizer = torch.optim.AdamW(policy.model.parameters(), lr=config.policy_lr, **settings)
        self.memory = HeadMemory()
        self.unfinished = False  # between two steps, or after an error inside one?
        self.token_optimizer = None if token_model is None else torch.optim.AdamW(
            token_model.groups(config.token_reward_lr, config.head_lr_factor), **settings)

    def update(self, batch: Batch, step: int) -> Metrics:
        """Both models; the policy rests during the freeze steps and when nothing was kept."""
        self.unfinished = True  # the trainer takes it back when it has counted the step
        frozen = step < self.config.policy_freeze_steps
        metrics = self.update_policy(batch.policy_rows, step, frozen=frozen)
        if batch.reward_rows is not None:
            metrics |= self.update_token_model(batch.reward_rows, step)
        return metrics

    def update_policy(self, rows: Rows, step: int, *, frozen: bool = False) -> Metrics:
        """Eq. 11. With nothing kept there is no step and no number: weights stay bit for bit."""
        c = self.config
        lr = 0.0 if frozen else policy_lr(c, step)
        names = ("total", "positive", "negative", "kl")
        if not len(rows):
            return {**{f"loss/{n}": None for n in names}, "kl/reference": None, "entropy": None,
                    "ratio/max_deviation": None, "grad_norm/policy": None, "lr/policy": lr}
        self.optimizer.zero_grad(set_to_none=True)
        count = losses.Normalizers.count(rows.action_mask, rows.positive, c.loss_norm)
        sums = torch.zeros(6)
        deviation = 0.0
        for part in rows.micro_batches(c.micro_batch):
            with torch.set_grad_enabled(not frozen):
                terms, measured = self._terms(part, count)
            if not frozen:
                terms.sum().backward()
            sums += torch.cat([terms.detach().cpu(), measured[:3].cpu()])
            deviation = max(deviation, float(measured[3]))
        norm = None if frozen else self._step(self.optimizer, self.policy.model, [lr])
        self.policy.version += not frozen
        positive, negative, kl, entropy, reference_kl, tokens = sums.tolist()
        tokens = max(tokens, 1)
        values = (positive + negative + kl, positive, negative, kl)
        return {**{f"loss/{n}": v for n, v in zip(names, values, strict=True)},
                "kl/reference": reference_kl / tokens, "entropy": entropy / tokens,
                "ratio/max_deviation": deviation, "grad_norm/policy": norm, "lr/policy": lr}

    def _terms(self, part: Rows, count: losses.Normalizers) -> tuple[Tensor, Tensor]:
        """([positive, negative, KL] terms, [entropy, k3, tokens, |ratio - 1|]) of a micro-batch."""
        logp = self.policy.logprobs(part, self.config.temperature)
        terms = losses.policy_loss(logp.sampling, logp.full, part, count, self.config)
        with torch.no_grad():
            ratio = torch.exp(logp.sampling - part.sampled_logprobs)
            measured = torch.stack([
                logp.entropy.sum(), losses.kl_term(logp.full, part.reference, part.action_mask, "k3"),
                part.action_mask.sum().float(), ((ratio - 1).abs() * part.action_mask).max()])
        return terms, measured

    def update_token_model(self, rows: Rows, step: int) -> Metrics:
        """Eq. 12 on all rows; with balance, right and wrong answers have the same total weight."""
        c = self.config
        lr = schedule(step, c.token_reward_warmup_steps, c.total_steps,
                      c.token_reward_lr, c.token_reward_lr_end)
        if not len(rows):
            return {"loss/token_reward": None, "grad_norm/token_reward": None, "lr/token_reward": lr}
        rows = by_length(rows)
        row_weights = class_weights(rows.positive, c.token_reward_balance)
        total, norm = 0.0, 0.0
        for epoch in range(c.token_reward_epochs):
            self.token_optimizer.zero_grad(set_to_none=True)
            total, at = 0.0, 0
            for part in map(without_padding, rows.micro_batches(c.micro_batch)):
                if c.token_reward_refit:
                    states = self.token_model.states(part)
                    scores = self.token_model.head(states)[..., 0].float()
                else:
                    scores = self.token_model(part)
                loss = token_reward_loss(scores, part.action_mask, part.positive)
                loss = (loss * row_weights[at : at + len(part)]).sum()
                loss.backward()
                total, at = total + float(loss.detach()), at + len(part)
                if c.token_reward_refit and epoch == 0:
                    self.memory.add(states, part.action_mask, part.positive)
            norm = self._step(self.token_optimizer, self.token_model, [lr, lr * c.head_lr_factor])
        if c.token_reward_refit:
            weights = class_weights(self.memory.positive, c.token_reward_balance)
            self.memory.fit(self.token_model.head, weights)
        return {"loss/token_reward": total, "grad_norm/token_reward": norm, "lr/token_reward": lr}

    def _step(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, lrs: list[float]) -> float:
        """Clip, refuse what is not finite, step. Returns the gradient's norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.config.max_grad_norm))
        if not math.isfinite(norm):
            bad = next(n for n, p in model.named_parameters()
                       if p.grad is not None and not p.grad.isfinite().all())
            raise FloatingPointError(f"the gradient of {bad} is not finite: the weights were left as "
                                     "they are; lower the learning rate or look at this step's rows")
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        optimizer.step()
        return norm


def by_length(rows: Rows) -> Rows:
    """Short rows first: a micro-batch of short rows needs little padding, and a sum has no order."""
    order = rows.attention_mask.sum(-1).argsort(stable=True)
    return rows.with_(**{k: v[order] for k, v in vars(rows).items() if v is not None})


def without_padding(rows: Rows) -> Rows:
    """Without the columns that are padding in every row."""
    longest = int(rows.attention_mask.sum(-1).max())
    columns = {k: v[:, :longest] for k, v in vars(rows).items() if v is not None and v.dim() > 1}
    return rows.with_(**columns)


def class_weights(positive: Tensor, balance: bool) -> Tensor:
    """[N] bool -> [N] weights that sum to 1: equal, or equal in total for right and for wrong."""
    n, right = len(positive), int(positive.sum())
    if not balance or right in (0, n):
        return torch.full((n,), 1 / n, device=positive.device)
    return torch.where(positive, 0.5 / right, 0.5 / (n - right))


def schedule(step: int, warmup: int, total: int, peak: float, end: float) -> float:
    """Learning rate of step 0, 1, ...: linear to `peak`, which step `warmup` - 1 reaches (the first
    step already moves), then half a cosine down to `end`, which the last step reaches."""
    if step < warmup:
        return peak * (step + 1) / warmup
    rest = max(total - 1 - warmup, 1)
    return end + (peak - end) * (1 + math.cos(math.pi * min((step - warmup) / rest, 1))) / 2


def policy_lr(config: Config, step: int) -> float:
    """The policy's schedule starts after the freeze steps, unless warmup_while_frozen."""
    skip = 0 if config.warmup_while_frozen else config.policy_freeze_steps
    return schedule(step - skip, config.warmup_steps, config.total_steps - skip,
                    config.policy_lr, config.policy_lr_end)
