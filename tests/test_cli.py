"""The command line, as a user meets it: results, and one sentence for every mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlteach.cli import parse_settings
from rlteach.config import ConfigError, data_path

QUICK = ("total_steps=2", "batch_size=4", "group_size=4", "max_new_tokens=60", "eval_interval=1", "threads=1")


def rlteach(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlteach.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=cwd, check=False)


def sets(*settings: str) -> list[str]:
    return [part for s in settings for part in ("--set", s)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of a run of seconds: two steps, 12 dev and 12 test questions."""
    folder = tmp_path_factory.mktemp("data")
    for split in ("dev", "test"):
        lines = (data_path() / f"prompts/{split}.jsonl").read_text(encoding="utf-8").splitlines()[:12]
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return sets(*QUICK, f"dev_data={folder / 'dev.jsonl'}", f"test_data={folder / 'test.jsonl'}")


@pytest.fixture(scope="module")
def run(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "run"
    done = rlteach("train", "tiny", "--out", out, "--seed", "3", *small)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_train_says_before_after_transcripts_and_the_picture(run: tuple[Path, str]) -> None:
    out, text = run
    for wanted in ("before", "best on dev", "last step", "the same questions", "curves.png", "What is"):
        assert wanted in text
    for name in ("config.json", "metrics.jsonl", "curves.png", "summary.json", "log.txt", "checkpoints/best/config.json",
                 "trajectories/step-00002.jsonl"):
        assert (out / name).is_file(), name
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["preset"] == "tiny"
    assert summary["seed"] == 3
    assert summary["steps"] == 2
    assert summary["before"]["n"] == summary["after"]["n"] == 12


def test_a_run_is_a_model_for_eval_and_ask(run: tuple[Path, str]) -> None:
    out, _ = run
    found = json.loads(rlteach("eval", out, "--k", "2", "--json").stdout)
    assert found["n"] == 12
    assert found["k"] == 2
    assert found["accuracy"] <= found["pass_at_k"]
    assert "accuracy" in rlteach("eval", out, "--greedy").stdout
    asked = rlteach("ask", out, "What is 12 + 34?")
    assert asked.returncode == 0
    assert "2+4=" in asked.stdout


def test_a_run_s_config_repeats_it(run: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = run
    again = tmp_path / "again"
    assert rlteach("train", out / "config.json", "--out", again).returncode == 0
    ends = [json.loads((p / "summary.json").read_text(encoding="utf-8"))["after"] for p in (out, again)]
    assert ends[0] == ends[1]


def test_grade_writes_one_json_line_an_answer(tmp_path: Path) -> None:
    lines = [("7", r"so \boxed{7}"), ("7", r"so \boxed{8}"), ("7", "seven"), ("see above", r"\boxed{7}")]
    file = tmp_path / "answers.jsonl"
    file.write_text("\n".join(json.dumps({"question": "q", "gold_answer": g, "response": r}) for g, r in lines))
    done = rlteach("grade", file)
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [v["verdict"] for v in verdicts] == ["correct", "incorrect", "incorrect", "unscorable"]
    assert [v["score"] for v in verdicts] == [1.0, 0.0, 0.0, None]
    assert all(set(v) == {"verdict", "score", "source", "reason"} for v in verdicts)
    assert done.stderr.strip() == "4 answers: 1 correct, 2 incorrect, 1 unscorable"
    assert rlteach("grade", file, "--json").stderr == ""


def test_models_lists_what_ships() -> None:
    text = rlteach("models").stdout
    assert "tiny-math" in text
    assert "tiny-checker" in text


BAD = {
    "no such preset": (["train", "tyny"], "tyny"),
    "no such field": (["train", "tiny", "--set", "groups=4"], "groups"),
    "out of range": (["train", "tiny", "--set", "temperature=0"], "temperature"),
    "group of one": (["train", "tiny", "--set", "group_size=1"],
                     "group_size must be at least 2: a trajectory needs another of its group as baseline; got 1"),
    "no sign": (["train", "tiny", "--set", "group_size"], "FIELD=VALUE"),
    "nothing to train": (["train"], "--resume"),
    "no such file": (["train", "tiny", "--set", "train_data=none.jsonl"], "none.jsonl"),
    "no such run": (["train", "--resume", "nowhere"], "nowhere"),
    "no such model": (["eval", "tiny-maths"], "tiny-maths"),
    "greedy k": (["eval", "tiny-math", "--greedy", "--k", "3"], "k must be"),
    "no such answers": (["grade", "none.jsonl"], "none.jsonl"),
    "empty file": (["grade", "empty.jsonl"], "empty.jsonl"),
    "not json": (["grade", "text.jsonl"], "text.jsonl:2"),
    "not utf-8": (["grade", "gbk.jsonl"], "gbk.jsonl:1"),
    "no response": (["grade", "short.jsonl"], "short.jsonl:1"),
    "no tokenizer": (["ask", "half-model", "1+1?"], "tokenizer"),
    "full folder": (["train", "tiny", "--out", "half-model"], "half-model"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_sentence_and_code_2(case: str, tmp_path: Path) -> None:
    arguments, named = BAD[case]
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "text.jsonl").write_text('{"question": "q", "gold_answer": "1", "response": "r"}\nhello\n')
    (tmp_path / "gbk.jsonl").write_bytes('{"question": "你好"}'.encode("gbk"))
    (tmp_path / "short.jsonl").write_text('{"question": "q", "gold_answer": "1"}\n')
    (tmp_path / "half-model").mkdir()
    (tmp_path / "half-model" / "config.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    done = rlteach(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("rlteach: ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before, "nothing is half-written"


def test_settings_are_json_where_they_can_be() -> None:
    read = parse_settings(["group_size=4", "policy=my/model", "token_reward_model=none", "control=none",
                           "debug=True", "difficulty_bins=[[0, 0.5, 2]]"], seed=5)
    assert read == {"seed": 5, "group_size": 4, "policy": "my/model", "token_reward_model": None,
                    "control": "none", "debug": True, "difficulty_bins": [[0, 0.5, 2]]}
    with pytest.raises(ConfigError, match="FIELD=VALUE"):
        parse_settings(["=4"])
