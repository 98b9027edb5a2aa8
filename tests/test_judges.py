"""Training with a model as judge: from config and command line, through outages, and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import same, state, two_digit_data

from rlteach.config import Config
from rlteach.judger.llm import JudgeError
from rlteach.serving.fake_judge import FakeJudge
from rlteach.training import judging
from rlteach.training.experiment import Experiment
from rlteach.training.judging import JudgeAwayError

KEY = "canary-3f9c-key"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return two_digit_data(tmp_path, dev=4, test=4)


@pytest.fixture
def judge() -> Iterator[FakeJudge]:
    with FakeJudge() as server:
        yield server


def small(files: dict[str, str], **changes: Any) -> Config:
    return Config(**{
        "name": "small", "total_steps": 3, "batch_size": 4, "group_size": 4, "max_new_tokens": 40,
        "eval_interval": 0, "threads": 1, "warmup_steps": 1, "judger": "llm", "judge_timeout": 2,
        **files, **changes})


def trained(experiment: Experiment) -> Experiment:
    experiment.measure_before()
    for _ in experiment.steps():
        pass
    experiment.finish()
    experiment.judges.close()
    return experiment


@pytest.mark.parametrize("judger", ["llm", "rule_then_llm", "random"])
def test_every_judger_trains(files: dict[str, str], judge: FakeJudge, tmp_path: Path, judger: str) -> None:
    config = small(files, judger=judger, judge_url=judge.url, ask_llm_when="not_correct")
    done = trained(Experiment.create(config, tmp_path / "run"))
    for record in done.trainer.history:
        sources = {j.source for g in record.groups for j in g.judgements}
        assert sources <= {"llm": {"llm"}, "rule_then_llm": {"rule", "llm"}, "random": {"random"}}[judger]
        assert record.metrics["judge/unscorable"] == 0
        if judger != "random":
            assert record.metrics["judge/disagreement"] in (0, None), "the fake judge knows the truth"
            assert record.metrics["judge/calls"] <= 16
    asked = [r for r in judge.requests if r.path.endswith("/chat/completions")]
    assert bool(asked) == (judger != "random")


def test_without_a_url_the_embedded_judge_is_served(files: dict[str, str], tmp_path: Path) -> None:
    done = trained(Experiment.create(small(files, total_steps=1, judge_timeout=60), tmp_path / "run"))
    [record] = done.trainer.history
    assert record.metrics["judge/calls"] > 0
    assert record.metrics["judge/unscorable"] == 0
    assert record.metrics["judge/disagreement"] <= 0.1, "tiny-judge and the rule on plain answers"
    assert done.summary["versions"]["judge"] == "tiny-judge"
    assert done.summary["versions"]["grader"].startswith("rule-")


def test_the_rule_and_a_judge_that_knows_the_truth_train_the_same_model(
        files: dict[str, str], judge: FakeJudge, tmp_path: Path) -> None:
    """judge_parts=1: sampled as one batch, so that not even rounding differs."""
    config = small(files, judge_url=judge.url, judge_parts=1)
    one, other = (trained(Experiment.create(config.replace(judger=judger), tmp_path / judger))
                  for judger in ("rule", "llm"))
    assert same(state(one.trainer.policy.model), state(other.trainer.policy.model))
    assert one.summary["after"] == other.summary["after"]


def test_t10_a_judge_that_dies_stops_at_a_checkpoint_that_resume_takes_up(
        files: dict[str, str], judge: FakeJudge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PAUSE", 0.05)
    config = small(files, judge_url=judge.url, judge_wait=0.3, checkpoint_interval=-1)
    undisturbed = trained(Experiment.create(config, tmp_path / "whole"))
    experiment = Experiment.create(config, tmp_path / "run")
    experiment.measure_before()
    steps = experiment.steps()
    next(steps)
    judge.go_down()
    with pytest.raises(JudgeAwayError, match=f"{judge.url}.*--resume"):
        next(steps)
    experiment.judges.close()
    assert experiment.trainer.step_index == 1
    assert (tmp_path / "run" / "checkpoints" / "step-00001").is_dir()
    with pytest.raises(JudgeError, match=judge.url):
        Experiment.resume(tmp_path / "run")
    judge.come_back()
    resumed = trained(Experiment.resume(tmp_path / "run"))
    assert same(*(state(e.trainer.policy.model) for e in (undisturbed, resumed)))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_a_resumed_run_is_given_the_verdicts_it_was_given(
        files: dict[str, str], tmp_path: Path) -> None:
    """Even by a judge that says something else now: the cache of the run is asked first."""
    with FakeJudge() as judge:
        experiment = Experiment.create(small(files, judge_url=judge.url), tmp_path / "run")
        experiment.measure_before()
        scores = [g.scores for g in next(iter(experiment.steps())).groups]
        experiment.judges.close()
        for checkpoint in (tmp_path / "run" / "checkpoints").glob("step-*"):
            (checkpoint / "training" / "state.json").unlink()
            checkpoint.rename(tmp_path / "away")
        before = len(judge.requests)
        again = Experiment.resume(tmp_path / "run")
        assert again.trainer.step_index == 0
        asked_by_the_self_test = len(judge.requests) - before
        assert [g.scores for g in again.trainer.step().groups] == scores
        assert len(judge.requests) - before == asked_by_the_self_test
        again.judges.close()


def test_a_judge_that_accepts_nonsense_is_refused_before_anything_is_written(
        files: dict[str, str], tmp_path: Path) -> None:
    with FakeJudge(oracle=lambda question, gold, candidate: True) as judge, \
            pytest.raises(JudgeError, match=judge.url):
        Experiment.create(small(files, judge_url=judge.url), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_i08_the_key_is_written_nowhere(
        files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLTEACH_JUDGE_KEY", KEY)
    with FakeJudge(api_key=KEY) as judge:
        trained(Experiment.create(small(files, judge_url=judge.url), tmp_path / "run"))
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.name == "judge.jsonl" for path in written)
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


def rlteach(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rlteach.cli", *words], capture_output=True, text=True,
                          timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1", **env}, check=False)


def test_train_with_judge_url_from_the_command_line(
        files: dict[str, str], judge: FakeJudge, tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(small(files, judger="rule").model_dump_json(), encoding="utf-8")
    done = rlteach("train", str(tmp_path / "small.json"), "--out", str(tmp_path / "run"),
                   "--set", "judger=llm", "--judge-url", judge.url)
    assert done.returncode == 0, done.stderr
    assert "judge" in done.stdout
    assert "rule disagrees 0.0%" in done.stdout
    config = Config.load(str(tmp_path / "run" / "config.json"))
    assert (config.judger, config.judge_url) == ("llm", (judge.url,))


def test_nobody_at_the_url_is_one_sentence(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(small(files).model_dump_json(), encoding="utf-8")
    with FakeJudge() as judge:
        url = judge.url
    done = rlteach("train", str(tmp_path / "small.json"), "--out", str(tmp_path / "run"), "--judge-url", url)
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("rlteach: ")
    assert url in line
    assert not (tmp_path / "run").exists()
