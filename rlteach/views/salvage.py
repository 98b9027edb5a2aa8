"""Whatever can be read of a run directory, torn files and all: nothing here stops at a damaged line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlteach.config import Config
from rlteach.data import DataError, load_samples
from rlteach.messages import MessageError, to_message
from rlteach.training.runlog import whole
from rlteach.types import Group, Judgement, Message, Sample, StepRecord, Trajectory
from rlteach.views.case import FIRST, LAST, Case


def read_run(folder: Path) -> Case:
    """Whatever can be read of a run directory; what cannot is told in `notes`."""
    notes: list[str] = []
    case = Case(_config(folder, notes), notes=notes)
    lines = [line for line in _objects(folder / "metrics.jsonl", notes) if isinstance(line.get("step"), int)]
    metrics = {e["step"]: {k: v for k, v in e.items() if _number(v)} for e in lines}
    if not metrics:
        notes.append("no finished step was found")
    steps, rates = sorted(metrics), _pass_rates(case.config)
    for step in {*steps[:FIRST], *steps[-LAST:]}:
        file = folder / "trajectories" / f"step-{step:05d}.jsonl"
        case.groups[step] = _groups(_objects(file, notes), rates) if file.is_file() else ()
    case.take([StepRecord(step, tuple(case.groups.get(step, ())), metrics[step]) for step in steps])
    summaries = _objects(folder / "summary.json", notes, whole_file=True)
    case.ended = True if any(s.get("state") == "finished" for s in summaries) else None
    return case


def _config(folder: Path, notes: list[str]) -> Config:
    try:
        return Config.load(str(folder / "config.json"))
    except ValueError as error:
        notes.append(f"read with the default config, for its own cannot be read: {error}")
        return Config()


def _pass_rates(config: Config) -> dict[str, float]:
    """Id -> pass rate of the questions that were trained on; empty where the file is gone."""
    try:
        return {s.id: s.pass_rate for s in load_samples(config.train_data) if s.pass_rate is not None}
    except (DataError, OSError):
        return {}


def _objects(file: Path, notes: list[str], *, whole_file: bool = False) -> list[dict[str, Any]]:
    """The objects of a file, one a line (or one in all); how many lines were none goes into `notes`."""
    try:
        text = file.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        if not whole_file:
            notes.append(f"there is no {file.name}")
        return []
    lines = [text] if whole_file else [line for line in text.split("\n") if line.strip()]
    found = [entry for entry in map(whole, lines) if isinstance(entry, dict)]
    if torn := len(lines) - len(found):
        notes.append(f"{file.name}: {torn} of {len(lines)} lines cannot be read and were left out")
    return found


def _groups(rows: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> tuple[Group, ...]:
    """Lines of a trajectory file as groups, without token ids; a new group begins with member 0."""
    parts: list[list[Mapping[str, Any]]] = []
    for row in rows:
        if not parts or row.get("member") == 0 or row.get("id") != parts[-1][0].get("id"):
            parts.append([])
        parts[-1].append(row)
    return tuple(_group(part, rates) for part in parts)


def _group(rows: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> Group:
    one = rows[0]
    asked = Message("user", str(one.get("question") or ""))
    gold = one.get("gold") if isinstance(one.get("gold"), list) else []
    name = str(one.get("id"))
    sample = Sample(name, (asked,), tuple(map(str, gold)), pass_rate=rates.get(name))
    return Group(sample, tuple(_trajectory(asked, row) for row in rows), tuple(map(_judgement, rows)))


def _trajectory(asked: Message, row: Mapping[str, Any]) -> Trajectory:
    turns = [Message("assistant", str(row.get("response") or ""))]
    with suppress(MessageError, TypeError, AttributeError):  # the answer itself is there in any case
        turns = [to_message(m, "message") for m in row.get("messages") or ()] or turns
    ended = row.get("finish_reason")
    return Trajectory((asked, *turns), (), (), (), 0, ended if ended in ("length", "tool_calls") else "stop")


def _judgement(row: Mapping[str, Any]) -> Judgement:
    score = row.get("score") if _number(row.get("score")) else None
    status = "unscorable" if score is None else "correct" if score >= 1 else "incorrect"
    return Judgement(score, status, str(row.get("reason") or ""), row.get("source") or "rule")


def _number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and not math.isnan(value)
