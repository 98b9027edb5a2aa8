"""Looking inside: what a step did with every answer, and what the widget shows of it."""

from __future__ import annotations

import html
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import oracle_oreal as oracle
import pandas as pd
import pytest
from fakes import even_first, group, judgement, question, random_answers, small_config, small_trainer
from nbclient import NotebookClient

import rlteach as rl
from rlteach.training.experiment import Experiment
from rlteach.training.runlog import RunLog
from rlteach.types import Group, Message, Sample, StepRecord, Trajectory
from rlteach.views import browse as browse_module
from rlteach.views.inside import ViewError, discarded, one, reasons, steps_of
from rlteach.views.plots import png

RIGHT, WRONG, LOST = 1.0, 0.0, None
FIXED = ["id", "member", "question", "gold", "response", "score", "status", "reason", "source", "advantage",
         "kept", "finish_reason", "policy_version"]


def trained(steps: int = 3, **changes: Any) -> rl.OrealTrainer:
    trainer = small_trainer(small_config(**changes), even_first)
    for _ in range(steps):
        trainer.step()
    return trainer


def written(trainer: rl.OrealTrainer, folder: Path) -> Path:
    """The run directory of a trainer's history."""
    log = RunLog.create(folder, trainer.config)
    for record in trainer.history:
        log.record(record)
    return folder


def hand_made(tmp_path: Path, *groups: Group, **metrics: Any) -> Path:
    log = RunLog.create(tmp_path / "run", small_config())
    log.record(StepRecord(1, groups, metrics))
    return log.folder


def selected(scores: list[float | None], **changes: Any) -> tuple[Group, rl.Config]:
    """A group with these scores, as `select` leaves it."""
    trainer = small_trainer(small_config(group_size=len(scores), **changes), even_first)
    (done,) = trainer.select([group(random_answers(len(scores), 3), scores)])
    return done, trainer.config


# one group ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["plus_minus", "zero_one"])
@pytest.mark.parametrize("estimator", ["rloo", "grpo"])
def test_a_group_as_a_table(coding: str, estimator: str) -> None:
    scores = [RIGHT, WRONG, LOST, WRONG, 0.5]
    done, config = selected(scores, reward_coding=coding, advantage=estimator, positive_threshold=0.5)
    found = rl.group_table(done, config)
    assert list(found) == ["member", "response", "score", "status", "reward", "advantage", "kept", "length"]
    switches = config.model_dump()
    for column, wanted in (("score", scores), ("reward", oracle.rewards(scores, switches)),
                           ("advantage", oracle.advantages(scores, switches))):
        assert found[column].tolist() == pytest.approx([float("nan") if x is None else x for x in wanted],
                                                       nan_ok=True), column
    assert found["status"].tolist() == ["correct", "incorrect", "unscorable", "incorrect", "incorrect"]
    assert [i for i, kept in enumerate(found["kept"]) if kept] == list(done.kept)
    assert found["length"].tolist() == [len([m for m in t.action_mask if m]) for t in done.trajectories]


def test_a_group_that_no_stage_has_filled_in() -> None:
    found = rl.group_table(Group(question(), tuple(random_answers(2, 0))))
    assert found[["score", "status", "reward", "advantage", "kept"]].isna().all(axis=None)
    assert found["member"].tolist() == [0, 1]


# why ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scores", "rule", "control", "wanted"), [
    ([RIGHT, RIGHT], "mixed", "none", ["group not kept: all right"] * 2),
    ([WRONG, LOST, WRONG], "one_pair", "none", ["group not kept: all wrong"] * 3),
    ([LOST, RIGHT], "all", "none",
     ["group not kept: 1 of 2 answers could be judged, and a baseline needs two"] * 2),
    ([RIGHT, LOST, WRONG], "one_pair", "none", [
        "kept: drawn as the right answer of the pair", "not kept: unscorable",
        "kept: drawn as the wrong answer of the pair"]),
    ([RIGHT, LOST, WRONG], "mixed", "none", [
        "kept: its group has right and wrong answers", "not kept: unscorable",
        "kept: its group has right and wrong answers"]),
    ([WRONG, WRONG], "all", "none", ["kept: every answer that could be judged is"] * 2),
    ([WRONG, LOST], "one_pair", "own_samples", [
        "kept: control='own_samples' imitates every own answer", "never trained on: unscorable"]),
])
def test_why_an_answer_was_kept(
    scores: list[float | None], rule: str, control: str, wanted: list[str]
) -> None:
    done, config = selected(scores, selection=rule, control=control)
    rows = [{"score": s, "kept": i in done.kept} for i, s in enumerate(scores)]
    assert reasons(rows, config) == wanted


def test_the_pair_leaves_the_others_out() -> None:
    scores = [RIGHT, RIGHT, WRONG, WRONG]
    done, config = selected(scores)
    rows = [{"score": s, "kept": i in done.kept} for i, s in enumerate(scores)]
    for i, sentence in enumerate(reasons(rows, config)):
        sign = "right" if i < 2 else "wrong"
        assert sentence == (f"kept: drawn as the {sign} answer of the pair" if i in done.kept else
                            f"not kept: another {sign} answer was drawn for the pair")


# trajectories -------------------------------------------------------------------------------------


def test_the_table_is_what_the_trajectory_files_hold(tmp_path: Path) -> None:
    trainer = trained()
    folder = written(trainer, tmp_path / "run")
    found = rl.trajectories(str(folder))
    lines = [json.loads(line) for path in sorted((folder / "trajectories").iterdir())
             for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == len(found) == 3 * 3 * 4
    for name in FIXED:
        assert found[name].tolist() == [line[name] for line in lines], name
    assert found["step"].tolist() == [1] * 12 + [2] * 12 + [3] * 12
    assert found["prompt"].tolist() == 3 * ([0] * 4 + [1] * 4 + [2] * 4)
    pd.testing.assert_frame_equal(rl.trajectories(trainer), found)
    pd.testing.assert_frame_equal(
        rl.trajectories(folder, step=2), found[found["step"] == 2].reset_index(drop=True))


def test_a_run_is_a_source_and_its_kept_answers_are_those_of_the_rule() -> None:
    trainer = small_trainer(small_config(total_steps=2), even_first)
    run = trainer.start().wait()
    found = rl.trajectories(run)
    assert steps_of(run) == [1, 2]
    for record in trainer.history:
        for place, one_group in enumerate(record.groups):
            rows = found[(found["step"] == record.index) & (found["prompt"] == place)]
            assert rows["kept"].tolist() == [i in one_group.kept for i in range(4)]
            assert rows["why"].str.startswith("kept").tolist() == rows["kept"].tolist()


def test_a_question_that_was_drawn_twice_is_two_prompts(tmp_path: Path) -> None:
    twice = [group(random_answers(2, seed), [RIGHT, WRONG]).with_(advantages=(1.0, -1.0), kept=(0, 1))
             for seed in (1, 2)]
    found = rl.trajectories(hand_made(tmp_path, *twice))
    assert found["id"].tolist() == ["s0"] * 4
    assert found["prompt"].tolist() == [0, 0, 1, 1]


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}


def with_tools() -> Group:
    asked = Sample("t7", (Message("user", "1+1=?"),), ("2", "two"))
    turns = (*asked.messages, Message("assistant", "I add.", tool_calls=(CALL,)),
             Message("tool", "it is 2\nor so", tool_call_id="c1"), Message("assistant", "\\boxed{3}"))
    answers = (Trajectory(turns, (1, 2), (False, True), (0.0, -1.0), 4, "stop"),
               Trajectory((*asked.messages, Message("assistant", "\\boxed{2}")), (1, 2), (False, True),
                          (0.0, -1.0), 4, "length"))
    return Group(asked, answers, (judgement(WRONG), judgement(RIGHT)), (-1.0, 1.0), (0, 1))


def test_one_answer_with_all_its_turns(tmp_path: Path) -> None:
    folder = hand_made(tmp_path, with_tools())
    text = one(folder, step=1, prompt=0, member=0)
    in_order = ["step 1, prompt 0 (t7), member 0", "1+1=?", "2 | two", "assistant:", "I add.",
                '-> add({"a": 1, "b": 1})', "tool:", "  it is 2\n  or so", "assistant:", "\\boxed{3}",
                "0, incorrect: by hand", "-1.000", "kept: drawn as the wrong answer of the pair",
                "stop (it ended its answer)", "policy version 4", "judged by rule"]
    place = 0
    for words in in_order:
        place = text.find(words, place) + len(words)
        assert place >= len(words), words
    other = one(folder, step=1, member=1)
    assert "\\boxed{2}" in other
    assert "+1.000" in other
    assert "cut off" in other
    assert "add(" not in other


def test_an_answer_that_nobody_could_judge(tmp_path: Path) -> None:
    lost = group(random_answers(2, 1), [LOST, RIGHT]).with_(advantages=(None, None), kept=())
    text = one(hand_made(tmp_path, lost), step=1)
    assert "score      none, unscorable" in text
    assert "advantage  none" in text
    assert "group not kept: 1 of 2 answers could be judged" in text


def test_what_was_discarded_is_counted(tmp_path: Path) -> None:
    folder = hand_made(tmp_path, **{"rollout/discarded": 2.0, "grader/discarded": None})
    assert discarded(folder, 1) == {"rollout": 2, "grader": 0}
    assert rl.trajectories(folder).empty
    assert list(rl.trajectories(folder)) == list(rl.trajectories(trained(1)))


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda t, _: rl.trajectories(t, step=9), "there are no answers of step 9: it has 1 to 1"),
    (lambda t, _: one(t, 1, prompt=3), "step 1 has no member 0 of prompt 3"),
    (lambda t, _: one(t, 1, member=-1), "step 1 has no member -1 of prompt 0"),
    (lambda _, p: rl.trajectories(p), "there is no run"),
    (lambda _, __: rl.trajectories(7), "give a trainer, a run, an experiment or a run directory; got a int"),
    (lambda _, __: rl.browse(small_trainer(small_config(), even_first)), "no answers to look at yet"),
])
def test_what_cannot_be_shown_is_said(call: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ViewError, match=sentence):
        call(trained(1), tmp_path)


def test_a_damaged_trajectory_file_is_named(tmp_path: Path) -> None:
    folder = written(trained(1), tmp_path / "run")
    path = folder / "trajectories" / "step-00001.jsonl"
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(ViewError, match=r"step-00001\.jsonl:12"):
        rl.trajectories(folder)


# the widget ---------------------------------------------------------------------------------------


def parts(box: Any) -> tuple[Any, ...]:
    controls, view, text, image = box.children
    return (*controls.children, view, text, image)


def test_the_browser_shows_what_the_functions_give(tmp_path: Path) -> None:
    trainer = trained()
    folder = written(trainer, tmp_path / "run")
    step, prompt, member, _, view, text, image = parts(rl.browse(folder))
    assert (step.options, step.value) == ((1, 2, 3), 3)
    assert view.options == ("answer", "group")
    rng = random.Random(0)
    for _ in range(10):
        step.value, prompt.value, member.value = rng.randint(1, 3), rng.randrange(3), rng.randrange(4)
        assert html.escape(one(folder, step.value, prompt.value, member.value)) in text.value
    step.value = 1
    view.value = "group"
    rows = rl.trajectories(folder, step=1)
    for why in rows[rows["prompt"] == prompt.value]["why"]:
        assert why in text.value
    assert image.layout.display == "none"


def test_the_browser_of_a_trainer_draws_tokens() -> None:
    config = small_config(token_reward_model="policy", token_weighting="threshold", head_init="normal")
    trainer = small_trainer(config, even_first)
    trainer.step()
    box = rl.browse(trainer)
    _, prompt, member, refresh, view, text, image = parts(box)
    assert view.options == ("answer", "group", "probabilities", "token rewards")
    prompt.value, member.value = 1, 2
    shown = trainer.history[0].groups[1]
    view.value = "probabilities"
    assert image.value == png(rl.probability_heatmap(trainer, shown, member=2))
    view.value = "token rewards"
    assert image.value == png(rl.token_heatmap(trainer, shown, member=2))
    assert image.layout.display == ""
    view.value = "group"
    assert "<th>reward</th>" in text.value
    assert all(why in text.value for why in rl.trajectories(trainer, step=1).query("prompt == 1")["why"])
    trainer.step()
    assert parts(box)[0].options == (1,)
    refresh.click()
    assert parts(box)[0].options == (1, 2)
    assert parts(box)[0].value == 1


def test_an_experiment_is_its_folder_and_its_trainer(tmp_path: Path) -> None:
    """Also one that was resumed: steps before that are on disk only, so their tokens cannot be drawn."""
    trainer = trained(2)
    experiment = object.__new__(Experiment)
    experiment.trainer, experiment.log = trainer, RunLog.open(written(trainer, tmp_path / "run"))
    trainer.history[0] = StepRecord(1, (), trainer.history[0].metrics)
    assert steps_of(trainer) == [2]
    assert steps_of(experiment) == [1, 2]
    step, _, _, _, view, text, image = parts(rl.browse(experiment))
    view.value = "probabilities"
    assert image.value == png(rl.probability_heatmap(experiment, trainer.history[1].groups[0]))
    step.value = 1
    assert "it was trained before a resume" in text.value
    assert image.value == b""
    view.value = "group"
    assert rl.trajectories(experiment, step=1)["why"][0] in text.value


def test_the_browser_says_what_it_cannot_draw() -> None:
    config = small_config(token_reward_model="policy", token_weighting="threshold")
    trainer = small_trainer(config, lambda *_: None)
    trainer.step()
    *_, view, text, image = parts(rl.browse(trainer))
    view.value = "token rewards"
    assert "say positive=True or positive=False" in text.value
    assert image.layout.display == "none"
    view.value = "answer"
    assert "unscorable" in text.value


def test_an_answer_is_text_and_never_markup(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>\n<|im_end|> & $x$"
    turns = (Message("user", "?"), Message("assistant", bad))
    answer = Trajectory(turns, (1, 2), (False, True), (0.0, 0.0), 0, "stop")
    folder = hand_made(tmp_path, group([answer], [RIGHT]).with_(advantages=(None,), kept=()))
    *_, view, text, _ = parts(rl.browse(folder))
    for view.value in ("answer", "group"):
        assert "<script>" not in text.value
        assert "&lt;script&gt;" in text.value


def test_a_step_that_was_discarded_whole_can_be_chosen(tmp_path: Path) -> None:
    folder = hand_made(tmp_path, **{"rollout/discarded": 3.0})
    *_, text, _ = parts(rl.browse(folder))
    assert "3 questions of this step were discarded by the rollout." in text.value


def test_without_ipywidgets_the_functions_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    trainer = trained(1)
    with pytest.raises(ImportError, match=r"pip install 'rlteach\[notebook\]'; without it, rl.trajectories"):
        rl.browse(trainer)
    assert len(rl.trajectories(trainer)) == 12


def test_ipywidgets_and_pyplot_are_not_imported_before_they_are_needed() -> None:
    names = ("browse", "group_table", "trajectories", "token_table", "token_heatmap", "token_probabilities",
             "probability_heatmap", "Snapshots")
    code = (f"import sys, rlteach\nfor name in {names!r}: getattr(rlteach, name)\n"
            "print(*{'ipywidgets', 'matplotlib.pyplot'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(browse_module.__file__).parents[2])
    assert done.stdout.split() == []


NOTEBOOK = ("""
import sys
sys.path.insert(0, TESTS)
import torch
torch.set_num_threads(1)
import rlteach as rl
from fakes import even_first, small_config, small_trainer
config = small_config(token_reward_model="policy", token_weighting="threshold", head_init="normal")
trainer = small_trainer(config, even_first)
trainer.step()
watch = rl.Snapshots(trainer, trainer.history[0].groups[0])
watch.take()
for step in trainer:
    watch.take()
    if step.index == 3:
        break
""", "rl.browse(trainer)", "watch.show()", "rl.token_heatmap(trainer, trainer.history[0].groups[0])",
            "rl.group_table(trainer.history[0].groups[0])")


def test_all_of_it_in_a_notebook() -> None:
    """Figures become pictures once, widgets become views, and nothing is written to stderr."""
    cells = [nbformat.v4.new_code_cell(c.replace("TESTS", repr(str(Path(__file__).parent))).strip())
             for c in NOTEBOOK]
    notebook = nbformat.v4.new_notebook(cells=cells)
    root = Path(browse_module.__file__).parents[2]
    NotebookClient(notebook, timeout=300, kernel_name="python3",
                   resources={"metadata": {"path": str(root)}}).execute()
    first, *shown = ([output.get("data", output) for output in cell.outputs] for cell in cells)
    assert first == []
    kinds = ["application/vnd.jupyter.widget-view+json"] * 2 + ["image/png", "text/html"]
    for outputs, kind in zip(shown, kinds, strict=True):
        (data,) = outputs
        assert kind in data


