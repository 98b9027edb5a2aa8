"""Build the lessons: notebooks/src/NN_name.py (what people edit) -> notebooks/NN_name.ipynb (what they open).

    python notebooks/build.py [NN ...]     run the sources and write the notebooks with their outputs
    python notebooks/build.py --check      run nothing: is every notebook its source, run from top to bottom?
    python notebooks/build.py --pull NN    take edits made in Jupyter back into the source

Outputs and execution counts are kept: `pytest --nbval notebooks` compares only cells that have a count.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
TIMEOUT, LARGEST = 600, 1_000_000  # seconds a cell (a busy machine is no fault), bytes a notebook
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"}}
SOURCE_METADATA = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "tags,-all"}}


def lessons(numbers: list[str]) -> list[tuple[Path, Path]]:
    """(source, notebook) of the lessons with these numbers; of all when none is named."""
    found = {path.stem for place in (HERE, HERE / "src") for path in place.glob("[0-9][0-9]_*.*")}
    if unknown := sorted(set(numbers) - {name[:2] for name in found}):
        raise SystemExit(f"there is no lesson {', '.join(unknown)}: give two digits, as in 00")
    chosen = sorted(name for name in found if not numbers or name[:2] in numbers)
    return [(HERE / "src" / f"{name}.py", HERE / f"{name}.ipynb") for name in chosen]


def read_source(path: Path) -> NotebookNode:
    """The cells of a percent-format file, with ids that are numbers and so stay the same."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i:02d}"
    return notebook


def build(source: Path, target: Path) -> list[str]:
    """Run a lesson and write it; a lesson that goes wrong is not written."""
    notebook = read_source(source)
    client = NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", extra_arguments=["--log-level=ERROR"],
        record_timing=False, store_widget_state=False, coalesce_streams=True,
        resources={"metadata": {"path": str(target.parent)}})
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError) as error:
        return [f"{source.name}: {error}"]
    notebook.metadata = nbformat.from_dict(METADATA)  # the kernel adds its exact version
    found = run_problems(notebook, source.name)
    if not found:
        target.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8", newline="\n")
    return found


def check(source: Path, target: Path) -> list[str]:
    """What is wrong with a notebook, in one sentence each; nothing is run."""
    name, again, found = target.name, f"run notebooks/build.py {target.name[:2]}", []
    if not target.exists():
        return [f"{name} is missing: {again}"]
    if (size := target.stat().st_size) > LARGEST:
        found.append(f"{name} has {size:,} bytes, more than {LARGEST:,}: draw fewer or smaller pictures")
    notebook = nbformat.read(target, as_version=4)
    wanted, cells = ([(c.cell_type, c.source, c.metadata.get("tags", [])) for c in n.cells]
                     for n in (read_source(source), notebook))
    if wanted != cells:
        at = [*(a == b for a, b in zip(wanted, cells, strict=False)), False].index(False)
        found.append(f"{name} is not its source any more, from cell {at} on: {again}")
    return found + run_problems(notebook, name)


def run_problems(notebook: NotebookNode, name: str) -> list[str]:
    """Was it run from top to bottom, without an error and without a word on stderr?"""
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    good = counts == list(range(1, len(counts) + 1))
    found = [] if good else [f"{name} was not run from top to bottom: its counts are {counts}"]
    for at, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                found.append(f"{name}: cell {at} holds an error, {output.ename}: {output.evalue}")
            elif output.get("name") == "stderr":
                found.append(f"{name}: cell {at} wrote to stderr: {output.text.strip()[:200]!r}")
    return found


def pull(source: Path, target: Path) -> list[str]:
    """Write the notebook's cells into the source, as build reads them."""
    notebook = nbformat.read(target, as_version=4)
    notebook.metadata = nbformat.from_dict(SOURCE_METADATA)
    source.write_text(jupytext.writes(notebook, fmt="py:percent"), encoding="utf-8", newline="\n")
    return []


def main() -> str:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("numbers", nargs="*", metavar="NN", help="two digits; none: every lesson")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", dest="action", action="store_const", const=check, help="run nothing")
    what.add_argument("--pull", dest="action", action="store_const", const=pull, help="notebook -> source")
    arguments = parser.parse_args()
    if arguments.action is pull and not arguments.numbers:
        parser.error("--pull needs the number of a lesson: it overwrites the source")
    found, action = [], arguments.action or build
    for source, target in lessons(arguments.numbers):
        there = action is pull or source.exists()
        found += action(source, target) if there else [f"{target.name} has no source: {source} is missing"]
    return "\n".join(found)


if __name__ == "__main__":
    sys.exit(main() or 0)  # a text goes to stderr and means 1
