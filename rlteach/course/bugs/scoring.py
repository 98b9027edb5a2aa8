"""Faults where tokens are scored: shifts, distributions, masks, modes, memory."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import torch

from rlteach.config import Config
from rlteach.course.planting import Bug, Curve, Patch, hold
from rlteach.course.short_run import FEW, few_answers, rows_of, short_trainer
from rlteach.policy import policy as policies
from rlteach.policy import truncation
from rlteach.policy.policy import Policy, _Scorer
from rlteach.training import batch

RATIO, SAYS = "ratio/max_deviation", "is far from 0 before any update"


def off(healthy: float, ill: float) -> bool:
    return healthy < 1e-3 < 0.05 < ill


def same_distribution(**settings: Any) -> None:
    """Before an update, scoring gives the sampler's log-probabilities back."""
    trainer = short_trainer(**FEW, **settings)
    rows = rows_of(few_answers(trainer))
    with torch.no_grad():
        given = trainer.policy.logprobs(rows, trainer.config.temperature).sampling
    apart = float((given - rows.sampled_logprobs).abs().max())
    hold(apart < 1e-3, f"sampled with one log-probability and trained with another, {apart:.2g} apart")


# B4


def double_shift(patch: Patch) -> None:
    patch.around(_Scorer, "_chunk", lambda original, self, states, targets, *rest: original(
        self, states, targets.roll(-1), *rest))


def position_before(**settings: Any) -> None:
    """The log-probability of token t is read at position t - 1, gathered by hand."""
    trainer = short_trainer(**FEW)
    answer, *_ = few_answers(trainer)
    ids, rows = torch.tensor([answer.token_ids]), rows_of([answer])
    with torch.no_grad():
        law = trainer.policy.model(ids).logits.log_softmax(-1)
        given = trainer.policy.logprobs(rows).full
    for t in rows.action_mask[0].nonzero()[:, 0].tolist():
        by_hand = float(law[0, t - 1, ids[0, t]])
        hold(abs(float(given[0, t]) - by_hand) < 1e-3,
             f"token {t} has {by_hand:.3f}, and {given[0, t]:.3f} is trained")


# B11, O10


def temperature_forgotten(patch: Patch) -> None:
    patch.around(_Scorer, "logprobs", lambda original, self, rows, temperature=1.0: original(self, rows))


def same_temperature() -> None:
    """At temperature 0.8, too, scoring gives the sampler's log-probabilities back."""
    same_distribution(temperature=0.8)


def top_p_forgotten(patch: Patch) -> None:
    patch.replace(truncation, "support_tensor", lambda *_: None)


def same_set() -> None:
    """Under top-p 0.9, too, scoring gives the sampler's log-probabilities back."""
    same_distribution(top_p=0.9)


# C04


def mask_from_values(patch: Patch) -> None:
    def fault(original: Any, members: Any, *rest: Any) -> batch.Rows:
        rows = original(members, *rest)
        ends = torch.tensor([0, 2])  # <|endoftext|> pads, <|im_end|> ends an answer
        return rows.with_(action_mask=rows.action_mask & ~torch.isin(rows.token_ids, ends))

    patch.around(batch, "collate", fault)


def every_sampled_token() -> None:
    """As many tokens are trained as were sampled, the one that ends the answer among them."""
    answers = few_answers(short_trainer(**FEW))
    trained = rows_of(answers).action_mask.sum(-1).tolist()
    sampled = [t.usage["completion_tokens"] for t in answers]
    hold(trained == sampled, f"{sampled} tokens were sampled, and {trained} are trained")


# C14, C15


def dropout_left_on(patch: Patch) -> None:
    def fault(original: Any, self: Any, model: Any, **more: Any) -> None:
        original(self, model, **more)
        model.train()

    patch.around(_Scorer, "__init__", fault)


def eval_mode() -> None:
    """Policy and reference score in eval mode: no dropout."""
    trainer = short_trainer(**FEW)
    for name, model in (("policy", trainer.policy.model), ("reference", trainer.reference.model)):
        hold(not model.training, f"the {name} is in training mode: with dropout two scorings would differ")


# B12


def all_logits_at_once(patch: Patch) -> None:
    def fault(original: Any, self: Any, *arguments: Any) -> Any:
        self.logits_chunk = 10**9
        return original(self, *arguments)

    patch.around(_Scorer, "logprobs", fault)


def logits_in_parts() -> None:
    """The logits of at most logits_chunk tokens exist at a time."""
    trainer = short_trainer(**FEW, logits_chunk=16)
    rows, seen = rows_of(few_answers(trainer)), []
    head = trainer.policy.model.get_output_embeddings()
    with head.register_forward_hook(lambda module, given, logits: seen.append(len(logits))), torch.no_grad():
        trainer.policy.logprobs(rows)
    hold(max(seen) <= 16, f"logits_chunk is 16, and the logits of {max(seen)} tokens were there at once")


# B9


def auto_is_float32(patch: Patch) -> None:
    patch.around(policies, "load_model", lambda original, name, config: original(
        name, config.replace(dtype="float32") if config.dtype == "auto" else config))


def auto_is_as_saved() -> None:
    """dtype="auto" loads a model as it was saved."""
    saved = Policy.load("tiny-math")
    saved.model.to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        saved.save(folder)
        loaded = Policy.load(folder, Config(dtype="auto")).model.dtype
    hold(loaded == torch.bfloat16, f"saved in bfloat16, and loaded as {loaded}: twice the memory")


ratio = Curve(RATIO, SAYS, off)
BUGS = (
    Bug("double_shift", ("B4", "S2.27", "C06"), double_shift, position_before, (
        "The labels are shifted already, and the model shifts them again: position t learns token t + 2.",
        "Shapes match, nothing raises, and the loss is a finite number that means nothing."), ratio),
    Bug("temperature_forgotten", ("B11", "C01", "S1.20"), temperature_forgotten, same_temperature, (
        "Answers are sampled at temperature 0.8, and their log-probabilities are taken at 1.",
        "At temperature 1 both are the same, so every test at 1 passes."),
        replace(ratio, settings={"temperature": 0.8})),
    Bug("top_p_forgotten", ("O10", "C03"), top_p_forgotten, same_set, (
        "Sampling cuts the improbable tokens by top-p 0.9; scoring divides by the whole vocabulary.",
        "Every log-probability is a little too low, never by much: nothing breaks, the ratio is not 1."),
        replace(ratio, settings={"top_p": 0.9}, apart=lambda h, i: h < 1e-3 < 0.03 < i)),
    Bug("mask_from_values", ("C04",), mask_from_values, every_sampled_token, (
        "Padding is recognised by the token's value, and the token that ends an answer falls under it.",
        "The policy is never taught to stop, and every loss is a number as before.")),
    Bug("dropout_left_on", ("C14", "C15", "B3"), dropout_left_on, eval_mode, (
        "The model is put into training mode before it scores, so dropout makes log-probabilities random.",
        "Small models have no dropout, and so it is found on the first large one.")),
    Bug("all_logits_at_once", ("B12",), all_logits_at_once, logits_in_parts, (
        "The logits of every token over the whole vocabulary are kept at the same time.",
        "With a vocabulary of 291 nobody feels it; with 151,936 and 2,000 positions a copy takes 1.2 GB.")),
    Bug("auto_is_float32", ("B9",), auto_is_float32, auto_is_as_saved, (
        "Only the names fp16 and bf16 are known, and dtype=\"auto\" falls through to float32.",
        "All numbers are right; they take twice the memory that was planned.")),
)
