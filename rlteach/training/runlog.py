"""The run directory: plain files that a person, pandas or the next start can read."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rlteach
from rlteach.agent.tracing import plain
from rlteach.agent.types import SPAN
from rlteach.config import Config
from rlteach.training.files import write_json, write_text
from rlteach.types import Group, Message, Sample, StepRecord, Trajectory


class RunError(ValueError):
    """A run directory that cannot be used."""


class RunLog:
    """Writes RUN/; see ARCHITECTURE.md section 10 for the files."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.config = folder, config

    @classmethod
    def create(cls, folder: Path, config: Config) -> RunLog:
        """A new run. Raises RunError when the folder holds something."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"--out {folder} is not empty: name another folder, or go on with "
                           f"--resume {folder}")
        (folder / "trajectories").mkdir(parents=True)
        (folder / "checkpoints").mkdir()
        log = cls(folder, config)
        write_json(folder / "config.json", config.model_dump())
        return log

    @classmethod
    def open(cls, folder: Path) -> RunLog:
        """A run that exists. Raises RunError when the folder is none."""
        if not (folder / "config.json").is_file():
            raise RunError(f"--resume {folder}: there is no run (no config.json) in it")
        return cls(folder, Config.load(str(folder / "config.json")))

    def note(self, text: str) -> None:
        """A dated line of log.txt."""
        with (self.folder / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def record(self, step: StepRecord) -> None:
        """One line of metrics.jsonl and one trajectory file."""
        line = json.dumps({"step": step.index, **step.metrics})
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        lines = [row for g in step.groups for row in trajectory_rows(g, debug=self.config.debug)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines)
        path = self.folder / "trajectories" / f"step-{step.index:05d}.jsonl"
        write_text(path, text)

    def metrics(self, up_to: int | None = None) -> list[StepRecord]:
        """The steps of metrics.jsonl; with `up_to`, later ones are removed from the file."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        entries = [entry for line in lines if (entry := whole(line)) is not None]
        if up_to is not None:
            entries = [e for e in entries if e["step"] <= up_to]
            write_text(path, "".join(json.dumps(e) + "\n" for e in entries))
        return [StepRecord(e.pop("step"), (), e) for e in entries]

    def summary(self) -> dict[str, Any]:
        """What summary.json knew when the run was left: the measurement before training."""
        path = self.folder / "summary.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return {name: known[name] for name in ("before",) if name in known}

    def latest_checkpoint(self) -> Path | None:
        """The checkpoint of the highest step."""
        found = [p for p in (self.folder / "checkpoints").glob("step-*") if p.name[5:].isdigit()]
        return max(found, key=lambda p: int(p.name[5:]), default=None)


def trajectory_rows(group: Group, *, debug: bool = False) -> list[dict[str, Any]]:
    """The lines of a trajectory file that a graded group makes, one a member; debug adds ids and masks."""
    rows = []
    for i, (t, j) in enumerate(zip(group.trajectories, group.judgements or (), strict=True)):
        row = {
            "id": group.sample.id, "member": i, "question": group.sample.question,
            "gold": list(group.sample.gold), "response": t.response, "score": j.score,
            "status": j.status, "reason": j.reason, "source": j.source,
            "advantage": (group.advantages or ())[i], "kept": i in (group.kept or ()),
            "finish_reason": t.finish_reason, "policy_version": t.policy_version,
        }
        turns = after(group.sample, t)
        if SPAN in t.extra or len(turns) > 1:  # there may be tools between the question and the answer
            row["messages"] = [m.as_dict() for m in turns]
        if SPAN in t.extra:  # a plug-in's
            row |= {"rollout": t.extra[SPAN], "extra": plain({k: v for k, v in t.extra.items() if k != SPAN})}
        if debug:
            row |= {"token_ids": t.token_ids, "action_mask": t.action_mask, "logprobs": t.logprobs}
        rows.append(row)
    return rows


def after(sample: Sample, trajectory: Trajectory) -> Sequence[Message]:
    """All turns after the question; the whole conversation, when the rollout changed what came before."""
    asked = len(sample.messages)
    return trajectory.messages[asked if trajectory.messages[:asked] == sample.messages else 0 :]


def whole(line: str) -> dict[str, Any] | None:
    """The object of a line; None for one that was cut off when its process was killed."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide the numbers."""
    names = ("torch", "transformers", "tokenizers", "numpy")
    found = {n: version(n) for n in names}
    return {"python": platform.python_version(), "rlteach": rlteach.__version__, **found}


def machine() -> dict[str, Any]:
    return {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()}
