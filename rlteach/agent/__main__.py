"""Plug-ins without training: python -m rlteach.agent test plugins.rollout:demo_rollout --data FILE"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rlteach.cli import run_app

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  help="Plug-ins: run them against any OpenAI-compatible server, without training.")


@app.callback()
def commands() -> None:
    """Keeps `test` a word of its own, though it is the only command so far."""


@app.command("test")
def trial_command(
    rollout: Annotated[str, typer.Argument(help="package.module:function of a @rollout")],
    data: Annotated[Path | None, typer.Option(help="JSONL file of samples")] = None,
    request: Annotated[str | None, typer.Option(
        metavar="JSON", help='one sample in place of --data: {"messages": [...], "extra": {...}}')] = None,
    grader: Annotated[str | None, typer.Option(help="package.module:function of a grader")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="samples, at most")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="rollouts a sample")] = 1,
    at_once: Annotated[int | None, typer.Option(
        min=1, help="rollouts at the same time [default: the plug-in's max_concurrency]")] = None,
    url: Annotated[str | None, typer.Option(
        envvar="OPENAI_BASE_URL", show_envvar=True, help="base URL of the server, /v1 included")] = None,
    model: Annotated[str | None, typer.Option(help="in place of the name that the plug-in gives")] = None,
    api_key: Annotated[str | None, typer.Option(
        envvar="OPENAI_API_KEY", show_envvar=True, help="of the server")] = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file for the conversations and rewards")] = None,
) -> None:
    """Mean reward, statuses, and seconds a rollout. Exit code 1: a FAILURE, which would stop a run."""
    from rlteach.agent.loading import load_plugin
    from rlteach.agent.trial import TrialError, read_sample, try_with_dataset

    if (data is None) == (request is None):
        raise TrialError("give --data FILE, or --request JSON: one of the two")
    judge = None if grader is None else load_plugin(grader, "group_grader", "single_grader")
    trial = try_with_dataset(
        data if request is None else [read_sample(request, "--request")], load_plugin(rollout, "rollout"),
        judge, url=url, api_key=api_key, model=model, limit=limit, max_concurrent=at_once, n_sample=n)
    if out is not None:
        out.write_bytes("".join(conversations(trial)).encode())
    typer.echo(str(trial))
    if trial.statuses.get("FAILURE"):
        raise typer.Exit(1)


def conversations(trial: Any) -> list[str]:
    """A line for each rollout that has one: {"messages", "finish_reason", "extra", "reward"}."""
    lines = []
    for views, rewards in zip(trial.trajectories, trial.rewards, strict=True):
        for view, reward in zip(views, rewards, strict=True):
            if view is not None:
                told = view.model_dump(exclude_none=True, exclude={"usage"}) | {"reward": reward}
                lines.append(json.dumps(told, ensure_ascii=False) + "\n")
    return lines


def main() -> None:
    """Entry point: a mistake of the user's is one sentence and exit code 2, as with `rlteach`."""
    run_app(app, "python -m rlteach.agent test --help", (OSError,))


if __name__ == "__main__":
    main()
