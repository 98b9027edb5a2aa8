"""Would the tests notice? python benchmarks/mutation.py [BUG ...]

Each bug of the museum is planted by a pytest plugin (tests/plant_bug.py), and the test files that should
notice it run in a process of their own, one after the other, up to the first test that fails. The tests
about the museum and about planted faults do not run. Results: benchmarks/results/mutation.json; with
names only these bugs are run again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlteach.course import museum

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "mutation.json"
LOOP, ORACLE, UPDATE = "test_oreal_loop", "test_oreal_oracle", "test_update"
FILES: dict[str, tuple[str, ...]] = {  # the files that should notice; the likeliest first
    "double_shift": (LOOP,), "temperature_forgotten": (LOOP,), "top_p_forgotten": (LOOP,),
    "mask_from_values": (LOOP,), "dropout_left_on": ("test_policy", LOOP),
    "all_logits_at_once": ("test_policy", LOOP), "auto_is_float32": ("test_policy", "test_embedded"),
    "prompt_twice": ("test_policy", LOOP), "stop_tokens_not_passed": (LOOP,),
    "budget_too_small": ("test_policy", LOOP), "padding_attended": (LOOP,),
    "test_without_template": ("test_evaluate", "test_policy"), "shared_dice": (LOOP,),
    "order_not_seeded": ("test_data",), "order_repeated": ("test_data",),
    "own_samples_imitated": (ORACLE, LOOP), "group_of_one": (LOOP,), "unscorable_is_wrong": (LOOP,),
    "rewards_reordered": (LOOP, "test_judging"), "empty_batch_crashes": (LOOP,),
    "rejected_in_the_baseline": (LOOP,), "judge_never_asked": (LOOP, "test_judging"),
    "stop_word_demanded": ("test_judger", "test_grading_rules"),
    "letters_searched": ("test_llm_judge", "test_llm_judge_faults"),
    "words_not_known": ("test_llm_judge", "test_llm_judge_faults"),
    "percent_both_ways": ("test_grading_rules",), "integers_nearly_equal": ("test_grading_rules",),
    "parentheses_deleted": ("test_grading_rules",), "answer_evaluated": ("test_judger",),
    "whole_line_taken": ("test_grading_rules",), "last_number_taken": ("test_grading_rules",),
    "reference_is_the_policy": (LOOP,), "kl_pushes_away": ("test_oreal_mathematics", ORACLE),
    "kl_by_answers": (ORACLE,), "factors_ignored": (ORACLE,), "mean_of_means": (LOOP,),
    "step_each_part": (LOOP, UPDATE), "no_clipping": (UPDATE, LOOP), "loss_of_each_token": (LOOP,),
    "warmup_never_ends": (UPDATE, LOOP), "first_rate_is_zero": (UPDATE, LOOP),
    "warmup_while_frozen": (UPDATE, LOOP), "weights_only": ("test_checkpoint",),
}
NOT_THESE = {"test_museum", "test_planted_faults", "test_mutation"}


def notices(bug: str) -> dict[str, Any]:
    """The first test that fails under the bug (None: none does), and how many passed before it."""
    passed = 0
    for name in FILES[bug]:
        command = [sys.executable, "-m", "pytest", "-p", "plant_bug", "-p", "no:cacheprovider", "-x", "-q",
                   "-m", "not gate", "--tb=no", "-rf", f"tests/{name}.py"]
        path = os.pathsep.join([str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                              env={**os.environ, "RLTEACH_BUG": bug, "PYTHONPATH": path})
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{bug}: pytest ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        count = re.search(r"(\d+) passed", done.stdout)
        passed += int(count[1]) if count else 0
        if failed := re.search(r"^FAILED (\S+?::.+?)(?: - .*)?$", done.stdout, re.MULTILINE):
            return {"bug": bug, "caught_by": failed[1], "passed": passed}
    return {"bug": bug, "caught_by": None, "passed": passed}


def main() -> None:
    chosen = sys.argv[1:] or list(museum.catalogue())
    old = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.is_file() else []
    rows = {row["bug"]: row for row in old if row["bug"] in museum.catalogue()}
    for bug in chosen:
        rows[bug] = notices(bug)
        print(json.dumps(rows[bug]), flush=True)
    ordered = [rows[name] for name in museum.catalogue() if name in rows]
    caught = sum(row["caught_by"] is not None for row in ordered)
    result = {"bugs": len(ordered), "caught": caught, "rows": ordered}
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{caught} of {len(ordered)} are caught")


if __name__ == "__main__":
    main()
