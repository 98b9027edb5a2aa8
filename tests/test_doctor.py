"""The doctor: planted causes are named first, healthy runs give none, and no content of a run stops it."""

from __future__ import annotations

import copy
import json
import random
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fakes import even_first, same, small_config, small_trainer, state, two_digit_data

import rlteach as rl
from rlteach import cli
from rlteach.config import Config
from rlteach.judger.compose import RandomJudger
from rlteach.judger.rule import RuleJudger
from rlteach.policy.policy import Policy, Reference, _Scorer
from rlteach.training import judging
from rlteach.training.experiment import Experiment, build_trainer
from rlteach.training.judges import Judges
from rlteach.training.metrics import warn_if_flat
from rlteach.training.trainer import OrealTrainer
from rlteach.training.update import Learner
from rlteach.types import Group, Judgement, Sample, StepRecord, Trajectory
from rlteach.views import environment
from rlteach.views.case import Case
from rlteach.views.doctor import CAUSES, EXPLAINS, Watch, diagnose
from rlteach.views.environment import Check
from rlteach.views.facts import uniform
from rlteach.views.inside import ViewError
from rlteach.views.live import View

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
    ("all_right", lambda: after(addition(
        asked=with_pass_rate(1, 1), difficulty_bins=(), group_size=4, temperature=0.5), 2)),
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
    report = rl.doctor(plant())
    assert [f.cause for f in report.findings][:1] == [cause], report
    assert not report.healthy
    first = report.findings[0]
    assert report.line == f"doctor: {first.sentence} ({first.evidence})" or report.line.endswith(" ...")
    assert all((first.sentence, first.evidence, first.remedy))


def test_groups_without_contrast_are_told_with_what_was_to_be_expected() -> None:
    """p^G + (1 - p)^G over the questions' pass rates: all of them are 0 here, so all groups are."""
    assert uniform(0.5, 4) == 2 / 16
    hard = with_pass_rate(0, 0)
    trainer = after(addition(asked=hard, difficulty_bins=(), group_size=2), 2)
    flat = sum(max(g.scores) == 0 for r in trainer.history for g in r.groups)
    seen = rl.doctor(trainer).findings[0].evidence
    assert seen.startswith(f"{flat} of 16 groups in the 2 steps ({100 * flat / 16:.0f} %); with 2 answers")
    assert seen.endswith("their pass rates let expect 100 % without contrast")
    unknown = [replace(s, pass_rate=None) for s in hard]
    seen = rl.doctor(after(addition(asked=unknown, difficulty_bins=(), group_size=2), 2)).findings[0].evidence
    assert "the measured share of right answers" in seen


@pytest.fixture(scope="module")
def played() -> OrealTrainer:
    """A judger that can be played, for 8 steps: the reward doubles, right answers vanish."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return after(addition(short_sums), 8)


def test_a_judger_that_is_played_is_found_by_held_out_answers_or_by_one_that_is_not(
        played: OrealTrainer) -> None:
    assert rl.doctor(played).healthy, "by itself the curve looks fine"
    for trusted in (RULE, lambda s, t: RULE.judge(s, t).score):
        (found,) = rl.doctor(played, honest=trusted).findings
        assert found.cause == "reward_hacking"
        assert "trusted judger 0.0" in found.evidence
    rewards = [played.history[i].metrics["reward/mean"] for i in (0, -1)]
    assert rewards[1] > rewards[0] + 0.2
    for points in ({0: 0.45, 8: 0.2}, {1: 0.4, 4: 0.4, 8: 0.41}):
        assert [f.cause for f in rl.doctor(played, heldout=points).findings] == ["reward_hacking"]
    for points in ({}, {8: 0.2}, {0: 0.3, 8: 0.7}):
        assert rl.doctor(played, heldout=points).healthy


def test_a_judger_that_broke_on_the_way() -> None:
    """By itself it looks like a policy that was trained to pieces; a trusted judger tells them apart."""
    trainer = addition()
    rule = trainer.judger
    after(trainer, 1)
    trainer.judger = rl.graders((lambda s, t: 0.0, 1.0))
    after(trainer, 5)
    (found,) = rl.doctor(trainer).findings
    assert found.cause == "learning_rate_too_high"
    assert "try the judger on a right answer" in found.remedy
    assert [f.cause for f in rl.doctor(trainer, honest=rule).findings] == ["constant_reward"]


def test_a_reference_that_took_the_policys_own_model() -> None:
    """It also switches the policy's gradients off, so the run fails: why comes first (S2.29)."""
    trainer = addition()
    trainer.reference = Reference(trainer.policy.model)
    run = trainer.start()
    with pytest.raises(RuntimeError):
        run.wait()
    report = rl.doctor(run)
    assert [f.cause for f in report.findings] == ["reference_is_policy", "failed"]
    assert "very model" in report.findings[0].evidence


def test_one_shared_weight_is_enough() -> None:
    trainer = addition()
    mine = next(trainer.policy.model.parameters())
    next(trainer.reference.model.parameters()).data = mine.data
    assert "1 of its weights" in rl.doctor(trainer).findings[0].evidence


def test_steps_that_are_never_taken_and_gradients_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "_step", lambda *_: 0.0)
    trainer = after(addition(), 3)
    assert [f.cause for f in rl.doctor(trainer).findings] == ["frozen"]
    assert "gradient" in Watch(trainer).line(trainer.history), "without a look at the weights"


def frozen(steps: int) -> OrealTrainer:
    c = small_config(token_reward_model="policy", policy_freeze_steps=4, total_steps=5, threads=1)
    return after(small_trainer(c, even_first), steps)


def test_freeze_steps_are_said_and_are_no_fault_while_the_run_goes_on() -> None:
    for steps in (1, 2, 3):
        report = rl.doctor(frozen(steps))
        assert [(f.cause, f.fault) for f in report.findings] == [("frozen", False)]
        assert report.healthy
        assert report.line.startswith(f"doctor: nothing wrong found in {steps} step")
        assert f"step {steps} of policy_freeze_steps=4" in report.line
    trainer = frozen(0)
    run = trainer.start()
    run.step()
    run.stop()
    run.wait()
    if trainer.step_index:  # the run is over, and nothing was learned
        assert not rl.doctor(run).healthy
    assert rl.doctor(frozen(5)).findings == ()


def test_a_run_that_failed_is_told_with_its_error() -> None:
    trainer = small_trainer(small_config(threads=1), lambda s, t: 1 / 0)
    run = trainer.start()
    with pytest.raises(ZeroDivisionError):
        run.wait()
    (found,) = rl.doctor(run).findings
    assert found.cause == "failed"
    assert "ZeroDivisionError" in found.evidence
    assert rl.doctor(trainer).findings == (found,), "the trainer knows its run"


def test_a_judge_that_is_there_and_gives_no_verdicts_is_not_away() -> None:
    case = Case(Config(), waiting="no verdict: the reply was cut off; waiting, 5 s left")
    assert [f.cause for f in diagnose(case).findings] == ["unscorable"]


def test_a_run_that_waits_for_its_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PAUSE", 0.02)
    trainer = small_trainer(small_config(threads=1, judge_wait=0.1), Away())
    run = trainer.start()
    with pytest.raises(judging.JudgeAwayError):
        run.wait()
    assert [f.cause for f in rl.doctor(run).findings] == ["judge_down"]
    calm = rl.doctor(small_trainer(small_config(), even_first))
    assert "judge_down" not in [f.cause for f in calm.findings]


# before the first step ----------------------------------------------------------------------------


BEFORE: list[tuple[str | None, Callable[[], OrealTrainer]]] = [
    (None, addition),
    ("reference_is_policy", with_the_policy_as_reference),
    ("random_reward", lambda: addition(RandomJudger())),
    ("random_reward", lambda: addition(control="random")),
    ("truncated", lambda: addition(max_new_tokens=6)),
    ("judge_down", lambda: addition(Away())),
    ("all_wrong", lambda: addition(asked=with_pass_rate(0, 0), difficulty_bins=())),
    ("all_right", lambda: addition(asked=with_pass_rate(1, 1), difficulty_bins=())),
    ("group_too_small", lambda: addition(asked=with_pass_rate(0.06, 0.2), difficulty_bins=(), group_size=2)),
]


@pytest.mark.parametrize(("cause", "plant"), BEFORE, ids=[f"{c}-{i}" for i, (c, _) in enumerate(BEFORE)])
def test_what_can_be_known_before_the_first_step(
        cause: str | None, plant: Callable[[], OrealTrainer]) -> None:
    trainer = plant()
    weights, notes = state(trainer.policy.model), dict(trainer._notes)
    report = rl.doctor(trainer)
    assert [f.cause for f in report.findings] == [cause] * (cause is not None)
    assert (trainer.step_index, trainer.history, trainer._notes) == (0, [], notes)
    assert same(weights, state(trainer.policy.model))
    assert "before" in report.line if report.healthy else report.line


def test_labels_that_are_shifted_twice_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = _Scorer._chunk
    monkeypatch.setattr(_Scorer, "_chunk", lambda self, states, targets, *rest: original(
        self, states, targets.roll(-1), *rest))
    assert [f.cause for f in rl.doctor(addition()).findings] == ["ratio_off"]


def test_the_doctor_changes_nothing() -> None:
    """The same weights and records with and without a look after every step."""
    one, other = addition(), addition()
    for _ in range(2):
        one.step()
        other.step()
        rl.doctor(other, honest=RULE)
    assert same(state(one.policy.model), state(other.policy.model))
    assert [r.groups for r in one.history] == [r.groups for r in other.history]


# healthy runs ---------------------------------------------------------------------------------------


HEALTHY: dict[str, Config] = {
    "tiny": Config.preset("tiny", threads=1),
    "another-seed": Config.preset("tiny", threads=1, seed=1),
    "mixed-grpo": Config.preset("tiny", threads=1, selection="mixed", advantage="grpo"),
    "tiny-oreal": Config.preset("tiny-oreal", threads=1, policy_freeze_steps=2, total_steps=20),
    "paper": Config.paper(threads=1, policy_freeze_steps=2, total_steps=20),
    "tiny-agent": Config.preset("tiny-agent", threads=1),
}


def told(c: Config, steps: int) -> list[tuple[int, list[str]]]:
    """(step, causes) of everything that was found while a run went on, freeze steps apart."""
    judges = Judges(c)
    trainer = build_trainer(c, judges.rewards)
    try:
        found = [(0, rl.doctor(trainer))]
        watch = Watch(trainer)
        for step in range(1, steps + 1):
            trainer.step()
            line = watch.line(trainer.history)
            assert line.startswith("doctor: nothing wrong found"), (step, line)
            if step in (1, 2, 3, steps):
                found.append((step, rl.doctor(trainer)))
    finally:
        trainer.close()
        judges.close()
    return [(step, [f.cause for f in r.findings]) for step, r in found if not r.healthy]


@pytest.mark.parametrize("name", HEALTHY)
def test_the_beginning_of_a_healthy_run_gives_no_alarm(name: str) -> None:
    """Fewer and smaller groups than the preset's, which is harder."""
    small = {"batch_size": 12, "group_size": 4 if name == "tiny-agent" else 8}
    assert told(HEALTHY[name].replace(**small), 4) == []


@pytest.mark.gate
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_gives_no_alarm_from_the_first_step_to_the_last(name: str) -> None:
    c = Config.preset("tiny-oreal", threads=1) if name == "tiny-oreal" else HEALTHY[name]
    assert told(c, c.total_steps) == []


@pytest.mark.parametrize("seed", range(8))
def test_small_batches_give_no_alarm(seed: int) -> None:
    """3 questions x 4 answers a step: chance alone empties whole steps of contrast."""
    config = small_config(threads=1, seed=seed, max_new_tokens=16)
    trainer = small_trainer(config, even_first, seed=seed)
    watch = Watch(trainer)
    for _ in trainer:
        assert watch.line(trainer.history).startswith("doctor: nothing wrong"), trainer.step_index


# histories made by hand -------------------------------------------------------------------------------


def history(**columns: Sequence[float | None]) -> Case:
    """Steps that are told by their metrics only, as a resumed run has them."""
    plain = {"reward/mean": 0.4, "pass_rate": 0.4, "groups/zero_std": 2, "response/length": 20.0,
             "tokens/rollout": 10240, "response/truncated": 0.0, "response/no_answer": 0.0,
             "judge/unscorable": 0.0, "kl/reference": 0.1, "grad_norm/policy": 1.0, "lr/policy": 1e-4,
             "ratio/max_deviation": 1e-6, "entropy": 0.2}
    n = max(map(len, columns.values()), default=6)
    case = Case(Config(group_size=16))
    case.take([StepRecord(i + 1, (), {**plain, **{k: v[i] for k, v in columns.items()}}) for i in range(n)])
    return case


@pytest.mark.parametrize(("columns", "cause"), [
    ({}, None),
    ({"response/truncated": [0.9] * 6, "pass_rate": [0.05] * 6}, "truncated"),
    ({"response/no_answer": [0.8] * 6, "pass_rate": [0.1] * 6}, "no_answer"),
    ({"judge/unscorable": [0.5] * 6, "judge/unavailable": [256] * 6}, "judge_down"),
    ({"judge/unscorable": [0.5] * 6}, "unscorable"),
    ({"pass_rate": [0.0] * 6, "groups/zero_std": [32] * 6}, "all_wrong"),
    ({"pass_rate": [1.0] * 6, "groups/zero_std": [32] * 6}, "all_right"),
    ({"kl/reference": [0.0] * 6}, "reference_is_policy"),
    ({"kl/reference": [0, 1e-9, 1e-8, 1e-8, 2e-8, 2e-8]}, "learning_rate_too_low"),
    ({"kl/reference": [0.0] + [5e-5] * 39, "reward/mean": [0.4] * 40}, "learning_rate_too_low"),
    ({"kl/reference": [0.0, *(1e-6 * 2**i for i in range(10))]}, None),
    ({"ratio/max_deviation": [0.4] * 6}, "ratio_off"),
    ({"pass_rate": [0.5, 0.5, 0.5, 0.02, 0.01, 0.0]}, "learning_rate_too_high"),
    ({"grad_norm/policy": [None] * 6, "kl/reference": [None] * 6}, "frozen"),
    ({"grad_norm/policy": [0.0] * 6}, "frozen"),
    ({"reward/mean": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8], "dev/accuracy": [0.5, None, None, None, None, 0.3]},
     "reward_hacking"),
    ({"reward/mean": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8], "dev/accuracy": [0.5, None, None, None, None, 0.8]},
     None),
    ({"kl/reference": [0.0, 0.1, 0.1, 1.9, 0.1, 1.2]}, None),
])
def test_histories_without_answers(columns: dict[str, Any], cause: str | None) -> None:
    found = [f.cause for f in diagnose(history(**columns)).findings]
    assert found[:1] == [cause] * (cause is not None)


def test_any_hole_in_any_column_is_borne() -> None:
    rng = random.Random(0)
    names = list(history().metrics[1])
    for _ in range(300):
        values = [None, 0, 0.5, 1, float("inf"), float("nan"), 1e-9, 40.0]
        columns = {name: [rng.choice(values) for _ in range(4)]
                   for name in rng.sample(names, 4)}
        report = diagnose(history(**columns))
        assert set(report.table["cause"]) <= set(CAUSES)


def test_what_a_finding_explains_comes_behind_it() -> None:
    place = {cause: i for i, cause in enumerate(CAUSES)}
    for cause, behind in EXPLAINS.items():
        assert all(place[b] > place[cause] for b in behind), cause


@pytest.mark.parametrize("trainer", [
    lambda: small_trainer(small_config(batch_size=1, threads=1), lambda s, t: 0.0),
    lambda: small_trainer(small_config(threads=1, selection="all"), lambda s, t: float(s.id == "s0")),
    lambda: small_trainer(small_config(threads=1), lambda s, t: None)])
def test_the_flat_curve_s_warning_and_the_doctor_agree(trainer: Callable[[], OrealTrainer]) -> None:
    made = after(trainer(), 3)
    with pytest.warns(RuntimeWarning, match="nothing was learned"):
        warn_if_flat(made.history, made.config)
    assert not rl.doctor(made).healthy
    assert not Watch(made).line(made.history).startswith("doctor: nothing wrong")


def test_a_task_that_has_been_learned_is_no_fault() -> None:
    """The warning says that nothing is left to learn; the doctor says the same, and that it was learned."""
    score = {"now": even_first}
    made = after(small_trainer(small_config(threads=1), lambda s, t: score["now"](s, t)), 3)
    score["now"] = lambda s, t: 1.0
    report = rl.doctor(after(made, 3))
    assert [(f.cause, f.fault) for f in report.findings] == [("all_right", False)]
    assert report.healthy


# the report -------------------------------------------------------------------------------------------


def test_a_report_can_be_read_and_compared() -> None:
    report = rl.doctor(after(addition(max_new_tokens=12), 2))
    assert list(report.table.columns) == ["cause", "sentence", "evidence", "remedy", "fault"]
    assert isinstance(report.table, pd.DataFrame)
    assert list(report.table["cause"]) == [f.cause for f in report.findings]
    assert "1. truncated" in repr(report)
    assert "<b>truncated</b>" in report._repr_html_()
    assert max(map(len, repr(report).splitlines())) <= 110
    empty = rl.doctor(after(addition(), 1))
    assert empty.line == "doctor: nothing wrong found in 1 step"
    assert len(empty.table) == 0
    assert "cause" in empty.table


@pytest.mark.parametrize(("source", "error", "sentence"), [
    (3, TypeError, "not at a int"), (None, TypeError, "NoneType"), ({}, TypeError, "dict"),
    ("nowhere", ViewError, "there is no run"), (Path("tests"), ViewError, "there is no run")])
def test_a_wrong_source_is_one_sentence(source: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        rl.doctor(source)


@pytest.mark.parametrize(("heldout", "error"), [
    ([0.1], TypeError), ({0: 45}, ValueError), ({"a": 0.5}, ValueError), ({0: None}, ValueError),
    ({0: float("nan")}, ValueError), ({0: "0.5"}, ValueError)])
def test_wrong_held_out_accuracies_are_one_sentence(heldout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="heldout maps"):
        rl.doctor(small_trainer(small_config(), even_first), heldout=heldout)


def test_a_wrong_trusted_judger_is_one_sentence() -> None:
    trainer = after(small_trainer(small_config(threads=1), even_first), 1)
    with pytest.raises(TypeError, match="a judger has a method grade"):
        rl.doctor(trainer, honest=3)
    with pytest.raises(ValueError, match="needs one each"):
        rl.doctor(trainer, honest=lambda group: [1.0])


# run directories ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of a few steps: one whose answers are cut off, one that learns."""
    folder = tmp_path_factory.mktemp("runs")
    data = two_digit_data(folder, dev=6, test=2)
    out = {}
    for name, changes in {"cut": {"max_new_tokens": 8}, "learns": {"batch_size": 12}}.items():
        c = Config.preset("tiny", **{"difficulty_bins": (), "batch_size": 6, "group_size": 4, "threads": 1,
                                     "total_steps": 4, "eval_interval": 2, **data, **changes})
        with Experiment.create(c, folder / name) as experiment, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            experiment.measure_before()
            for _ in experiment.steps():
                pass
            if name == "learns":
                assert rl.doctor(experiment).line == rl.doctor(experiment.trainer).line
            experiment.finish()
        out[name] = folder / name
    return out


def test_a_run_directory_says_what_its_trainer_would(runs: dict[str, Path]) -> None:
    cut = rl.doctor(runs["cut"])
    assert [f.cause for f in cut.findings] == ["truncated"]
    assert "max_new_tokens=8" in cut.findings[0].evidence
    assert cut.notes == ()
    learns = rl.doctor(str(runs["learns"]), honest=RULE)
    assert (learns.steps, learns.findings) == (4, ())
    unequal = rl.doctor(runs["learns"], honest=lambda s, t: 0.0)
    assert [f.cause for f in unequal.findings] == ["reward_hacking"], "answers are judged from the files"


@pytest.mark.parametrize("name", [
    "metrics.jsonl", "config.json", "summary.json", "trajectories/step-00004.jsonl"])
@pytest.mark.parametrize("damage", ["gone", "cut", "bytes", "empty", "list"])
def test_a_damaged_run_directory_is_read_as_far_as_it_goes(
        runs: dict[str, Path], name: str, damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["cut"], folder, ignore=shutil.ignore_patterns("checkpoints"))
    file = folder / name
    whole = file.read_bytes()
    file.write_bytes({"cut": whole[: len(whole) * 2 // 3], "bytes": b"\xff\xfe{" + whole, "empty": b"",
                      "list": b"[1, 2]\n7\nnull\n{}\n"}.get(damage, whole))
    if damage == "gone":
        file.unlink()
    report = rl.doctor(folder)
    if name != "metrics.jsonl":
        assert [f.cause for f in report.findings][:1] == ["truncated"], report
    elif damage == "cut":
        assert report.steps == 2
    if name in ("metrics.jsonl", "config.json") and damage != "gone":
        assert report.notes, "what could not be read is said"


def test_rows_of_nonsense_in_a_trajectory_file(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["learns"], folder, ignore=shutil.ignore_patterns("checkpoints"))
    rng, nonsense = random.Random(1), [None, [], {}, "x", -1, 1e400, True, [{"role": 3}], [None]]
    for file in (folder / "trajectories").iterdir():
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row[rng.choice([*row, "messages"])] = rng.choice(nonsense)
            if rng.random() < 0.3:
                del row[rng.choice(list(row))]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert rl.doctor(folder, honest=lambda s, t: 1.0).steps == 4


# the command line ------------------------------------------------------------------------------------------


def rlteach(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
            ) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["rlteach", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0, *capsys.readouterr()


def test_the_command_of_a_run(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = rlteach(monkeypatch, capsys, "doctor", runs["cut"])
    assert (code, err) == (1, "")
    assert out.startswith("doctor: 1 finding in 4 steps\n1. truncated\n")
    code, out, err = rlteach(monkeypatch, capsys, "doctor", runs["learns"])
    assert (code, out, err) == (0, "doctor: nothing wrong found in 4 steps\n", "")
    for wrong in (("nowhere",), ("--nonsense",), ("one", "two")):
        code, out, err = rlteach(monkeypatch, capsys, "doctor", *wrong)
        assert (code, out) == (2, "")
        assert err.startswith("rlteach: ")
        assert err.count("\n") == 1


def test_the_command_of_this_environment(monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = rlteach(monkeypatch, capsys, "doctor")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert len(lines) == len(environment.CHECKS)
    assert {line.split()[0] for line in lines} <= {"ok", "note"}
    for wanted in ("torch", "cpu", "GB free", "127.0.0.1", "ipywidgets", "tiny-math", "known answers"):
        assert wanted in out, wanted


def test_a_fault_of_the_environment_is_exit_code_one(monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Check:
        raise OSError("no such device")

    bad = Check("port", "fault", "nobody listens", "open it")
    monkeypatch.setattr(environment, "CHECKS", (lambda: bad, broken, lambda: Check("x", "ok", "fine")))
    code, out, _ = rlteach(monkeypatch, capsys, "doctor")
    assert code == 1
    assert out.splitlines()[0].split() == ["fault", "port", "nobody", "listens:", "open", "it"]
    assert "OSError: no such device" in out
    assert out.splitlines()[2].startswith("ok")


def test_each_check_can_say_no(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = {"torch", "ipywidgets"}
    real = environment._version
    monkeypatch.setattr(environment, "_version", lambda name: None if name in missing else real(name))
    assert environment.versions().level == "fault"
    assert "torch is missing" in environment.versions().seen
    assert environment.widgets().level == "note"
    monkeypatch.setattr(environment, "_free", lambda: 10**9)
    assert environment.memory().level == "note"
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    assert "rlteach[notebook]" in environment.kernel().remedy
    monkeypatch.setattr(RuleJudger, "grade_text", lambda self, *_: Judgement(1.0, "correct"))
    assert environment.verdicts().level == "fault"
    monkeypatch.setattr(environment.socket, "create_connection", lambda *a, **k: 1 / 0)
    monkeypatch.setattr("rlteach.serving.ports.listen", _refused)
    assert environment.port().level == "fault"
    monkeypatch.setenv("RLTEACH_DATA", str(tmp_path))
    assert environment.templates().level == "fault"


def _refused(*_: object) -> None:
    raise OSError("not permitted")


# under the live view, and in the Lab ----------------------------------------------------------------------


class Screen:
    """What a view says, kept."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def open(self, *_: object) -> None: ...

    def state(self, status: Any) -> None:
        self.said.append(status.advice)

    def show(self, png: bytes) -> None: ...

    def last(self, png: bytes) -> None: ...


def test_the_line_stands_under_a_view() -> None:
    screen = Screen()
    trainer = addition(max_new_tokens=8, total_steps=3)
    view = View(trainer.start(), screen).wait()
    assert view.error is None
    assert view.advice == screen.said[-1] == rl.doctor(trainer).line
    assert view.advice.startswith("doctor: answers are cut off")


def test_a_watch_counts_each_step_once_and_asks_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = after(addition(), 3)
    counted: list[int] = []
    original = Case.take.__globals__["facts_of"]
    monkeypatch.setitem(Case.take.__globals__, "facts_of", lambda record, config: (
        counted.append(record.index), original(record, config))[1])
    monkeypatch.setattr(_Scorer, "logprobs", lambda *_: 1 / 0)
    monkeypatch.setattr(Policy, "sample", lambda *_: 1 / 0)
    watch = Watch(trainer)
    assert watch.line([]) == ""
    for n in (1, 2, 3, 3):
        watch.line(trainer.history[:n])
    assert counted == [1, 2, 3]


def test_the_lab_says_it_of_its_last_setting(tmp_path: Path) -> None:
    data = two_digit_data(tmp_path, dev=4, test=1)
    lab = rl.widgets.Lab("tiny", **{**data, "difficulty_bins": (), "batch_size": 6, "group_size": 4,
                                    "total_steps": 2, "threads": 1, "max_new_tokens": 8})
    trial = lab.run(wait=True)
    assert trial.advice.startswith("doctor: answers are cut off")
    assert "doctor: answers are cut off" in lab.panel.state.value
    lab.set(max_new_tokens=40, policy_lr=1e-5)
    assert lab.run(wait=True).advice == "doctor: nothing wrong found in 2 steps"
    assert "nothing wrong found" in lab.panel.state.value
    lab.clear()
    assert "doctor" not in lab.panel.state.value


@pytest.mark.parametrize("told", ["pause", "stop"])
def test_a_step_under_way_keeps_its_models_for_itself(told: str) -> None:
    """Also when the run was told to pause or stop: its thread still trains until that step is over."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(sample: Sample, answer: Trajectory) -> float:
        inside.set()
        go_on.wait(60)
        return 0.0

    trainer = small_trainer(small_config(), slow)
    run = trainer.start()
    assert inside.wait(60)
    getattr(run, told)()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.policy, "sample", lambda *_: pytest.fail("sampled while a thread trains"))
            rl.doctor(run)
    finally:
        go_on.set()
        run.stop()
        run.wait()
    assert run.ended
