"""The doctor: each planted cause is named first, healthy runs give none, and nothing that a run holds stops it."""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import even_first, first_token, same, small_config, small_trainer, state, two_digit_data

import rlteach as rl
from rlteach.config import Config, data_path
from rlteach.judger.compose import RandomJudger
from rlteach.judger.rule import RuleJudger
from rlteach.policy.policy import Policy, Reference, _Scorer
from rlteach.training import judging
from rlteach.training.experiment import Experiment, build_trainer
from rlteach.training.judges import Judges
from rlteach.training.trainer import OrealTrainer
from rlteach.training.update import Learner
from rlteach.types import Group, Judgement, Sample, StepRecord, Trajectory
from rlteach.views.case import Case, Finding
from rlteach.views.doctor import CAUSES, EXPLAINS, Report, Watch, diagnose

RULE = RuleJudger()
Judge = Any


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """The loud warning of a flat curve has its own test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@cache
def questions() -> tuple[Sample, ...]:
    return tuple(rl.load_samples("prompts/train.jsonl"))


@cache
def _untrained() -> Policy:
    return Policy.load("tiny-math", Config())


def addition(judge: Judge = RULE, asked: Sequence[Sample] | None = None, **changes: Any) -> OrealTrainer:
    """tiny-math on 8 questions x 8 answers a step, a third of a second each."""
    parts = {name: changes.pop(name) for name in ("reference",) if name in changes}
    c = Config.preset("tiny", **{"batch_size": 8, "group_size": 8, "warmup_steps": 0, "threads": 1,
                                 "difficulty_bins": ((0.05, 0.6, 1),), **changes})
    policy = Policy(copy.deepcopy(_untrained().model), _untrained().tokenizer, config=c)
    return OrealTrainer(policy, judge, asked or questions(), c, **parts)


def after(trainer: OrealTrainer, steps: int) -> OrealTrainer:
    for _ in range(steps):
        trainer.step()
    return trainer


def with_pass_rate(low: float, high: float) -> list[Sample]:
    return [s for s in questions() if low <= s.pass_rate <= high]


class Away:
    """A model judge whose server is gone."""

    def __init__(self, away: bool = True) -> None:
        self.away = away

    def alive(self) -> str | None:
        return "http://judge: refused the connection" if self.away else None

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        gone = Judgement(None, "unscorable", "judge unavailable: http://judge refused the connection", "llm")
        return (gone,) * len(group.trajectories)


def short_sums(sample: Sample, answer: Trajectory) -> float:
    """A judger that can be played: it likes answers that never carry."""
    return float("+1=" not in answer.response)


# planted causes: real runs --------------------------------------------------------------------------


def coin(*_: object) -> float:
    return float(random.Random(coin.calls.append(1) or len(coin.calls)).random() < 0.5)


coin.calls = []
PLANTED: list[tuple[str, Callable[[], OrealTrainer]]] = [
    ("all_right", lambda: after(addition(asked=with_pass_rate(1, 1), difficulty_bins=(), group_size=4, temperature=0.5), 2)),
    ("all_wrong", lambda: after(addition(asked=with_pass_rate(0, 0), difficulty_bins=(), group_size=2), 2)),
    ("constant_reward", lambda: after(addition(lambda s, t: 0.0), 2)),
    ("constant_reward", lambda: after(addition(lambda s, t: 1.0), 2)),
    ("constant_reward", lambda: after(addition(lambda s, t: 0.5), 2)),
    ("truncated", lambda: after(addition(max_new_tokens=12), 2)),
    ("no_answer", lambda: after(addition(stop_tokens=("<|im_end|>", ", ")), 2)),
    ("judge_down", lambda: after(addition(Away(), max_unscorable=1), 2)),
    ("unscorable", lambda: after(addition(
        asked=[replace(s, gold=("see the solution",)) for s in questions()[:2000]]), 2)),
    ("learning_rate_too_high", lambda: after(addition(policy_lr=1e-2), 5)),
    ("learning_rate_too_high", lambda: after(addition(policy_lr=2e-3), 6)),
    ("learning_rate_too_low", lambda: after(addition(policy_lr=1e-8, policy_lr_end=1e-8), 5)),
    ("reference_is_policy", lambda: after(with_the_policy_as_reference(), 3)),
    ("ratio_off", lambda: after(addition(temperature=0.6), 2)),
    ("frozen", lambda: after(with_an_optimizer_of_another_model(), 4)),
    ("random_reward", lambda: after(addition(coin), 2)),
    ("random_reward", lambda: after(addition(RandomJudger()), 2)),
    ("random_reward", lambda: after(addition(control="shuffled"), 2)),
    ("random_reward", lambda: after(addition(control="own_samples"), 2)),
    ("entropy_collapse", lambda: after(addition(temperature=0.02), 2)),
    ("group_too_small", lambda: after(addition(
        asked=with_pass_rate(0.06, 0.2), difficulty_bins=(), group_size=2, batch_size=24), 2)),
]


def with_the_policy_as_reference() -> OrealTrainer:
    trainer = addition()
    trainer.reference = trainer.policy
    return trainer


def with_an_optimizer_of_another_model() -> OrealTrainer:
    """A kernel's cell was run again: the policy is new, the optimizer still holds the old one."""
    trainer = addition()
    other = copy.deepcopy(trainer.policy.model)
    trainer.learner.optimizer = torch.optim.AdamW(other.parameters(), lr=trainer.config.policy_lr)
    return trainer


@pytest.mark.parametrize(("cause", "plant"), PLANTED, ids=[f"{c}-{i}" for i, (c, _) in enumerate(PLANTED)])
def test_a_planted_cause_is_named_first(cause: str, plant: Callable[[], OrealTrainer],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    if cause == "ratio_off":
        original = _Scorer.logprobs
        monkeypatch.setattr(_Scorer, "logprobs", lambda self, rows, temperature=1.0: original(self, rows))
    trainer = plant()
    report = rl.doctor(trainer)
    print(report, [f.cause for f in report.findings])
    assert [f.cause for f in report.findings][:1] == [cause]
    assert not report.healthy
