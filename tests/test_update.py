"""The update's own numbers: learning rates step by step, clipping, one step of the optimiser a batch."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from fakes import even_first, small_config, small_trainer

from rlteach.training.update import policy_lr, schedule


def rates(warmup: int, total: int, peak: float = 1.0, end: float = 0.2) -> list[float]:
    return [schedule(step, warmup, total, peak, end) for step in range(total)]


@pytest.mark.parametrize("warmup", [1, 2, 10])
def test_e02_warm_up_begins_above_zero_and_b14_reaches_the_peak(warmup: int) -> None:
    """Step k of N warm-up steps has k/N of the peak, from 1: the first one moves, the N-th is there."""
    assert rates(warmup, 40)[:warmup] == pytest.approx([(k + 1) / warmup for k in range(warmup)])


@pytest.mark.parametrize(("warmup", "total"), [(0, 5), (2, 5), (2, 3), (1, 1), (4, 5), (10, 90)])
def test_b14_a_short_run_reaches_the_peak_and_the_end(warmup: int, total: int) -> None:
    """The tutorial's schedule had eleven warm-up steps in a run of five."""
    found = rates(warmup, total)
    assert max(found) == pytest.approx(1.0)
    after = found[max(warmup - 1, 0):]
    assert all(a >= b for a, b in pairwise(after))
    if total > warmup + 1:
        assert found[-1] == pytest.approx(0.2)
        middle = warmup + (total - 1 - warmup) / 2
        if middle == int(middle):
            assert found[int(middle)] == pytest.approx(0.6)  # half a cosine: half-way in the middle


def test_warm_up_longer_than_the_run_divides_by_nothing() -> None:
    assert rates(10, 5) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert all(math.isfinite(x) for x in rates(5, 5) + rates(6, 5) + rates(0, 1))


FROZEN: dict[str, Any] = {"policy_freeze_steps": 3, "token_reward_model": "policy", "warmup_steps": 2,
                          "total_steps": 9, "policy_lr": 0.4, "policy_lr_end": 0.1}


def test_o9_warm_up_begins_after_the_freeze() -> None:
    config = small_config(**FROZEN)
    assert [policy_lr(config, step) for step in (3, 4)] == pytest.approx([0.2, 0.4])
    assert policy_lr(config, 8) == pytest.approx(0.1)
    released = config.replace(warmup_while_frozen=True)  # as the released code has it, on request
    assert policy_lr(released, 3) == pytest.approx(schedule(3, 2, 9, 0.4, 0.1))


def test_the_optimiser_uses_the_rate_that_is_logged() -> None:
    config = small_config(warmup_steps=2, total_steps=4, policy_lr=1e-3, policy_lr_end=1e-4)
    trainer = small_trainer(config, even_first)
    for step in range(4):
        metrics = trainer.step().metrics
        assert metrics["lr/policy"] == pytest.approx(policy_lr(config, step))
        assert trainer.learner.optimizer.param_groups[0]["lr"] == metrics["lr/policy"]
    assert policy_lr(config, 0) == pytest.approx(5e-4)


def applied_norm(trainer: Any) -> float:
    """Length of the gradient that the optimiser was given."""
    grads = [p.grad for p in trainer.policy.model.parameters() if p.grad is not None]
    return float(torch.stack([g.norm() for g in grads]).norm())


@pytest.mark.parametrize("limit", [0.01, 1000.0])
def test_b6_the_gradient_is_clipped_and_its_length_before_that_is_logged(limit: float) -> None:
    trainer = small_trainer(small_config(max_grad_norm=limit), even_first)
    norm = trainer.step().metrics["grad_norm/policy"]
    assert norm > 0.02
    assert applied_norm(trainer) == pytest.approx(min(limit, norm), rel=1e-3)


@pytest.mark.parametrize("micro_batch", [1, 2, 64])
def test_b13_a_batch_is_one_step_of_the_optimiser(micro_batch: int) -> None:
    trainer = small_trainer(small_config(micro_batch=micro_batch, selection="all"), even_first)
    metrics = trainer.step().metrics
    assert {int(state["step"]) for state in trainer.learner.optimizer.state.values()} == {1}
    assert trainer.policy.version == 1
    assert metrics["ratio/max_deviation"] < 1e-4
