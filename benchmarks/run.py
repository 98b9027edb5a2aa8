"""Measure the README's figures: `make bench`, or one part: python benchmarks/run.py demo

Parts: demo (preset tiny, seeds 0-4), controls (random, shuffled, own_samples), oreal (preset
tiny-oreal against tiny), imports (time of `import rlteach` against that of the interpreter alone).
Each run is a process of its own, so that its peak memory is its own. Results: benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PYTHON = sys.executable


def train(preset: str, seed: int, **changes: Any) -> dict[str, Any]:
    """One `rlteach train`; the summary's figures and the process's peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        sets = [part for k, v in changes.items() for part in ("--set", f"{k}={v}")]
        command = [PYTHON, "-m", "rlteach.cli", "train", preset, "--seed", str(seed), "--out", str(out), *sets]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    levels = summary["after"]["by_level"]
    row = {
        "preset": preset, "seed": seed, **changes, "before": summary["before"]["accuracy"],
        "after": summary["after"]["accuracy"], "ci95": summary["after"]["ci95"],
        "last_step": summary["last_step"]["accuracy"], "lowest_level": min(levels.values()),
        "levels": levels, "best_step": summary["best_step"], "steps": summary["steps"],
        "seconds": summary["seconds"], "process_seconds": round(wall, 1),
        "rollout_tokens": summary["tokens"],
        "peak_memory_gb": round(max(line["memory/peak"] for line in lines) / 1e9, 2),
    }
    print(json.dumps(row), flush=True)
    return row


def demo() -> dict[str, Any]:
    rows = [train("tiny", seed) for seed in range(5)]
    good = [r for r in rows if r["after"] >= 0.97 and r["seconds"] <= 60 and r["lowest_level"] > 0.9]
    return {"rows": rows, "seeds_that_reach_the_figure": len(good),
            "figure": "test accuracy >= 97 % in <= 60 s, every level above 90 %"}


def controls() -> dict[str, Any]:
    return {"rows": [train("tiny", 0, control=c) for c in ("random", "shuffled", "own_samples")]}


def oreal() -> dict[str, Any]:
    rows = [train("tiny-oreal", 0)]
    plain = [train("tiny", 0, total_steps=rows[0]["steps"])]
    return {"rows": rows, "tiny_at_the_same_number_of_rollouts": plain}


def imports() -> dict[str, Any]:
    """Median of 7, in turn: the interpreter alone, and with `import rlteach`."""
    times: dict[str, list[float]] = {"pass": [], "import rlteach": []}
    for _ in range(8):
        for code, found in times.items():
            began = time.perf_counter()
            subprocess.run([PYTHON, "-c", code], check=True)
            found.append(time.perf_counter() - began)
    bare, full = (statistics.median(t[1:]) for t in times.values())
    return {"interpreter_seconds": round(bare, 3), "import_rlteach_seconds": round(full - bare, 3)}


PARTS = {"imports": imports, "demo": demo, "controls": controls, "oreal": oreal}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    RESULTS.mkdir(exist_ok=True)
    for name in parser.parse_args().parts:
        found = PARTS[name]()
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps({k: v for k, v in found.items() if k != "rows"}), flush=True)
