"""docs/teaching.md: every lesson is in its tables, its figures are the README's, what it names exists, and
its grading script grades.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlteach import cli
from rlteach.config import Config
from rlteach.course.checking import registered
from rlteach.course.lessons import lessons

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROSE = BLOCK.sub("", TEXT)


def table(heading: str) -> dict[str, list[str]]:
    """Lines "| NN | ..." of the section: lesson -> its other cells."""
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()
            if re.match(r"\| \d\d \|", line)]
    return {number: cells for number, *cells in rows}


def figures(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)? (?:s|GB)\b", text)


def measured() -> dict[str, list[str]]:
    """The README's table of lessons: number -> its first time and its memory."""
    rows = re.findall(r"^\| (\d\d) \| \[.*?\]\(.*?\) \| (.*?) \|$", README, re.MULTILINE)
    return {number: [next(f for f in figures(cell) if f.endswith(end)) for end in ("s", "GB")
                     if any(f.endswith(end) for f in figures(cell))] for number, cell in rows}


def test_every_lesson_has_its_lines() -> None:
    numbers = {path.name[:2] for path in lessons()}
    for heading in ("What a learner can do afterwards", "Time and memory"):
        found = table(heading)
        assert numbers <= set(found), f"{heading}: no line for {sorted(numbers - set(found))}"
        assert list(found) == [f"{i:02d}" for i in range(len(found))]
    for number, (_, needs) in table("What a learner can do afterwards").items():
        assert all(other < number for other in re.findall(r"\d\d", needs)), number


def test_times_are_those_of_the_readme() -> None:
    said = table("Time and memory")
    assert len(measured()) >= 9
    for number, wanted in measured().items():
        assert figures(" ".join(said[number][:2])) == wanted, f"lesson {number}"
    for number in set(said) - set(measured()):
        place = f"<!-- measured: {number} -->"
        assert said[number][:2] == [place, place], f"lesson {number}: who measured that?"


def test_sections_that_are_named_exist() -> None:
    """"03, sections 1 to 3": lesson 03 has a section 3."""
    sources = {path.name[:2]: path.read_text(encoding="utf-8")
               for path in (ROOT / "notebooks" / "src").glob("[0-9][0-9]_*.py")}
    named = re.findall(r"\b(\d\d), sections? ([\d, toand]+)", PROSE)
    assert len(named) >= 8
    for lesson, sections in named:
        last = max(map(int, re.findall(r"\d+", sections)))
        assert f"# ## {last}. " in sources[lesson], f"lesson {lesson} has no section {last}"


def test_exercises_that_are_named_exist() -> None:
    assert set(re.findall(r"exercise (\d\d\.\d)|rl\.check\(\"(\d\d\.\d)\"", TEXT))
    for name in re.findall(r"\b\d\d\.\d\b", PROSE.replace("0.", " 0.")):
        assert name in registered(), name


def test_files_and_links_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", PROSE):
        if target.startswith("#"):
            titles = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
            assert target[1:] in {re.sub(r"[^\w ]", "", title).lower().replace(" ", "-") for title in titles}
        else:
            assert (ROOT / "docs" / target).exists(), target
    words = " ".join([*CODE.findall(PROSE), *(text for _, text in BLOCK.findall(TEXT))])
    paths = re.findall(r"\b(?:rlteach|scripts|tests|notebooks)/[\w/]+\.\w+", words)
    assert len(paths) >= 6
    for path in paths:
        assert (ROOT / path).is_file() or "13" in path, path
    for name in re.findall(r"lessons/(\w+\.ipynb)", words):
        assert (ROOT / "notebooks" / name).is_file()


def test_commands_and_fields_exist() -> None:
    commands = {info.name or info.callback.__name__ for info in cli.app.registered_commands}
    named = re.findall(r"`rlteach (\w+)", TEXT)
    assert len(named) >= 6
    assert set(named) <= commands
    assert set(re.findall(r"--set (\w+)=", TEXT)) <= set(Config.model_fields)


def test_the_make_targets_exist() -> None:
    """`make X` in the text or in a block; offline-bundle calls the script named beside it."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)\b(?=`|\s| T)", "\n".join(
        [*CODE.findall(PROSE), *(text for _, text in BLOCK.findall(TEXT))])))
    assert named >= {"lab", "test"}
    assert named - {"offline-bundle"} <= targets
    assert "offline-bundle" not in targets or "scripts/offline_bundle.py" in makefile


def solutions() -> str:
    """answers.py of somebody who knows everything."""
    parts = ["import rlteach as rl"]
    for name, exercise in registered().items():
        last = ast.parse(exercise.solution).body[-1]
        what = last.name if isinstance(last, ast.FunctionDef) else ast.unparse(last.targets[0])
        parts += [exercise.solution.strip(), f"answer_{name.replace('.', '_')} = {what}"]
    return "\n".join(parts) + "\n"


@pytest.mark.gate
def test_the_grading_script_knows_right_from_wrong(tmp_path: Path) -> None:
    (script,) = [text for kind, text in BLOCK.findall(TEXT) if kind == "python"]
    (tmp_path / "grade.py").write_text(script, encoding="utf-8")

    def graded(answers: str) -> list[str]:
        (tmp_path / "answers.py").write_text(answers, encoding="utf-8")
        done = subprocess.run([sys.executable, "grade.py", "answers.py"], cwd=tmp_path, text=True,
                              capture_output=True, check=True)
        return done.stdout.splitlines()

    *lines, total = graded(solutions())
    assert lines == [f"{name}: right" for name in registered()]
    assert total == f"{len(lines)} of {len(lines)}"
    *lines, total = graded("answer_01_2 = lambda p, k: p * k\nanswer_03_2 = 'many'\n")
    assert total == f"0 of {len(lines)}"
    assert "01.1: nothing was handed in" in lines
    assert all(re.match(r"\d\d\.\d: \w+ \w+", line) for line in lines)
