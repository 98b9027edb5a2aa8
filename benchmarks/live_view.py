"""What does rl.view cost? Processor time of a tiny run with the view and without, in a notebook's kernel.

    python benchmarks/live_view.py [--steps 50] [--pairs 3] [--out FILE]

Each run has a kernel of its own, as a notebook has; with and without take turns. `drawing_share` is the
processor time of the view's own thread over that of the whole process, and `ratio` compares the medians
of the two kinds of run; the figure to hold is a share of at most 3 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

SETUP = """
import json, time
import torch
torch.set_num_threads(1)
import ipywidgets, matplotlib.backends.backend_agg, pandas  # their import is no drawing
import rlteach as rl
rl.view
config = rl.Config.preset("tiny", total_steps={steps}, threads=1)
policy = rl.Policy.load("tiny-math", config)
trainer = rl.OrealTrainer(policy, rl.RuleJudger(), rl.load_samples(config.train_data), config)
"""
PLAIN = """
began, clock = time.process_time(), time.perf_counter()
trainer.start().wait()
print(json.dumps({"cpu": time.process_time() - began, "seconds": time.perf_counter() - clock}))
"""
VIEWED = """
shown = []
show = rl.views.live.Notebook.show
rl.views.live.Notebook.show = lambda self, png: (shown.append(len(png)), show(self, png))
began, clock = time.process_time(), time.perf_counter()
view = rl.view(trainer)
view.wait()
print(json.dumps({"cpu": time.process_time() - began, "seconds": time.perf_counter() - clock,
                  "drawing": view.budget.spent, "frames": len(shown), "bytes": sum(shown)}))
"""


def measure(steps: int, code: str) -> dict[str, Any]:
    """One run in a fresh kernel."""
    manager, client = start_new_kernel(kernel_name="python3", extra_arguments=["--log-level=ERROR"])
    printed: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    try:
        for part in (SETUP.format(steps=steps), code):
            client.execute_interactive(part, output_hook=hear, timeout=1800)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return json.loads(printed[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "live_view.json")
    arguments = parser.parse_args()
    rows = []
    for _ in range(arguments.pairs):
        rows.append({"without": measure(arguments.steps, PLAIN), "with": measure(arguments.steps, VIEWED)})
        print(json.dumps(rows[-1]), flush=True)
    plain, viewed = (statistics.median(row[kind]["cpu"] for row in rows) for kind in ("without", "with"))
    share = statistics.median(row["with"]["drawing"] / row["with"]["cpu"] for row in rows)
    result = {"steps": arguments.steps, "cpu_without": round(plain, 2), "cpu_with": round(viewed, 2),
              "ratio": round(viewed / plain, 3), "drawing_share": round(share, 4), "rows": rows,
              "figure": "drawing_share <= 0.03"}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}))


if __name__ == "__main__":
    main()
