"""A run in a terminal: the bar, its numbers, and why it waits."""

from __future__ import annotations

import logging
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rlteach.types import StepRecord


class ConsoleLog(logging.Handler):
    """Warnings of the run, such as a judge that is away, between the lines of the bar."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.print(record.getMessage(), soft_wrap=True)


def train_with_bar(experiment: Any, console: Console) -> bool:
    """Run the steps under a bar with reward and loss; plain lines where there is no terminal.

    True when they all ran, False when they were interrupted.
    """
    total, done = experiment.config.total_steps, experiment.trainer.step_index
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("training", total=total, completed=done)
            for record in experiment.steps():
                progress.update(task, completed=record.index, description=describe(record))
                if not console.is_terminal and (record.index % 5 == 0 or record.index == total):
                    console.print(f"step {record.index:3d}/{total}  {describe(record)}", soft_wrap=True)
    except KeyboardInterrupt:
        console.print(f"\nstopped after step {experiment.trainer.step_index}; go on with: "
                      f"rlteach train --resume {experiment.log.folder}", soft_wrap=True)
        return False
    return True


def describe(record: StepRecord) -> str:
    """reward 0.71  loss +0.0123  dev 0.95"""
    m = record.metrics
    parts = ["reward " + ("none" if m["reward/mean"] is None else f"{m['reward/mean']:.2f}"),
             "no update" if m["loss/total"] is None else f"loss {m['loss/total']:+.4f}"]
    if m.get("loss/token_reward") is not None:
        parts.append(f"token model {m['loss/token_reward']:.3f}")
    if m.get("dev/accuracy") is not None:
        parts.append(f"dev {m['dev/accuracy']:.3f}")
    if m.get("judge/unscorable"):
        parts.append(f"unscorable {m['judge/unscorable']:.1%}")
    if dropped := (m.get("rollout/discarded") or 0) + (m.get("grader/discarded") or 0):
        parts.append(f"discarded {dropped:.0f}")
    if m.get("judge/calls") is not None:
        parts.append(f"judge {m['judge/calls']:.0f} calls, {m['seconds/grade']:.1f} s")
    if m.get("judge/disagreement") is not None:
        parts.append(f"rule disagrees {m['judge/disagreement']:.1%}")
    return "  ".join(parts)
