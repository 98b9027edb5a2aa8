"""Build a folder for a USB stick, from which rlteach and its lessons are installed without a network.

    python scripts/offline_bundle.py                                     for machines like this one
    python scripts/offline_bundle.py --target windows-x86_64:3.12 --target macos-arm64:3.12

It holds rlteach's wheel (data and lessons are inside), the wheels of everything it needs in the tested
versions, installers for Linux, macOS and Windows, and the sums of all files. Python itself is not in it.

pip picks markers such as `sys_platform == "win32"` by the machine it runs on, so a download for another
machine would lack packages. Here the requirements of every wheel are read under the markers of the target,
and pip fetches what is missing, until nothing is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from functools import cache, cached_property
from pathlib import Path

from check_wheel import ROOT, call, contents
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

TEXTS = Path(__file__).resolve().parent / "offline"  # what is copied as it stands, but for {words}
SUMS = "SHA256SUMS"
EXTRAS = "notebook,test"  # as in the README's own line
LOWEST = (3, 11)
GLIBC = (31, 5)  # manylinux_2_31: what llguidance asks for; systems of 2020 and later have it
MARKERS = {
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    "macos": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"},
    "windows": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
}
MACHINES = ("linux-x86_64", "linux-aarch64", "macos-arm64", "windows-x86_64")  # those with wheels of torch


@dataclass(frozen=True)
class Target:
    """Whom the wheels are for: machine ("windows-x86_64") and version of CPython (3, 12)."""

    machine: str
    python: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.machine}:{self.python[0]}.{self.python[1]}"

    @property
    def platforms(self) -> list[str]:
        """Platform tags, the most particular first."""
        system, _, chip = self.machine.partition("-")
        if system == "windows":
            return ["win_amd64"]
        if system == "macos":
            return list(mac_platforms((14, 0), chip))
        old = [f"manylinux2014_{chip}", *([f"manylinux2010_{chip}", f"manylinux1_{chip}"] * (chip == "x86_64"))]
        return [*(f"manylinux_2_{n}_{chip}" for n in range(GLIBC[0], GLIBC[1] - 1, -1)), *old, f"linux_{chip}"]

    @cached_property
    def tags(self) -> frozenset[Tag]:
        name = f"cp{self.python[0]}{self.python[1]}"
        return frozenset([*cpython_tags(self.python, platforms=self.platforms),
                          *compatible_tags(self.python, name, self.platforms)])

    @property
    def environment(self) -> dict[str, str]:
        """What the markers of requirements are compared with."""
        system, _, chip = self.machine.partition("-")
        version = ".".join(map(str, self.python))
        return {**MARKERS[system], "platform_machine": "AMD64" if system == "windows" else chip,
                "python_version": version, "python_full_version": f"{version}.0",
                "implementation_name": "cpython", "platform_python_implementation": "CPython",
                "implementation_version": f"{version}.0", "platform_release": "", "platform_version": ""}


def parse_target(text: str) -> Target:
    """"windows-x86_64:3.12". Raises argparse's error, one sentence."""
    machine, _, version = text.partition(":")
    found = re.fullmatch(r"(\d+)\.(\d+)", version)
    if machine == "macos-x86_64":
        raise argparse.ArgumentTypeError("there are no wheels of torch for Macs with an Intel chip any more")
    if machine not in MACHINES or found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write MACHINE:PYTHON, such as windows-x86_64:3.12; machines are {', '.join(MACHINES)}")
    python = (int(found[1]), int(found[2]))
    if python < LOWEST:
        raise argparse.ArgumentTypeError(f"{text}: rlteach needs Python 3.11 or later")
    return Target(machine, python)


def this_machine() -> Target:
    """The target that an installer here would ask for."""
    sys.path.insert(0, str(TEXTS))
    from install import machine, python_version  # the same words on both sides

    return parse_target(f"{machine()}:{python_version()}")


@cache
def requirements_of(wheel: Path) -> tuple[Requirement, ...]:
    """Requires-Dist of a wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        lines = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    return tuple(map(Requirement, lines))


def closure(wheels: Iterable[Path], roots: Sequence[str], target: Target) -> tuple[set[Path], list[str]]:
    """(the wheels that `roots` need on the target, the requirements that no wheel meets there)."""
    have: dict[str, list[tuple[Version, Path]]] = {}
    for wheel in wheels:
        name, version, _, tags = parse_wheel_filename(wheel.name)
        if tags & target.tags:
            have.setdefault(name, []).append((version, wheel))
    used, missing, seen, todo = set(), {}, set(), [Requirement(root) for root in roots]
    while todo:
        want = todo.pop()
        key = (canonicalize_name(want.name), str(want.specifier), frozenset(want.extras))
        if key in seen:
            continue
        seen.add(key)
        fit = [(v, w) for v, w in have.get(key[0], ()) if want.specifier.contains(v, prereleases=True)]
        if not fit:
            missing[f"{want.name}{want.specifier}"] = None
            continue
        wheel = max(fit)[1]
        used.add(wheel)
        todo += [r for r in requirements_of(wheel) if r.marker is None or any(
            r.marker.evaluate({**target.environment, "extra": extra}) for extra in ("", *want.extras))]
    return used, sorted(missing)


def collect(wheels: Path, roots: Sequence[str], target: Target, options: Sequence[str]) -> set[Path]:
    """Let pip fetch into `wheels` until nothing is missing on the target; returns what it needs."""
    while True:
        used, missing = closure(wheels.glob("*.whl"), roots, target)
        if not missing:
            return used
        if gpu := [name for name in missing if re.match(r"nvidia|cuda|triton", name)]:
            for wheel in (w for w in used if w.name.startswith("torch-")):
                wheel.unlink()  # or the next build would take it
            sys.exit(f"{target}: the torch that pip found brings {len(gpu)} CUDA libraries, several gigabytes: "
                     "give the address of the PyTorch CPU index (make offline-bundle TORCH_INDEX=ADDRESS)")
        before = set(wheels.iterdir())
        print(f"{target}: {len(missing)} to fetch", flush=True)
        platforms = [word for name in target.platforms for word in ("--platform", name)]
        version = ".".join(map(str, target.python))
        words = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps",
                 "--only-binary=:all:", "-d", wheels, "-c", ROOT / "constraints.txt", "--implementation", "cp",
                 "--python-version", version, *platforms, *options, *missing]
        if subprocess.run(list(map(str, words)), stdin=subprocess.DEVNULL).returncode:
            sys.exit(f"{target}: pip's words above name the package that it could not get; once that is settled, "
                     "run this again: what is there already is not fetched twice")
        if set(wheels.iterdir()) == before:
            sys.exit(f"{target}: pip brought nothing that meets {', '.join(missing)}")


def copy_texts(folder: Path, targets: Sequence[Target], version: str) -> None:
    """The installers, the README, what they have to know, and the tested versions."""
    shutil.copy(ROOT / "constraints.txt", folder)
    said = {"rlteach": version, "extras": EXTRAS, "targets": [str(target) for target in targets]}
    (folder / "bundle.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8", newline="\n")
    words = {"{targets}": ", ".join(said["targets"]), "{version}": version}
    for path in sorted(p for p in TEXTS.iterdir() if p.is_file()):
        text = path.read_text(encoding="utf-8")
        for word, value in words.items() if path.suffix == ".txt" else ():
            text = text.replace(word, value)
        ends = "\r\n" if path.suffix in (".bat", ".txt") else "\n"  # cmd and Notepad want both characters
        (folder / path.name).write_text(text, encoding="utf-8", newline=ends)


def write_sums(folder: Path) -> None:
    """The form that `sha256sum -c` reads, too."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != SUMS)
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(folder).as_posix()}\n" for p in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8", newline="\n")


def build(folder: Path, targets: Sequence[Target], options: Sequence[str]) -> None:
    """Everything into `folder`; wheels that an earlier, broken-off build left there are used."""
    wheels = folder / "wheels"
    if folder.exists() and not folder.is_dir():
        sys.exit(f"{folder} is a file: name a folder")
    if folder.is_dir() and not wheels.is_dir() and any(folder.iterdir()):
        sys.exit(f"{folder} holds something that is no bundle: name a new folder with --out")
    wheels.mkdir(parents=True, exist_ok=True)
    for old in wheels.glob("rlteach-*.whl"):
        old.unlink()
    call(Path(sys.executable), "-m", "pip", "wheel", "--no-deps", "-w", wheels, ROOT, cwd=folder)
    (own,) = wheels.glob("rlteach-*.whl")
    contents(own)
    version = str(parse_wheel_filename(own.name)[1])
    roots = (f"rlteach[{EXTRAS}]=={version}", "pip")
    needed = set().union(*(collect(wheels, roots, target, options) for target in targets))
    for wheel in set(wheels.iterdir()) - needed:
        wheel.unlink()
    copy_texts(folder, targets, version)
    write_sums(folder)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"{folder}: {len(needed)} wheels for {', '.join(map(str, targets))}, {size / 1e6:.0f} MB in all; "
          "copy the folder to the stick, README.txt says the rest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "rlteach-offline", help="the folder")
    parser.add_argument("--target", type=parse_target, action="append", metavar="MACHINE:PYTHON",
                        help=f"{', '.join(MACHINES)}; more than one is fine [default: this machine and Python]")
    parser.add_argument("--extra-index-url", metavar="URL", help="one more package index: PyTorch's CPU index")
    arguments = parser.parse_args()
    try:
        targets = arguments.target or [this_machine()]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    options = ["--extra-index-url", arguments.extra_index_url] if arguments.extra_index_url else []
    build(arguments.out.resolve(), list(dict.fromkeys(targets)), options)


if __name__ == "__main__":
    main()
