"""The lessons: each notebook is its source, was run from top to bottom, and most of it is compared."""

from __future__ import annotations

import importlib.util
import io
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jupytext
import nbformat
import pytest
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
UNCOMPARED = {"nbval-ignore-output", "nbval-skip"}
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])


def code_cells(path: Path) -> list[NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def load_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_build", NOTEBOOKS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load_build()


def run_build(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(folder / "build.py"), *words], capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> tuple[Path, Path]:
    """Source and notebook of the first lesson, to be spoilt; build.py lies beside them."""
    (tmp_path / "src").mkdir()
    shutil.copy(NOTEBOOKS / "build.py", tmp_path)
    name = LESSONS[0].stem
    return (Path(shutil.copy(NOTEBOOKS / "src" / f"{name}.py", tmp_path / "src")),
            Path(shutil.copy(LESSONS[0], tmp_path)))


def test_every_notebook_is_its_source_and_was_run() -> None:
    assert LESSONS
    done = run_build(NOTEBOOKS, "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_check_fails_when_the_source_was_edited(copy: tuple[Path, Path]) -> None:
    source, target = copy
    source.write_text(source.read_text(encoding="utf-8") + "\n# %%\n1 + 1\n", encoding="utf-8")
    done = run_build(target.parent, "--check")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(rf"{target.name} is not its source any more, from cell \d+ on: "
                        rf"run notebooks/build.py {target.name[:2]}", line)


def test_lessons_without_a_source_or_a_name(
    copy: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = copy
    source.unlink()
    monkeypatch.setattr(build, "HERE", target.parent)
    monkeypatch.setattr(sys, "argv", ["build.py", "--check"])
    assert build.main() == f"{target.name} has no source: {source} is missing"
    with pytest.raises(SystemExit, match="there is no lesson 99: give two digits"):
        build.lessons(["99"])


def edit_a_cell(cell: NotebookNode) -> None:
    cell.source += "\n1 + 1"


def lose_a_tag(cell: NotebookNode) -> None:
    cell.metadata = {}


def lose_the_count(cell: NotebookNode) -> None:
    cell.execution_count = None


def warn(cell: NotebookNode) -> None:
    cell.outputs.append(nbformat.v4.new_output("stream", name="stderr", text="a warning\n"))


def fail(cell: NotebookNode) -> None:
    cell.outputs.append(nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[]))


def print_too_much(cell: NotebookNode) -> None:
    cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text="x" * 1_000_000))


@pytest.mark.parametrize(("spoil", "sentence"), [
    (edit_a_cell, "is not its source any more, from cell 2 on"),
    (lose_a_tag, "is not its source any more, from cell 2 on"),
    (lose_the_count, "was not run from top to bottom"), (warn, "cell 2 wrote to stderr: 'a warning'"),
    (fail, "cell 2 holds an error, ValueError: no"), (print_too_much, "more than 1,000,000"),
])
def test_check_finds_what_was_planted(
    copy: tuple[Path, Path], spoil: Callable[[NotebookNode], None], sentence: str
) -> None:
    source, target = copy
    assert build.check(source, target) == []
    notebook = nbformat.read(target, as_version=4)
    spoil(notebook.cells[2])
    nbformat.write(notebook, target)
    (line,) = build.check(source, target)
    assert sentence in line
    target.unlink()
    (line,) = build.check(source, target)
    assert line == f"{target.name} is missing: run notebooks/build.py {target.name[:2]}"


def test_build_and_pull(tmp_path: Path) -> None:
    """A lesson of two cells: built twice it is the same, and an edit in Jupyter comes back."""
    source, target = tmp_path / "42_small.py", tmp_path / "42_small.ipynb"
    text = ('# %% [markdown]\n# # A lesson\n\n# %% tags=["nbval-ignore-output"]\nprint(6)\nprint(7)\n\n'
            '# %%\n6 * 7\n')
    source.write_text(text, encoding="utf-8")
    assert build.build(source, target) == []
    first = target.read_bytes()
    assert build.build(source, target) == []
    assert target.read_bytes() == first
    assert first.endswith(b"}\n")
    assert build.check(source, target) == []
    notebook = nbformat.read(target, as_version=4)
    assert [c.get("execution_count") for c in notebook.cells] == [None, 1, 2]
    (printed,), (shown,) = (cell.outputs for cell in notebook.cells[1:])
    assert (printed.text, shown.data["text/plain"]) == ("6\n7\n", "42")
    build.pull(source, target)
    assert source.read_text(encoding="utf-8") == text
    notebook.cells[2].source = "6 * 8"
    nbformat.write(notebook, target)
    build.pull(source, target)
    assert source.read_text(encoding="utf-8") == text.replace("6 * 7", "6 * 8")


@pytest.mark.parametrize(("code", "sentence"), [
    ("import sys\nprint('oh', file=sys.stderr)", "cell 0 wrote to stderr: 'oh'"),
    ("1 / 0", "ZeroDivisionError")])
def test_a_lesson_that_goes_wrong_is_not_written(tmp_path: Path, code: str, sentence: str) -> None:
    source, target = tmp_path / "42_wrong.py", tmp_path / "42_wrong.ipynb"
    source.write_text(f"# %%\n{code}\n", encoding="utf-8")
    (line,) = build.build(source, target)
    assert sentence in line
    assert not target.exists()


@each_lesson
def test_kernel_and_ids(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    assert "widgets" not in notebook.metadata
    assert [cell.id for cell in notebook.cells] == [f"cell-{i:02d}" for i in range(len(notebook.cells))]


@each_lesson
def test_jupyter_and_the_source_agree_on_every_character(path: Path) -> None:
    """What `--pull` would write is what stands there, so a pull shows the edit and nothing else."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = nbformat.from_dict(build.SOURCE_METADATA)
    source = NOTEBOOKS / "src" / f"{path.stem}.py"
    assert jupytext.writes(notebook, fmt="py:percent") == source.read_text(encoding="utf-8")


def shown_and_compared(path: Path) -> tuple[int, int]:
    """Cells with outputs, and those of them whose text nbval compares: it looks into no picture."""
    shown = [cell for cell in code_cells(path) if cell.outputs]
    return len(shown), sum(
        not UNCOMPARED & set(cell.metadata.get("tags", [])) and "NBVAL_" not in cell.source
        and any(map(has_words, cell.outputs)) for cell in shown)


def has_words(output: NotebookNode) -> bool:
    text = output.text if output.output_type == "stream" else output.get("data", {}).get("text/plain", "")
    return bool(text) and not re.fullmatch(r"<(IPython\.core\.display\.Image object|\w+ size .* Axes)>", text)


@each_lesson
def test_two_thirds_of_the_outputs_are_compared(path: Path) -> None:
    shown, compared = shown_and_compared(path)
    assert 3 * compared >= 2 * shown, f"{compared} of {shown} cells are compared"


def test_two_thirds_of_all_outputs_are_compared() -> None:
    shown, compared = (sum(column) for column in zip(*map(shown_and_compared, LESSONS), strict=True))
    assert 3 * compared >= 2 * shown, f"{compared} of {shown} cells are compared"


@pytest.mark.parametrize(("output", "compared"), [
    (nbformat.v4.new_output("stream", text="7\n"), True),
    (nbformat.v4.new_output("execute_result", {"text/plain": "42"}), True),
    (nbformat.v4.new_output("display_data", {"text/plain": "<IPython.core.display.Image object>"}), False),
    (nbformat.v4.new_output("execute_result", {"text/plain": "<Picture size 960x540 with 5 Axes>"}), False),
    (nbformat.v4.new_output("display_data", {"text/plain": ""}), False)])
def test_what_counts_as_compared(output: NotebookNode, compared: bool) -> None:
    assert has_words(output) is compared


@each_lesson
def test_cells_are_short_and_their_prose_stands_between_them(path: Path) -> None:
    for cell in code_cells(path):
        lines = cell.source.splitlines()
        assert len(lines) <= 15, f"{len(lines)} lines, 15 at most:\n{cell.source}"
        assert max(map(len, lines)) <= 88, f"a line is wider than 88 characters:\n{cell.source}"
        plain = "\n".join("pass" if line.lstrip().startswith(("%", "!")) else line for line in lines)
        tokens = list(tokenize.generate_tokens(io.StringIO(plain).readline))
        comments = [(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT]
        assert all(len(text) <= 80 for _, text in comments), comments
        rows = [row for row, text in comments if not plain.splitlines()[row - 1].split("#")[0].strip()]
        assert len(rows) <= 2, f"prose belongs in a markdown cell:\n{cell.source}"
