"""In which step each bug of the museum shows: python benchmarks/museum.py [BUG ...]

Three seeds; each bug's short run (rlteach/course/short_run.py) is made without it and with it. Writes
benchmarks/results/museum.json and the table of docs/museum.md; --page writes only the table again.
"""

from __future__ import annotations

import argparse
import json
from itertools import dropwhile
from pathlib import Path
from typing import Any

import torch

from rlteach.course import museum
from rlteach.course.planting import Bug, Curve
from rlteach.course.short_run import SHORT

ROOT = Path(__file__).resolve().parents[1]
RESULT, PAGE = ROOT / "benchmarks" / "results" / "museum.json", ROOT / "docs" / "museum.md"
SEEDS = (0, 1, 2)
HEAD = "| bug | rows | what it does | what shows it | within |\n|---|---|---|---|---|\n"
RUNS: dict[str, Any] = {}


def healthy(name: str, curve: Curve, seed: int) -> Any:
    key = repr((curve.settings, curve.judger, curve.metric == "dev/accuracy", seed))
    if key not in RUNS:
        RUNS[key] = museum.run(name, seed=seed)
    return RUNS[key][curve.metric]


def measure(b: Bug) -> dict[str, Any]:
    b.invariant()
    row: dict[str, Any] = {"name": b.name, "kind": b.kind, "invariant_noticed": False}
    with museum.bug(b.name):
        try:
            b.invariant()
        except AssertionError as error:
            row |= {"invariant_noticed": True, "it_says": str(error)}
    if b.curve is not None:
        row |= {"metric": b.curve.metric, "first_step": [], "healthy": [], "ill": []}
        for seed in SEEDS:
            h = healthy(b.name, b.curve, seed)
            with museum.bug(b.name):
                i = museum.run(b.name, seed=seed, steps=b.curve.within)[b.curve.metric]
            steps = [step for step in i.index if b.curve.apart(h[step], i[step])]
            row["first_step"].append(steps[0] if steps else None)
            if steps:
                row["healthy"].append(round(float(h[steps[0]]), 6))
                row["ill"].append(round(float(i[steps[0]]), 6))
    print(json.dumps(row), flush=True)
    return row


def line(b: Bug) -> str:
    shows = f"`{b.curve.metric}` {b.curve.says}" if b.curve else b.shown_by
    within = str(b.curve.within) if b.curve else "invariant"
    what = b.explanation[0].replace("|", "\\|")
    return f"| `{b.name}` | {', '.join(b.rows)} | {what} | {shows} | {within} |\n"


def write_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEAD)
    after = "".join(dropwhile(lambda old: old.startswith("|"), rest.splitlines(keepends=True)))
    table = "".join(map(line, museum.catalogue().values()))
    PAGE.write_text(before + HEAD + table + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="BUG", help="measure these anew; none: all of them")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the table again")
    given, known = parser.parse_args(), museum.catalogue()
    if not given.page:
        torch.set_num_threads(1)
        old = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if given.names else []
        rows = {row["name"]: row for row in old} | {n: measure(known[n]) for n in given.names or known}
        result = {"model": "tiny-math", "run": SHORT, "seeds": SEEDS, "rows": [rows[n] for n in known if n in rows]}
        RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_page()


if __name__ == "__main__":
    main()
