"""Faults of a run in time: learning rates, and what a checkpoint forgets."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from rlteach.course.planting import Bug, Curve, Patch, hold
from rlteach.course.short_run import FEW, short_trainer
from rlteach.training import checkpoint, update

# B14, E02, O9


def warmup_never_ends(patch: Patch) -> None:
    patch.around(update, "schedule", lambda original, step, warmup, total, peak, end: original(
        step, 11, total, peak, end))


def peak_is_reached() -> None:
    """The learning rate reaches policy_lr within the run."""
    config = short_trainer(**FEW).config
    highest = max(update.policy_lr(config, step) for step in range(config.total_steps))
    hold(math.isclose(highest, config.policy_lr), f"policy_lr {config.policy_lr}: {highest:.2g} is the most")


def first_rate_is_zero(patch: Patch) -> None:
    patch.around(update, "schedule", lambda original, step, *rest: original(step - 1, *rest))


def first_step_moves() -> None:
    """The first step has a learning rate above 0."""
    rate = update.policy_lr(short_trainer(**FEW).config, 0)
    hold(rate > 0, f"the first learning rate is {rate}: a whole step is sampled and judged for nothing")


def warmup_while_frozen(patch: Patch) -> None:
    patch.around(update, "policy_lr", lambda original, config, step: original(
        config.replace(warmup_while_frozen=True), step))


FROZEN = {"policy_freeze_steps": 2, "token_reward_model": "policy", "warmup_steps": 2}


def warmup_after_freezing() -> None:
    """The first step after the freeze has the first learning rate of the warm-up."""
    config = short_trainer(**FEW, **FROZEN).config
    first = update.policy_lr(config, config.policy_freeze_steps)
    hold(first < config.policy_lr, f"the policy's first step of all has the peak rate {first}")


# S1.21


def weights_only(patch: Patch) -> None:
    patch.replace(checkpoint, "_load_optimizer", lambda optimizer, path: None)


def optimizer_comes_back() -> None:
    """A resumed trainer has the optimiser's moments, not only the weights."""
    stopped, resumed = short_trainer(), short_trainer()
    stopped.step()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save_checkpoint(stopped, Path(folder) / "step")
        checkpoint.load_checkpoint(resumed, Path(folder) / "step")
    kept, back = (len(t.learner.optimizer.state) for t in (stopped, resumed))
    hold(kept == back, f"the optimiser had moments of {kept} tensors, and has {back} after resuming")


BUGS = (
    Bug("warmup_never_ends", ("B14",), warmup_never_ends, peak_is_reached, (
        "Warm-up has eleven steps, whatever the config and the length of the run.",
        "A run of ten steps or fewer never gets there: it learns a little, as if the rate were low. It is."),
        Curve("lr/policy", "is below half of the peak", lambda h, i: i < 0.5 * h)),
    Bug("first_rate_is_zero", ("E02",), first_rate_is_zero, first_step_moves, (
        "Warm-up begins at 0/N: the first step has learning rate 0.",
        "One step is lost, of thousands nobody cares; of 40, each on new answers, it costs."),
        Curve("lr/policy", "is 0 in the first step", lambda h, i: h > 0 and i <= 0)),
    Bug("warmup_while_frozen", ("O9",), warmup_while_frozen, warmup_after_freezing, (
        "The policy rests while the token-level model learns, and its warm-up passes meanwhile.",
        "Its first real step has the full learning rate, with an optimiser that knows nothing yet."),
        Curve("lr/policy", "is the peak in the first step after the freeze", lambda h, i: 0 < 1.5 * h < i,
              within=3, settings=FROZEN)),
    Bug("weights_only", ("B15", "S1.21", "S2.34"), weights_only, optimizer_comes_back, (
        "A checkpoint holds the weights, and the optimiser starts anew.",
        "A resumed run goes on, and is not the run that never stopped.")),
)
