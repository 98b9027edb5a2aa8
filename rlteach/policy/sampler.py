"""The sampler: many answers at once, token by token, with the log-probability of each choice.

    prompts (each once) -> KV cache -> one row an answer -> draw, append, drop what has ended

It returns ids, never text, and marks the end by position: nothing is decoded and encoded again.
A row's noise depends on its own key and the position only, not on the other rows of the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from rlteach.config import ConfigError
from rlteach.policy.truncation import record_support, truncate


@dataclass(frozen=True)
class SamplingParams:
    """Every number of the sampling distribution: nothing is taken from a model's own settings.

    temperature 0 takes the most likely token (log-probability 0: it was certain).
    """

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    row_cap: int


@dataclass(frozen=True)
class Completion:
    """What one row sampled; a stop token is part of token_ids. support: see Trajectory."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    support: tuple[tuple[int, ...], ...] | None


@torch.no_grad()
def sample(
    model: torch.nn.Module, prompts: Sequence[Sequence[int]], rows: Sequence[tuple[int, int]],
    params: SamplingParams,
) -> list[Completion]:
    """One completion a row; `rows` holds (index of its prompt, noise key).

    Raises:
        ConfigError: a prompt is empty, or does not fit with max_new_tokens into the model.
    """
    check_fit(model, prompts, params.max_new_tokens)
    parts = [rows[at : at + params.row_cap] for at in range(0, len(rows), params.row_cap)]
    return [answer for part in parts for answer in _decode(model, prompts, part, params)]


def check_fit(model: torch.nn.Module, prompts: Sequence[Sequence[int]], new: int) -> None:
    """ConfigError for a prompt that leaves no room for `new` tokens in the model's positions."""
    limit = getattr(model.config, "max_position_embeddings", None)
    for prompt in prompts:
        if not prompt or (limit and len(prompt) + new > limit):
            raise ConfigError(f"a prompt of {len(prompt)} tokens and max_new_tokens={new} do not fit the "
                              f"model's {limit} positions: shorten the question or lower max_new_tokens")


def _decode(
    model: torch.nn.Module, prompts: Sequence[Sequence[int]], rows: Sequence[tuple[int, int]],
    params: SamplingParams,
) -> list[Completion]:
    device, limit = model.device, params.max_new_tokens
    cache, logits, mask = prefill(model, prompts, [prompt for prompt, _ in rows])
    noise = torch.stack([noise_of(key, limit) for _, key in rows])  # [N, max_new]
    ids = torch.zeros(len(rows), limit, dtype=torch.long, device=device)
    logprobs = torch.zeros(len(rows), limit, device=device)
    length = torch.full((len(rows),), limit, device=device)
    supports: list[list[tuple[int, ...]]] = [[] for _ in rows]
    stop = torch.tensor(params.stop_ids, dtype=torch.long, device=device)
    row = torch.arange(len(rows), device=device)  # which answer each line of the cache belongs to
    for t in range(limit):
        logp = distribution(logits, params)
        chosen = draw(logp, noise[row.cpu(), t].to(device)) if params.temperature else logp.argmax(-1)
        ids[row, t] = chosen
        if params.temperature:
            logprobs[row, t] = logp.gather(-1, chosen[:, None])[:, 0]
        if params.top_k or params.top_p < 1:
            record_support(supports, row, logp, length[row] == limit)
        ended = torch.isin(chosen, stop) & (length[row] == limit)
        length[row[ended]] = t + 1
        alive = length[row] > t + 1
        if t + 1 == limit or not alive.any():
            break
        if alive.sum() < 0.8 * len(row):  # dropping rows copies the cache: not for each single one
            kept = alive.nonzero()[:, 0]
            cache.batch_select_indices(kept)
            row, chosen, mask = row[kept], chosen[kept], mask[kept]
        mask = torch.cat([mask, mask.new_ones(len(row), 1)], 1)
        logits = forward(model, chosen[:, None], mask, cache)
    return _collect(ids, logprobs, length, supports, params)


def distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """Log-probabilities that are really sampled from: temperature, then top-k, then top-p.

    [N, V] -> [N, V], -inf for tokens that were cut; sums to 1 in probability.
    """
    logits = logits.float() / (params.temperature or 1.0)
    return truncate(logits, params.top_k, params.top_p).log_softmax(-1)


def draw(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Inverse of the cumulative distribution at one uniform number a row. [N, V], [N] -> [N]"""
    cdf = logprobs.double().exp().cumsum(-1)
    at = torch.searchsorted(cdf, uniform[:, None] * cdf[:, -1:], right=True)
    return at[:, 0].clamp(max=logprobs.shape[-1] - 1)


def noise_of(key: int, count: int) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(key), dtype=torch.float64)


def prefill(
    model: torch.nn.Module, prompts: Sequence[Sequence[int]], owners: list[int]
) -> tuple[DynamicCache, Tensor, Tensor]:
    """Run each prompt once, padded on the left, and give every answer a copy of its state."""
    used = sorted(set(owners))
    longest = max(len(prompts[p]) for p in used)
    ids = torch.zeros(len(used), longest, dtype=torch.long, device=model.device)
    mask = torch.zeros_like(ids)
    for line, p in enumerate(used):
        ids[line, longest - len(prompts[p]) :] = torch.tensor(prompts[p])
        mask[line, longest - len(prompts[p]) :] = 1
    cache = DynamicCache(config=model.config)
    logits = forward(model, ids, mask, cache)
    line_of = {p: line for line, p in enumerate(used)}
    copies = torch.tensor([line_of[p] for p in owners], device=model.device)
    cache.batch_select_indices(copies)
    return cache, logits[copies], mask[copies]


def forward(model: torch.nn.Module, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
    """Logits of the next token. ids [N, new], mask [N, old + new] -> [N, V]"""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    # transformers 5.20 renamed the argument: one of the two names exists
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True,
                 logits_to_keep=1, **{name: cache}).logits[:, -1]


def _collect(ids: Tensor, logprobs: Tensor, length: Tensor, supports: list, params: SamplingParams
             ) -> list[Completion]:
    truncated = params.top_k or params.top_p < 1
    out = []
    for i, n in enumerate(length.tolist()):
        tokens = tuple(ids[i, :n].tolist())
        reason = "stop" if tokens[-1] in params.stop_ids else "length"
        support = tuple(supports[i]) if truncated else None
        out.append(Completion(tokens, tuple(logprobs[i, :n].tolist()), reason, support))
    return out
