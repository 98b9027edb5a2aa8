"""Faults in the loss and in the step: references, KL terms, what is divided by what."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from rlteach.course.bugs.scoring import off
from rlteach.course.planting import Bug, Curve, Patch, hold
from rlteach.course.short_run import short_trainer
from rlteach.oreal import losses, token_weights
from rlteach.policy.policy import Policy
from rlteach.training.update import Learner

# B3, O5, B8, B6


def reference_is_the_policy(patch: Patch) -> None:
    patch.replace(Policy, "frozen_copy", lambda self: self)


def another_model() -> None:
    """The reference has weights of its own, and a step leaves them as they are."""
    trainer = short_trainer()
    one, two = ({p.data_ptr() for p in m.model.parameters()} for m in (trainer.policy, trainer.reference))
    hold(not one & two, "policy and reference are one object: the distance between them is 0 for ever")


def kl_pushes_away(patch: Patch) -> None:
    patch.around(losses, "policy_loss", lambda original, *arguments: original(*arguments) * torch.tensor(
        [1.0, 1.0, -1.0]))


def two_steps() -> Any:
    trainer = short_trainer()
    trainer.step()
    return trainer, trainer.step().metrics


def kl_is_a_cost() -> None:
    """The KL term makes the loss larger when the policy is away from the reference."""
    _, metrics = two_steps()
    far, cost = metrics["kl/reference"], metrics["loss/kl"]
    hold(cost > 0, f"the policy is {far:.4f} away from the reference, and the term is {cost:.5f}")


def kl_by_answers(patch: Patch) -> None:
    patch.around(losses.Normalizers, "count", lambda original, mask, *rest: replace(
        original(mask, *rest), kl=max(len(mask), 1)))


def kl_by_tokens() -> None:
    """The KL term is kl_coefficient times the mean over tokens."""
    trainer, metrics = two_steps()
    mean = metrics["loss/kl"] / trainer.config.kl_coefficient
    measured = metrics["kl/reference"]
    hold(math.isclose(mean, measured, rel_tol=1e-3), f"{measured:.4f} a token, and {mean:.4f} is taken")


def factors_ignored(patch: Patch) -> None:
    patch.around(losses, "policy_loss", lambda original, sampling, full, rows, count, config: original(
        sampling, full, rows, count, config.replace(positive_factor=1.0, negative_factor=1.0)))


def factors_count() -> None:
    """With negative_factor 0 the negative term is 0."""
    negative = short_trainer(negative_factor=0.0, total_steps=1).step().metrics["loss/negative"]
    hold(negative == 0, f"negative_factor is 0, and the negative term {negative:.3f}")


# E01, B13


def mean_of_means(patch: Patch) -> None:
    sizes = [1]

    def remember(original: Any, self: Learner, rows: Any, *rest: Any, **more: Any) -> Any:
        sizes.append(-(-len(rows) // self.config.micro_batch))
        return original(self, rows, *rest, **more)

    def fault(original: Any, self: Learner, part: Any, count: Any) -> Any:
        own = losses.Normalizers.count(part.action_mask, part.positive, self.config.loss_norm)
        terms, measured = original(self, part, own)
        return terms / sizes[-1], measured

    patch.around(Learner, "update_policy", remember)
    patch.around(Learner, "_terms", fault)


def cut_changes_nothing() -> None:
    """The loss does not depend on how a batch is cut into micro-batches."""
    found = [short_trainer(micro_batch=size).step().metrics["loss/total"] for size in (64, 3)]
    hold(math.isclose(*found, rel_tol=1e-3), f"loss in one part {found[0]:.4f}, in several {found[1]:.4f}")


def step_each_part(patch: Patch) -> None:
    def fault(original: Any, self: Learner, rows: Any, step: int, *, frozen: bool = False) -> Any:
        parts = list(rows.micro_batches(self.config.micro_batch)) or [rows]
        version = self.policy.version
        found = [original(self, part, step, frozen=frozen) for part in parts]
        self.policy.version = min(self.policy.version, version + 1)
        worst = max((f["ratio/max_deviation"] or 0.0 for f in found), default=0.0)
        return {**found[-1], "ratio/max_deviation": worst}

    patch.around(Learner, "update_policy", fault)


def one_step_a_batch() -> None:
    """A batch is one step of the optimiser, however it is cut."""
    trainer = short_trainer(micro_batch=4)
    trainer.step()
    steps = {int(s["step"]) for s in trainer.learner.optimizer.state.values()}
    hold(steps == {1}, f"one batch, and {max(steps)} steps of the optimiser")


def no_clipping(patch: Patch) -> None:
    def fault(original: Any, self: Learner, *arguments: Any) -> float:
        given, self.config = self.config, self.config.replace(max_grad_norm=1000.0)
        try:
            return original(self, *arguments)
        finally:
            self.config = given

    patch.around(Learner, "_step", fault)


def clipped() -> None:
    """The gradient that is applied is no longer than max_grad_norm."""
    trainer = short_trainer(max_grad_norm=0.5)
    trainer.step()
    grads = [p.grad.norm() for p in trainer.policy.model.parameters() if p.grad is not None]
    norm = float(torch.stack(grads).norm())
    hold(norm < 0.501, f"max_grad_norm is 0.5, and a gradient of norm {norm:.2f} was applied")


# C19


def loss_of_each_token(patch: Patch) -> None:
    def fault(scores: Any, mask: Any, positive: Any) -> Any:
        labels = positive[:, None].to(scores.dtype).expand_as(scores)
        each = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        return (each * mask).sum(-1) / mask.sum(-1).clamp(min=1)

    patch.replace(token_weights, "token_reward_loss", fault)


def loss_of_the_mean() -> None:
    """Equation 12 takes the mean of w first: w = 3, -1, 4 is the logit 2."""
    scores, mask = torch.tensor([[3.0, -1.0, 4.0]]), torch.ones(1, 3, dtype=torch.bool)
    found = float(token_weights.token_reward_loss(scores, mask, torch.tensor([True])))
    wanted = math.log(1 + math.exp(-2))
    hold(math.isclose(found, wanted, rel_tol=1e-4), f"the loss is {found:.3f}, of the mean {wanted:.3f}")


def _kl(ill: Any, says: str) -> Curve:
    return Curve("loss/kl", says, ill, within=2)


BUGS = (
    Bug("reference_is_the_policy", ("B3", "S2.29", "C18"), reference_is_the_policy, another_model, (
        "`ref_model = actor_model`: the reference is the policy itself, so it moves along.",
        "The leash is there, its term is computed and logged, and pulls nowhere."),
        Curve("kl/reference", "stays 0", lambda h, i: h > 1e-4 and abs(i) < 1e-7, within=2)),
    Bug("kl_pushes_away", ("O5", "S1.17", "C18"), kl_pushes_away, kl_is_a_cost, (
        "kl_type=\"kl\" takes ref - policy as the penalty: the wrong sign.",
        "Its coefficient is 0.01, so the reward hides it for a long time."),
        _kl(lambda h, i: h > 1e-6 and i < -1e-6, "is negative")),
    Bug("kl_by_answers", ("B8", "S2.30"), kl_by_answers, kl_by_tokens, (
        "kl_div(reduction=\"batchmean\") divides by the number of answers, not of tokens.",
        "The longer the answers, the shorter the leash: a coefficient tuned on short ones is too strong."),
        _kl(lambda h, i: h > 1e-6 and i > 4 * h, "is as many times too large as an answer has tokens")),
    Bug("factors_ignored", ("B6", "S2.31"), factors_ignored, factors_count, (
        "The factors of the positive and the negative term stand in the config, and no line reads them.",
        "Turning the knob changes nothing, which is taken for \"this knob does not matter\"."),
        Curve("loss/negative", "is twice as large, its factor being 0.5",
              lambda h, i: h > 0.01 and 1.8 * h < i < 2.2 * h)),
    Bug("mean_of_means", ("E01",), mean_of_means, cut_changes_nothing, (
        "Each micro-batch divides by its own tokens, and the means are averaged.",
        "Tokens of short answers weigh more, and memory settings change the result.")),
    Bug("step_each_part", ("B13",), step_each_part, one_step_a_batch, (
        "optimizer.step() stands inside the loop over micro-batches.",
        "From the second part on the policy is not the one that sampled the answers."),
        Curve("ratio/max_deviation", "is far from 0 in the later parts of a batch", off,
              settings={"micro_batch": 4})),
    Bug("no_clipping", ("B13", "B6"), no_clipping, clipped, (
        "max_grad_norm stands in the config, and the gradient is never clipped.",
        "The norm that is logged is the one before clipping, with it and without.")),
    Bug("loss_of_each_token", ("C19",), loss_of_each_token, loss_of_the_mean, (
        "The token-level model is asked to predict the outcome from every token, not from their mean.",
        "Its loss is a sensible number; but a slip that is mended later now has to look right.")),
)
