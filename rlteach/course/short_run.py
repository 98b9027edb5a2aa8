"""A training run of a few seconds, to see what a fault does to its curves."""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd

from rlteach.config import Config
from rlteach.data import load_samples
from rlteach.judger.rule import RuleJudger
from rlteach.policy.policy import Policy
from rlteach.training.batch import Rows, collate
from rlteach.training.evaluate import evaluate
from rlteach.training.metrics import table
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Group, Sample, Trajectory

SHORT = {"batch_size": 8, "group_size": 8, "total_steps": 4}
FEW = {"batch_size": 3, "group_size": 2}
DEV = 24  # questions


def short_trainer(judger: Any = None, **settings: Any) -> OrealTrainer:
    """tiny-math, 8 questions a step and 8 answers to each, 4 steps; the rule judges."""
    config = Config.preset("tiny", **{**SHORT, **settings})
    policy = Policy.load("tiny-math", config)
    return OrealTrainer(policy, judger or RuleJudger(), load_samples(config.train_data), config)


def short_run(
    judger: Any = None, *, dev: bool = False, steps: int | None = None, **settings: Any
) -> pd.DataFrame:
    """Its history, one row a step. dev: with the share of dev questions that are right after each step.
    steps: leave it after so many.

    The warning of a flat curve is left out: finding out is the exercise.
    """
    trainer, shares = short_trainer(judger, **settings), []
    asked = load_samples(trainer.config.dev_data)[:DEV]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for record in trainer:
            if dev:
                shares.append(evaluate(trainer.policy, RuleJudger(), asked).accuracy)
            if record.index == steps:
                break
    history = table(trainer.history)
    return history.assign(**{"dev/accuracy": shares}) if dev else history


def answered(trainer: OrealTrainer) -> list[Group]:
    """The groups of the next step, graded and selected."""
    return trainer.select(trainer.grade(trainer.rollout(trainer.draw())))


def few_answers(trainer: OrealTrainer) -> list[Trajectory]:
    """Those to the questions of the next step."""
    return [t for g in trainer.rollout(trainer.draw()) for t in g.trajectories]


def rows_of(answers: list[Trajectory]) -> Rows:
    """Every answer as a right one with advantage 1."""
    return collate([(t, True, 1.0, 0.5) for t in answers])


def away(sample: Sample, answer: Trajectory) -> float | None:
    """A judge that is away for each third answer, and asks the rule otherwise."""
    return None if sum(answer.token_ids) % 3 == 0 else RuleJudger().judge(sample, answer).score
