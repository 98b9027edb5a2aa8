"""`python -m rlteach.agent test`: plug-ins on any OpenAI-compatible server, without training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_fakes import agent_policy
from workspaces import entered, forget

from rlteach.agent import __main__ as command
from rlteach.agent.loading import load_plugin
from rlteach.agent.plugins import PluginError
from rlteach.agent.trial import Trial, TrialError, try_with_dataset
from rlteach.agent.types import ChatCompletionSample
from rlteach.agent.workspace import create_workspace
from rlteach.serving import serve

ROOT = Path(__file__).resolve().parents[1]
PLAIN = '''\
import time

from rlteach.agent import GroupGraderResult, PluginStatus, RolloutResult, Runtime, group_grader, rollout


@rollout
def one_answer(context, proxy, sample):
    proxy.rollout_client().chat.completions.create(
        model="by the plug-in", messages=[m.model_dump(exclude_none=True) for m in sample.messages])


@rollout(runtime=Runtime(max_concurrency=1))
def slow(context, proxy, sample):
    time.sleep(0.05)
    one_answer(context, proxy, sample)
    return RolloutResult(extra={"reward": 0.25})


@rollout
def drops(context, proxy, sample):
    return RolloutResult(status=PluginStatus.DISCARD, error="not today")


@rollout
def broken(context, proxy, sample):
    raise LookupError("no such thing")


@group_grader
def has_answer(context, sample, trajectories):
    return GroupGraderResult(rewards=[float(str(sample.extra["answer"]) in t.messages[-1].content)
                                      for t in trajectories])


@group_grader
def never(context, sample, trajectories):
    raise LookupError("no grade")


def undecorated(context, proxy, sample):
    pass
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with plug-ins and two questions, which is the working directory."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "__init__.py").write_text("")
    (tmp_path / "plugins" / "plain.py").write_text(PLAIN)
    (tmp_path / "data.jsonl").write_text('{"question": "12 + 34 = ?", "gold_answer": "46"}\n'
                                         '{"question": "50 + 11 = ?", "gold_answer": "61"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    forget()
    yield tmp_path
    forget()


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with serve("tiny-math", api_key="the-key") as server:
        yield server


def called(*words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
           ) -> tuple[int, str, str]:
    """(exit code, output, complaints) of the command with these words."""
    monkeypatch.setattr(sys, "argv", ["rlteach.agent", *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path) -> Any:
    return lambda *words: called("test", *words, monkeypatch=monkeypatch, capsys=capsys)


def of(server: Any) -> tuple[str, ...]:
    return "--url", server.url, "--api-key", "the-key", "--model", server.model


# against a model --------------------------------------------------------------------------------------
def test_a_plain_rollout_on_a_served_model(say: Any, server: Any, here: Path) -> None:
    code, told, _ = say("plugins.plain:one_answer", "--data", "data.jsonl", "--grader",
                        "plugins.plain:has_answer", "--n", "3", "--out", "kept.jsonl", *of(server))
    assert code == 0
    lines = [json.loads(line) for line in (here / "kept.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 6
    rewards = [line["reward"] for line in lines]
    assert rewards == [float(gold in line["messages"][-1]["content"])
                       for line, gold in zip(lines, ["46"] * 3 + ["61"] * 3, strict=True)]
    assert f"mean reward {sum(rewards) / 6:.3f}; statuses: SUCCESS 6; seconds a rollout: median " in told
    assert "95 % within" in told
    assert "longest" in told


def test_one_request_on_the_command_line(say: Any, server: Any) -> None:
    """Row 3: a single sample in place of a file."""
    sample = json.dumps({"messages": [{"role": "user", "content": "12 + 34 = ?"}], "max_new_tokens": 2})
    code, told, _ = say("plugins.plain:one_answer", "--request", sample, *of(server))
    assert code == 0
    assert told.startswith("mean reward none; statuses: SUCCESS 1;")


def test_the_server_may_come_from_the_environment(say: Any, server: Any, monkeypatch: pytest.MonkeyPatch
                                                  ) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "the-key")
    code, told, _ = say("plugins.plain:one_answer", "--data", "data.jsonl", "--limit", "1",
                        "--model", server.model)
    assert code == 0
    assert "SUCCESS 1" in told


def test_the_module_runs_in_a_workspace(tmp_path: Path) -> None:
    """As a process, from the workspace's folder, against a model that follows a script."""
    folder = tmp_path / "ws"
    create_workspace(folder, "search")
    with entered(folder) as get:
        made = get("plugins.test_utils")

        def script(messages: list[dict[str, Any]]) -> dict[str, Any]:
            if messages[-1]["role"] == "user":
                return made.call("web_search", {"Query": "Guho"})
            return made.said("The answer is Jupasi.")

        with made.ScriptedModel(script) as model:
            words = [sys.executable, "-m", "rlteach.agent", "test", "plugins.rollout:demo_rollout",
                     "--limit", "4", "--n", "2", "--data", "data/search_dataset_dev_100.jsonl", "--grader",
                     "plugins.llm_grader:search_grader", "--url", model.url, "--model", "some-model"]
            unset = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "NO_PROXY", "no_proxy")
            env = {name: value for name, value in os.environ.items() if name not in unset}
            env |= {"PYTHONPATH": str(ROOT), "HTTP_PROXY": "http://127.0.0.1:9"}  # a dead one, fault I03
            done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mean reward 0.000; statuses: SUCCESS 8;")
    assert len(model.requests) == 16
    assert {body["model"] for body in model.requests} == {"some-model"}


@pytest.mark.parametrize("model", ["tiny-agent", "random weights"])
def test_the_search_workspace_on_a_served_model(model: str, tmp_path: Path) -> None:
    """rlteach's own server: tools in, tool calls out, tool replies in."""
    create_workspace(tmp_path / "ws", "search")
    with entered(tmp_path / "ws") as get, serve(
            model if model == "tiny-agent" else agent_policy(), name="agent") as server:
        report = try_with_dataset(
            tmp_path / "ws" / "data" / "search_dataset_dev_100.jsonl", get("plugins.rollout").demo_rollout,
            get("plugins.llm_grader").search_grader, url=server.url, api_key=server.api_key, model="agent",
            limit=4, n_sample=4)
    assert report.statuses == {"SUCCESS": 16}
    if model == "tiny-agent":
        assert report.mean_reward is not None
        assert report.mean_reward > -1, "some of its calls are right"
    else:
        assert report.mean_reward == -1, "it never searches"


# how rollouts end -------------------------------------------------------------------------------------
def test_statuses_and_their_reasons_are_told(say: Any, server: Any) -> None:
    code, told, _ = say("plugins.plain:drops", "--data", "data.jsonl", *of(server))
    assert code == 0
    assert "statuses: DISCARD 2" in told
    assert "2 x not today" in told
    code, told, _ = say("plugins.plain:broken", "--data", "data.jsonl", "--n", "2", *of(server))
    assert code == 1, "such a run would stop"
    assert "statuses: FAILURE 4" in told
    assert "4 x LookupError: no such thing" in told


def test_a_server_that_is_not_there_is_a_failure_of_the_rollout(say: Any) -> None:
    code, told, _ = say("plugins.plain:one_answer", "--data", "data.jsonl", "--limit", "1",
                        "--url", "http://127.0.0.1:9/v1")
    assert code == 1
    assert "1 x APIConnectionError" in told


# mistakes of the user's -------------------------------------------------------------------------------
NOWHERE = ("--url", "http://127.0.0.1:9/v1")
MISTAKES = {
    "neither data nor request": (("plugins.plain:one_answer", *NOWHERE), "give --data FILE, or --request"),
    "both": (("plugins.plain:one_answer", "--data", "data.jsonl", "--request", "{}", *NOWHERE),
             "one of the two"),
    "no address": (("plugins.plain:one_answer", "--data", "data.jsonl"), "url is missing"),
    "no such file": (("plugins.plain:one_answer", "--data", "nix.jsonl", *NOWHERE), "nix.jsonl"),
    "no sample": (("plugins.plain:one_answer", "--request", '{"x": 1}', *NOWHERE),
                  "--request: the field 'question'"),
    "no object": (("plugins.plain:one_answer", "--request", "[1]", *NOWHERE), "--request: a list"),
    "no JSON": (("plugins.plain:one_answer", "--request", "{", *NOWHERE), "--request: not a JSON object"),
    "no such module": (("plugins.nix:x", "--data", "data.jsonl", *NOWHERE), "plugins.nix"),
    "no such function": (("plugins.plain:nix", "--data", "data.jsonl", *NOWHERE), "plugins.plain:nix"),
    "not decorated": (("plugins.plain:undecorated", "--data", "data.jsonl", *NOWHERE), "put @rollout"),
    "a grader": (("plugins.plain:has_answer", "--data", "data.jsonl", *NOWHERE), "is a group grader"),
    "a rollout as grader": (("plugins.plain:one_answer", "--grader", "plugins.plain:one_answer", "--data",
                             "data.jsonl", *NOWHERE), "is a rollout"),
    "no name": (("plain", "--data", "data.jsonl", *NOWHERE), "package.module:function"),
    "no number": (("plugins.plain:one_answer", "--limit", "x"), "--limit"),
    "no rollouts": (("plugins.plain:one_answer", "--n", "0"), "--n"),
    "no such option": (("plugins.plain:one_answer", "--nix"), "--nix"),
    "a folder that is not there": (("plugins.plain:drops", "--data", "data.jsonl", "--out", "nix/kept.jsonl",
                                    *NOWHERE), "kept.jsonl"),
}


@pytest.mark.parametrize(("words", "why"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(words: tuple[str, ...], why: str, say: Any) -> None:
    code, told, complaint = say(*words)
    assert (code, told) == (2, "")
    assert complaint.startswith("rlteach: ")
    assert complaint.count("\n") == 1
    assert why in complaint
    assert "Traceback" not in complaint


def test_a_grader_that_fails_is_told_in_one_sentence(say: Any, server: Any) -> None:
    code, _, complaint = say("plugins.plain:one_answer", "--data", "data.jsonl", "--limit", "1", "--grader",
                             "plugins.plain:never", *of(server))
    assert (code, complaint.count("\n")) == (2, 1)
    assert "LookupError: no grade" in complaint


# the parts --------------------------------------------------------------------------------------------
def test_a_plug_in_by_its_name(here: Path) -> None:
    assert load_plugin("plugins.plain:drops", "rollout").__name__ == "drops"
    assert load_plugin("plugins.plain:never", "group_grader", "single_grader").__name__ == "never"
    (here / "plugins" / "bad.py").write_text("import no_such_package\n")
    with pytest.raises(PluginError, match="no_such_package"):
        load_plugin("plugins.bad:x", "rollout")


def test_latency_is_the_rollout_s_own_and_its_quantiles_are_right(here: Path, server: Any) -> None:
    plugin = load_plugin("plugins.plain:slow", "rollout")
    began = time.perf_counter()
    report = try_with_dataset("data.jsonl", plugin, url=server.url, api_key="the-key", model=server.model,
                              n_sample=3)
    wall = time.perf_counter() - began
    assert len(report.seconds) == 6
    assert min(report.seconds) >= 0.05
    assert sum(report.seconds) <= wall, "one after another: waiting for the one place is not counted"
    assert report.rewards == ((0.25,) * 3,) * 2, "the rollout's own reward, without a grader"
    assert Trial(((None,),), {}, tuple(range(1, 101))).p95 == 95
    assert Trial(((None,),), {}, (3.0,)).p95 == 3.0


def test_samples_may_be_given_as_they_are(here: Path, server: Any) -> None:
    sample = ChatCompletionSample(messages=[{"role": "user", "content": "12 + 34 = ?"}])
    report = try_with_dataset([sample], load_plugin("plugins.plain:one_answer", "rollout"), url=server.url,
                              api_key="the-key", model=server.model)
    (view,), = report.trajectories
    assert [m.role for m in view.messages] == ["user", "assistant"]
    with pytest.raises(TrialError, match="nothing to try: 0 samples"):
        try_with_dataset([], load_plugin("plugins.plain:one_answer", "rollout"), url=server.url)
