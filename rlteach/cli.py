"""The command line: `rlteach train tiny` and its relatives."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rlteach.agent.workspace import init_command
from rlteach.config import Config, ConfigError
from rlteach.presets import PRESETS
from rlteach.serving.command import serve_command
from rlteach.views.checkup import doctor_command
from rlteach.views.trace import trace_command

if TYPE_CHECKING:
    from rlteach.training.experiment import Experiment

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
                  help="Watch a language model learn by reinforcement, and read how.")
console = Console(highlight=False, markup=False)  # questions and folders may hold [brackets]
UsageError: Any = typer.BadParameter.__base__  # click's, or the copy of it that newer typers bring
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="change a config field")]
Model = Annotated[str, typer.Argument(help="embedded model, model directory, hub id, or run directory")]


@app.command()
def train(
    preset: Annotated[str | None, typer.Argument(
        help=f"{', '.join(PRESETS)}, or a .json or .toml file")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="run directory [default: runs/TIME-PRESET]")] = None,
    seed: Annotated[int | None, typer.Option(help="of everything random")] = None,
    judge_url: Annotated[list[str] | None, typer.Option(
        help="OpenAI-compatible judge, asked about what the rule leaves open (--set judger=llm: about all); "
        "its key: RLTEACH_JUDGE_KEY")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with this run")] = None,
) -> None:
    """Train a policy with OREAL, and say how much better it got."""
    from rlteach.training.metrics import table
    from rlteach.views import plots, report
    from rlteach.views.progress import ConsoleLog, train_with_bar

    quiet_libraries()
    logging.getLogger("rlteach").addHandler(ConsoleLog(console))
    experiment, folder = open_run(preset, settings, out, seed, judge_url, resume)
    console.print(f"run directory: {folder}", soft_wrap=True)
    c = experiment.config
    how = "greedy" if c.eval_greedy else f"temperature {c.temperature:g}"
    with experiment:
        before = experiment.measure_before()
        untrained = report.share(before.accuracy, before.ci95)
        console.print(f"before: {untrained} of {before.n} test questions, {how}")
        if not train_with_bar(experiment, console):
            raise typer.Exit(130)
        summary = experiment.finish()
    picture = folder / "curves.png"
    figure = plots.curves(
        table(experiment.trainer.history), before=summary["before"]["accuracy"],
        after=summary["after"]["accuracy"], title=f"{summary['preset']}, seed {summary['seed']}")
    picture.write_bytes(plots.png(figure))
    console.print(report.transcripts(before, experiment.evaluations["after"]))
    console.print(report.accuracy_table(summary, how))
    console.print(f"{summary['steps']} steps in {summary['seconds']:.0f} s, evaluations on dev included")
    console.print(f"picture: {picture}\nmodel:   {folder / 'checkpoints' / 'best'}", soft_wrap=True)


def open_run(
    preset: str | None, settings: list[str] | None, out: Path | None, seed: int | None,
    judge_url: list[str] | None, resume: Path | None,
) -> tuple[Experiment, Path]:
    """The experiment that the options of `train` ask for, and its folder."""
    from rlteach.training.experiment import Experiment

    if (resume is None) == (preset is None):
        raise ConfigError("give a preset (or a config file), or --resume RUN: one of the two")
    if preset is None or resume is not None:
        if settings or judge_url or seed is not None or out is not None:
            raise ConfigError(
                "--resume repeats the run's own config: leave out --set, --seed, --judge-url and --out")
        return Experiment.resume(resume), resume
    changes = parse_settings(settings, seed)
    if judge_url:
        changes = {"judger": "rule_then_llm", "judge_url": judge_url, **changes}
    config = Config.load(preset, **changes)
    folder = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(preset).stem}"
    return Experiment.create(config, folder), folder


@app.command("eval")
def evaluate_command(
    model: Model,
    data: Annotated[str | None, typer.Option(help="JSONL file [default: the test questions]")] = None,
    k: Annotated[int, typer.Option(help="answers a question")] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="take the most likely token")] = False,
    seed: Annotated[int, typer.Option(help="of the sampling")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Accuracy with a 95 % interval, and pass@k."""
    from rlteach.data import load_samples
    from rlteach.training.evaluate import evaluate_model
    from rlteach.views.report import evaluation_table

    quiet_libraries()
    config = config_of(model)
    samples = load_samples(data or config.test_data)
    found = evaluate_model(model, config, samples, greedy=greedy, k=k, seed=seed)
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
        return
    how = "greedy" if greedy else f"temperature {config.temperature:g}"
    console.print(evaluation_table(found, f"{model}: {found.n} questions, {how}"))


@app.command()
def ask(model: Model, question: Annotated[str, typer.Argument(help="what to ask")]) -> None:
    """One greedy answer; what was called and found on the way to it comes first."""
    from rlteach.training.evaluate import ask_model
    from rlteach.views.trace import message_text

    quiet_libraries()
    config = config_of(model)
    answer = ask_model(model, config, question)
    *turns, last = answer.messages[1:]
    for message in turns if not last.tool_calls else (*turns, last):
        console.print(message_text(message.as_dict()), soft_wrap=True)
    typer.echo(answer.response)
    if answer.finish_reason == "length":
        typer.echo(f"(cut off after {config.max_new_tokens} tokens)", err=True)


@app.command()
def grade(
    file: Annotated[str, typer.Argument(help="JSONL of {question, gold_answer, response}")],
    as_json: Annotated[bool, typer.Option("--json", help="only the JSON lines, no count")] = False,
) -> None:
    """Judge answers by rule: one JSON line each {verdict, score, source, reason}."""
    from rlteach.training.answers_file import grade_file

    lines = grade_file(file)  # all of it, before anything is printed
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    for line in lines:
        typer.echo(json.dumps(line, ensure_ascii=not utf8))
    if not as_json:
        verdicts = [line["verdict"] for line in lines]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("correct", "incorrect", "unscorable"))
        typer.echo(f"{len(lines)} answers: {counts}", err=True)


@app.command()
def models() -> None:
    """The models that ship with rlteach."""
    from rlteach.policy.registry import describe as describe_model
    from rlteach.policy.registry import embedded_models

    table = Table()
    for name in ("name", "parameters", "MB", "right, held out", "what it is"):
        table.add_column(name)
    for folder in embedded_models().values():
        m = describe_model(folder)
        accuracy = "not stated" if m["greedy_dev"] is None else f"{100 * m['greedy_dev']:.1f} %"
        size = f"{m['bytes'] / 1e6:.1f}"
        count = "not stated" if m["parameters"] is None else f"{m['parameters']:,}"
        table.add_row(m["name"], count, size, accuracy, m["purpose"] or "")
    console.print(table)


app.command("serve")(serve_command)
app.command("init")(init_command)
app.command("trace")(trace_command)
app.command("doctor")(doctor_command)


def parse_settings(settings: list[str] | None, seed: int | None = None) -> dict[str, Any]:
    """["group_size=4"] -> {"group_size": 4}: JSON where it can be read as such, else text."""
    out: dict[str, Any] = {} if seed is None else {"seed": seed}
    for setting in settings or []:
        name, sign, value = setting.partition("=")
        if not sign or not name:
            raise ConfigError(f"--set {setting}: write it as FIELD=VALUE, such as --set group_size=4")
        try:
            out[name] = json.loads(value)
        except ValueError:
            out[name] = {"True": True, "False": False, "None": None, "none": None}.get(value, value) \
                if name not in _NONE_IS_A_CHOICE else value
    return out


_NONE_IS_A_CHOICE = ("control", "token_weighting", "negative_shaping")


def config_of(model: str) -> Config:
    """A run's own config, the preset that trains an embedded model, or the defaults."""
    from rlteach.policy.registry import run_config

    preset = next((name for name, fields in PRESETS.items() if fields.get("policy") == model), None)
    return run_config(model) or (Config.preset(preset) if preset else Config())


def quiet_libraries() -> None:
    """No bars and hints of transformers between our own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def main() -> None:
    """Entry point: a mistake of the user's is one sentence and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may lack a character; a run goes on
    run_app(app, "rlteach --help",
            (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError))


def run_app(commands: typer.Typer, help_command: str, files: tuple[type[OSError], ...]) -> None:
    """Run a command line and exit; its own errors, and those of `files`, become one sentence."""
    try:
        sys.exit(commands(standalone_mode=False))
    except UsageError as error:  # no such option, a word where a number belongs
        if not error.format_message():  # nothing was asked
            error.show()
            sys.exit(2)
        complain(f"{error.format_message()} (see {help_command})")
    except files as error:
        complain(f"{error.filename}: {error.strerror}")
    except ValueError as error:  # ConfigError, DataError, PluginError and their like
        if not type(error).__module__.startswith("rlteach"):
            raise
        complain(str(error))


def complain(text: str) -> None:
    """One line, and exit code 2."""
    typer.echo(f"rlteach: {' '.join(text.split())}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
