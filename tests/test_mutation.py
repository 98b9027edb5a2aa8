"""Would the suite notice? Every bug of the museum, planted, against tests that know nothing of it (T19)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rlteach.course import museum

ROOT = Path(__file__).resolve().parents[1]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation", ROOT / "benchmarks" / "mutation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutation = load()


@pytest.mark.gate
@pytest.mark.parametrize("bug", mutation.FILES)
def test_a_test_that_knows_nothing_of_it_fails(bug: str) -> None:
    found = mutation.notices(bug)
    assert found["caught_by"], f"{bug}: {found['passed']} tests of {mutation.FILES[bug]} pass under it"


def test_every_bug_has_files_that_should_notice() -> None:
    assert set(mutation.FILES) == set(museum.catalogue())
    assert len(mutation.FILES) >= 30
    for files in mutation.FILES.values():
        assert not mutation.NOT_THESE & set(files)
        assert all((ROOT / "tests" / f"{name}.py").is_file() for name in files)


def test_what_was_measured() -> None:
    """benchmarks/results/mutation.json: at least 28 of 30 are caught, by tests that exist."""
    found = json.loads(mutation.RESULT.read_text(encoding="utf-8"))
    rows = {row["bug"]: row["caught_by"] for row in found["rows"]}
    assert set(rows) == set(museum.catalogue())
    caught = [name for name in rows.values() if name]
    assert found["caught"] == len(caught) >= 28
    assert len(rows) - len(caught) <= 2
    for name in caught:
        file, test = name.split("::")
        assert Path(file).stem not in mutation.NOT_THESE
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {test.split('[')[0]}(" in text, f"{name} is gone: run benchmarks/mutation.py again"


@pytest.mark.parametrize(("bug", "code"), [("warmup_never_ends", 1), ("percent_both_ways", 0)])
def test_the_plugin_plants_the_bug_and_nothing_else(tmp_path: Path, bug: str, code: int) -> None:
    """Before a test file is imported, so that names imported there meet it."""
    test = tmp_path / "test_rate.py"
    test.write_text("from rlteach.training.update import schedule\n\n"
                    "def test_peak():\n    assert schedule(1, 2, 4, 1.0, 0.1) == 1.0\n", encoding="utf-8")
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    environment = {**os.environ, "RLTEACH_BUG": bug, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "plant_bug", "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
