"""Build the wheel and use it as a stranger would: an empty environment, far from the repository.

    python scripts/check_wheel.py             about two minutes; needs pip's index, no GPU

Checks that the data and the lessons are inside, that `rlteach models` lists the embedded models,
that each workspace can be made and a grader run, that the lessons can be copied out, and that
`rlteach train tiny` trains, from an unrelated folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSIDE = ("rlteach/cli.py", "rlteach/_data/prompts/train.jsonl", "rlteach/_data/prompts/dev.jsonl",
          "rlteach/_data/prompts/test.jsonl", "rlteach/_data/models/", "rlteach/_notebooks/",
          "rlteach/_data/search/corpus.jsonl", "rlteach/templates/search/README.md",
          "rlteach/templates/shared/requirements.txt", "rlteach/templates/weather/data/weather.jsonl")
NOT_INSIDE = ("__pycache__", ".ipynb_checkpoints", "/runs/")


def call(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Standard output of a command; ends the script where it fails."""
    start = time.monotonic()
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, text=True, capture_output=True,
                          stdin=subprocess.DEVNULL)
    shown = " ".join(Path(word).name if isinstance(word, Path) else word for word in words)
    print(f"{time.monotonic() - start:6.1f} s  {shown}", flush=True)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def contents(wheel: Path) -> None:
    """Data and lessons are in the wheel, leavings are not."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [part for part in INSIDE if not any(name.startswith(part) for name in names)]
    if not any(name.startswith("rlteach/_notebooks/") and name.endswith(".ipynb") for name in names):
        missing.append("rlteach/_notebooks/*.ipynb")
    litter = [name for name in names if any(part in name for part in NOT_INSIDE)]
    if missing or litter:
        sys.exit(f"{wheel.name}: missing {missing}, not wanted {litter}")
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        call(Path(sys.executable), "-m", "pip", "wheel", "--no-deps", "-w", work, ROOT, cwd=work)
        (wheel,) = work.glob("rlteach-*.whl")
        contents(wheel)
        venv.create(work / "venv", with_pip=True)
        bin_ = work / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = bin_ / "python"
        call(python, "-m", "pip", "install", "-c", ROOT / "constraints.txt", "torch", cwd=work)
        call(python, "-m", "pip", "install", "-c", ROOT / "constraints.txt", wheel, cwd=work)
        away = work / "away"
        away.mkdir()
        # nothing of this shell may help: no PYTHONPATH, no RLTEACH_DATA, no hub
        kept = {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP", "TMP") if name in os.environ}
        env = kept | {"PATH": str(bin_), "HOME": str(away), "HF_HUB_OFFLINE": "1",
                      "OMP_NUM_THREADS": "1"}  # on a busy machine, threads wait for one another
        place = call(python, "-c", "import rlteach; print(rlteach.__file__)", cwd=away, env=env)
        if not Path(place.strip()).is_relative_to(work / "venv"):
            sys.exit(f"rlteach was imported from {place.strip()}, not from the wheel")
        if "tiny-math" not in call(bin_ / "rlteach", "models", cwd=away, env=env):
            sys.exit("`rlteach models` does not name tiny-math")
        for template in ("search", "weather", "random_reward"):
            call(bin_ / "rlteach", "init", away / template, "--template", template, cwd=away, env=env)
        call(python, "-m", "plugins.llm_grader", cwd=away / "search", env=env)
        call(bin_ / "rlteach", "lessons", away / "lessons", cwd=away, env=env)
        if not list((away / "lessons").glob("00_*.ipynb")):
            sys.exit("`rlteach lessons` wrote no lesson 00")
        words = ("train", "tiny", "--set", "total_steps=2", "--out", away / "run")
        call(bin_ / "rlteach", *words, cwd=away, env=env)
        lines = (away / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        if len(lines) != 2 or not (away / "run" / "summary.json").is_file():
            sys.exit(f"the run left {len(lines)} lines of metrics.jsonl and "
                     f"{sorted(path.name for path in (away / 'run').iterdir())}")
    print("the wheel works on its own")


if __name__ == "__main__":
    main()
