"""The promise of the demo, as a long check: it learns, and it does not learn from noise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    malformed = [json.loads(line)["grader/malformed/mean"] for line in lines]
    assert malformed[0] >= 0.1
    assert sum(malformed[-5:]) / 5 <= 0.03


def test_coins_do_not_teach_the_agent_to_search(tmp_path: Path) -> None:
    summary = run(tmp_path / "run", "control=random", "total_steps=15", preset="tiny-agent")
    assert summary["last_step"]["accuracy"] - summary["before"]["accuracy"] <= 0.05
