"""What a finished run says: the table before and after, and transcripts to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from rlteach.training.evaluate import Evaluation
from rlteach.types import Group


def accuracy_table(summary: Mapping[str, Any], how: str = "greedy") -> Table:
    """Test accuracy before, after (best on dev) and at the last step, with 95 % intervals."""
    columns = [
        ("before", summary["before"]),
        (f"after (step {summary['best_step']}, best on dev)", summary["after"]),
        (f"last step ({summary['steps']})", summary["last_step"]),
    ]
    table = Table(title=f"{how} accuracy on {summary['before']['n']} test questions")
    table.add_column("")
    for name, _ in columns:
        table.add_column(name, justify="right")
    table.add_row("all", *(share(e["accuracy"], e["ci95"]) for _, e in columns))
    for level in summary["before"]["by_level"]:
        cells = (share(e["by_level"].get(level)) for _, e in columns)
        table.add_row(f"{level} digits" if level.isdigit() else level, *cells)
    if any(e["unscorable"] for _, e in columns):
        table.add_row("unscorable", *(str(e["unscorable"]) for _, e in columns))
    return table


def evaluation_table(found: Evaluation, title: str) -> Table:
    """Accuracy, in all and by level, pass@k, and what nobody could judge."""
    table = Table(title=title)
    table.add_column("")
    table.add_column("accuracy", justify="right")
    table.add_row("all", share(found.accuracy, found.ci95))
    for level, value in found.by_level.items():
        table.add_row(f"level {level}", share(value))
    if found.k > 1:
        table.add_row(f"pass@{found.k}", share(found.pass_at_k))
    table.add_row("unscorable answers", str(found.unscorable))
    return table


def share(value: float | None, interval: Sequence[float] | None = None) -> str:
    """98.9 % [98.0, 99.4], or "not measured"."""
    if value is None:
        return "not measured"
    text = f"{100 * value:.1f} %"
    return text if interval is None else f"{text} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def transcripts(before: Evaluation, after: Evaluation, count: int = 3) -> Table:
    """Questions of different levels, answered by both; those that were mended come first."""
    pairs = list(zip(before.groups, after.groups, strict=True))
    pairs.sort(key=lambda p: not _score(p[1]) > _score(p[0]))  # stable: mended first
    chosen: list[tuple[Group, Group]] = []
    for pair in pairs:
        levels = [c[0].sample.extra.get("level") for c in chosen]
        if len(chosen) < count and pair[0].sample.extra.get("level") not in levels:
            chosen.append(pair)
    chosen += [p for p in pairs if p not in chosen][: count - len(chosen)]
    table = Table(title="the same questions, before and after", show_lines=True)
    for name in ("question", "before", "after"):
        table.add_column(name)
    for one, other in chosen:
        table.add_row(Text(one.sample.question), _answer(one), _answer(other))
    return table


def _score(group: Group) -> float:
    return (group.scores[0] or 0.0) if group.scores else 0.0


def _answer(group: Group) -> Text:
    if not group.trajectories:
        return Text("discarded by the rollout", style="red")
    right = group.scores[0] is not None and group.scores[0] >= 1
    mark = "right" if right else group.judgements[0].status
    text = Text(group.trajectories[0].response + "\n")
    return text.append(mark, style="green" if right else "red")
