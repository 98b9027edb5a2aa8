"""The command line, as a user meets it: results, and one sentence for every mistake.

Most commands run in this process, through the same `main`; some in one of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import tiny_policy

from rlteach import cli
from rlteach.cli import parse_settings
from rlteach.config import Config, ConfigError, data_path
from rlteach.policy.registry import embedded_models

QUICK = ("total_steps=2", "batch_size=4", "group_size=4", "max_new_tokens=60", "eval_interval=1", "threads=1")
SCREEN = {**os.environ, "COLUMNS": "200"}
Here = Callable[..., tuple[int, str, str]]


def rlteach(*arguments: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-m", "rlteach.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=cwd, check=False,
                          env={**SCREEN, **env})


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """In this process: (exit code, standard output, standard error)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlteach", *map(str, arguments)])
        monkeypatch.setattr(cli.console, "width", 200)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


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
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as shown:
        patch.setattr(cli.console, "width", 200)
        patch.setattr(sys, "argv", ["rlteach", "train", "tiny", "--out", str(out), "--seed", "3", *small])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    return out, shown.getvalue()


# train --------------------------------------------------------------------------------------------


def test_train_says_before_after_transcripts_and_the_picture(run: tuple[Path, str]) -> None:
    out, text = run
    for wanted in ("before", "best on dev", "last step", "the same questions", "curves.png", "What is"):
        assert wanted in text
    for name in ("config.json", "metrics.jsonl", "curves.png", "summary.json", "log.txt",
                 "checkpoints/best/config.json", "trajectories/step-00002.jsonl"):
        assert (out / name).is_file(), name
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["preset"], summary["seed"], summary["steps"]) == ("tiny", 3, 2)
    assert summary["before"]["n"] == summary["after"]["n"] == 12


def test_a_run_s_config_repeats_it(run: tuple[Path, str], here: Here, tmp_path: Path) -> None:
    out, _ = run
    again = tmp_path / "again"
    assert here("train", out / "config.json", "--out", again)[0] == 0
    ends = [json.loads((p / "summary.json").read_text(encoding="utf-8")) for p in (out, again)]
    for name in ("before", "after", "last_step", "best_step", "tokens"):
        assert ends[0][name] == ends[1][name]


def test_out_has_a_default_and_nothing_is_written_beside_it(
        small: list[str], here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = here("train", "tiny", *small, "--set", "total_steps=1", "--set", "eval_interval=0")
    assert (code, err) == (0, "")
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-tiny")
    assert str(Path("runs") / folder.name) in out
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


def test_resume_of_a_run_that_has_finished(run: tuple[Path, str], here: Here, tmp_path: Path) -> None:
    shutil.copytree(run[0], tmp_path / "run")
    code, out, _ = here("train", "--resume", tmp_path / "run")
    assert code == 0
    assert "best on dev" in out
    ends = [json.loads((p / "summary.json").read_text(encoding="utf-8")) for p in (run[0], tmp_path / "run")]
    assert ends[0]["after"] == ends[1]["after"]


def start(out: Path, small: list[str], *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rlteach.cli", "train", "tiny", "--out", str(out), *small, *sets(*more)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SCREEN)


def lines_of(file: Path) -> int:
    return file.read_text(encoding="utf-8").count("\n") if file.exists() else 0


def test_ctrl_c_says_how_to_go_on(small: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, small, "total_steps=500", "eval_interval=0")
    end = time.monotonic() + 120
    while lines_of(out / "metrics.jsonl") < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    shown, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    steps = lines_of(out / "metrics.jsonl")
    assert f"stopped after step {steps}; go on with: rlteach train --resume {out}" in " ".join(shown.split())
    assert (out / "checkpoints" / f"step-{steps:05d}" / "training" / "state.json").is_file()


@pytest.mark.gate
def test_t01_a_run_that_is_killed_at_any_moment_ends_the_same(small: list[str], tmp_path: Path) -> None:
    """kill -9, again and again, until it is done: the same metrics and the same weights."""
    more = ("total_steps=6", "checkpoint_interval=1", "policy_lr=1e-4")
    whole = start(tmp_path / "whole", small, *more)
    began = time.monotonic()
    whole.communicate()
    duration, rng, killed = time.monotonic() - began, random.Random(0), 0
    process = start(tmp_path / "run", small, *more)
    for _ in range(40):
        try:
            process.communicate(timeout=duration * rng.uniform(0.2, 0.9))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        if not (tmp_path / "run" / "config.json").exists():
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            process = start(tmp_path / "run", small, *more)
        else:
            command = [sys.executable, "-m", "rlteach.cli", "train", "--resume", str(tmp_path / "run")]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 0
    assert killed >= 3
    one, other = tmp_path / "whole", tmp_path / "run"
    for name in ("checkpoints/step-00006/model.safetensors", "checkpoints/best/model.safetensors",
                 "checkpoints/step-00006/training/optimizer.safetensors", "trajectories/step-00006.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert lines_of(other / "metrics.jsonl") == 6, "no line twice"


# eval, ask, grade, models -------------------------------------------------------------------------


def test_a_run_is_a_model_for_eval_and_ask(run: tuple[Path, str], here: Here) -> None:
    out, _ = run
    code, text, err = here("eval", out, "--k", "2", "--json")
    found = json.loads(text)
    assert (code, err) == (0, "")
    assert set(found) == {"accuracy", "ci95", "n", "k", "pass_at_k", "by_level", "unscorable"}
    assert (found["n"], found["k"]) == (12, 2)
    assert found["accuracy"] <= found["pass_at_k"]
    assert here("eval", out, "--k", "2", "--json")[1] == text, "the same seed, the same answers"
    assert here("eval", out, "--k", "2", "--json", "--seed", "1")[1] != text
    code, text, _ = here("eval", out, "--greedy")
    assert "accuracy" in text
    assert "12 questions, greedy" in " ".join(text.split())
    code, text, _ = here("ask", out, "What is 12 + 34?")
    assert code == 0
    assert "2+4=" in text


def test_eval_asks_the_questions_of_a_file(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"question": "What is 12 + 34?", "gold_answer": "46"}, {"question": "x", "gold_answer": "see it"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = json.loads(here("eval", "tiny-math", "--data", file, "--greedy", "--json")[1])
    assert (found["n"], found["unscorable"]) == (1, 1), "promise 1: nobody's verdict is no number"


def test_an_answer_that_was_cut_off_says_so(here: Here, tmp_path: Path) -> None:
    tiny_policy(Config()).save(tmp_path / "babble")
    code, _, err = here("ask", tmp_path / "babble", "?")
    assert (code, err) == (0, "(cut off after 80 tokens)\n")


def answers(tmp_path: Path, *pairs: tuple[str, str]) -> Path:
    file = tmp_path / "answers.jsonl"
    rows = [json.dumps({"question": "q", "gold_answer": g, "response": r}) for g, r in pairs]
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


def test_grade_writes_one_json_line_an_answer(here: Here, tmp_path: Path) -> None:
    file = answers(tmp_path, ("7", r"so \boxed{7}"), ("7", r"so \boxed{8}"), ("7", "seven"),
                   ("see above", r"\boxed{7}"))
    code, out, err = here("grade", file)
    assert code == 0
    verdicts = [json.loads(line) for line in out.splitlines()]
    assert [v["verdict"] for v in verdicts] == ["correct", "incorrect", "incorrect", "unscorable"]
    assert [v["score"] for v in verdicts] == [1.0, 0.0, 0.0, None]
    assert all(set(v) == {"verdict", "score", "source", "reason"} for v in verdicts)
    assert err == "4 answers: 1 correct, 2 incorrect, 1 unscorable\n"
    assert here("grade", file, "--json") == (0, out, "")


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "utf-8"])
def test_f02_grade_on_a_terminal_that_cannot_show_every_character(tmp_path: Path, encoding: str) -> None:
    file = answers(tmp_path, ("7", r"\boxed{多}"), ("7", "\\boxed{\U0001f600}"), ("7", r"\boxed{7}"))
    done = subprocess.run([sys.executable, "-m", "rlteach.cli", "grade", str(file)], capture_output=True,
                          env={**os.environ, "PYTHONIOENCODING": encoding}, check=False)
    assert done.returncode == 0, done.stderr
    reasons = [json.loads(line)["reason"] for line in done.stdout.decode(encoding).splitlines()]
    assert reasons == ["not a number: 多", "not a number: \U0001f600", "answered 7"]


def test_models_lists_what_ships(here: Here) -> None:
    code, out, err = here("models")
    assert (code, err) == (0, "")
    for name, folder in embedded_models().items():
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        rows = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
        [row] = [row for row in rows if row[1:2] == [name]]
        assert f"{card['parameters']:,}" in row
        assert f"{100 * card['greedy_dev']:.1f} %" in row


def test_models_without_a_card_and_without_models(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                  ) -> None:
    monkeypatch.setenv("RLTEACH_DATA", str(tmp_path))
    assert here("models")[0] == 0
    tiny_policy(Config()).save(tmp_path / "models" / "mine")
    code, out, _ = here("models")
    assert code == 0
    assert "mine" in out
    assert "not stated" in out


# mistakes -----------------------------------------------------------------------------------------

BAD: dict[str, tuple[list[str], str]] = {
    "no such preset": (["train", "tyny"], "'tyny'"),
    "no such field": (["train", "tiny", "--set", "groups=4"], "'groups'"),
    "out of range": (["train", "tiny", "--set", "temperature=0"], "temperature must be greater than 0"),
    "not a number": (["train", "tiny", "--set", "temperature=NaN"], "temperature must be a finite number"),
    "not a choice": (["train", "tiny", "--set", "advantage=gae"], "advantage must be 'rloo' or 'grpo'"),
    "group of one": (["train", "tiny", "--set", "group_size=1"],
                     "group_size must be at least 2: a trajectory needs another of its group as baseline; "
                     "got 1"),
    "no sign": (["train", "tiny", "--set", "group_size"], "FIELD=VALUE"),
    "no name": (["train", "tiny", "--set", "=4"], "FIELD=VALUE"),
    "negative seed": (["train", "tiny", "--seed", "-1"], "seed must be"),
    "a beta of one": (["train", "tiny", "--set", "adam_betas=[1, 1]"], "adam_betas"),
    "fields that do not fit": (["train", "tiny", "--set", "token_weighting=topk"], "token_reward_model"),
    "nothing to train": (["train"], "--resume"),
    "two things to train": (["train", "tiny", "--resume", "half-model"], "--resume"),
    "resumed and changed": (["train", "--resume", "half-model", "--seed", "1"], "--resume"),
    "no such run": (["train", "--resume", "nowhere"], "nowhere"),
    "no run in there": (["train", "--resume", "empty"], "empty"),
    "no such config": (["train", "none.json"], "none.json"),
    "broken config": (["train", "broken.json"], "broken.json"),
    "broken toml": (["train", "broken.toml"], "broken.toml"),
    "config is a list": (["train", "list.json"], "list.json"),
    "config is a folder": (["train", "folder.json"], "folder.json"),
    "no such questions": (["train", "tiny", "--set", "train_data=none.jsonl"], "none.jsonl"),
    "no such dev questions": (["train", "tiny", "--set", "dev_data=none.jsonl"], "none.jsonl"),
    "damaged questions": (["train", "tiny", "--set", "test_data=text.jsonl"], "text.jsonl:2"),
    "no pass rates": (["train", "tiny", "--set", "train_data=bare.jsonl"], "pass_rate"),
    "full folder": (["train", "tiny", "--out", "half-model"], "half-model"),
    "out is a file": (["train", "tiny", "--out", "bare.jsonl"], "bare.jsonl"),
    "out below a file": (["train", "tiny", "--out", "bare.jsonl/run"], "bare.jsonl"),
    "no such policy": (["train", "tiny", "--set", "policy=tiny-maths"], "'tiny-maths'"),
    "no such token model": (["train", "tiny-oreal", "--set", "token_reward_model=nobody"], "'nobody'"),
    "no such stop token": (["train", "tiny", "--set", 'stop_tokens=["the end"]'], "'the end'"),
    "answers too long": (["train", "tiny", "--set", "max_new_tokens=600"], "max_new_tokens=600"),
    "broken template": (["train", "tiny", "--set", "chat_template={% for %}"], "chat template"),
    "no such model": (["eval", "tiny-maths"], "'tiny-maths'"),
    "no such file": (["eval", "tiny-math", "--data", "none.jsonl"], "none.jsonl"),
    "a folder of questions": (["eval", "tiny-math", "--data", "empty"], "empty"),
    "greedy k": (["eval", "tiny-math", "--greedy", "--k", "3"], "k must be"),
    "no k": (["eval", "tiny-math", "--k", "0"], "k must be"),
    "an unfinished run": (["eval", "unfinished"], "unfinished"),
    "no tokenizer": (["ask", "half-model", "1+1?"], "tokenizer"),
    "no weights": (["ask", "weightless", "1+1?"], "weightless"),
    "a long question": (["ask", "tiny-math", "1+" * 500], "512 positions"),
    "half a character": (["ask", "tiny-math", "1+1\udcff"], "half a character"),
    "no such answers": (["grade", "none.jsonl"], "none.jsonl"),
    "empty file": (["grade", "empty.jsonl"], "empty.jsonl"),
    "not json": (["grade", "text.jsonl"], "text.jsonl:2"),
    "not utf-8": (["grade", "gbk.jsonl"], "gbk.jsonl:1"),
    "no response": (["grade", "bare.jsonl"], "bare.jsonl:1"),
    "no such command": (["trian", "tiny"], "trian"),
    "no such option": (["train", "tiny", "--sead", "1"], "--sead"),
    "no number": (["eval", "tiny-math", "--k", "three"], "--k"),
    "no model": (["eval"], "model"),
    "no question": (["ask", "tiny-math"], "question"),
    "one too many": (["models", "tiny-math"], "tiny-math"),
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder full of what goes wrong, and we stand in it."""
    good = '{"question": "q", "gold_answer": "1"}\n'
    texts = {"empty.jsonl": "", "bare.jsonl": good, "broken.json": "{", "broken.toml": "seed 3",
             "list.json": "[1]", "text.jsonl": good.replace("}", ', "response": "r"}') + "hello\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "gbk.jsonl").write_bytes('{"question": "你好"}'.encode("gbk"))
    for name in ("empty", "folder.json", "half-model", "unfinished/checkpoints"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "half-model" / "config.json").write_text("{}", encoding="utf-8")
    tiny_policy(Config()).save(tmp_path / "weightless")
    (tmp_path / "weightless" / "model.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_mistake(code: int, out: str, err: str, named: str) -> None:
    assert code == 2, err
    assert err.startswith("rlteach: ")
    assert named in err
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert len(err) < 1000
    assert out == ""


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_sentence_and_code_2(case: str, desk: Path, here: Here) -> None:
    arguments, named = BAD[case]
    before = sorted(desk.rglob("*"))
    check_mistake(*here(*arguments), named)
    assert sorted(desk.rglob("*")) == before, "nothing is half-written"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what is missing here")
def test_a_device_that_is_not_there(desk: Path, here: Here) -> None:
    check_mistake(*here("train", "tiny", "--set", "device=cuda"), "cuda")


def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = rlteach("train", "tiny", "--set", "group_size=1", cwd=tmp_path)
    check_mistake(done.returncode, done.stdout, done.stderr, "group_size must be at least 2")
    assert list(tmp_path.iterdir()) == []


def test_a_hub_id_without_a_network(tmp_path: Path) -> None:
    away = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = rlteach("ask", "owner/model", "1+1?", cwd=tmp_path, **away)
    check_mistake(done.returncode, done.stdout, done.stderr, "owner/model")


def test_nothing_asked_is_helped(here: Here) -> None:
    code, out, err = here()
    assert code in (0, 2)
    assert "train" in out + err
    code, out, err = here("train", "--help")
    assert (code, err) == (0, "")
    assert "--resume" in out


def test_our_own_mistakes_are_not_hidden(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ValueError from the depths is a bug: it keeps its traceback."""

    def broken(*_: object, **__: object) -> None:
        raise ValueError("too many values to unpack")

    monkeypatch.setattr("rlteach.policy.registry.embedded_models", broken)
    with pytest.raises(ValueError, match="too many values"):
        here("models")


# settings -----------------------------------------------------------------------------------------


def test_settings_are_json_where_they_can_be() -> None:
    read = parse_settings(["group_size=4", "policy=my/model", "token_reward_model=none", "control=none",
                           "debug=True", "difficulty_bins=[[0, 0.5, 2]]"], seed=5)
    assert read == {"seed": 5, "group_size": 4, "policy": "my/model", "token_reward_model": None,
                    "control": "none", "debug": True, "difficulty_bins": [[0, 0.5, 2]]}
    assert parse_settings(None) == {}
    assert parse_settings(["system_prompt=a=b, c"]) == {"system_prompt": "a=b, c"}
    assert parse_settings(["seed=1", "seed=2"]) == {"seed": 2}
    with pytest.raises(ConfigError, match="FIELD=VALUE"):
        parse_settings(["=4"])


@pytest.mark.parametrize("name", ["control", "token_weighting", "negative_shaping"])
def test_none_is_a_choice_where_it_is_one(name: str) -> None:
    assert getattr(Config(**parse_settings([f"{name}=none"])), name) == "none"


@pytest.mark.parametrize("name", ["reference", "token_reward_model", "chat_template", "system_prompt"])
@pytest.mark.parametrize("value", ["none", "None", "null"])
def test_none_is_nothing_where_there_may_be_nothing(name: str, value: str) -> None:
    assert getattr(Config(**parse_settings([f"{name}={value}"])), name) is None
