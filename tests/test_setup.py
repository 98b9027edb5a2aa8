"""What a newcomer meets first: the Makefile, the package's metadata, the tested versions, conda."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
TARGETS = ("demo", "test", "lessons", "gate", "lab", "lint", "models", "bench", "offline-bundle")


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(text) for line in lines if (text := line.split("#")[0].strip())]


def test_ranges_never_pins() -> None:
    for text in [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]:
        operators = {part.operator for part in Requirement(text).specifier}
        assert ">=" in operators, f"{text}: say what is needed at least"
        assert not operators & {"==", "===", "~="}, f"{text}: exact versions stand in constraints.txt"


def test_constraints_are_exact_and_inside_the_ranges() -> None:
    pins: dict[str, Version] = {}
    for pin in constraints():
        (part,) = pin.specifier
        assert (part.operator, pin.url, pin.extras) == ("==", None, set()), f"{pin}: not an exact version"
        version = Version(part.version)
        assert version.local is None, f"{pin}: a local version ties it to one index"
        assert canonicalize_name(pin.name) not in pins, f"{pin} stands twice"
        pins[canonicalize_name(pin.name)] = version
    direct = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    for want in map(Requirement, direct):
        name = canonicalize_name(want.name)
        assert name in pins, f"{want} has no tested version in constraints.txt"
        assert want.specifier.contains(pins[name]), f"{want} does not allow the tested {pins[name]}"
    assert not [name for name in pins if re.match(r"nvidia|cuda|triton", name)], "no GPU packages"


def test_environment_for_conda() -> None:
    """No conda channel is asked: the file is parsed, its lines checked, its pip part compared."""
    env = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert env["name"] == PROJECT["name"]
    assert env["channels"] == ["conda-forge", "nodefaults"]
    *conda, pip = env["dependencies"]
    spec = re.compile(r"[a-z0-9][a-z0-9._-]*([=<>!]=?[0-9][0-9.*]*(,[<>!]=?[0-9][0-9.*]*)*)?")
    for line in conda:
        assert spec.fullmatch(line), f"{line!r} is no conda requirement"
    (python,) = (line.partition("=")[2] for line in conda if line.startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)
    assert "pip" in conda, "conda warns when a pip section has no pip above it"
    (item,) = pip["pip"]
    extras = re.fullmatch(r"-e \.\[([a-z,]+)\]", item)
    assert extras is not None, f"{item!r}: the packages stand in pyproject.toml, once"
    assert set(extras[1].split(",")) == set(EXTRAS) - {"judger", "mcp"}, "few need them"


def test_python_and_console_script() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    module, _, function = PROJECT["scripts"]["rlteach"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_the_package_imports_only_what_it_requires() -> None:
    """Another package's dependency is no promise: what rlteach/ imports stands in pyproject.toml, and what
    a workspace imports in its requirements.txt."""
    extras = [text for extra in ("notebook", "judger", "mcp") for text in EXTRAS[extra]]
    declared = names([*PROJECT["dependencies"], *extras]) | {"rlteach"}
    templates = ROOT / "rlteach" / "templates"
    requirements = (templates / "shared" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    known = packages_distributions() | {"plugins": ["plugins"]}
    for path in (ROOT / "rlteach").rglob("*.py"):
        named = names(requirements) | {"plugins"} if path.is_relative_to(templates) else declared
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            for top in {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names):
                homes = {canonicalize_name(home) for home in known.get(top, [top])}
                assert homes & named, f"{path}:{node.lineno}: {top} is not in its list of requirements"


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def make(*words: str, cwd: Path = ROOT, timeout: float = 60) -> str:
    """Standard output of `make`, with no more of this shell than a newcomer's has."""
    env = {name: value for name, value in os.environ.items()
           if name in ("PATH", "HOME") or name.startswith("PIP_")}
    done = subprocess.run(["make", *words], cwd=cwd, env=env, text=True, capture_output=True,
                          stdin=subprocess.DEVNULL, timeout=timeout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@needs_make
def test_make_alone_lists_the_targets() -> None:
    shown = make()
    for target in TARGETS:
        assert re.search(rf"^{target} +\S", shown, re.MULTILINE), f"`make` says nothing about {target}"
    for variable in ("PYTHON", "TORCH_INDEX", "VENV"):
        assert f"{variable}=" in shown


@needs_make
def test_variables_reach_pip(tmp_path: Path) -> None:
    words = ("-n", "demo", f"VENV={tmp_path / 'new'}", "PYTHON=python9")
    plan = make(*words, "TORCH_INDEX=cpu-index")
    assert "python9 -m venv --clear" in plan
    assert "-c constraints.txt --extra-index-url cpu-index torch" in plan
    assert "rlteach train tiny" in plan
    assert "notebook" not in plan, "the demo needs no extra"
    assert "--extra-index-url" not in make(*words)


@needs_make
@pytest.mark.parametrize("broken", ["no stamp", "no python"])
def test_a_half_made_environment_is_begun_again(tmp_path: Path, broken: str) -> None:
    python, stamp = tmp_path / "bin" / "python", tmp_path / ".core-installed"
    python.parent.mkdir()
    if broken == "no stamp":  # an install was broken off after the interpreter had come
        python.symlink_to(sys.executable)
    else:                     # the interpreter that made it has been removed
        python.symlink_to(tmp_path / "gone")
        stamp.touch()
    assert f"-m venv --clear {tmp_path}" in make("-n", "demo", f"VENV={tmp_path}")
    python.unlink()
    python.symlink_to(sys.executable)
    stamp.touch()
    assert "pip install" not in make("-n", "demo", f"VENV={tmp_path}"), "a finished one is used as it is"


def test_readme_shows_the_way_with_make_and_without() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\nmake demo" in text
    assert "\nmake test" in text
    plain = re.search(r"\npython -m venv \.venv\n(.*)\n.*rlteach train tiny\n", text)
    assert plain is not None, "three lines for machines without make"
    (extras,) = re.findall(r'pip install -c constraints\.txt -e "\.\[([a-z,]+)\]"', plain[1])
    assert set(extras.split(",")) == set(EXTRAS) - {"judger", "mcp"}


def copy_of_the_checkout(to: Path) -> None:
    """The files that a fresh clone would have, and nothing that lies beside them."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


@pytest.mark.gate
@needs_make
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_make_demo_works_alone_from_a_fresh_clone(tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    copy_of_the_checkout(clone)
    make("demo", f"PYTHON={sys.executable}", cwd=clone, timeout=1500)
    (summary,) = (clone / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text(encoding="utf-8"))["preset"] == "tiny"
    shutil.rmtree(clone)  # pytest keeps the folders of three runs, and this one holds 1.4 GB
