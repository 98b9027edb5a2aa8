"""Faults between the judgement and the loss: groups, baselines, what is kept."""

from __future__ import annotations

import copy
from typing import Any

from rlteach.course.planting import Bug, Curve, Patch, hold
from rlteach.course.short_run import FEW, answered, away, short_trainer
from rlteach.oreal import advantage
from rlteach.training import trainer as loop
from rlteach.training.judging import Grading
from rlteach.training.trainer import OrealTrainer
from rlteach.training.update import Learner
from rlteach.types import Group, Judgement, Sample, Trajectory

WRONG = Judgement(0.0, "incorrect", "no verdict")

# B2


def own_samples_imitated(patch: Patch) -> None:
    def fault(original: Any, self: OrealTrainer, *arguments: Any) -> Any:
        imitating = copy.copy(self)
        imitating.config = self.config.replace(control="own_samples")
        return original(imitating, *arguments)

    patch.around(OrealTrainer, "_select_one", fault)
    patch.around(OrealTrainer, "_members", fault)


def wrong_answers_are_unlearned() -> None:
    """A wrong answer that is kept has a negative coefficient."""
    trainer = short_trainer()
    groups = answered(trainer)
    scores = [g.scores[i] for g in groups for i in g.kept]
    coefficients = trainer.shape(groups).policy_rows.coefficient.tolist()
    pairs = list(zip(scores, coefficients, strict=True))
    hold(0.0 in scores, "no wrong answer was kept")
    up = sum(s == 0 and c >= 0 for s, c in pairs)
    hold(not up, f"{up} wrong answers are trained as if they were right")


# B7


def group_of_one(patch: Patch) -> None:
    patch.around(OrealTrainer, "rollout", lambda original, self, samples: [
        Group(g.sample, g.trajectories[:1]) for g in original(self, samples)])


def another_member() -> None:
    """Every group has at least two members: a baseline needs another one."""
    trainer = short_trainer(**FEW)
    sizes = {len(g.trajectories) for g in trainer.rollout(trainer.draw())}
    hold(min(sizes) >= 2, f"a group of {min(sizes)}: RLOO divides by K - 1 = {min(sizes) - 1}")


# O2, D05


def unscorable_is_wrong(patch: Patch) -> None:
    def fault(original: Any, self: Grading, *arguments: Any) -> Any:
        groups, notes = original(self, *arguments)
        return [g.with_(judgements=tuple(WRONG if j.score is None else j for j in g.judgements))
                for g in groups], notes

    patch.around(Grading, "grade", fault)
    patch.replace(loop, "positives", lambda group, threshold: [
        s is not None and s >= threshold for s in group.scores])


def nobody(sample: Sample, answer: Trajectory) -> None:
    """A judge that never has a verdict."""


def no_invented_reward() -> None:
    """What nobody could judge has no score, no advantage and no row."""
    trainer = short_trainer(nobody, **FEW)
    groups = answered(trainer)
    scores = {s for g in groups for s in g.scores}
    hold(scores == {None}, f"no answer was judged, and their scores are {sorted(scores, key=str)}")
    hold(not len(trainer.shape(groups).policy_rows), "answers without a verdict are trained on")


def rewards_reordered(patch: Patch) -> None:
    def fault(original: Any, self: Grading, *arguments: Any) -> Any:
        groups, notes = original(self, *arguments)
        judged = [g.judgements for g in groups]
        return [g.with_(judgements=j) for g, j in zip(groups, judged[1:] + judged[:1], strict=True)], notes

    patch.around(Grading, "grade", fault)


def each_its_own_verdict() -> None:
    """An answer that is judged again, alone, gets the score that it has."""
    trainer = short_trainer(group_size=4)
    groups = trainer.grade(trainer.rollout(trainer.draw()))
    for g in groups:
        alone = [trainer.judger.grade(Group(g.sample, (t,)))[0].score for t in g.trajectories]
        hold(alone == list(g.scores), f"{g.sample.id}: judged alone {alone}, in the batch {list(g.scores)}")


# O1, D06


def empty_batch_crashes(patch: Patch) -> None:
    def fault(original: Any, self: Learner, rows: Any, *arguments: Any, **named: Any) -> Any:
        if not len(rows):
            return sum([]).item()  # what the released code does with its empty list of losses
        return original(self, rows, *arguments, **named)

    patch.around(Learner, "update_policy", fault)


def empty_step() -> None:
    """A batch in which nothing was kept is a step without an update, and no crash."""
    trainer = short_trainer(lambda sample, answer: 0.0, **FEW)
    try:
        metrics = trainer.step().metrics
    except AttributeError as error:
        raise AssertionError(f"nothing was kept, and the step raised: {error}") from None
    hold(metrics["loss/total"] is None, "nothing was kept, and there is a loss")


def rejected_in_the_baseline(patch: Patch) -> None:
    patch.around(advantage, "code_rewards", lambda original, positive, coding: original(
        [bool(p) for p in positive], coding))


def baseline_without_it() -> None:
    """An answer without a verdict moves nobody's baseline."""
    trainer = short_trainer(away, batch_size=4)
    for g in answered(trainer):
        known = [(j, a) for j, a in zip(g.judgements, g.advantages, strict=True) if j.score is not None]
        if len(known) < 2:
            continue
        alone = advantage.rloo([1.0 if j.score else -1.0 for j, _ in known])
        apart = max(abs(a - b) for (_, a), b in zip(known, alone, strict=True))
        hold(apart < 1e-6, f"{g.sample.id}: an answer without a verdict moves the others by {apart:.2f}")


BUGS = (
    Bug("own_samples_imitated", ("B2", "S2.26"), own_samples_imitated, wrong_answers_are_unlearned, (
        "The loss is a language model's on all its own answers, right or wrong; advantages are not read.",
        "It is a loss, and it can be lowered; nothing in it knows what is right: mistakes are imitated."),
        Curve("loss/negative", "is exactly 0", lambda h, i: h > 0.01 and i == 0)),
    Bug("group_of_one", ("B7", "S1.15", "D01"), group_of_one, another_member, (
        "prompt_repeat_k is 1: one answer a question, and RLOO compares it with the mean of no others (0/0).",
        "With the filter on, every group is dropped in silence instead: steps pass, nothing is trained."),
        Curve("groups/kept", "is 0 in every step", lambda h, i: h >= 1 and i == 0)),
    Bug("unscorable_is_wrong", ("O2", "S1.12"), unscorable_is_wrong, no_invented_reward, (
        "When the judge is away its verdict is None, and None becomes -1: trained as a wrong answer.",
        "The reward is a little low, which looks like a harder task; good answers are unlearned."),
        Curve("judge/unscorable", "is exactly 0 though the judge was away",
              lambda h, i: h > 0.1 and i == 0, judger=lambda: away)),
    Bug("rewards_reordered", ("D05",), rewards_reordered, each_its_own_verdict, (
        "Verdicts come back in another order than the answers went out, and are dealt by place.",
        "Every mean of the first step is right, for every verdict is there; later the reward falls.")),
    Bug("empty_batch_crashes", ("O1", "S1.16"), empty_batch_crashes, empty_step, (
        "When every group of a step was filtered out, the sum of no losses is the int 0: it has no .item().",
        "It happens first when the policy is good, or the questions hard: hours into a run.")),
    Bug("rejected_in_the_baseline", ("D06", "D01"), rejected_in_the_baseline, baseline_without_it, (
        "An answer that was left out still counts in the mean that the others are compared with.",
        "Its own row is gone, so nobody looks for it; its siblings are pushed by the wrong amount.")),
)
