"""One experiment on disk: nothing of it is lost, and a run that was resumed is the run that never stopped.

The runs here train the embedded model for four steps of 4 x 4 answers, on two-digit sums, in one
thread: there, "the same" means bit for bit.
"""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import same, state, two_digit_data
from safetensors.torch import load_file

from rlteach.config import Config
from rlteach.data import DataError, load_samples
from rlteach.judger.rule import RuleJudger
from rlteach.policy.policy import Policy
from rlteach.training import experiment as experiment_module
from rlteach.training.checkpoint import CheckpointError, load_checkpoint
from rlteach.training.evaluate import Evaluation, evaluate
from rlteach.training.experiment import Experiment, build_trainer, checkpoint_steps
from rlteach.training.interrupts import interrupts_held
from rlteach.training.runlog import RunError, RunLog
from rlteach.types import StepRecord

STEPS = 4
TIMES = ("seconds/", "judge/seconds", "tokens_per_second", "memory/")  # what differs between equal runs
SUMMARY = {"preset", "seed", "state", "steps", "seconds", "tokens", "before", "after", "last_step",
           "best_step", "unscorable", "versions", "machine"}
EVALUATION = {"accuracy", "ci95", "n", "k", "pass_at_k", "by_level", "unscorable"}
METRICS = {
    "step", "reward/mean", "reward/ci95", "pass_rate", "groups/kept", "groups/zero_std", "advantage/mean",
    "loss/total", "loss/positive", "loss/negative", "loss/kl", "kl/reference", "entropy",
    "ratio/max_deviation",
    "lr/policy", "grad_norm/policy", "response/length", "response/truncated", "response/no_answer",
    "judge/unscorable", "judge/seconds", "seconds/rollout", "seconds/grade", "seconds/update",
    "seconds/total", "tokens/rollout", "tokens_per_second", "memory/peak",
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "token model": {"token_reward_model": "policy", "token_weighting": "threshold", "policy_freeze_steps": 1,
                    "token_reward_refit": True, "head_init": "normal"},
}


EVERYTHING = pytest.mark.parametrize("whole", ["token model"], indirect=True)  # what "plain" has, and more


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Emptied afterwards: pytest keeps the folders of three sessions, and these hold many checkpoints."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two-digit questions: 40 to train on, 6 of dev, 8 of test."""
    return two_digit_data(tmp_path_factory.mktemp("data"), dev=6, test=8)


def small(files: dict[str, str], **changes: Any) -> Config:
    return Config(**{
        "name": "small", "total_steps": STEPS, "batch_size": 4, "group_size": 4, "max_new_tokens": 40,
        "eval_interval": 2, "threads": 1, "warmup_steps": 1, **files, **changes})


def finish(experiment: Experiment) -> Experiment:
    experiment.measure_before()
    for _ in experiment.steps():
        pass
    experiment.finish()
    return experiment


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
          ) -> Iterator[Experiment]:
    """A run that nobody touched."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = finish(Experiment.create(small(files, **KINDS[request.param]), folder))
    assert sum(r.metrics["groups/kept"] for r in done.trainer.history) > 4, "there was something to learn"
    assert not same(state(done.trainer.policy.model), state(done.trainer.reference.model))
    yield done
    shutil.rmtree(folder)


def metric_lines(experiment: Experiment) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock and a memory meter say."""
    text = (experiment.log.folder / "metrics.jsonl").read_text(encoding="utf-8")
    entries = map(json.loads, text.splitlines())
    return [{k: v for k, v in entry.items() if not k.startswith(TIMES)} for entry in entries]


def tensors(folder: Path) -> dict[str, str]:
    """A hash of every file of weights or optimiser state under a folder."""
    return {p.relative_to(folder).as_posix(): sha256(p.read_bytes()).hexdigest()
            for p in folder.rglob("*.safetensors")}


def assert_the_same_run(one: Experiment, other: Experiment) -> None:
    assert same(state(one.trainer.policy.model), state(other.trainer.policy.model))
    assert one.trainer.policy.version == other.trainer.policy.version
    if one.trainer.token_reward_model is not None:
        assert same(state(one.trainer.token_reward_model), state(other.trainer.token_reward_model))
    assert metric_lines(one) == metric_lines(other)
    last, best = f"checkpoints/step-{STEPS:05d}", "checkpoints/best"
    for name in (last, best):
        assert tensors(one.log.folder / name) == tensors(other.log.folder / name)
    for step in range(1, STEPS + 1):
        name = f"trajectories/step-{step:05d}.jsonl"
        assert (one.log.folder / name).read_bytes() == (other.log.folder / name).read_bytes()
    for key in SUMMARY - {"seconds"}:
        assert one.summary[key] == other.summary[key], key


def note_of(folder: Path) -> int:
    """The step at which the last resume began."""
    lines = (folder / "log.txt").read_text(encoding="utf-8").splitlines()
    return int([line for line in lines if "resumed at step" in line][-1].rsplit(" ", 1)[1])


# resuming -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3])
def test_e04_a_resumed_run_is_the_run_that_never_stopped(whole: Experiment, tmp_path: Path, after: int
                                                         ) -> None:
    first = Experiment.create(whole.config, tmp_path / "run")
    first.measure_before()
    steps = first.steps()
    for _ in range(after):
        next(steps)
    if after:
        steps.close()  # as when a loop over it is left
        assert first.log.latest_checkpoint().name == f"step-{after:05d}"
    second = finish(Experiment.resume(tmp_path / "run"))
    assert note_of(tmp_path / "run") == after
    assert_the_same_run(whole, second)


@EVERYTHING
def test_e05_stopping_after_every_step_changes_nothing(whole: Experiment, tmp_path: Path) -> None:
    Experiment.create(whole.config, tmp_path / "run").measure_before()
    for _ in range(STEPS):
        again = Experiment.resume(tmp_path / "run")
        for _ in again.steps():
            break
    assert_the_same_run(whole, finish(Experiment.resume(tmp_path / "run")))


def killed(whole: Experiment, folder: Path, at: int, **config: Any) -> Path:
    """A run directory as a power cut leaves it after `at` steps: nothing is closed, nothing is said."""
    experiment = Experiment.create(whole.config.replace(**config), folder / "alive")
    experiment.measure_before()
    for record in experiment.steps():
        if record.index == at:
            shutil.copytree(folder / "alive", folder / "killed")
            break
    return folder / "killed"


def leave_a_torn_line(run: Path) -> None:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "reward/mean": 0.31')


def leave_half_a_checkpoint(run: Path) -> None:
    part = run / "checkpoints" / "step-00004.part"
    shutil.copytree(run / "checkpoints" / "step-00002", part)
    (part / "model.safetensors").write_bytes(b"half")
    (run / "checkpoints" / "best.part").mkdir()
    (run / "summary.json.part").write_text("{", encoding="utf-8")


def lose_the_last_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step-00003")


def lose_every_checkpoint(run: Path) -> None:
    for folder in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(folder)


@EVERYTHING
@pytest.mark.parametrize(("damage", "begins"), [
    (lambda run: None, 3), (leave_a_torn_line, 3), (leave_half_a_checkpoint, 3),
    (lose_the_last_checkpoint, 2), (lose_every_checkpoint, 0),
], ids=["clean", "torn line", "half a checkpoint", "line without checkpoint", "no checkpoint yet"])
def test_e08_a_killed_run_goes_on(whole: Experiment, tmp_path: Path, damage: Callable[[Path], None],
                                  begins: int) -> None:
    run = killed(whole, tmp_path, 3, checkpoint_interval=1)
    damage(run)
    resumed = finish(Experiment.resume(run))
    assert note_of(run) == begins
    assert_the_same_run(whole, resumed)


PLACES = ("in the judger", "before the optimiser", "after the optimiser", "while dev is measured")


@EVERYTHING
@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_inside_a_step_loses_nothing(whole: Experiment, tmp_path: Path, place: str,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes when it likes: also between the update and the line that counts it."""
    experiment = Experiment.create(whole.config, tmp_path / "run")
    experiment.measure_before()
    trainer, due = experiment.trainer, [True]

    def press() -> None:
        if due and trainer.step_index == 2:  # in the third step, or in the measurement after the second
            due.clear()
            signal.raise_signal(signal.SIGINT)

    def around(function: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if first:
                press()
            out = function(*args, **kwargs)
            if not first:
                press()
            return out
        return wrapped

    if place == PLACES[0]:
        monkeypatch.setattr(trainer.judger, "grade", around(trainer.judger.grade, first=False))
    elif place == PLACES[3]:
        monkeypatch.setattr(experiment_module, "evaluate", around(evaluate, first=True))
    else:
        optimizer = trainer.learner.optimizer
        monkeypatch.setattr(optimizer, "step", around(optimizer.step, first=place == PLACES[1]))
    with pytest.raises(KeyboardInterrupt):
        for _ in experiment.steps():
            pass
    monkeypatch.undo()
    assert not due, "the interrupt came"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = finish(Experiment.resume(tmp_path / "run"))
    assert note_of(tmp_path / "run") >= 2, "at most the step under way is lost"
    assert_the_same_run(whole, resumed)


@EVERYTHING
def test_an_error_inside_the_update_leaves_no_checkpoint_of_half_a_step(
        whole: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment.create(whole.config.replace(checkpoint_interval=1), tmp_path / "run")
    experiment.measure_before()
    optimizer = experiment.trainer.learner.optimizer
    real = optimizer.step

    def half(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        if experiment.trainer.step_index == 2:
            raise MemoryError("in the third step")

    monkeypatch.setattr(optimizer, "step", half)
    with pytest.raises(MemoryError, match="in the third step"):
        for _ in experiment.steps():
            pass
    monkeypatch.undo()
    resumed = finish(Experiment.resume(tmp_path / "run"))
    assert note_of(tmp_path / "run") == 2
    assert_the_same_run(whole, resumed)


def test_a_job_in_the_background_goes_on_ignoring_interrupts() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_held(lambda: True):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_finished_run_can_be_resumed_and_says_the_same(whole: Experiment, tmp_path: Path) -> None:
    shutil.copytree(whole.log.folder, tmp_path / "run")
    again = Experiment.resume(tmp_path / "run")
    assert [(r.index, r.metrics) for r in again.trainer.history] == [
        (r.index, r.metrics) for r in whole.trainer.history]
    assert_the_same_run(whole, finish(again))


@EVERYTHING
def test_resume_keeps_what_was_measured_before(whole: Experiment, tmp_path: Path) -> None:
    """The test accuracy of the untrained policy is in summary.json: nobody has to ask again."""
    run = killed(whole, tmp_path, 2, checkpoint_interval=1)
    again = Experiment.resume(run)
    for _ in again.steps():
        pass
    assert again.finish()["before"] == json.loads(json.dumps(whole.summary["before"]))
    assert again.summary["seconds"] > 0


# what is not whole is not loaded ------------------------------------------------------------------


def parts(token_model: bool) -> list[str]:
    names = ("token_reward_model", "token_optimizer", "head_memory")
    more = [f"training/{name}.safetensors" for name in names]
    return ["model.safetensors", "training/state.json", "training/optimizer.safetensors",
            *(more if token_model else [])]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one byte short": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "something else": lambda path: path.write_bytes(b"[1, 2]\n"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_e06_a_part_that_is_missing_or_broken_is_an_error(whole: Experiment, tmp_path: Path, damage: str
                                                          ) -> None:
    """An error, never a warning and a fresh start."""
    last = whole.log.latest_checkpoint()
    for name in parts(whole.trainer.token_reward_model is not None):
        folder = tmp_path / name.replace("/", "-")
        shutil.copytree(last, folder)
        DAMAGE[damage](folder / name)
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint(whole.trainer, folder)
        text = str(caught.value)
        assert text.startswith(f"{folder} cannot be resumed from")
        assert "\n" not in text
    load_checkpoint(whole.trainer, last)  # the module's run is as it was


@EVERYTHING
def test_e08_a_whole_run_with_a_broken_checkpoint(whole: Experiment, tmp_path: Path) -> None:
    shutil.copytree(whole.log.folder, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / f"step-{STEPS:05d}" / "training" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=f"step-{STEPS:05d}"):
        Experiment.resume(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / f"step-{STEPS:05d}").is_dir(), "never deleted silently"


def test_a_checkpoint_of_another_format(whole: Experiment, tmp_path: Path) -> None:
    shutil.copytree(whole.log.latest_checkpoint(), tmp_path / "new")
    file = tmp_path / "new" / "training" / "state.json"
    entry = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**entry, "format": 99}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="format 99"):
        load_checkpoint(whole.trainer, tmp_path / "new")


def test_a_checkpoint_holds_no_pickle_and_loads_in_transformers(whole: Experiment) -> None:
    last = whole.log.latest_checkpoint()
    kinds = {path.suffix for path in last.rglob("*") if path.is_file()}
    assert kinds <= {".json", ".safetensors", ".jinja"}
    loaded = Policy.load(str(last), whole.config)
    assert same(state(loaded.model), state(whole.trainer.policy.model))
    assert load_file(last / "training" / "optimizer.safetensors")


# where checkpoints are taken, and which is the best -----------------------------------------------


@pytest.mark.parametrize(("interval", "total", "steps"), [
    (-1, 40, 40), (0.5, 40, 20), (0.25, 40, 10), (0.3, 4, 1), (0.001, 40, 1), (1, 40, 1), (2, 40, 2),
    (100, 40, 100),
])
def test_checkpoint_interval(interval: float, total: int, steps: int) -> None:
    assert checkpoint_steps(Config(checkpoint_interval=interval, total_steps=total)) == steps


@pytest.mark.parametrize(("interval", "kept"), [(-1, [4]), (0.5, [2, 4]), (2, [2, 4]), (3, [3, 4]),
                                                (1, [1, 2, 3, 4])])
def test_checkpoints_of_a_run(files: dict[str, str], tmp_path: Path, interval: float, kept: list[int]
                              ) -> None:
    config = small(files, checkpoint_interval=interval, eval_interval=0)
    experiment = Experiment.create(config, tmp_path / "run")
    for _ in experiment.steps():
        pass
    folders = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert folders == [f"step-{step:05d}" for step in kept]


@pytest.mark.parametrize(("accuracies", "best"), [
    ((0.2, 0.8, 0.5, 0.7), 2), ((0.9, 0.8, 0.5, 0.1), 1), ((0.1, 0.2, 0.3, 0.4), 4),
    ((0.2, 0.8, 0.8, 0.7), 3), ((None, 0.3, None, 0.2), 2), ((0.0, 0.0, 0.0, 0.0), 4),
])
def test_the_best_checkpoint_is_chosen_on_dev(
        files: dict[str, str], tmp_path: Path, accuracies: tuple[Any, ...], best: int,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of equals; a measurement without a verdict is no measurement."""
    on_dev = iter(accuracies)

    def scripted(*_: Any, **__: Any) -> Evaluation:
        return Evaluation(next(on_dev), None, 0, 1, None, {}, 0, ())

    experiment = Experiment.create(small(files, eval_interval=1), tmp_path / "run")
    experiment.measure_before()
    monkeypatch.setattr(experiment_module, "evaluate", scripted)
    weights = [state(experiment.trainer.policy.model) for _ in experiment.steps()]
    monkeypatch.undo()
    summary = experiment.finish()
    assert summary["best_step"] == best
    chosen = Policy.load(str(tmp_path / "run"), experiment.config)
    assert same(state(chosen.model), weights[best - 1])
    test = load_samples(files["test_data"])
    assert summary["after"] == evaluate(chosen, RuleJudger(), test).as_dict(), "the best one, on test"
    assert summary["last_step"] == evaluate(experiment.trainer.policy, RuleJudger(), test).as_dict()


def test_without_evaluations_the_last_is_the_best(files: dict[str, str], tmp_path: Path) -> None:
    experiment = finish(Experiment.create(small(files, eval_interval=0), tmp_path / "run"))
    assert experiment.summary["best_step"] == STEPS
    assert experiment.summary["after"] == experiment.summary["last_step"]
    best = Policy.load(str(tmp_path / "run"))
    assert same(state(best.model), state(experiment.trainer.policy.model))


# the files of a run -------------------------------------------------------------------------------


def strict(text: str) -> Any:
    """JSON as other readers take it: no NaN, no Infinity."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in a JSON file")

    return json.loads(text, parse_constant=refuse)


def test_summary(whole: Experiment) -> None:
    summary = strict((whole.log.folder / "summary.json").read_text(encoding="utf-8"))
    assert set(summary) == SUMMARY
    assert (summary["preset"], summary["seed"], summary["state"]) == ("small", 0, "finished")
    assert summary["steps"] == STEPS
    assert summary["seconds"] > 0
    assert summary["unscorable"] == 0
    assert summary["tokens"] == sum(line["tokens/rollout"] for line in metric_lines(whole))
    for name in ("before", "after", "last_step"):
        found = summary[name]
        assert set(found) == EVALUATION
        assert (found["n"], found["k"], found["unscorable"]) == (8, 1, 0)
        assert found["ci95"][0] <= found["accuracy"] <= found["ci95"][1]
        assert found["pass_at_k"] == found["accuracy"]
        assert found["by_level"] == {"2": found["accuracy"]}
    assert {"python", "rlteach", "torch", "transformers"} <= set(summary["versions"])
    assert summary["machine"]["cores"] >= 1
    dev = {line["step"]: line["dev/accuracy"] for line in metric_lines(whole) if "dev/accuracy" in line}
    assert list(dev) == [2, 4]
    assert summary["best_step"] == max(dev, key=lambda step: (dev[step], step))


def test_before_is_the_untrained_policy(whole: Experiment) -> None:
    untrained = Policy.load("tiny-math", whole.config)
    test = load_samples(whole.config.test_data)
    assert whole.summary["before"] == evaluate(untrained, RuleJudger(), test).as_dict()


def test_metrics_file(whole: Experiment) -> None:
    lines = (whole.log.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [strict(line) for line in lines]
    assert [entry["step"] for entry in entries] == list(range(1, STEPS + 1))
    more = {"loss/token_reward", "lr/token_reward", "grad_norm/token_reward"}
    wanted = METRICS | (more if whole.trainer.token_reward_model is not None else set())
    for entry, record in zip(entries, whole.trainer.history, strict=True):
        assert set(entry) - {"dev/accuracy"} == wanted
        assert isinstance(record, StepRecord)
        assert {"step": record.index, **record.metrics} == entry
        assert all(v is None or math.isfinite(v) for v in entry.values())


def test_trajectory_files(whole: Experiment) -> None:
    for record in whole.trainer.history:
        file = whole.log.folder / "trajectories" / f"step-{record.index:05d}.jsonl"
        rows = [strict(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert len(rows) == 16
        members = [(g, i) for g in record.groups for i in range(4)]
        for row, (group, i) in zip(rows, members, strict=True):
            answer, judged = group.trajectories[i], group.judgements[i]
            assert (row["id"], row["member"]) == (group.sample.id, i)
            assert (row["question"], row["gold"]) == (group.sample.question, list(group.sample.gold))
            assert (row["response"], row["finish_reason"]) == (answer.response, answer.finish_reason)
            assert (row["score"], row["status"]) == (judged.score, judged.status)
            assert (row["reason"], row["source"]) == (judged.reason, "rule")
            assert row["advantage"] == group.advantages[i]
            assert row["kept"] == (i in group.kept)
            assert "token_ids" not in row
        assert sum(row["kept"] for row in rows) == 2 * record.metrics["groups/kept"], "one pair a group"


def test_debug_adds_what_was_sampled(files: dict[str, str], tmp_path: Path) -> None:
    config = small(files, debug=True, total_steps=1, eval_interval=0)
    [record] = Experiment.create(config, tmp_path / "run").steps()
    file = tmp_path / "run" / "trajectories" / "step-00001.jsonl"
    rows = [strict(line) for line in file.read_text(encoding="utf-8").splitlines()]
    answers = [t for g in record.groups for t in g.trajectories]
    for row, answer in zip(rows, answers, strict=True):
        assert tuple(row["token_ids"]) == answer.token_ids
        assert tuple(row["action_mask"]) == answer.action_mask
        assert tuple(row["logprobs"]) == answer.logprobs


def test_the_run_s_config_repeats_it(whole: Experiment) -> None:
    assert Config.load(str(whole.log.folder / "config.json")) == whole.config
    assert RunLog.open(whole.log.folder).config == whole.config
    assert "finished" in (whole.log.folder / "log.txt").read_text(encoding="utf-8")
    assert not list(whole.log.folder.rglob("*.part")), "nothing half-written is left"


# before anything is written -----------------------------------------------------------------------


def test_a_folder_that_holds_something_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("dear diary", encoding="utf-8")
    with pytest.raises(RunError, match=f"--out {tmp_path} is not empty"):
        Experiment.create(small(files), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(RunError, match=r"mine\.txt"):
        Experiment.create(small(files), tmp_path / "mine.txt")
    (tmp_path / "empty").mkdir()
    Experiment.create(small(files), tmp_path / "empty")
    with pytest.raises(RunError, match="--resume"):
        Experiment.create(small(files), tmp_path / "empty")


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match=f"--resume {folder}: there is no run"):
            Experiment.resume(folder)


@pytest.mark.parametrize(("changes", "error"), [
    ({"train_data": "none.jsonl"}, DataError), ({"dev_data": "none.jsonl"}, DataError),
    ({"test_data": "none.jsonl"}, DataError), ({"difficulty_bins": [(0.99, 1.0, 1)]}, DataError),
    ({"policy": "tiny-maths"}, ValueError), ({"reference": "tiny-maths"}, ValueError),
    ({"token_reward_model": "tiny-maths"}, ValueError), ({"stop_tokens": ["no token"]}, ValueError),
    ({"max_new_tokens": 510}, ValueError),
], ids=str)
def test_nothing_is_written_for_what_cannot_run(
        files: dict[str, str], tmp_path: Path, changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Experiment.create(small(files, **changes), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_reference_of_one_s_own(files: dict[str, str]) -> None:
    trainer = build_trainer(small(files, reference="tiny-math"), RuleJudger())
    assert same(state(trainer.reference.model), state(trainer.policy.model))
    one, other = (next(m.parameters()) for m in (trainer.reference.model, trainer.policy.model))
    assert one.data_ptr() != other.data_ptr(), "its weights are its own"
