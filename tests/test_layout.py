"""The house keeps its shape: direction of rooms, sizes, public names, no host or machine path."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import rlteach
from rlteach import agent
from rlteach.config import Config

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rlteach"
ROOMS = (("types", "messages", "fields", "presets", "config", "data"), ("oreal",), ("policy",), ("judger",),
         ("agent",), ("serving",), ("training",), ("views",), ("course",), ("cli",))
PLACE = {room: place for place, rooms in enumerate(ROOMS) for room in rooms}
READING_PATH = ("types.py", "oreal/*.py", "policy/policy.py", "policy/sampler.py", "judger/rule.py",
                "training/batch.py", "training/trainer.py")
HEAVY = ("torch", "transformers", "openai", "pandas", "matplotlib", "starlette", "numpy", "IPython")
TEMPLATES = PACKAGE / "templates"  # workspaces, no room: files that `rlteach init` copies
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(TEMPLATES))
NAMES = [path.relative_to(PACKAGE).as_posix() for path in MODULES]
COPIED = sorted(TEMPLATES.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def room_of(module: str) -> str | None:
    """'rlteach.policy.sampler' -> 'policy'; a name of the package itself -> the room it lives in."""
    parts = module.split(".")
    if parts[0] != "rlteach" or len(parts) == 1:
        return None
    return parts[1] if parts[1] in PLACE else rlteach._HOME.get(parts[1], "rlteach.").split(".")[1] or None


def imported(path: Path) -> list[tuple[int, str]]:
    """(line, module) of every import in a file: at the top, in a function, by import_module, or
    through the package's front door (`rlteach.Policy`)."""
    package = ("rlteach", *path.relative_to(PACKAGE).parent.parts)
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, name.name) for name in node.names if name.name != "rlteach"]
            front = {name.asname or name.name for name in node.names if name.name == "rlteach"}
            found += [(use.lineno, f"rlteach.{use.attr}") for use in ast.walk(tree(path))
                      if isinstance(use, ast.Attribute) and isinstance(use.value, ast.Name)
                      and use.value.id in front]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [(node.lineno, base if "." in base else f"{base}.{name.name}") for name in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            found += [(node.lineno, word.value) for word in node.args
                      if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return found


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_a_room_imports_only_rooms_to_its_left(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__" or path.stem == "__main__":
        return  # the front door names every room, lazily; a command may use all of them
    assert room in PLACE, f"{room} is no room of ARCHITECTURE.md"
    for line, module in imported(path):
        other = room_of(module)
        if other is not None and other != room:
            assert PLACE[other] < PLACE[room] or PLACE[other] == 0, f"{path}:{line}: {room} imports {module}"


@pytest.mark.parametrize("path", COPIED, ids=lambda path: path.relative_to(TEMPLATES).as_posix())
def test_a_template_uses_public_names_only(path: Path) -> None:
    """What a workspace imports has to be there in another version, and most of it in the cloud's SDK."""
    public = {"rlteach": rlteach.__all__, "rlteach.agent": agent.__all__,
              "rlteach.agent.search": ("SEARCH_TOOL", "web_search"),
              "rlteach.judger.answers": ("final_answer",)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            bad = [name.name for name in node.names if name.name.startswith("rlteach.")]
            assert not bad, f"{path}:{node.lineno}: import the names that are used from {bad[0]}"
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "rlteach":
            bad = {name.name for name in node.names} - set(public.get(str(node.module), ()))
            assert not bad, f"{path}:{node.lineno}: {sorted(bad)} of {node.module} is not public"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("rl", "rlteach"):
            assert node.attr in rlteach.__all__, f"{path}:{node.lineno}: rlteach has no {node.attr}"


@pytest.mark.parametrize("path", MODULES + COPIED, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_modules_and_functions_stay_small(path: Path) -> None:
    assert lines(path) <= 250, f"{path} has {lines(path)} lines: a module is one idea, split it"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or 0) - node.lineno + 1
            assert size <= 40, f"{path}:{node.lineno}: {node.name} has {size} lines"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_only_the_command_line_and_views_print(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[0] in ("cli.py", "views"):
        return
    prints = [node.lineno for node in ast.walk(tree(path))
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"]
    assert not prints, f"{path}: print in lines {prints}; emit records, and let views show them"


def test_the_reading_path_is_read_in_an_evening() -> None:
    sizes = {path.relative_to(PACKAGE).as_posix(): lines(path)
             for pattern in READING_PATH for path in PACKAGE.glob(pattern)}
    assert len(sizes) >= len(READING_PATH)
    assert sum(sizes.values()) <= 1200, f"{sum(sizes.values())} lines: {sizes}"


def test_no_drawer_for_everything() -> None:
    names = [path.name for path in MODULES + COPIED]
    assert not [name for name in names if Path(name).stem in ("utils", "util", "helpers", "misc", "common")]


def test_public_names_exist() -> None:
    assert rlteach.__all__ == sorted(set(rlteach.__all__))
    for name in rlteach.__all__:
        assert getattr(rlteach, name) is not None
    assert set(rlteach.__all__) <= set(dir(rlteach))


def test_import_is_light() -> None:
    code = f"import sys, rlteach; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == [], "`import rlteach` has to stay quick"


def is_config(node: ast.expr) -> bool:
    """`config`, `self.config`, or the short name `c` that long formulas use."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("config", "c")


def test_every_config_field_is_read_somewhere() -> None:
    read = {node.attr for path in MODULES if path.name != "config.py" for node in ast.walk(tree(path))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_config(node.value)}
    unread = set(Config.model_fields) - read
    assert not unread, f"fields that no code reads as config.NAME: {sorted(unread)}"


def test_architecture_names_every_module() -> None:
    """Its tree has one line a file, indented below the line of the folder; and no file that is gone."""
    named, above = set(), {}
    for line in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"( *)([a-z_]+/|[a-z_0-9]+\.py)(\s|$)", line):
            depth = len(found[1])
            above = {d: folder for d, folder in above.items() if d < depth} | {depth: found[2]}
            named.add("".join(above.values()))
    modules = {f"rlteach/{name}" for name in NAMES if not name.endswith("/__init__.py")}
    tree_of_package = {name for name in named if name.startswith("rlteach/") and name.endswith(".py")}
    assert tree_of_package == modules


def test_every_room_has_tests() -> None:
    """A file named after the room, or one that imports from it."""
    tests = "\n".join(f"{path.name} {path.read_text(encoding='utf-8')}"
                      for path in (ROOT / "tests").glob("test_*.py")
                      if path.name not in ("test_layout.py", "test_setup.py"))
    rooms = {name.split("/")[0].removesuffix(".py") for name in NAMES if not name.endswith("__init__.py")}
    untested = [room for room in sorted(rooms & set(PLACE))
                if not re.search(rf"test_{room}|rlteach\.{room}\b", tests)]
    assert not untested, f"rooms without a test: {untested}"


def tracked() -> list[Path]:
    """Every file that git knows or would take, and that is text."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_no_host_of_a_registry_and_no_path_of_a_machine() -> None:
    """Whoever installs this names a package index; a file that names one fails behind a mirror."""
    # spelt apart, so that this file passes its own test
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org"),
                                           ("download", "pytorch", "org"), ("npmjs", "org"))]
    host = re.compile("|".join(map(re.escape, hosts)))
    machine = re.compile(r"(?<![\w.~-])/(work|root|tmp|home|Users)/\w")
    bad = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        name = path.relative_to(ROOT).as_posix()
        patterns = [host] if name.startswith("tests/") else [host, machine]
        bad += [f"{name}: {found.group()}" for pattern in patterns for found in pattern.finditer(text)]
    assert not bad, bad[:10]
