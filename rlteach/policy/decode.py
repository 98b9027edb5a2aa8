"""One batch that the answers of many callers share: rows join and leave between two tokens.

    new rows -> prefill -> merged into the running cache -> step, step, ... -> each leaves when it ends

Each row has its own temperature, top-p, top-k, length, stop strings, noise and grammar. The cache is
padded on the left, and padding is masked, so a row's distribution is the same alone or in company
(up to rounding); its noise depends on its key and the position only.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rlteach.policy.detokenize import cut_at_stop, text_of
from rlteach.policy.grammar import forbid
from rlteach.policy.sampler import draw, forward, noise_of, prefill
from rlteach.policy.truncation import ids_left, truncate

COLDEST = 1e-3  # below it the division overflows; the most likely token has all the mass long before


class EngineError(ValueError):
    """A request that the engine cannot answer; the message names the field and the remedy."""


@dataclass(frozen=True)
class RowParams:
    """How one row samples. top_k 0: all tokens. top_logprobs: alternatives recorded a position.
    keep_support: record the ids that top-k and top-p left, as training needs them (Row.support).

    temperature 0 takes the most likely token; the log-probabilities recorded are then those at
    temperature 1. Otherwise they are those of the distribution that the token was drawn from, with
    temperature, top-k, top-p and grammar in it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    keep_support: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature < COLDEST

    @property
    def cut(self) -> tuple[int, float]:
        return (0, 1.0) if self.greedy else (self.top_k, self.top_p)


class Row:
    """One answer while it grows: ids, logprobs and top have one entry a token (a stop token included).

    done: resolves to this row once finish is "stop" or "length", or to an error.
    watch: called after each token, from the engine's thread.
    """

    def __init__(self, prompt: Sequence[int], params: RowParams, key: int, *, stop_ids: Sequence[int],
                 matcher: Any = None, watch: Any = None) -> None:
        self.prompt, self.params, self.matcher, self.watch = tuple(prompt), params, matcher, watch
        self.stop_ids = frozenset(stop_ids)
        self.noise = noise_of(key, params.max_tokens).tolist()
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.top: list[list[tuple[int, float]]] = []
        self.support: list[tuple[int, ...]] = []
        self.text: str | None = None
        self.finish: str | None = None
        self.cancelled = False
        self.done: Future[Row] = Future()
        self.done.set_running_or_notify_cancel()  # only the engine ends it

    def take(self, token: int, logprob: float, tokenizer: Any) -> None:
        """One more token; sets finish and text when it is the last one."""
        ids = [*self.ids, token] if self.params.stop else self.ids
        if token in self.stop_ids:
            self.text, self.finish = text_of(tokenizer, self.ids), "stop"
        elif self.params.stop and (text := cut_at_stop(tokenizer, ids, self.params.stop)) is not None:
            self.text, self.finish = text, "stop"
        elif len(self.ids) + 1 >= self.params.max_tokens:
            self.text, self.finish = text_of(tokenizer, [*self.ids, token]), "length"
        self.logprobs.append(logprob)
        self.ids.append(token)  # last: whoever reads from another thread counts the ids first


class Batch:
    """The rows that are sampled together. Owned by one thread."""

    def __init__(self, model: torch.nn.Module, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.rows: list[Row] = []
        self.cache: DynamicCache | None = None
        self.mask = self.logits = torch.zeros(0, 0)  # [N, T]: 1 where a token stands; [N, V]

    @property
    def joinable(self) -> bool:
        """May rows join now? Not while a cache layer keeps a window that cannot be padded."""
        return not self.rows or all(type(layer) is DynamicLayer for layer in self.cache.layers)

    @torch.no_grad()
    def add(self, rows: Sequence[Row]) -> None:
        """Prefill new rows (equal prompts once) and put them below the running ones."""
        places = {prompt: i for i, prompt in enumerate(dict.fromkeys(row.prompt for row in rows))}
        cache, logits, mask = prefill(self.model, list(places), [places[row.prompt] for row in rows])
        if self.rows:
            length = max(self.mask.shape[1], mask.shape[1])
            for old, new in zip(self.cache.layers, cache.layers, strict=True):
                old.keys = torch.cat([_wide(old.keys, length), _wide(new.keys, length)])
                old.values = torch.cat([_wide(old.values, length), _wide(new.values, length)])
            mask = torch.cat([_left(self.mask, length), _left(mask, length)])
            logits, cache = torch.cat([self.logits, logits]), self.cache
        self.cache, self.mask, self.logits = cache, mask, logits
        self.rows += rows
        self._settings()

    @torch.no_grad()
    def step(self) -> list[Row]:
        """One token for every row; the rows that ended leave the batch and are returned."""
        logits = self.logits.float()
        matchers = {i: row.matcher for i, row in enumerate(self.rows) if row.matcher is not None}
        broken = forbid(logits, matchers) if matchers else {}
        logprobs = self._distributions(logits)
        chosen = self._draw(logprobs)
        self._record_top(logprobs)
        self._record_support(logprobs)
        picked = logprobs.gather(-1, chosen[:, None])[:, 0]
        for row, token, logprob in zip(self.rows, chosen.tolist(), picked.tolist(), strict=True):
            row.take(token, logprob, self.tokenizer)
            if row.matcher is not None:
                row.matcher.consume_token(token)
        for line, error in broken.items():
            why = EngineError(f"response_format: the grammar broke down ({error})")
            self.rows[line].done.set_exception(why)
        ended = [row for row in self.rows if row.finish or row.cancelled or row.done.done()]
        if ended:
            gone = set(map(id, ended))
            alive = [i for i, row in enumerate(self.rows) if id(row) not in gone]
            chosen = chosen[torch.tensor(alive, dtype=torch.long, device=chosen.device)]
            self._keep(alive)
        if self.rows:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], 1)
            self.logits = forward(self.model, chosen[:, None], self.mask, self.cache)
        return ended

    def clear(self) -> None:
        self.rows, self.cache = [], None

    def _keep(self, lines: list[int]) -> None:
        self.rows = [self.rows[i] for i in lines]
        if not lines:
            return self.clear()
        index = torch.tensor(lines, device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]
        if self.joinable and (empty := int(self.mask.any(0).int().argmax())):
            self.mask = self.mask[:, empty:]  # columns that only a longer row had needed
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[:, :, empty:], layer.values[:, :, empty:]
        self._settings()
        return None

    def _settings(self) -> None:
        """What the rows ask for, as tensors: computed when the company changes, not for each token."""
        device, params = self.mask.device, [row.params for row in self.rows]
        self.temperature = torch.tensor([1.0 if p.greedy else p.temperature for p in params], device=device)
        self.greedy = torch.tensor([p.greedy for p in params], device=device)
        self.any_greedy, self.all_greedy = bool(self.greedy.any()), bool(self.greedy.all())
        cuts = {p.cut for p in params} - {(0, 1.0)}
        self.cuts = {cut: torch.tensor([i for i, p in enumerate(params) if p.cut == cut], device=device)
                     for cut in cuts}

    def _distributions(self, logits: Tensor) -> Tensor:
        """Log-probabilities each row samples from (sampler.distribution, row by row). [N, V]"""
        logits = logits / self.temperature[:, None]
        for (top_k, top_p), lines in self.cuts.items():
            logits[lines] = truncate(logits[lines], top_k, top_p)
        return logits.log_softmax(-1)

    def _draw(self, logprobs: Tensor) -> Tensor:
        """The most likely token of greedy rows; of the others the one that their noise draws. [N]"""
        best = logprobs.argmax(-1) if self.any_greedy else None
        if self.all_greedy:
            return best
        uniform = torch.tensor([row.noise[len(row.ids)] for row in self.rows], dtype=torch.float64)
        drawn = draw(logprobs, uniform.to(logprobs.device))
        return drawn if best is None else torch.where(self.greedy, best, drawn)

    def _record_top(self, logprobs: Tensor) -> None:
        lines = [i for i, row in enumerate(self.rows) if row.params.top_logprobs]
        if not lines:
            return
        most = min(max(self.rows[i].params.top_logprobs for i in lines), logprobs.shape[-1])
        values, tokens = logprobs[torch.tensor(lines, device=logprobs.device)].topk(most)
        for i, ids, found in zip(lines, tokens.tolist(), values.tolist(), strict=True):
            count = self.rows[i].params.top_logprobs
            pairs = zip(ids[:count], found[:count], strict=True)
            self.rows[i].top.append([(t, v) for t, v in pairs if v > float("-inf")])

    def _record_support(self, logprobs: Tensor) -> None:
        for i, row in enumerate(self.rows):
            if row.params.keep_support and row.params.cut != (0, 1.0):
                row.support.append(ids_left(logprobs[i]))


def _wide(states: Tensor, length: int) -> Tensor:
    """[N, heads, T, H] -> [N, heads, length, H], zeros on the left."""
    return pad(states, (0, 0, length - states.shape[2], 0))


def _left(mask: Tensor, length: int) -> Tensor:
    return pad(mask, (length - mask.shape[1], 0))
