"""The OREAL loop: draw -> rollout -> grade -> select -> shape -> update.

Six methods, one a stage, each handing plain records to the next. `update` is the only one that
changes anything, so a cell that calls another stage may be run as often as one likes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rlteach.config import Config
from rlteach.data import balance, batch_of
from rlteach.judger.control import control_judgements
from rlteach.judger.function import as_judger
from rlteach.oreal import advantage, losses, selection, token_weights
from rlteach.policy.policy import Policy, Reference
from rlteach.policy.token_reward_model import TokenRewardModel, build_token_reward_model, token_scores
from rlteach.training import plugins
from rlteach.training.batch import Batch, Member, collate
from rlteach.training.interrupts import interrupts_held, interrupts_stop
from rlteach.training.judging import Grading
from rlteach.training.keys import noise_key
from rlteach.training.metrics import group_metrics, warn_if_flat
from rlteach.training.run import Run
from rlteach.training.update import Learner
from rlteach.types import Group, Judger, Sample, StepRecord


class OrealTrainer:
    """One policy, one reference, one judger, and the step that improves the policy.

    Args:
        policy: the model that learns.
        judger: a Judger, or a plain function (sample, trajectory) -> score in [0, 1] or None.
        samples: the questions; those outside config.difficulty_bins are left out.
        config: every number of the run.
        reference: the model of the KL term; None makes policy.frozen_copy().
        rollout: in place of plain sampling: a function with @rollout, or (policy, samples, keys) -> groups.
        token_reward_model: None makes one as config.token_reward_model says.
    """

    def __init__(
        self,
        policy: Policy,
        judger: Judger | Callable[..., Any],
        samples: Sequence[Sample],
        config: Config,
        reference: Reference | None = None,
        rollout: Callable[..., list[Group]] | None = None,
        token_reward_model: TokenRewardModel | None = None,
    ) -> None:
        self.policy, self.judger, self.config = policy, as_judger(judger), config
        policy.use(config)
        self.samples = balance(samples, config.difficulty_bins)
        self.grading = Grading(self.judger, self.samples, config)
        self.reference = reference or policy.frozen_copy()
        self.token_reward_model = token_reward_model or build_token_reward_model(policy, config)
        self.rollouts, self._given = plugins.as_rollout(rollout or sample_groups, policy), rollout
        self.learner = Learner(policy, self.token_reward_model, config)
        self.history: list[StepRecord] = []
        self.step_index, self._run = 0, None
        self._notes: dict[str, float | None] = {}

    def draw(self) -> list[Sample]:
        """B questions: the order is seeded, an epoch long, the same whenever it is asked again."""
        return batch_of(self.samples, self.config, self.step_index)

    def rollout(self, samples: Sequence[Sample]) -> list[Group]:
        """G answers to each question."""
        began = time.perf_counter()
        keys = [[self._key("sample", i, s.id, g) for g in range(self.config.group_size)]
                for i, s in enumerate(samples)]
        groups = self.grading.sample(self.judger, self.rollouts, self.policy, samples, keys)
        self._notes = {**plugins.take_metrics(self.rollouts), "seconds/rollout": time.perf_counter() - began}
        return groups

    def grade(self, groups: Sequence[Group]) -> list[Group]:
        """What the judger says of each answer."""
        began = time.perf_counter()
        graded, notes = self.grading.grade(self.judger, groups)
        rng = random.Random(self._key("control"))
        graded = control_judgements(graded, self.config.control, rng)
        self._notes |= {**notes, "seconds/grade": time.perf_counter() - began}
        return graded

    def select(self, groups: Sequence[Group]) -> list[Group]:
        """Advantages of the WHOLE group, then marks on the members that are trained on."""
        return [self._select_one(g, i) for i, g in enumerate(groups)]

    def _select_one(self, group: Group, place: int) -> Group:
        c = self.config
        positive = positives(group, c.positive_threshold)
        if c.control == "own_samples":  # imitation of every own answer, right or wrong
            everyone = tuple(range(len(positive)))
            return group.with_(advantages=(1.0,) * len(positive), kept=everyone)
        if sum(p is not None for p in positive) < 2:
            return group.with_(advantages=(None,) * len(positive), kept=())
        rewards = advantage.code_rewards(positive, c.reward_coding)
        rng = random.Random(self._key("select", place, group.sample.id))
        return group.with_(
            advantages=tuple(advantage.ESTIMATORS[c.advantage](rewards)),
            kept=selection.select(positive, c.selection, rng),
        )

    @torch.no_grad()
    def shape(self, groups: Sequence[Group]) -> Batch:
        """Tensors: token weights and reference log-probabilities of the kept members."""
        c, device = self.config, self.policy.model.device
        rows = collate([m for g in groups for m in self._members(g, g.kept)], device)
        parts = list(rows.micro_batches(c.micro_batch))
        reference = [self.reference.logprobs(part, c.temperature).full for part in parts]
        scores = [token_scores(self.token_reward_model, part) for part in parts
                  if c.token_weighting != "none"]
        nothing = [torch.zeros_like(rows.sampled_logprobs)]
        weights = token_weights.token_weights(
            torch.cat(scores or nothing), rows.action_mask, rows.positive,
            weighting=c.token_weighting, score=c.token_score, topk_ratio=c.topk_ratio,
            positive_threshold=c.correct_threshold, negative_threshold=c.incorrect_threshold)
        coefficient = losses.coefficients(
            rows.advantages, rows.positive, rows.pass_rates,
            positive_weight=c.positive_weight, negative_shaping=c.negative_shaping)
        rows = rows.with_(coefficient=coefficient, weights=weights,
                          reference=torch.cat(reference or nothing))
        every = c.token_reward_rows == "all"
        learn = None if self.token_reward_model is None else collate(
            [m for g in groups for m in self._members(g, None if every else g.kept)], device)
        return Batch(self.step_index, self.policy.version, tuple(groups), rows, learn, dict(self._notes))

    def _members(self, group: Group, which: Sequence[int] | None) -> Iterator[Member]:
        """The members that training may see: scorable ones, with what they are worth."""
        if group.kept is None or group.advantages is None:
            raise ValueError("this group has no advantages yet: call trainer.select(groups) first")
        positive = positives(group, self.config.positive_threshold)
        known = [p for p in positive if p is not None]
        share = sum(known) / len(known) if known else 0.0
        own = self.config.control == "own_samples" and which is not None  # never a label to learn
        for i in which if which is not None else range(len(positive)):
            version = group.trajectories[i].policy_version
            if version != self.policy.version:
                raise ValueError(f"sampled from policy version {version}, the policy is at "
                                 f"{self.policy.version}: call trainer.rollout() again")
            if positive[i] is not None:
                yield group.trajectories[i], bool(positive[i]) or own, group.advantages[i] or 0.0, share

    @interrupts_held(lambda: False)
    def update(self, batch: Batch) -> StepRecord:
        """One optimiser step of the policy and of the token-level model; closes the step."""
        if batch.step != self.step_index:
            raise ValueError(f"this batch belongs to step {batch.step + 1}, the trainer is at step "
                             f"{self.step_index + 1}: a batch is used once; call trainer.draw() again")
        began = time.perf_counter()
        metrics = group_metrics(batch, self.config) | self.learner.update(batch, self.step_index)
        metrics["seconds/update"] = time.perf_counter() - began
        metrics["seconds/total"] = sum(v for k, v in metrics.items() if k.startswith("seconds/"))
        metrics["tokens_per_second"] = metrics["tokens/rollout"] / max(metrics["seconds/total"], 1e-9)
        self.step_index += 1
        self.learner.unfinished = False
        record = StepRecord(self.step_index, batch.groups, metrics)
        self.history.append(record)
        warn_if_flat(self.history, self.config)
        return record

    def step(self) -> StepRecord:
        """The whole loop once."""
        samples = self.draw()
        groups = self.rollout(samples)
        groups = self.grade(groups)
        groups = self.select(groups)
        batch = self.shape(groups)
        return self.update(batch)

    def __iter__(self) -> Iterator[StepRecord]:
        """Steps until config.total_steps, also where it was left. An interrupt is raised after its step."""
        while self.step_index < self.config.total_steps:
            with interrupts_held(lambda: not self.learner.unfinished):
                record = self.step()
            yield record

    def start(self) -> Run:
        """Train in a background thread; see training/run.py. A run under way is not doubled."""
        self._run = Run.of(self, self._run)
        return self._run

    def fit(self) -> OrealTrainer:
        """Train to the end. An interrupt stops cleanly after the step, a second one gives it up."""
        with interrupts_stop(self.start) as run:
            return run.resume().wait().trainer

    def close(self) -> None:
        """Stop the threads that were started for a rollout plug-in; a further step starts them again."""
        plugins.close(self.rollouts, given=self._given)

    def _key(self, *coordinates: object) -> int:
        return noise_key(self.config.seed, self.step_index, *coordinates)


def sample_groups(policy: Policy, samples: Sequence[Sample], keys: Sequence[Sequence[int]]) -> list[Group]:
    """The default rollout: one turn, straight from the sampler."""
    answers = policy.sample(samples, keys)
    return [Group(s, t) for s, t in zip(samples, answers, strict=True)]


def positives(group: Group, threshold: float) -> list[bool | None]:
    """Which members count as right answers; None for an unscorable one. [G]"""
    return [None if s is None else s >= threshold for s in group.scores]
