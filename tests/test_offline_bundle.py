"""The folder for a USB stick: what goes in, for whom, and what its installer says; `rlteach lessons`.

Nothing is downloaded here but by the gate test, which builds a bundle and installs from it without a network.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from rlteach.agent.workspace import WorkspaceError
from rlteach.cli import app
from rlteach.course.lessons import copy_lessons, lessons

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
DEAD = "http://127.0.0.1:9"  # the discard port: nobody listens


def load(path: Path) -> ModuleType:
    """A script as a module; its neighbours can be imported while it is read, as when it is run."""
    spec = importlib.util.spec_from_file_location(f"scripts_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


bundle = load(SCRIPTS / "offline_bundle.py")
install = load(SCRIPTS / "offline" / "install.py")
LINUX, WINDOWS, MAC = TARGETS = [
    bundle.parse_target(text) for text in ("linux-x86_64:3.11", "windows-x86_64:3.12", "macos-arm64:3.13")]


def wheel(folder: Path, name: str, *requires: str, tag: str = "py3-none-any") -> Path:
    """A wheel with nothing in it but what it requires."""
    path = folder / f"{name}-{tag}.whl"
    lines = [f"Name: {name.partition('-')[0]}", f"Version: {name.partition('-')[2]}",
             *(f"Requires-Dist: {text}" for text in requires)]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.dist-info/METADATA", "\n".join(["Metadata-Version: 2.1", *lines]) + "\n")
    return path


def test_targets() -> None:
    assert (WINDOWS.machine, WINDOWS.python) == ("windows-x86_64", (3, 12))
    assert str(WINDOWS) == "windows-x86_64:3.12"
    assert WINDOWS.platforms == ["win_amd64"]
    assert {"manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64"} <= set(LINUX.platforms)
    assert not [name for name in bundle.parse_target("linux-aarch64:3.11").platforms if "x86" in name]
    assert "macosx_11_0_arm64" in MAC.platforms


@pytest.mark.parametrize(("text", "sentence"), [
    ("windows", "write MACHINE:PYTHON"), ("windows-x86_64", "write MACHINE:PYTHON"),
    ("beos-x86_64:3.11", "machines are linux-x86_64"), ("linux-x86_64:3", "write MACHINE:PYTHON"),
    ("linux-x86_64:3.10", "3.11 or later"), ("macos-x86_64:3.11", "Intel chip")])
def test_a_target_that_cannot_be(text: str, sentence: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=sentence):
        bundle.parse_target(text)


def test_what_is_needed_is_read_with_the_eyes_of_the_target(tmp_path: Path) -> None:
    """pip alone would read these markers on the machine that builds."""
    own = wheel(tmp_path, "own-1", 'sea>=2', 'win; sys_platform == "win32"',
                'mac; platform_system == "Darwin"', 'old; python_version < "3.12"', 'more; extra == "test"',
                'posix; os_name != "nt"')
    for target, missing in ((LINUX, ["old", "posix", "sea>=2"]), (WINDOWS, ["sea>=2", "win"]),
                            (MAC, ["mac", "posix", "sea>=2"])):
        assert bundle.closure([own], ["own"], target) == ({own}, missing)
    assert bundle.closure([own], ["own[test]"], WINDOWS)[1] == ["more", "sea>=2", "win"]
    assert bundle.closure([own], ["own==2"], WINDOWS) == (set(), ["own==2"])


def test_a_wheel_for_another_machine_or_python_is_none(tmp_path: Path) -> None:
    own = wheel(tmp_path, "own-1", "sea>=2")
    for tag in ("cp311-cp311-manylinux_2_28_x86_64", "cp313-cp313-macosx_11_0_arm64"):
        wheel(tmp_path, "sea-2", tag=tag)
    found = {target: bundle.closure(tmp_path.glob("*.whl"), ["own"], target) for target in TARGETS}
    assert found[WINDOWS] == ({own}, ["sea>=2"])
    assert [missing for _, missing in found.values()] == [[], ["sea>=2"], []]
    assert not found[LINUX][0] & found[MAC][0] - {own}
    old = wheel(tmp_path, "sea-1")  # too old does not help, and a stable ABI does
    assert bundle.closure([own, old], ["own"], WINDOWS)[1] == ["sea>=2"]
    stable = wheel(tmp_path, "sea-3", tag="cp39-abi3-win_amd64")
    assert bundle.closure([own, old, stable], ["own"], WINDOWS) == ({own, stable}, [])


def test_extras_and_circles_of_requirements(tmp_path: Path) -> None:
    made = {wheel(tmp_path, "own-1", "sea[deep]"), wheel(tmp_path, "sea-1", "own", 'fish; extra == "deep"'),
            wheel(tmp_path, "fish-1", "sea")}
    assert bundle.closure(made, ["own"], LINUX) == (made, [])


def test_pip_is_asked_until_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of a package of a package; words for pip; an index of one's own; no wheel fetched twice."""
    wheel(tmp_path, "own-1", "sea>=2", "sky")
    wheel(tmp_path, "sky-1")
    shelf = {"sea>=2": ("sea-2", ["fish"]), "fish": ("fish-1", [])}
    asked: list[list[str]] = []

    def pip(words: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        for text in shelf:
            if text in words:
                wheel(tmp_path, shelf[text][0], *shelf[text][1])
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(bundle.subprocess, "run", pip)
    needed = bundle.collect(tmp_path, ["own"], WINDOWS, ["--extra-index-url", "INDEX"])
    assert {path.name.partition("-")[0] for path in needed} == {"own", "sea", "sky", "fish"}
    assert [words[-1] for words in asked] == ["sea>=2", "fish"]
    for words in asked:
        shown = " ".join(words)
        assert "--platform win_amd64" in shown
        assert "--python-version 3.12" in shown
        assert f"-c {ROOT / 'constraints.txt'}" in shown
        assert "--extra-index-url INDEX" in shown
        assert "--no-deps --only-binary=:all:" in shown
        assert "index-url INDEX sea" in shown or words[-1] == "fish"


@pytest.mark.parametrize(("code", "requires", "sentence"), [
    (1, "sea", "pip's words above name the package"), (0, "sea", "pip brought nothing that meets sea")])
def test_what_stops_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, requires: str, sentence: str
) -> None:
    wheel(tmp_path, "own-1", requires)
    monkeypatch.setattr(bundle.subprocess, "run", lambda words, **s: subprocess.CompletedProcess(words, code))
    with pytest.raises(SystemExit, match=sentence):
        bundle.collect(tmp_path, ["own"], LINUX, [])


def test_a_torch_for_gpus_is_refused_and_does_not_stay(tmp_path: Path) -> None:
    """Before the gigabytes are fetched; the next build, with the CPU index, has to look for torch again."""
    own = wheel(tmp_path, "own-1", "torch>=2.6")
    wheel(tmp_path, "torch-2.13.0", 'nvidia-cublas; platform_system == "Linux"', "triton")
    with pytest.raises(SystemExit, match=r"2 CUDA libraries.*give the address of the PyTorch CPU index"):
        bundle.collect(tmp_path, ["own"], LINUX, [])
    assert list(tmp_path.iterdir()) == [own]


@pytest.fixture
def stick(tmp_path: Path) -> Path:
    """A bundle with one wheel, which is none."""
    folder = tmp_path / "a stick"
    (folder / "wheels").mkdir(parents=True)
    (folder / "wheels" / "sea-1-py3-none-any.whl").write_bytes(b"sea")
    bundle.copy_texts(folder, [LINUX, WINDOWS], "9.9")
    bundle.write_sums(folder)
    return folder


def test_what_lies_beside_the_wheels(stick: Path) -> None:
    assert sorted(p.name for p in stick.iterdir()) == [
        "README.txt", "SHA256SUMS", "bundle.json", "constraints.txt", "install.bat", "install.py",
        "install.sh", "wheels"]
    assert json.loads((stick / "bundle.json").read_text(encoding="utf-8")) == {
        "rlteach": "9.9", "extras": "notebook,test", "targets": ["linux-x86_64:3.11", "windows-x86_64:3.12"]}
    read = (stick / "README.txt").read_bytes()
    assert read.count(b"linux-x86_64:3.11, windows-x86_64:3.12") == 2, "in English and in Chinese"
    assert b"{" not in read
    for name, ends in (("README.txt", b"\r\n"), ("install.bat", b"\r\n"), ("install.sh", b"\n")):
        lines = (stick / name).read_bytes().splitlines(keepends=True)
        assert {line[len(line.rstrip(b"\r\n")):] for line in lines} == {ends}, name
    assert (stick / "constraints.txt").read_bytes() == (ROOT / "constraints.txt").read_bytes()


@pytest.mark.parametrize("name", ["install.sh", "install.bat", "README.txt"])
def test_each_text_names_what_it_needs(stick: Path, name: str) -> None:
    text = (stick / name).read_text(encoding="utf-8")
    assert {"install.sh": 'install.py" --fits', "install.bat": 'install.py" --fits',
            "README.txt": "sh install.sh"}[name] in text
    if name == "install.bat":
        assert text.isascii(), "cmd reads it in the machine's own code page"


def test_a_damaged_or_missing_file_is_named(stick: Path) -> None:
    assert install.damaged(stick) is None
    sums = (stick / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert len(sums) == 7  # every file but the list itself
    there = stick / "wheels" / "sea-1-py3-none-any.whl"
    there.write_bytes(b"see")
    assert install.damaged(stick) == (
        "wheels/sea-1-py3-none-any.whl was damaged when it was copied: copy the whole folder again")
    there.unlink()
    assert install.damaged(stick).startswith("wheels/sea-1-py3-none-any.whl is missing")
    (stick / "SHA256SUMS").unlink()
    assert install.damaged(stick).startswith("SHA256SUMS is missing")


def test_for_whom_the_wheels_are() -> None:
    targets = ["linux-x86_64:3.11", "linux-x86_64:3.12", "windows-x86_64:3.11"]
    assert all(install.misfit(targets, target) is None for target in targets)
    said = install.misfit(targets, "linux-x86_64:3.14")
    assert "Python 3.14, and the wheels are for Python 3.11 or 3.12" in said
    assert "--target macos-arm64:3.11" in install.misfit(targets, "macos-arm64:3.11")


@pytest.mark.parametrize(("system", "chip", "said"), [
    ("Windows", "AMD64", "windows-x86_64"), ("Darwin", "arm64", "macos-arm64"),
    ("Linux", "x86_64", "linux-x86_64"), ("Linux", "aarch64", "linux-aarch64")])
def test_machines_have_one_name_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, system: str, chip: str, said: str
) -> None:
    monkeypatch.setattr(install.platform, "system", lambda: system)
    monkeypatch.setattr(install.platform, "machine", lambda: chip)
    assert install.machine() == said
    assert said in bundle.MACHINES


needs_sh = pytest.mark.skipif(shutil.which("sh") is None, reason="no POSIX shell here")


@needs_sh
def test_the_shell_script_looks_for_a_python_that_fits(stick: Path, tmp_path: Path) -> None:
    """A Python that does not fit is passed over; when none fits, one sentence says why."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, fits in (("python3", 1), ("python3.12", 0)):
        (tools / name).write_text(f'#!/bin/sh\n[ "$2" = --fits ] && exit {fits}\nshift\necho {name} "$@"\n')
        (tools / name).chmod(0o755)
    for name in ("sh", "dirname"):
        (tools / name).symlink_to(shutil.which(name))

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(tools / "sh"), str(stick / "install.sh"), "my folder"],
                              env={"PATH": str(tools)}, capture_output=True, text=True)

    assert run().stdout.split() == ["python3.12", "my", "folder"]
    (tools / "python3.12").unlink()
    assert run().stdout.split() == ["python3", "my", "folder"]
    (tools / "python3").unlink()
    done = run()
    assert done.returncode == 1
    assert "there is no Python here" in done.stderr


def test_the_installer_refuses_in_one_sentence(stick: Path) -> None:
    for spoil, sentence in ((lambda: None, "name one folder at most"),
                            (lambda: (stick / "install.sh").unlink(), "install.sh is missing")):
        here = f"{install.machine()}:{install.python_version()}"
        said = {"rlteach": "9.9", "extras": "test", "targets": [here]}
        (stick / "bundle.json").write_text(json.dumps(said))
        bundle.write_sums(stick)
        spoil()
        done = subprocess.run([sys.executable, str(stick / "install.py"), "--help"],
                              capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("install: ")
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1


@needs_sh
def test_the_lessons_open_with_servers_of_this_machine_past_a_proxy(tmp_path: Path) -> None:
    """A proxy of a school, asked for 127.0.0.1, would make the server of lesson 04 unreachable."""
    python = tmp_path / "in here" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$NO_PROXY $no_proxy $@"\n')
    python.chmod(0o755)
    start = tmp_path / "in here" / "lessons.sh"
    start.write_bytes(install.START_SH)
    env = {"PATH": os.environ["PATH"], "no_proxy": "school"}
    done = subprocess.run(["sh", str(start), "--port", "7"], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == (
        f"127.0.0.1,localhost 127.0.0.1,localhost,school -m jupyterlab {start.parent / 'lessons'} --port 7")
    assert install.START_BAT.count(b"\r\n") == install.START_BAT.count(b"\n")
    assert b"127.0.0.1,localhost" in install.START_BAT


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(SystemExit, match="holds something that is no bundle"):
        bundle.build(tmp_path, [LINUX], [])
    with pytest.raises(SystemExit, match="is a file"):
        bundle.build(tmp_path / "thesis.txt", [LINUX], [])
    assert (tmp_path / "thesis.txt").read_text() == "years"


def test_lessons_are_copied_and_work_is_never_overwritten(tmp_path: Path) -> None:
    copies = copy_lessons(tmp_path / "mine")
    assert [p.name for p in copies] == sorted(p.name for p in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    assert all(c.read_bytes() == s.read_bytes() for c, s in zip(copies, lessons(), strict=True))
    copies[0].write_text("my answers")
    with pytest.raises(WorkspaceError, match="is not empty"):
        copy_lessons(tmp_path / "mine")
    assert copies[0].read_text() == "my answers"


def test_the_command_says_where_they_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lessons", str(tmp_path / "mine")])
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[:-2] == [f"wrote {copy}" for copy in sorted((tmp_path / "mine").iterdir())]
    assert lines[-1].endswith(f"jupyterlab {tmp_path / 'mine'}")
    again = CliRunner().invoke(app, ["lessons", str(tmp_path / "mine")])
    assert isinstance(again.exception, WorkspaceError)


@pytest.mark.gate
@needs_sh
def test_a_bundle_installs_and_trains_without_a_network(tmp_path: Path) -> None:
    """Built with whatever indexes pip has here, then used from an empty environment that has none."""
    stick, home = tmp_path / "stick", tmp_path / "home"
    home.mkdir()
    done = subprocess.run([sys.executable, str(SCRIPTS / "offline_bundle.py"), "--out", str(stick)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for path in (stick / "wheels", stick):
        path.chmod(0o555)  # as on a stick that must not be written to
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"), DEAD)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHON": sys.executable, "PIP_INDEX_URL": DEAD,
           "PIP_CONFIG_FILE": os.devnull, "OMP_NUM_THREADS": "1", **proxies}

    def call(*words: str | Path) -> str:
        done = subprocess.run(list(map(str, words)), cwd=home, env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    call("sh", stick / "install.sh", "my class")
    tools = home / "my class" / "venv" / "bin"
    place = call(tools / "python", "-c", "import rlteach, torch; print(rlteach.__file__, torch.__file__)")
    assert all(Path(path).is_relative_to(tools.parent) for path in place.split(".py ")), place
    assert "tiny-math" in call(tools / "rlteach", "models")
    few = [f"{name}_data={home / name}.jsonl" for name in ("dev", "test")]
    for name in ("dev", "test"):
        lines = (ROOT / "data" / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        (home / f"{name}.jsonl").write_text("\n".join(lines[:8]) + "\n", encoding="utf-8")
    call(tools / "rlteach", "train", "tiny", "--set", "total_steps=2", "--set", few[0], "--set", few[1],
         "--out", "run")
    assert len((home / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert json.loads((home / "run" / "summary.json").read_text(encoding="utf-8"))["after"]["n"] == 8
    copied = sorted((home / "my class" / "lessons").glob("*.ipynb"))
    assert [p.name for p in copied] == [p.name for p in lessons()]
    call(tools / "python", "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "--nbval-lax",
         "--nbval-current-env", copied[1])
    (home / "my class" / "lessons" / "note.txt").write_text("mine")  # a second time: the work stays
    call("sh", stick / "install.sh", "my class")
    assert (home / "my class" / "lessons" / "note.txt").read_text() == "mine"
    for path in (stick, stick / "wheels"):
        path.chmod(0o755)
    for path in (stick, home):  # pytest keeps the folders of three runs, and these hold 2 GB
        shutil.rmtree(path)
