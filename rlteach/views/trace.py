"""One rollout of a trace file as a tree to read: messages, tool calls, rewards, milliseconds.

    rich.print(trace_tree(read_trace("RUN"), sample="q7", member=0))
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from rlteach.agent.tracing import Tracer
from rlteach.data import DataError, read_jsonl

Span = Mapping[str, Any]
WIDTH = 400  # characters of a message that are shown


class TraceError(ValueError):
    """A trace that cannot be shown; the message says what to do."""


def read_trace(source: str | Path | Tracer) -> list[dict[str, Any]]:
    """The spans of RUN/trace.jsonl (or of the file itself, or those that a tracer has in memory), in the
    order in which they began.

    Raises:
        TraceError: there is no such file, or a line of it (except a last one that was cut off) is none.
    """
    if isinstance(source, Tracer):
        return sorted(map(asdict, source.spans), key=lambda span: span["start"])
    file = Path(source)
    file = file / "trace.jsonl" if file.is_dir() else file
    if not file.is_file():
        raise TraceError(f"{file}: there is no trace; runs of plug-ins write one")
    try:
        spans = [span for _, span in read_jsonl(file, cut_off=True)]
    except DataError as error:
        raise TraceError(str(error)) from None
    return sorted(spans, key=lambda span: span["start"])


def rollout_table(spans: Sequence[Span], limit: int | None = None) -> Table:
    """One line a rollout: sample, member, phase, attempt, status, reward, turns, milliseconds.

    limit: only the last ones; they keep their numbers.
    """
    found = list(enumerate(span for span in spans if span["kind"] == "rollout"))
    shown = found if limit is None else found[max(len(found) - limit, 0) :]
    which = "" if len(shown) == len(found) else f"the last {len(shown)} of "
    table = Table(title=f"{which}{len(found)} rollouts")
    for name in ("", "id", "sample", "member", "phase", "attempt", "status", "reward", "turns", "ms"):
        table.add_column(name, justify="left" if name in ("id", "sample", "phase", "status") else "right")
    rewards = rewards_of(spans)
    for at, span in shown:
        about = span["about"]
        cells = (span["span"], about.get("sample"), about.get("member"), about.get("phase", ""),
                 about.get("attempt"), about.get("status"), _reward(rewards.get(span["span"])),
                 about.get("turns", ""), f"{span['ms']:.0f}")
        table.add_row(str(at), *map(Text, map(str, cells)))
    return table


def trace_tree(spans: Sequence[Span], *, at: int | None = None, name: str | None = None,
               sample: str | None = None, member: int | None = None) -> Tree:
    """One rollout: number `at` of rollout_table, the one whose id begins with `name`, or the last one of
    a sample (and member).

    Raises:
        TraceError: there is no such rollout.
    """
    found = [(i, s) for i, s in enumerate(s for s in spans if s["kind"] == "rollout")
             if (at is None or i == at) and (name is None or s["span"].startswith(name))
             and (sample is None or s["about"].get("sample") == sample)
             and (member is None or s["about"].get("member") == member)]
    if not found:
        count = sum(s["kind"] == "rollout" for s in spans)
        raise TraceError(f"there is no such rollout: the trace has {count} of them, numbered from 0; "
                         "`rlteach trace RUN --list` shows their ids")
    rollout = found[-1][1]
    below: dict[str | None, list[Span]] = defaultdict(list)
    for span in spans:
        below[span["parent"]].append(span)
    tree = Tree(_headline(rollout))
    for message in rollout["inputs"] or []:
        tree.add(message_text(message))
    _add(tree, rollout, below, rollout["inputs"] or [])
    for grade in spans:
        if grade["kind"] == "grade" and rollout["span"] in grade["about"].get("rollouts", []):
            _add_grade(tree, grade, rollout["span"])
    return tree


def trace_command(
    run: Annotated[Path, typer.Argument(help="run directory, or a trace.jsonl")],
    rollout: Annotated[str | None, typer.Option(
        "--id", help="number or id of a rollout, as --list shows them [default: the last one]")] = None,
    as_list: Annotated[bool, typer.Option("--list", help="a table of the rollouts")] = False,
    limit: Annotated[int, typer.Option(help="rollouts in the table, the last ones", min=1)] = 50,
) -> None:
    """One rollout of a run: what was asked, called, answered and rewarded, with times."""
    spans, console = read_trace(run), Console(highlight=False, markup=False)
    if as_list:
        console.print(rollout_table(spans, limit))
    elif rollout is not None and len(rollout) < 16 and rollout.isdecimal():  # ids have 16 hex digits
        console.print(trace_tree(spans, at=int(rollout)))
    else:
        console.print(trace_tree(spans, name=rollout))


def rewards_of(spans: Sequence[Span]) -> dict[str, float | None]:
    """Rollout span -> the reward that the last grade gave it."""
    return {rollout: reward for grade in spans if grade["kind"] == "grade" and grade["outputs"]
            for rollout, reward in zip(grade["about"].get("rollouts", []), grade["outputs"]["rewards"],
                                       strict=True)}


def _add(tree: Tree, span: Span, below: Mapping[str | None, Sequence[Span]], shown: Sequence[Any]) -> None:
    """Events and the spans below, those of plug-in wrappers left out (their children are not)."""
    for event in span["events"]:
        told = ", ".join(f"{k} {v}" for k, v in event.items() if k != "name")
        tree.add(Text(f"! {event['name']}{': ' if told else ''}{told}", style="yellow"))
    for child in below[span["span"]]:
        if child["kind"] in ("plugin", "client"):
            _add(tree, child, below, shown)
            continue
        branch = tree.add(_headline(child))
        if child["kind"] == "model":
            for message in child["inputs"] or []:
                if message.get("role") != "assistant" and message not in shown:
                    branch.add(message_text(message))
            branch.add(message_text(child["outputs"] or {}))
        elif child["kind"] == "tool":
            branch.add(_words("given", child["inputs"]))
            branch.add(_words("gave", child["outputs"]))
        _add(branch, child, below, shown)


def _add_grade(tree: Tree, grade: Span, rollout: str) -> None:
    place = grade["about"]["rollouts"].index(rollout)
    reward = grade["outputs"]["rewards"][place] if grade["outputs"] else None
    branch = tree.add(_headline(grade))
    branch.add(Text(f"reward {_reward(reward)}", style="bold"))
    for event in grade["events"]:
        branch.add(Text(f"! {event['name']}: {event.get('reason', '')}", style="yellow"))


def _headline(span: Span) -> Text:
    about = span["about"]
    text = Text(f"{span['kind']} {span['name']}", style="bold")
    told = [f"{name} {about[name]}" for name in ("sample", "member", "attempt", "status", "finish_reason")
            if about.get(name) is not None]
    if about.get("completion_tokens") is not None:
        told.append(f"{about['prompt_tokens']} + {about['completion_tokens']} tokens")
    text.append(f"  {', '.join(told)}  {span['ms']:.1f} ms", style="dim")
    return text.append(f"  {span['error']}", style="red") if span["error"] else text


def message_text(message: Mapping[str, Any]) -> Text:
    """Who said what, and the calls in it."""
    text = Text(f"{message.get('role', '?')}: ", style="cyan")
    text.append(_short(message.get("content") or ""), style="default")
    for call in message.get("tool_calls") or []:
        function = call["function"]
        text.append(f"\n-> {function['name']}({_short(_as_text(function['arguments']))})", style="magenta")
    return text


def _words(name: str, value: Any) -> Text:
    return Text(f"{name} ", style="cyan").append(_short(_as_text(value)), style="default")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}... ({len(text)} characters)"


def _reward(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
