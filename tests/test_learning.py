"""The promise of the demo, as a long check: it learns, and it does not learn from noise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlteach.config import Config
from rlteach.course.searching import play, shares
from rlteach.data import load_samples
from rlteach.policy.policy import Policy

pytestmark = pytest.mark.gate


def run(out: Path, *settings: str, preset: str = "tiny") -> dict:
    sets = [part for s in settings for part in ("--set", s)]
    command = [sys.executable, "-m", "rlteach.cli", "train", preset, "--out", str(out), *sets]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def test_the_tiny_preset_learns_to_add(tmp_path: Path) -> None:
    summary = run(tmp_path / "run")
    assert summary["before"]["accuracy"] <= 0.55
    assert summary["after"]["accuracy"] >= 0.97
    assert min(summary["after"]["by_level"].values()) > 0.9
    assert (tmp_path / "run" / "curves.png").stat().st_size > 10_000


@pytest.mark.parametrize("control", ["random", "shuffled"])
def test_scores_without_information_teach_nothing(tmp_path: Path, control: str) -> None:
    summary = run(tmp_path / "run", f"control={control}")
    assert summary["after"]["accuracy"] - summary["before"]["accuracy"] <= 0.03
    assert summary["last_step"]["accuracy"] - summary["before"]["accuracy"] <= 0.03


def test_the_agent_preset_learns_to_search(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", preset="tiny-agent")
    assert summary["before"]["by_level"]["single"] <= 0.4
    assert summary["after"]["by_level"]["single"] >= 0.85
    before, after = malformed_of_calls("tiny-agent"), malformed_of_calls(str(tmp_path / "run"))
    assert before >= 0.1
    assert after <= 0.01


def malformed_of_calls(model: str) -> float:
    """Of one-hop test questions, one rollout each."""
    policy = Policy.load(model, Config.preset("tiny-agent"))
    asked = [s for s in load_samples("search/search_dataset_test.jsonl") if s.extra["level"] == "single"]
    return shares(play(policy, asked, range(len(asked))))["malformed_of_calls"]


def test_coins_do_not_teach_the_agent_to_search(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", "control=random", "total_steps=15", preset="tiny-agent")
    assert summary["last_step"]["accuracy"] - summary["before"]["accuracy"] <= 0.05
