"""The policy: a causal language model that answers, scores its answers, and is trained.

There is one place where position t - 1 meets token t (`Policy.logprobs`), so the shift that
tutorials apply twice cannot be applied twice here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlteach.config import Config
from rlteach.policy import sampler
from rlteach.policy.chat import encode_chat, stop_ids
from rlteach.policy.registry import load_model
from rlteach.types import Message, Sample, Trajectory


@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities of the tokens that stand there, [N, T], 0 outside the action mask.

    sampling: of the distribution that was sampled from (temperature, top-p/top-k set).
    full: over the whole vocabulary at the same temperature (for the KL term).
    entropy: of the full distribution, without gradient.
    """

    sampling: Tensor
    full: Tensor
    entropy: Tensor


class _Scorer:
    """What policy and reference share: a model and the log-probabilities it gives."""

    def __init__(self, model: torch.nn.Module, *, logits_chunk: int = 4096) -> None:
        self.model = model.eval()  # no dropout, ever: sampling and scoring must see one model
        self.logits_chunk = logits_chunk

    def logprobs(self, rows: Any, temperature: float = 1.0) -> Logprobs:
        """log pi(token t | tokens before t) at every action token of `rows` (training/batch.py).

        The logits of at most `logits_chunk` tokens exist at a time, and the backward pass
        computes them again, so memory does not grow with rows x tokens x vocabulary.
        """
        hidden = self.model.base_model(
            input_ids=rows.token_ids, attention_mask=rows.attention_mask, use_cache=False
        ).last_hidden_state  # [N, T, H]
        acts = rows.action_mask[:, 1:]  # token t is predicted at position t - 1
        states, targets = hidden[:, :-1][acts], rows.token_ids[:, 1:][acts]  # [M, H], [M]
        support = None if rows.support is None else rows.support[:, 1:][acts]  # [M, K], -1: empty
        parts = []
        for at in range(0, len(targets), self.logits_chunk):
            chunk = slice(at, at + self.logits_chunk)
            kept = None if support is None else support[chunk]
            arguments = (states[chunk], targets[chunk], kept, temperature)
            if torch.is_grad_enabled():
                parts.append(checkpoint(self._chunk, *arguments, use_reentrant=False))
            else:
                parts.append(self._chunk(*arguments))
        empty = states.sum(-1).float()  # no action token here: nothing, but still in the graph
        columns = [torch.cat(c) for c in zip(*parts, strict=True)] or [empty] * 3
        return Logprobs(*(_place(column, rows.action_mask) for column in columns))

    def _chunk(
        self, states: Tensor, targets: Tensor, support: Tensor | None, temperature: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.model.get_output_embeddings()(states).float() / temperature  # [m, V]
        chosen = logits.gather(-1, targets[:, None])[:, 0]
        full = chosen - logits.logsumexp(-1)
        if support is None:
            sampling = full
        else:  # renormalise over the ids that the sampler had left
            left = logits.gather(-1, support.clamp(min=0)).masked_fill(support < 0, -torch.inf)
            sampling = chosen - left.logsumexp(-1)
        with torch.no_grad():
            entropy = torch.distributions.Categorical(logits=logits).entropy()
        return sampling, full, entropy


class Policy(_Scorer):
    """The model that is trained. `version` counts its updates."""

    def __init__(self, model: torch.nn.Module, tokenizer: Any, *, config: Config | None = None) -> None:
        super().__init__(model)
        self.tokenizer, self.version = tokenizer, 0
        self.use(config or Config())

    def use(self, config: Config) -> None:
        """Sample and score by this config from now on."""
        self.config, self.logits_chunk = config, config.logits_chunk
        self.stop_ids = stop_ids(self.tokenizer, config.stop_tokens)
        if config.chat_template is not None:
            self.tokenizer.chat_template = config.chat_template

    @classmethod
    def load(cls, name: str | None = None, config: Config | None = None) -> Policy:
        """An embedded model, a local directory or a hub id (default: config.policy).

        Raises:
            ModelError: nothing is there, or a part of it is missing.
        """
        config = config or Config()
        model, tokenizer = load_model(name or config.policy, config)
        policy = cls(model, tokenizer, config=config)
        encode_chat(tokenizer, [Message("user", "?")])  # a template that fails shall fail here
        return policy

    def encode(self, sample: Sample) -> list[int]:
        """The prompt's ids, as the chat template writes it."""
        return encode_chat(self.tokenizer, sample.messages, tools=sample.tools,
                           system_prompt=self.config.system_prompt)

    def sample(
        self, samples: Sequence[Sample], keys: Sequence[Sequence[int]], *, greedy: bool = False
    ) -> list[tuple[Trajectory, ...]]:
        """len(keys[i]) answers to sample i, one noise key an answer.

        greedy takes the most likely token instead of drawing one (for evaluation).
        """
        c = self.config
        params = sampler.SamplingParams(
            temperature=0.0 if greedy else c.temperature, top_p=1.0 if greedy else c.top_p,
            top_k=0 if greedy else c.top_k, max_new_tokens=c.max_new_tokens,
            stop_ids=self.stop_ids, row_cap=c.row_cap,
        )
        prompts = [self.encode(s) for s in samples]
        rows = [(i, key) for i, group in enumerate(keys) for key in group]
        answers = iter(sampler.sample(self.model, prompts, rows, params))
        return [
            tuple(self._trajectory(s, prompt, next(answers)) for _ in group)
            for s, prompt, group in zip(samples, prompts, keys, strict=True)
        ]

    def _trajectory(
        self, sample: Sample, prompt: list[int], answer: sampler.Completion
    ) -> Trajectory:
        shown = answer.token_ids[: -1 if answer.finish_reason == "stop" else None]
        text = self.tokenizer.decode(shown, skip_special_tokens=False)
        p, r = len(prompt), len(answer.token_ids)
        return Trajectory(
            messages=(*sample.messages, Message("assistant", text)),
            token_ids=(*prompt, *answer.token_ids),
            action_mask=(False,) * p + (True,) * r,
            logprobs=(0.0,) * p + answer.logprobs,
            policy_version=self.version,
            finish_reason=answer.finish_reason,
            usage={"prompt_tokens": p, "completion_tokens": r},
            support=answer.support,
        )

    def frozen_copy(self) -> Reference:
        """A reference with its own weights, equal to the policy's as they are now."""
        return Reference(copy.deepcopy(self.model), logits_chunk=self.logits_chunk)

    def save(self, directory: str | Path) -> None:
        """Hugging Face layout: AutoModelForCausalLM and AutoTokenizer load it without rlteach."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)


class Reference(_Scorer):
    """The fixed model of the KL term. It gives log-probabilities and nothing else."""

    def __init__(self, model: torch.nn.Module, *, logits_chunk: int = 4096) -> None:
        super().__init__(model.requires_grad_(False), logits_chunk=logits_chunk)

    @torch.no_grad()
    def logprobs(self, rows: Any, temperature: float = 1.0) -> Logprobs:
        return super().logprobs(rows, temperature)

    def sample(self, *_: Any, **__: Any) -> None:
        raise TypeError("the reference never answers: it only gives log-probabilities for the KL "
                        "term; ask the policy")


def _place(values: Tensor, mask: Tensor) -> Tensor:
    """[M] -> [N, T]: put the values where the mask is True."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
