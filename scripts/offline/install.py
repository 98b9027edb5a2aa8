"""Install rlteach from this folder; no network is used.

    python install.py [FOLDER]     FOLDER gets the packages and the lessons [default: rlteach, in your home folder]
    python install.py --fits       only say whether this Python and this machine are what the wheels are for

Run by install.sh and install.bat. Nothing but Python's own library is needed, of any version, so that an old
one gets a sentence and no traceback.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What opens the lessons. No path is written into them: cmd would read one with other than Latin letters wrongly.
# A proxy for the internet must not be asked for servers on this machine, which some lessons start.
START_SH = b"""#!/bin/sh
here=$(CDPATH= cd "$(dirname "$0")" && pwd)
NO_PROXY=127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY} no_proxy=127.0.0.1,localhost${no_proxy:+,$no_proxy}
export NO_PROXY no_proxy
exec "$here/venv/bin/python" -m jupyterlab "$here/lessons" "$@"
"""
START_BAT = b"""@echo off\r
if defined NO_PROXY (set "NO_PROXY=127.0.0.1,localhost,%NO_PROXY%") else set "NO_PROXY=127.0.0.1,localhost"\r
"%~dp0venv\\Scripts\\python.exe" -m jupyterlab "%~dp0lessons" %*\r
"""
CHIPS = {"amd64": "x86_64", "x64": "x86_64"}  # Windows says AMD64


def machine():
    """Such as "windows-x86_64", "macos-arm64"."""
    system = {"Darwin": "macos"}.get(platform.system(), platform.system().lower())
    chip = platform.machine().lower()
    return f"{system}-{CHIPS.get(chip, chip)}"


def python_version():
    return "{}.{}".format(*sys.version_info[:2])


def misfit(targets, this):
    """None, or one sentence: the wheels are for other machines, or for another Python."""
    if this in targets:
        return None
    here, version = this.split(":")
    fitting = [target.split(":")[1] for target in targets if target.split(":")[0] == here]
    if fitting:
        return ("this is Python {}, and the wheels are for Python {}: install that one, then run the "
                "installer again".format(version, " or ".join(fitting)))
    return ("this machine is {}, and the wheels are for {}: whoever made this folder can make it for you, with "
            "--target {}".format(here, ", ".join(targets), this))


def damaged(folder):
    """None, or one sentence: a file is missing, or is not what was written."""
    try:
        lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "SHA256SUMS is missing: copy the whole folder again"
    for line in lines:
        wanted, name = line.split("  ", 1)
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError:
            return f"{name} is missing: copy the whole folder again"
        if found != wanted:
            return f"{name} was damaged when it was copied: copy the whole folder again"
    return None


def run(*words):
    """Run a command; its own words stay visible."""
    code = subprocess.call([str(word) for word in words])
    if code:
        sys.exit("install: this step failed, its words stand above: {}".format(" ".join(map(str, words))))


def install(target, extras):
    """An environment in target/venv from the wheels, the lessons in target/lessons, and a file that opens them."""
    windows = os.name == "nt"
    bin_ = target / "venv" / ("Scripts" if windows else "bin")
    python = bin_ / ("python.exe" if windows else "python")
    # without pip of its own: Debian and Ubuntu have taken it out of venv; the one of the wheels is used
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", target / "venv")
    (pip,) = (HERE / "wheels").glob("pip-*.whl")
    run(python, pip / "pip", "install", "--disable-pip-version-check", "--no-index", "--find-links",
        HERE / "wheels", "-c", HERE / "constraints.txt", "pip", f"rlteach[{extras}]")
    lessons = target / "lessons"
    if lessons.exists():
        print(f"{lessons} is there already and stays as it is")
    else:
        run(bin_ / "rlteach", "lessons", lessons)
    start = target / ("lessons.bat" if windows else "lessons.sh")
    start.write_bytes(START_BAT if windows else START_SH)
    start.chmod(0o755)
    print("\nDone. The lessons open with\n  {}{}".format("" if windows else "sh ", start))
    print("and a first run is\n  {} train tiny".format(bin_ / "rlteach"))


def main(words):
    said = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))
    wrong = misfit(said["targets"], f"{machine()}:{python_version()}")
    if words == ["--fits"]:
        sys.exit(1 if wrong else 0)
    wrong = wrong or damaged(HERE)
    if not wrong and (len(words) > 1 or (words and words[0].startswith("-"))):
        wrong = "name one folder at most: python install.py [FOLDER]"
    if wrong:
        sys.exit("install: " + wrong)
    install(Path(words[0] if words else Path.home() / "rlteach").absolute(), said["extras"])


if __name__ == "__main__":
    main(sys.argv[1:])
