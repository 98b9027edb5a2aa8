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
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PYTHON = sys.executable


def train(preset: str, seed: int, look: Callable[[Path], dict[str, Any]] | None = None, **changes: Any
          ) -> dict[str, Any]:
    """One `rlteach train`; the summary's figures, the process's peak memory, and what `look` finds in the run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        sets = [part for k, v in changes.items() for part in ("--set", f"{k}={v}")]
        command = [PYTHON, "-m", "rlteach.cli", "train", preset, "--seed", str(seed), "--out", str(out), *sets]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        seen = {} if look is None else look(out)
    levels = summary["after"]["by_level"]
    row = {
        "preset": preset, "seed": seed, **changes, "before": summary["before"]["accuracy"],
        "after": summary["after"]["accuracy"], "ci95": summary["after"]["ci95"],
        "last_step": summary["last_step"]["accuracy"], "lowest_level": min(levels.values()),
        "levels_before": summary["before"]["by_level"], "levels": levels, **seen, "best_step": summary["best_step"], "steps": summary["steps"],
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


def agent() -> dict[str, Any]:
    rows = [train("tiny-agent", seed, held_out) for seed in range(3)]
    good = [r for r in rows if r["levels_before"]["single"] <= 0.4 and r["levels"]["single"] >= 0.85
            and r["seconds"] <= 300 and r["played"]["single"]["malformed_of_calls"] <= 0.01]
    untrained = {level: played("tiny-agent", level) for level in ("single", "two")}
    return {"rows": rows, "untrained": untrained, "seeds_that_reach_the_figure": len(good),
            "figure": "one-hop success on test from <= 40 % to >= 85 % in <= 300 s, malformed calls <= 1 %"}


def held_out(run: Path) -> dict[str, Any]:
    """The chosen checkpoint, played by course/searching.py: the share of malformed calls, too."""
    best = str(run / "checkpoints" / "best")
    return {"played": {level: played(best, level) for level in ("single", "two")}}


def played(model: str, level: str, k: int = 4) -> dict[str, float]:
    """shares() of k rollouts a test question; greedy success; success when no search finds a page."""
    from rlteach.course.searching import no_pages, play, shares
    from rlteach.data import load_samples
    from rlteach.policy.policy import Policy

    policy = Policy.load(model)
    asked = [s for s in load_samples("search/search_dataset_test.jsonl") if s.extra["level"] == level]
    many, keys = [s for s in asked for _ in range(k)], list(range(k * len(asked)))
    found = {**shares(play(policy, many, keys)),
             "greedy": shares(play(policy, asked, keys[: len(asked)], greedy=True))["pass_rate"],
             "empty_search": shares(play(policy, many, keys, no_pages))["pass_rate"]}
    return {name: round(value, 4) for name, value in found.items()}


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


PARTS = {"imports": imports, "demo": demo, "controls": controls, "oreal": oreal, "agent": agent}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    RESULTS.mkdir(exist_ok=True)
    for name in parser.parse_args().parts:
        found = PARTS[name]()
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps({k: v for k, v in found.items() if k != "rows"}), flush=True)
