"""What one step did with every answer: as a table, as a page of text, and group by group.

    trajectories(trainer, step=3)      one row an answer
    print(one("RUN", step=3, prompt=0, member=1))
    group_table(group)                 before anything is trained on it

A source is a trainer, a run in the background, an experiment, or a run directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd

from rlteach.config import Config
from rlteach.data import DataError, read_jsonl
from rlteach.oreal.advantage import code_rewards
from rlteach.training.experiment import Experiment
from rlteach.training.run import Run
from rlteach.training.runlog import RunError, RunLog, trajectory_rows
from rlteach.training.trainer import OrealTrainer, positives
from rlteach.types import Group, StepRecord

Source = OrealTrainer | Run | Experiment | str | Path
Row = Mapping[str, Any]  # one line of a trajectory file
COLUMNS = ("step", "prompt", "id", "member", "question", "gold", "response", "score", "status", "reason",
           "source", "advantage", "kept", "why", "finish_reason", "policy_version", "messages")
ENDED = {"stop": "it ended its answer", "length": "cut off: no room for another token",
         "tool_calls": "it asked for a tool"}


class ViewError(ValueError):
    """Something that cannot be shown; the message says what to do."""


def trajectories(source: Source, step: int | None = None) -> pd.DataFrame:
    """One row an answer of a step (default: of every step): what a trajectory file holds, and why it was
    kept or not.

    `prompt` is the place of the question in its step, from 0: a question may be drawn twice. Score and
    advantage are NaN where there is none. `messages` are the turns after the question, where there was
    more than an answer.

    Raises:
        ViewError: the source has no such step, or nothing of it was kept to look at.
    """
    rows = [row for index in ([step] if step is not None else steps_of(source))
            for row in step_rows(source, index)]
    frame = pd.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], columns=list(COLUMNS))
    return frame.astype({"score": float, "advantage": float})


def one(source: Source, step: int, prompt: int = 0, member: int = 0) -> str:
    """Everything about one answer as text: question, gold answers, all turns, verdict, what became of it.

    Raises:
        ViewError: there is no such answer.
    """
    found = [row for row in step_rows(source, step) if row["prompt"] == prompt]
    if not 0 <= member < len(found):
        raise ViewError(f"step {step} has no member {member} of prompt {prompt}: "
                        "trajectories(source, step) lists what there is")
    return page(found[member])


def group_table(group: Group, config: Config | None = None) -> pd.DataFrame:
    """member, response, score, status, reward, advantage, kept, length of each answer of a group.

    reward is the outcome as config (default: Config()) codes it, +1/-1 or 1/0; length counts the tokens
    that the policy sampled. What a stage has not filled in yet is NaN (kept: None).
    """
    c, size = config or Config(), len(group.trajectories)
    nothing = (None,) * size
    judged = positives(group, c.positive_threshold) if group.judgements else nothing
    frame = pd.DataFrame({
        "member": range(size),
        "response": [t.response for t in group.trajectories],
        "score": [None if j is None else j.score for j in group.judgements or nothing],
        "status": [None if j is None else j.status for j in group.judgements or nothing],
        "reward": code_rewards(judged, c.reward_coding), "advantage": group.advantages or nothing,
        "kept": nothing if group.kept is None else [i in group.kept for i in range(size)],
        "length": [sum(t.action_mask) for t in group.trajectories],
    })
    return frame.astype({"score": float, "reward": float, "advantage": float})


def discarded(source: Source, step: int) -> dict[str, int]:
    """How many questions of a step the rollout and the grader discarded: these have no group to look at."""
    record = next((r for r in _history(source) if r.index == step), None)
    metrics = record.metrics if record else {}
    return {who: int(metrics.get(f"{who}/discarded") or 0) for who in ("rollout", "grader")}


def steps_of(source: Source) -> list[int]:
    """The steps whose answers can be looked at, in ascending order."""
    if (folder := folder_of(source)) is not None:
        return sorted(int(p.stem[5:]) for p in (folder / "trajectories").glob("step-*.jsonl")
                      if p.stem[5:].isdigit())
    return [record.index for record in trainer_of(source).history if record.groups]


def trainer_of(source: Source) -> OrealTrainer | None:
    """The trainer behind a source; None for a run directory."""
    return source if isinstance(source, OrealTrainer) else getattr(source, "trainer", None)


def folder_of(source: Source) -> Path | None:
    """Where a source's trajectory files are; None for what is in memory only.

    Raises:
        ViewError: it is no source, or a folder without a run.
    """
    if isinstance(source, Experiment):
        return source.log.folder
    if isinstance(source, OrealTrainer | Run):
        return None
    if not isinstance(source, str | Path):
        raise ViewError("give a trainer, a run, an experiment or a run directory; "
                        f"got a {type(source).__name__}")
    if not (Path(source) / "config.json").is_file():
        raise ViewError(f"{source}: there is no run (no config.json) in it")
    return Path(source)


def config_of(source: Source) -> Config:
    """The config of the run."""
    folder = folder_of(source)
    if folder is None:
        return trainer_of(source).config
    try:
        return RunLog.open(folder).config
    except (RunError, ValueError) as error:
        raise ViewError(str(error)) from None


def page(row: Row) -> str:
    """A row of `trajectories` as text."""
    advantage = "none" if row["advantage"] is None else f"{row['advantage']:+.3f}"
    score = "none" if row["score"] is None else f"{row['score']:g}"
    lines = [f"step {row['step']}, prompt {row['prompt']} ({row['id']}), member {row['member']}",
             f"question   {row['question']}", f"gold       {' | '.join(row['gold'])}", ""]
    for message in row.get("messages") or [{"role": "assistant", "content": row["response"]}]:
        lines += [*_turn(message), ""]
    ended = row["finish_reason"]
    return "\n".join([
        *lines, f"score      {score}, {row['status']}" + (f": {row['reason']}" if row["reason"] else ""),
        f"advantage  {advantage}", f"           {row['why']}",
        f"ended      {ended} ({ENDED.get(ended, 'no reason known')})",
        f"sampled    by policy version {row['policy_version']}, judged by {row['source']}"])


def _turn(message: Row) -> list[str]:
    lines = [f"{message['role']}:", *(f"  {line}" for line in (message.get("content") or "").split("\n"))]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        given = function["arguments"]
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        lines.append(f"  -> {function['name']}({text})")
    return lines


def step_rows(source: Source, step: int) -> list[dict[str, Any]]:
    """The lines of a step with step, prompt and why."""
    rows, config = _lines(source, step), config_of(source)
    places = accumulate((int(row["member"] == 0) for row in rows), initial=-1)  # a group begins with member 0
    rows = [{**row, "step": step, "prompt": place} for row, place in zip(rows, list(places)[1:], strict=True)]
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["prompt"], []).append(row)
    return [{**row, "why": why} for group in groups.values()
            for row, why in zip(group, reasons(group, config), strict=True)]


def _lines(source: Source, step: int) -> list[dict[str, Any]]:
    steps = steps_of(source)
    if step not in steps:
        there = f"it has {steps[0]} to {steps[-1]}" if steps else "it has none yet"
        raise ViewError(f"there are no answers of step {step}: {there}")
    if (folder := folder_of(source)) is None:
        record = next(r for r in trainer_of(source).history if r.index == step)
        return [row for group in record.groups for row in trajectory_rows(group)]
    path = folder / "trajectories" / f"step-{step:05d}.jsonl"
    if not path.stat().st_size:
        return []  # every question was discarded
    try:
        return [row for _, row in read_jsonl(path.resolve())]
    except DataError as error:
        raise ViewError(str(error)) from None


def _history(source: Source) -> Sequence[StepRecord]:
    folder = folder_of(source)
    return trainer_of(source).history if folder is None else RunLog.open(folder).metrics()


def reasons(group: Sequence[Row], config: Config) -> list[str]:
    """Why each member of a group was kept or not, in a sentence: the rule of oreal/selection.py in words."""
    right = sum(r["score"] is not None and r["score"] >= config.positive_threshold for r in group)
    judged = sum(r["score"] is not None for r in group)
    if config.control == "own_samples":
        return ["never trained on: unscorable" if row["score"] is None else
                "kept: control='own_samples' imitates every own answer" for row in group]
    if not any(row["kept"] for row in group):
        if judged < 2:
            cause = f"{judged} of {len(group)} answers could be judged, and a baseline needs two"
        else:
            cause = {judged: "all right", 0: "all wrong"}.get(right, "as its record says")
        return [f"group not kept: {cause}"] * len(group)
    return [_reason(row, config) for row in group]


def _reason(row: Row, config: Config) -> str:
    if row["score"] is None:
        return "not kept: unscorable"
    sign = "right" if row["score"] >= config.positive_threshold else "wrong"
    if not row["kept"]:
        return f"not kept: another {sign} answer was drawn for the pair"
    return {"one_pair": f"kept: drawn as the {sign} answer of the pair",
            "mixed": "kept: its group has right and wrong answers",
            "all": "kept: every answer that could be judged is"}[config.selection]
