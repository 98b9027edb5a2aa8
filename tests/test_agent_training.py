"""Plug-ins in a run: from a config to a run directory, through every status, interrupted and resumed."""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from agent_fakes import (
    SEARCH,
    ScriptedEngine,
    agent_config,
    agent_policy,
    ask,
    call_text,
    turns_so_far,
)
from fakes import even_first, same, state
from rich.console import Console

import rlteach as rl
from rlteach.agent import (
    GroupGraderResult,
    PluginJudger,
    PluginRollout,
    PluginStatus,
    PluginStopError,
    RolloutResult,
    group_grader,
    rollout,
)
from rlteach.agent.loading import load_plugin
from rlteach.agent.plugins import PluginError
from rlteach.config import Config, ConfigError
from rlteach.fields import Grader
from rlteach.judger.rule import RuleJudger
from rlteach.oreal import losses
from rlteach.policy.policy import Policy
from rlteach.serving.fake_judge import FakeJudge
from rlteach.training.evaluate import evaluate
from rlteach.training.experiment import Experiment
from rlteach.training.judges import Judges
from rlteach.training.runlog import after
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Group
from rlteach.views.progress import describe
from rlteach.views.report import transcripts
from rlteach.views.trace import TraceError, read_trace, rollout_table, trace_tree

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = ("started", "kept", "discarded", "failed", "retries", "timeouts", "history_cuts")


@rollout
def searcher(context: Any, proxy: Any, sample: Any) -> RolloutResult:
    """Asks, answers one call with a tool's words, asks again."""
    client, messages = proxy.rollout_client(), sample.model_dump(exclude_none=True)["messages"]
    turns = 0
    while True:
        answer = client.chat.completions.create(model="x", messages=messages, tools=[SEARCH])
        reply, turns = answer.choices[0].message, turns + 1
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            return RolloutResult(extra={"turns": turns})
        for call in reply.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "the tool's own words"})


@group_grader
def by_length(context: Any, sample: Any, trajectories: list[Any]) -> GroupGraderResult:
    return GroupGraderResult(rewards=[float(i % 2) for i in range(len(trajectories))],
                             metrics={"turns": max(t.extra["turns"] for t in trajectories)})


def script(prompt: str) -> str:
    return call_text(Query="Ann") if turns_so_far(prompt) == 0 else "Ann it is"


# the trainer ----------------------------------------------------------------------------------------


def test_a_decorated_function_is_a_rollout_and_closing_ends_its_threads() -> None:
    config = agent_config(max_new_tokens=6)
    policy = agent_policy(config)
    before = set(threading.enumerate())
    trainer = OrealTrainer(policy, by_length, [ask(), ask("where?", name="s1")], config, rollout=searcher)
    for _ in range(2):
        record = trainer.step()
        assert record.metrics["rollout/started"] == record.metrics["rollout/kept"] == 2
        assert {f"rollout/{name}" for name in NUMBERS} <= set(record.metrics)
        assert record.metrics["grader/turns/max"] >= 1
        assert record.metrics["grader/discarded"] == 0
        assert record.metrics["ratio/max_deviation"] <= 1e-5
    assert policy.version == 2
    trainer.close()
    trainer.close()
    left = {t.name for t in set(threading.enumerate()) - before}
    assert left <= {"rlteach-plugins"}, "all plug-ins of a process share this one"
    assert trainer.step().index == 3, "a further step starts it again"
    trainer.close()


def test_what_was_given_ready_made_is_left_open() -> None:
    config = agent_config(max_new_tokens=6)
    policy = agent_policy(config)
    closed = []

    class Mine(PluginRollout):
        def close(self) -> None:
            closed.append(True)
            super().close()

    made = Mine(searcher, policy)
    trainer = OrealTrainer(policy, by_length, [ask()], config, rollout=made)
    closed.clear()
    trainer.close()
    assert closed == []
    made.close()


def test_a_grader_is_no_rollout() -> None:
    with pytest.raises(PluginError, match="by_length is a group grader: @rollout is needed here"):
        OrealTrainer(agent_policy(), by_length, [ask()], agent_config(), rollout=by_length)


def test_only_what_the_model_said_has_gradient() -> None:
    """The loss by the state that every logit is made of: zero before each token that a tool or the chat
    template wrote, and not zero before the model's own."""
    config = agent_config(selection="all", kl_coefficient=0.5, max_new_tokens=100)
    policy = agent_policy(config)
    made = PluginRollout(searcher, policy, engine=lambda p: ScriptedEngine(p, script))
    trainer = OrealTrainer(policy, by_length, [ask()], config, rollout=made)
    batch = trainer.shape(trainer.select(trainer.grade(trainer.rollout(trainer.draw()))))
    made.close()
    rows = batch.policy_rows
    seen: list[torch.Tensor] = []

    def keep_gradient(_: Any, __: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        seen.append(output.last_hidden_state)

    handle = policy.model.base_model.register_forward_hook(keep_gradient)
    logp = policy.logprobs(rows, config.temperature)
    count = losses.Normalizers.count(rows.action_mask, rows.positive, config.loss_norm)
    losses.policy_loss(logp.sampling, logp.full, rows, count, config).sum().backward()
    handle.remove()
    [states] = seen
    moved = states.grad.abs().sum(-1) > 0  # [N, T]: position t predicts token t + 1
    assert torch.equal(moved[:, :-1], rows.action_mask[:, 1:])
    for t in batch.groups[0].trajectories:
        said = [token for token, acted in zip(t.token_ids, t.action_mask, strict=True) if acted]
        own, whole = policy.tokenizer.decode(said), policy.tokenizer.decode(t.token_ids)
        assert "web_search" in own
        assert "Ann it is" in own
        assert "the tool's own words" not in own
        assert "the tool's own words" in whole


# a judger's and a rollout's own numbers ---------------------------------------------------------------


def test_custom_parts_may_count_too() -> None:
    class Counting:
        def grade(self, asked: Group) -> Any:
            return RuleJudger().grade(asked)

        def take_metrics(self) -> dict[str, float]:
            return {"seen": 7.0}

    class Rolling:
        def __call__(self, policy: Policy, samples: Any, keys: Any) -> list[Group]:
            answers = policy.sample(samples, keys)
            return [Group(s, t) for s, t in zip(samples, answers, strict=True)]

        def take_metrics(self) -> dict[str, float]:
            return {"rollout/mine": 3.0}

    config = agent_config(max_new_tokens=4)
    judger = rl.graders((Counting(), 1.0), (Counting(), 1.0))
    record = OrealTrainer(agent_policy(config), judger, [ask()], config, rollout=Rolling()).step()
    assert record.metrics["rollout/mine"] == 3
    assert record.metrics["grader/seen"] == record.metrics["grader/Counting/seen"] == 7
    assert "grader/discarded" not in record.metrics


def test_a_grader_s_discard_drops_the_sample() -> None:
    """It changes no baseline and leaves no row, alone and as one of several."""
    @group_grader
    def picky(context: Any, sample: Any, trajectories: list[Any]) -> GroupGraderResult:
        if sample.extra["bad"]:
            return GroupGraderResult(status=PluginStatus.DISCARD, error="no good")
        return GroupGraderResult(rewards=[float(i % 2) for i in range(len(trajectories))])

    data = [ask(name="good", bad=False), ask("who else?", name="bad", bad=True)]
    for judger in (picky, rl.graders((picky, 0.9), (even_first, 0.1))):
        config = agent_config(max_new_tokens=4, group_size=4)
        trainer = OrealTrainer(agent_policy(config), judger, data, config)
        record = trainer.step()
        assert [g.sample.id for g in record.groups] == ["good"]
        assert record.metrics["grader/discarded"] == 1
        assert record.metrics["judge/unscorable"] == 0
        found = evaluate(trainer.policy, trainer.judger, data)
        assert found.unscorable == 1, "a measurement loses nothing"


def test_an_evaluation_leaves_no_trace_in_the_next_step_s_numbers() -> None:
    """One judger for both, as in a lesson."""
    @group_grader
    def counts(context: Any, sample: Any, trajectories: list[Any]) -> GroupGraderResult:
        return GroupGraderResult(rewards=[1.0] * len(trajectories), metrics={"members": len(trajectories)})

    config = agent_config(max_new_tokens=4, group_size=4)
    trainer = OrealTrainer(agent_policy(config), rl.graders((counts, 1.0)), [ask()], config)
    assert evaluate(trainer.policy, trainer.judger, [ask()]).accuracy == 1
    metrics = trainer.step().metrics
    assert metrics["grader/members/min"] == metrics["grader/members/mean"] == 4


@pytest.mark.parametrize("who", ["rollout", "grader"])
def test_a_step_whose_every_sample_is_discarded_changes_nothing(who: str) -> None:
    @rollout
    def drops(context: Any, proxy: Any, sample: Any) -> RolloutResult:
        return RolloutResult(status=PluginStatus.DISCARD)

    @group_grader
    def refuses(context: Any, sample: Any, trajectories: list[Any]) -> GroupGraderResult:
        return GroupGraderResult(status=PluginStatus.DISCARD)

    config = agent_config(max_new_tokens=4, token_reward_model="policy", token_weighting="threshold",
                          control="shuffled")
    policy = agent_policy(config)
    trainer = OrealTrainer(policy, refuses if who == "grader" else even_first, [ask(), ask("x?", name="s1")],
                           config, rollout=drops if who == "rollout" else None)
    weights, token_weights = state(policy.model), state(trainer.token_reward_model)
    record = trainer.step()
    trainer.close()
    assert (record.index, record.groups, policy.version) == (1, (), 0)
    assert same(weights, state(policy.model))
    assert same(token_weights, state(trainer.token_reward_model))
    assert not [k for k, v in record.metrics.items() if v is not None and v != v], "no NaN"
    assert record.metrics["loss/total"] is None
    assert record.metrics["reward/mean"] is None
    assert "no update" in repr(record)
    assert describe(record) == "reward none  no update  discarded 2"


# by name --------------------------------------------------------------------------------------------

WORDS = "TOOL = 'the tool says so'\n"
ROLLOUT = '''
    import time
    from pathlib import Path

    from rlteach.agent import PluginStatus, RolloutResult, RolloutRetryException, observe, rollout
    from rlteach.agent.tracing import current

    from .words import TOOL

    @observe
    def look(sample):
        if sample.extra.get("how") == "large":
            return "x" * 1_000_000
        if sample.extra.get("how") == "hangs":
            time.sleep(60)
        return TOOL

    @rollout(runtime={"max_concurrency": 50})
    def demo_rollout(context, proxy, sample):
        how = sample.extra.get("how")
        if how == "discard":
            return RolloutResult(status=PluginStatus.DISCARD, error="not this one")
        about = current()[1].about
        if how == "retry" and (about["member"], about["attempt"]) == (0, 1):
            raise RolloutRetryException("once more")
        if how == "fails" and not Path("mended").exists():
            raise ZeroDivisionError("a bug")
        if how == "silent":
            return None
        if how == "wrong type":
            return "fine"
        messages = [m.model_dump(exclude_none=True) for m in sample.messages]
        client = proxy.rollout_client()
        for turn in range(2):
            reply = client.chat.completions.create(model="x", messages=messages).choices[0].message
            messages.append(reply.model_dump(exclude_none=True))
            if turn == 0:
                messages.append({"role": "user", "content": look(sample)})
        return RolloutResult(extra={"note": sample.extra["answer"]})

    @rollout(runtime={"timeout": 0.3})
    def hasty_rollout(context, proxy, sample):
        return demo_rollout(context, proxy, sample)
'''
GRADER = '''
    import os
    from rlteach.agent import GroupGraderResult, PluginStatus, group_grader, single_grader

    @group_grader
    def demo_grader(context, sample, trajectories):
        how = (sample.extra.get("grade") or "") if context.phase == "train" else ""
        if how in ("DISCARD", "RETRY", "FAILURE") and not os.path.exists("mended"):
            return GroupGraderResult(status=PluginStatus[how], error="told so")
        if how == "wrong type":
            return [1.0] * len(trajectories)
        rewards = [float(sum(map(ord, t.messages[-1].content)) % 2) for t in trajectories]
        return GroupGraderResult(rewards=rewards, metrics={"answers": len(trajectories)})

    @single_grader
    def short(context, sample, trajectory):
        return float(len(trajectory.messages[-1].content) < 20)

    @single_grader
    def needs_a_judge(context, sample, trajectory):
        import openai
        client = openai.OpenAI(max_retries=0)
        return float(bool(client.models.list().data))

    @group_grader
    def notes_phase(context, sample, trajectories):
        with open("phases", "a") as file:
            file.write(context.phase + "\\n")
        return GroupGraderResult(rewards=[1.0] * len(trajectories))

    def plain():
        pass
'''


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a folder plugins/ that holds three modules."""
    (tmp_path / "plugins").mkdir()
    for name, text in (("words", WORDS), ("rollout", ROLLOUT), ("grader", GRADER)):
        (tmp_path / "plugins" / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    paths, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name.split(".")[0] in ("plugins", "loose", "package", "rollout"):
            del sys.modules[name]


def test_a_file_and_a_module_are_the_same_function(workspace: Path) -> None:
    one = load_plugin("plugins/rollout.py:demo_rollout", "rollout")
    assert load_plugin("plugins.rollout:demo_rollout", "rollout") is one
    assert load_plugin(f"{workspace}/plugins/rollout.py:demo_rollout", "rollout") is one
    assert one.__globals__["TOOL"] == "the tool says so"


def test_files_elsewhere_and_files_alone(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A package by its __init__.py, wherever it is; a file without a package; another workspace later."""
    away = tmp_path_factory.mktemp("away")
    (away / "package" / "inner").mkdir(parents=True)
    for file in ("package/__init__.py", "package/inner/__init__.py"):
        (away / file).touch()
    (away / "package" / "words.py").write_text(WORDS, encoding="utf-8")
    text = textwrap.dedent(ROLLOUT).replace("from .words", "from ..words")
    (away / "package" / "inner" / "rollout.py").write_text(text, encoding="utf-8")
    assert load_plugin(f"{away}/package/inner/rollout.py:demo_rollout", "rollout").__module__ == (
        "package.inner.rollout")
    (away / "loose.py").write_text(textwrap.dedent(GRADER), encoding="utf-8")
    assert load_plugin(f"{away}/loose.py:short", "single_grader").__module__ == "loose"
    first = load_plugin("plugins.grader:short", "single_grader")
    (away / "plugins").mkdir()
    (away / "plugins" / "grader.py").write_text(textwrap.dedent(GRADER), encoding="utf-8")
    os.chdir(away)
    second = load_plugin("plugins.grader:short", "single_grader")
    assert second.__code__.co_filename == f"{away}/plugins/grader.py" != first.__code__.co_filename


def test_plug_ins_of_the_package_and_of_the_folder_itself(
        workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout the package lies below the working directory, too; it is never imported twice."""
    monkeypatch.chdir(ROOT)
    known = importlib.import_module("rlteach.agent.tools")
    for name in ("rlteach.agent.tools:get_current_weather", "rlteach/agent/tools.py:get_current_weather"):
        with pytest.raises(PluginError, match="get_current_weather is no plug-in"):
            load_plugin(name, "rollout")
    assert sys.modules["rlteach.agent.tools"] is known
    monkeypatch.chdir(workspace / "plugins")
    with pytest.raises(PluginError, match=r"no known parent package.*start in the folder above it"):
        load_plugin("rollout.py:demo_rollout", "rollout")


BROKEN = {"syntax": "def f(:\n", "needs": "import no_such_module_here\n", "stops": "raise SystemExit(3)\n",
          "fails": "1 / 0\n", "empty": ""}


@pytest.mark.parametrize(("name", "why"), [
    ("nothing", "is no name: write it as package.module:function or path/to/file.py:function"),
    ("plugins.rollout:", "is no name"), (":f", "is no name"), ("plugins/rollout:f", "is no name"),
    ("plugins.rollout:a b", "is no name"), ("plugins/gone.py:f", "there is no file .*plugins/gone.py"),
    ("plugins.gone:f", "there is no module 'plugins.gone' in the working directory"),
    ("gone_altogether:f", "there is no module 'gone_altogether'"),
    ("plugins.rollout:demo", "plugins.rollout has no function 'demo': it has demo_rollout"),
    ("plugins.empty:f", "no function 'f': put @rollout above a function there"),
    ("plugins/grader.py:demo_grader", "demo_grader is a group grader: @rollout is needed here"),
    ("plugins.grader:plain", "plain is no plug-in: put @rollout above its definition"),
    ("plugins.syntax:f", "cannot be imported .SyntaxError: .*mend it"),
    ("plugins.needs:f", "needs the module 'no_such_module_here', which is not there: install it"),
    ("plugins.stops:f", "cannot be imported .SystemExit: 3"),
    ("plugins.fails:f", "cannot be imported .ZeroDivisionError: division by zero"),
    ("json.py:f", "'json' is the name of another module of Python"),
    ("plugins/a-b.py:f", "a module cannot be named a-b.py"),
    ("pytest/own.py:f", "'pytest' is the name of another module of Python"),
    ("rlteach.agent.tools:weather", "rlteach.agent.tools has no function 'weather'"),
])
def test_a_name_that_cannot_be_used_is_one_sentence(workspace: Path, name: str, why: str) -> None:
    for module, text in BROKEN.items():
        (workspace / "plugins" / f"{module}.py").write_text(text, encoding="utf-8")
    (workspace / "json.py").touch()
    (workspace / "rlteach").mkdir()
    (workspace / "pytest").mkdir()
    (workspace / "pytest" / "own.py").touch()
    (workspace / "plugins" / "a-b.py").touch()
    with pytest.raises(PluginError, match=why) as caught:
        load_plugin(name, "rollout")
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_config_fields_of_plug_ins() -> None:
    config = Config(graders=["a.b:f", {"plugin": "c.py:g", "weight": 0.1, "envs": {"X": "1"}}], rollout="r:f")
    assert config.graders == (Grader(plugin="a.b:f"), Grader(plugin="c.py:g", weight=0.1, envs={"X": "1"}))
    assert Config(graders="a:f").graders == (Grader(plugin="a:f", weight=1),)
    assert Config(**json.loads(json.dumps(config.model_dump()))) == config
    assert config.replace(graders=None, rollout=None) == Config()


@pytest.mark.parametrize(("fields", "why"), [
    ({"rollout": "no_colon"}, "rollout must be package.module:function or path/to/file.py:function; "
                              "got 'no_colon'"),
    ({"graders": ["a:f", "b"]}, "graders.1.plugin must be package.module:function.*got 'b'"),
    ({"graders": [{"plugin": "a:f", "weight": 0}]}, "graders.0.weight must be greater than 0; got 0"),
    ({"graders": [{"plugin": "a:f", "weight": float("nan")}]}, "graders.0.weight"),
    ({"graders": [{"weight": 1}]}, "graders.0.plugin field required"),
    ({"graders": [{"plugin": "a:f", "wait": 1}]}, "no config field 'graders.0.wait'"),
    ({"graders": [{"plugin": "a:f", "envs": {"A": 1}}]}, "graders.0.envs.A must be a valid string"),
])
def test_wrong_plug_in_fields_name_the_field(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Config(**fields)


# from a config --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "agent"
    agent_policy(positions=512).save(folder)
    return str(folder)


def line(name: str, **extra: Any) -> dict[str, Any]:
    return {"id": name, "question": f"who is {name}?", "gold_answer": "Ann", "name": name, **extra}


def write(file: str, *lines: dict[str, Any]) -> str:
    Path(file).write_text("".join(json.dumps(entry) + "\n" for entry in lines), encoding="utf-8")
    return file


def run_config(model: str, *hows: str, grade: str | None = None, **changes: Any) -> Config:
    """Two ordinary questions to train on and one for each of `hows`; all of them in each step."""
    train = [line("a", grade=grade), line("b"), *(line(f"t{i}", how=how) for i, how in enumerate(hows))]
    return Config(**{
        "name": "agents", "policy": model, "train_data": write("train.jsonl", *train),
        "dev_data": write("dev.jsonl", line("c")), "test_data": write("test.jsonl", line("d"), line("e")),
        "rollout": "plugins/rollout.py:demo_rollout", "graders": "plugins.grader:demo_grader",
        "batch_size": len(train), "group_size": 4, "max_new_tokens": 6, "total_steps": 2, "warmup_steps": 0,
        "eval_interval": 1, "threads": 1, "policy_lr": 1e-2, **changes})


def finished(experiment: Experiment) -> Experiment:
    with experiment:
        if "before" not in experiment.summary:
            experiment.measure_before()
        for _ in experiment.steps():
            pass
        experiment.finish()
    return experiment


def metrics_of(folder: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (Path(folder) / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_a_config_trains_with_plug_ins(workspace: Path, model: str) -> None:
    before = set(threading.enumerate())
    done = finished(Experiment.create(run_config(model), Path("run")))
    left = {t.name for t in set(threading.enumerate()) - before}
    assert left <= {"rlteach-plugins", "rlteach-proxy"}
    rows = metrics_of("run")
    assert [row["rollout/kept"] for row in rows] == [2, 2], "dev's rollouts do not count as a step's"
    assert [row["grader/answers/max"] for row in rows] == [4, 4]
    assert done.trainer.policy.version > 0
    for name in ("before", "after", "last_step"):
        assert done.summary[name]["n"] == 2
        assert done.summary[name]["unscorable"] == 0
    assert done.summary["versions"]["grader"] == "plugins.grader:demo_grader"
    spans = read_trace("run")
    assert {s["about"]["phase"] for s in spans if s["kind"] == "rollout"} == {"train", "test"}
    assert {s["kind"] for s in spans} >= {"sample", "rollout", "model", "tool", "grade"}
    assert Config.load("run/config.json") == done.config


def test_a_run_without_plug_ins_has_no_trace(workspace: Path, model: str) -> None:
    finished(Experiment.create(run_config(model, rollout=None, graders=(), eval_interval=0), Path("run")))
    assert not Path("run/trace.jsonl").exists()


def test_several_graders_by_weight_and_phase(workspace: Path, model: str) -> None:
    config = run_config(model, total_steps=1, graders=[
        {"plugin": "plugins/grader.py:demo_grader", "weight": 0.5}, {"plugin": "plugins.grader:short"},
        "plugins.grader:notes_phase"])
    done = finished(Experiment.create(config, Path("run")))
    scores = {s for g in done.trainer.history[0].groups for s in g.scores}
    assert {round(2.5 * score, 9) for score in scores} <= {1.0, 1.5, 2.0, 2.5}
    phases = Path("phases").read_text("utf-8").split()
    assert phases.count("train") == 2
    assert phases.count("test") == 2 + 1 + 2 + 2, "before, dev, after, last step"


def test_resumed_equals_uninterrupted(workspace: Path, model: str) -> None:
    config = run_config(model, "retry", "discard", total_steps=4, checkpoint_interval=1)
    whole = finished(Experiment.create(config, Path("whole")))
    with Experiment.create(config, Path("run")) as first:
        first.measure_before()
        for record in first.steps():
            if record.index == 2:
                break
    again = finished(Experiment.resume(Path("run")))
    assert same(state(whole.trainer.policy.model), state(again.trainer.policy.model))
    clocks = ("seconds", "tokens_per", "memory", "judge/s")
    quiet = [{k: v for k, v in row.items() if not k.startswith(clocks)} for row in metrics_of("run")]
    assert [row["step"] for row in quiet] == [1, 2, 3, 4]
    for mine, row in zip(quiet, metrics_of("whole"), strict=True):
        assert mine == {k: row[k] for k in mine}
    assert whole.summary["after"] == again.summary["after"]


# every way a plug-in may end, in a run ----------------------------------------------------------------


def trained(config: Config) -> tuple[Experiment, list[dict[str, Any]]]:
    with Experiment.create(config, Path("run")) as experiment:
        for _ in experiment.steps():
            pass
    return experiment, read_trace("run")


def reasons(spans: list[dict[str, Any]], kind: str, sample: str) -> set[str]:
    return {s["about"]["reason"] for s in spans if s["kind"] == kind and s["about"]["sample"] == sample}


def test_discard_retry_and_a_megabyte_of_a_tool(workspace: Path, model: str) -> None:
    done, spans = trained(run_config(model, "discard", "retry", "large", total_steps=1, eval_interval=0))
    [record] = done.trainer.history
    assert {g.sample.id for g in record.groups} == {"a", "b", "t1", "t2"}
    numbers = {name: record.metrics[f"rollout/{name}"] for name in NUMBERS}
    assert (numbers["started"], numbers["kept"], numbers["discarded"], numbers["failed"]) == (5, 4, 1, 0)
    assert numbers["retries"] == 1
    assert reasons(spans, "rollout", "t0") == {"not this one"}
    assert "RolloutRetryException: once more" in reasons(spans, "rollout", "t1")
    [large] = [g for g in record.groups if g.sample.id == "t2"]
    assert {t.finish_reason for t in large.trajectories} == {"length"}
    assert record.metrics["response/truncated"] >= 4 / 16
    events = [e for s in spans for e in s["events"] if e["name"] == "no room"]
    assert len(events) >= 4
    assert max(len(json.dumps(s)) for s in spans) < 100_000, "long texts are cut in the trace"


def test_a_tool_that_hangs_discards_its_sample(workspace: Path, model: str) -> None:
    config = run_config(model, "hangs", total_steps=1, eval_interval=0, group_size=2,
                        rollout="plugins.rollout:hasty_rollout")
    write("train.jsonl", line("t0", how="hangs"), line("t1", how="discard"))
    done, spans = trained(config.replace(batch_size=2))
    [record] = done.trainer.history
    assert record.groups == ()
    assert record.metrics["rollout/timeouts"] >= 4
    assert record.metrics["rollout/discarded"] == 2
    assert done.trainer.policy.version == 0
    [reason] = reasons(spans, "sample", "t0")
    assert reason == "RETRY 4 times: timeout: hasty_rollout took longer than 0.3 s"


def engines() -> set[threading.Thread]:
    """Those that are running, of other tests in this process, too."""
    return {thread for thread in threading.enumerate() if thread.name == "rlteach-engine"}


@pytest.mark.parametrize(("how", "why"), [
    ("fails", "ZeroDivisionError: a bug"), ("silent", "the policy gave no answer"),
    ("wrong type", "a rollout returns RolloutResult or None; got str")])
def test_a_failure_stops_the_run_where_it_is_resumed(workspace: Path, model: str, how: str, why: str) -> None:
    config = run_config(model, how, total_steps=1, eval_interval=0)
    before = engines()
    experiment = Experiment.create(config, Path("run"))
    with pytest.raises(PluginStopError, match=f"failed 4 times on sample 't0' .*{why}.*resume"):
        list(experiment.steps())
    assert any(why in reason for reason in reasons(read_trace("run"), "rollout", "t0"))
    assert not Path("run/metrics.jsonl").exists(), "no step was finished"
    assert engines() <= before, "an error closes what was opened"
    if how == "fails":
        Path("mended").touch()
        assert finished(Experiment.resume(Path("run"))).summary["state"] == "finished"


@pytest.mark.parametrize("grade", ["DISCARD", "RETRY", "FAILURE", "wrong type"])
def test_statuses_of_a_grader_in_a_run(workspace: Path, model: str, grade: str) -> None:
    config = run_config(model, grade=grade, total_steps=1, eval_interval=0)
    if grade in ("DISCARD", "RETRY"):
        done, spans = trained(config)
        [record] = done.trainer.history
        assert [g.sample.id for g in record.groups] == ["b"]
        assert record.metrics["grader/discarded"] == 1
        [reason] = reasons(spans, "grade", "a")
        assert reason.endswith("told so")
        return
    why = "told so" if grade == "FAILURE" else "a group grader returns GroupGraderResult; got list"
    with pytest.raises(PluginStopError, match=f"grader 'demo_grader' failed 4 times on sample 'a' .*{why}"):
        trained(config)
    spans = [s for s in read_trace("run") if s["kind"] == "grade" and s["about"]["sample"] == "a"]
    assert any(why in event["reason"] for s in spans for event in s["events"])
    if grade == "FAILURE":
        Path("mended").touch()
        assert finished(Experiment.resume(Path("run"))).summary["state"] == "finished"


# measuring ------------------------------------------------------------------------------------------


def test_what_a_rollout_discards_is_unscorable_and_not_lost() -> None:
    calls = []

    @rollout
    def partly(context: Any, proxy: Any, sample: Any) -> RolloutResult | None:
        calls.append((context.phase, sample.extra["bad"]))
        if sample.extra["bad"]:
            return RolloutResult(status=PluginStatus.DISCARD)
        proxy.rollout_client().chat.completions.create(model="x", messages=sample.model_dump()["messages"])
        return RolloutResult(extra={"reward": 1.0})

    @group_grader
    def zero(context: Any, sample: Any, trajectories: list[Any]) -> GroupGraderResult:
        return GroupGraderResult(rewards=[0.0] * len(trajectories))

    data = [ask("a?", name="s0", bad=True), ask("b?", name="s1", bad=False, level=2),
            ask("c?", name="s2", bad=True, level=2), ask("d?", name="s3", bad=False, n=7)]
    policy = agent_policy(agent_config(max_new_tokens=3))
    before = {t.name for t in threading.enumerate()}
    found = evaluate(policy, PluginJudger(zero), data, greedy=False, k=3, rollout=partly)
    assert (found.accuracy, found.n, found.k, found.unscorable) == (1.0, 2, 3, 6)
    assert found.by_level == {"2": 1.0, "all": 1.0}
    assert [len(g.trajectories) for g in found.groups] == [0, 3, 0, 3], "a sample's own n is for training"
    assert {phase for phase, _ in calls} == {"test"}
    for thread in threading.enumerate():
        if thread.name == "rlteach-zero":  # it has handed over its result, and may still be about to end
            thread.join(20)
    assert {t.name for t in threading.enumerate()} <= before | {"rlteach-plugins"}
    everything_bad = evaluate(policy, PluginJudger(zero), data[:1], rollout=partly)
    assert (everything_bad.accuracy, everything_bad.n, everything_bad.unscorable) == (None, 0, 1)
    assert "discarded by the rollout" in drawn(transcripts(found, found))


def test_groups_in_another_order_are_refused() -> None:
    policy, data = agent_policy(agent_config(max_new_tokens=3)), [ask(name="s0"), ask("x?", name="s1")]

    def turned(policy: Policy, samples: Any, keys: Any, **_: Any) -> list[Group]:
        answers = policy.sample(samples, keys)
        return [Group(s, t) for s, t in zip(samples, answers, strict=True)][::-1]

    with pytest.raises(ValueError, match="not in the order of the samples"):
        evaluate(policy, RuleJudger(), data, rollout=turned)


@pytest.mark.parametrize("greedy", [True, False])
def test_dev_and_test_are_asked_as_the_config_says(workspace: Path, model: str, greedy: bool) -> None:
    config = run_config(model, eval_greedy=greedy, total_steps=1, eval_interval=0, temperature=2.0)
    with Experiment.create(config, Path("run")) as experiment:
        policy = experiment.trainer.policy
        found = experiment.measure_before()
        own = evaluate(policy, experiment.judges.examiner, experiment.test, greedy=greedy,
                       rollout=experiment.trainer.rollouts)
        other = evaluate(policy, experiment.judges.examiner, experiment.test, greedy=not greedy,
                         rollout=experiment.trainer.rollouts)

    def said(measured: Any) -> list[Any]:
        return [t.token_ids for g in measured.groups for t in g.trajectories]

    assert said(found) == said(own) != said(other)


# a served judge for graders ---------------------------------------------------------------------------

KEY = "canary-51aa-key"


def test_graders_reach_the_judge_of_the_config(
        workspace: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a proxy that knows nothing of this machine; the key is written nowhere."""
    monkeypatch.setenv("RLTEACH_JUDGE_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "of-another-service")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with FakeJudge(api_key=KEY) as judge:
        config = run_config(model, judge_url=judge.url, graders="plugins.grader:needs_a_judge",
                            total_steps=1, eval_interval=0, group_size=2)
        done, _ = trained(config)
    assert {s for g in done.trainer.history[0].groups for s in g.scores} == {1.0}
    assert os.environ["OPENAI_API_KEY"] == "of-another-service"
    assert "OPENAI_BASE_URL" not in os.environ
    written = [path for path in Path("run").rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    own = Judges(config.replace(judge_url=(), graders=[
        {"plugin": "plugins.grader:short", "envs": {"OPENAI_API_KEY": "mine"}}]))
    assert own.rewards.envs == {"OPENAI_API_KEY": "mine"}


def test_a_judge_is_served_for_graders_and_ends_with_the_experiment(workspace: Path, model: str) -> None:
    config = run_config(model, judger="llm", total_steps=1, eval_interval=0, group_size=2,
                        graders=[{"plugin": "plugins.grader:needs_a_judge", "envs": {"OTHER": "1"}}])
    before = {t.name for t in threading.enumerate()}
    with Experiment.create(config, Path("run")) as experiment:
        record = next(experiment.steps())
        envs = experiment.judges.rewards.envs
    assert {s for g in record.groups for s in g.scores} == {1.0}
    assert set(envs) == {"OPENAI_BASE_URL", "OPENAI_API_KEY", "OTHER"}
    assert envs["OPENAI_API_KEY"] not in Path("run/config.json").read_text("utf-8")
    left = {t.name for t in threading.enumerate()} - before
    assert left <= {"rlteach-plugins", "rlteach-proxy"}


@pytest.mark.parametrize(("changes", "error", "why"), [
    ({"rollout": "plugins.gone:f"}, ConfigError, "rollout: the plug-in 'plugins.gone:f': there is no module"),
    ({"graders": ["plugins.grader:short", "plugins.grader:plain"]}, ConfigError,
     "graders.1: the plug-in 'plugins.grader:plain': plain is no plug-in"),
    ({"max_new_tokens": 10, "rollout": None, "policy": "tiny-math", "test_data": "long.jsonl"}, ConfigError,
     "do not fit the model's"),
    ({"dev_data": "gone.jsonl"}, ValueError, "gone.jsonl"),
])
def test_a_run_that_cannot_start_leaves_no_thread_and_no_folder(
        workspace: Path, model: str, changes: dict[str, Any], error: type[Exception], why: str) -> None:
    write("long.jsonl", line("x" * 3000))
    config = run_config(model, judger="llm", **changes)
    before = {t.name for t in threading.enumerate()}
    with pytest.raises(error, match=why):
        Experiment.create(config, Path("run"))
    assert not Path("run").exists()
    assert {t.name for t in threading.enumerate()} - before <= {"rlteach-plugins", "rlteach-proxy"}


def test_a_judge_that_is_not_there_is_named_before_a_run_with_graders(workspace: Path, model: str) -> None:
    with FakeJudge() as judge:
        url = judge.url
    with pytest.raises(rl.JudgeError, match=url):
        Experiment.create(run_config(model, judge_url=url), Path("run"))
    assert not Path("run").exists()


def test_a_turn_may_be_cut_but_a_question_has_to_fit(workspace: Path, model: str) -> None:
    """512 positions: max_new_tokens is the most for one turn, and the turns get what is left."""
    config = run_config(model, max_new_tokens=600, total_steps=1, eval_interval=0)
    with Experiment.create(config, Path("run")) as experiment:
        assert experiment.config.max_new_tokens == 600
    write("train.jsonl", line("a"), line("y" * 600))
    with pytest.raises(ConfigError, match="do not fit the model's 512 positions"):
        Experiment.create(config, Path("other"))


# what is written ----------------------------------------------------------------------------------------


def drawn(shown: Any) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(shown)
    return console.file.getvalue()


def test_trajectory_files_hold_all_turns_and_lead_to_the_trace(workspace: Path, model: str) -> None:
    _, spans = trained(run_config(model, "discard", total_steps=1, eval_interval=0))
    text = Path("run/trajectories/step-00001.jsonl").read_text("utf-8")
    rows = [json.loads(text) for text in text.splitlines()]
    assert len(rows) == 2 * 4, "a discarded sample leaves no row"
    rollouts = {s["span"]: s for s in spans if s["kind"] == "rollout"}
    for row in rows:
        first, tool, answer = row["messages"]
        assert (first["role"], tool, answer["role"]) == (
            "assistant", {"role": "user", "content": "the tool says so"}, "assistant")
        assert answer["content"] == row["response"]
        assert row["extra"] == {"note": "Ann"}
        about = rollouts[row["rollout"]]["about"]
        assert (about["sample"], about["member"], about["phase"]) == (row["id"], row["member"], "train")
        tree = drawn(trace_tree(spans, name=row["rollout"]))
        assert "the tool says so" in tree
        assert f"reward {row['score']:g}" in tree
    table = drawn(rollout_table(spans))
    assert f"{len(rollouts)} rollouts" in table
    assert all(name in table for name in rollouts)
    assert drawn(rollout_table(spans, 2)).count("train") == 2
    with pytest.raises(TraceError, match="there is no such rollout: the trace has"):
        trace_tree(spans, name="zz")


def test_a_changed_question_is_written_whole() -> None:
    answers = agent_policy(agent_config(max_new_tokens=2)).sample([ask()], [[1]])
    [[one]] = answers
    assert after(ask(), one) == one.messages[1:]
    assert after(ask("another?"), one) == one.messages


def test_plain_answers_are_written_as_before(workspace: Path, model: str) -> None:
    trained_plain = run_config(model, rollout=None, graders=(), total_steps=1, eval_interval=0)
    with Experiment.create(trained_plain, Path("run")) as experiment:
        next(experiment.steps())
    [first, *_] = Path("run/trajectories/step-00001.jsonl").read_text("utf-8").splitlines()
    assert not {"messages", "extra", "rollout"} & set(json.loads(first))


def test_what_a_sample_asks_for_itself(workspace: Path, model: str) -> None:
    config = run_config(model, total_steps=1, eval_interval=0, top_p=0.9)
    write("train.jsonl", line("a", n=3, max_new_tokens=2), line("b", top_p=0.5))
    with Experiment.create(config, Path("run")) as experiment:
        one, other = sorted(next(experiment.steps()).groups, key=lambda g: g.sample.id)
    assert (len(one.trajectories), len(other.trajectories)) == (3, 4)
    assert all(t.usage["completion_tokens"] <= 2 * 2 for t in one.trajectories)
    write("train.jsonl", line("a"), line("b", temperature=0.5))
    with pytest.raises(ConfigError, match=r"sample 'b' asks for temperature 0\.5, the run samples"):
        Experiment.create(config, Path("other"))
    with pytest.warns(RuntimeWarning, match="sample 'b' asks for its own temperature, which only rollout"):
        Experiment.create(config.replace(rollout=None), Path("plain")).close()


def test_a_rollout_that_is_forgotten_takes_its_thread_with_it() -> None:
    """As when a notebook's cell that makes a trainer is run again."""
    def engines() -> int:
        return sum(t.name == "rlteach-engine" for t in threading.enumerate())

    before = engines()
    made = PluginRollout(searcher, agent_policy())
    assert engines() == before + 1
    del made
    gc.collect()
    for _ in range(100):
        if engines() == before:
            break
        time.sleep(0.05)
    assert engines() == before


# the command line -------------------------------------------------------------------------------------


def rlteach(*words: str) -> subprocess.CompletedProcess[str]:
    where = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, "-P", "-m", "rlteach.cli", *words], capture_output=True, text=True,
                          timeout=300, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": where})


def test_train_and_eval_from_the_command_line(workspace: Path, model: str) -> None:
    config = run_config(model, rollout=None, graders=(), total_steps=1, group_size=2)
    Path("mine.json").write_text(config.model_dump_json(), encoding="utf-8")
    done = rlteach("train", "mine.json", "--out", "run", "--set", "rollout=plugins.rollout:demo_rollout",
                   "--set", 'graders=["plugins/grader.py:demo_grader", {"plugin": "plugins.grader:short", '
                   '"weight": 0.5}]', "--set", "eval_greedy=false")
    assert done.returncode == 0, done.stderr
    assert "temperature 1" in done.stdout
    assert "greedy" not in done.stdout
    saved = Config.load("run/config.json")
    assert saved.rollout == "plugins.rollout:demo_rollout"
    assert [g.weight for g in saved.graders] == [1.0, 0.5]
    write("test.jsonl", line("d"), line("e"), line("f", how="discard"))
    told = rlteach("eval", "run", "--k", "2", "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["n"], found["k"], found["unscorable"]) == (2, 2, 2)
    drawn = rlteach("trace", "run")
    assert drawn.returncode == 0, drawn.stderr
    assert "rollout demo_rollout" in drawn.stdout
    assert "tool look" in drawn.stdout
    listed = rlteach("trace", "run", "--list", "--limit", "3")
    assert "the last 3 of" in listed.stdout
    nothing = rlteach("trace", ".")
    assert nothing.returncode == 2
    assert nothing.stderr.startswith("rlteach: trace.jsonl: there is no trace")
    assert len(nothing.stderr.strip().splitlines()) == 1
    wrong = rlteach("train", "mine.json", "--out", "other", "--set", "rollout=plugins.rollout:gone")
    assert wrong.returncode == 2
    [complaint] = wrong.stderr.strip().splitlines()
    assert complaint.startswith("rlteach: rollout: the plug-in 'plugins.rollout:gone'")
