"""Measure the rule judger: python benchmarks/grading.py. Results: benchmarks/results/grading.json

plain: answers a second that the exact core decides, in one process. symbolic: milliseconds of a check
in a worker process, and of the first one, which starts it. against_math_verify: how often the judger
and math-verify 0.9 (its own parse and verify) say the same of pairs whose truth is known from how
they were made; each pair is graded from its box.
"""

from __future__ import annotations

import json
import logging
import platform
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from answer_grammar import kept, pair  # noqa: E402

from rlteach.judger.rule import RuleJudger  # noqa: E402
from rlteach.judger.verifier import Verifier  # noqa: E402
from rlteach.types import Group, Message, Sample, Trajectory  # noqa: E402

PLAIN = (("75", r"5+0=5, 2+5=7, \boxed{75}"), ("75", r"\boxed{76}"), ("1/2", r"\boxed{\frac{1}{2}}"),
         ("58500", r"so \boxed{58,500}"), ("0.25", r"\boxed{25\%}"), ("(1, 2)", r"\boxed{(1, 2)}"),
         ("5.4", r"\boxed{5.4\text{ cents}}"), ("1331 and 1728", r"\boxed{1728, 1331}"),
         ("35", r"答案是三十五。"), ("4", "I do not know."))
SYMBOLIC = ((r"\sqrt{8}", r"2\sqrt{2}"), ("x^2-1", "(x-1)(x+1)"), (r"\frac{11+9a}{20}", r"\dfrac{9a+11}{20}"),
            (r"\frac{\pi}{2}", r"0.5\pi"), ("2x+4y=3", "y=3/4-x/2"), (r"\sqrt{2}", r"\sqrt{3}"))


def group(gold: str, response: str, size: int = 1) -> Group:
    sample = Sample("q", (Message("user", "What is 25 + 50?"),), (gold,))
    messages = (*sample.messages, Message("assistant", response))
    return Group(sample, (Trajectory(messages, (), (), (), 0, "stop"),) * size)


def plain(rounds: int = 7, size: int = 200) -> dict[str, Any]:
    """Median of `rounds`, each PLAIN x size answers."""
    judger, groups, rates = RuleJudger(), [group(*p, size) for p in PLAIN], []
    for _ in range(rounds):
        began = time.perf_counter()
        answers = sum(len(judger.grade(g)) for g in groups)
        rates.append(answers / (time.perf_counter() - began))
    return {"answers_per_second_one_process": round(statistics.median(rates)),
            "slowest_round": round(min(rates)), "answers": rounds * size * len(PLAIN)}


def symbolic(rounds: int = 40) -> dict[str, Any]:
    """Milliseconds a check, worker processes running; the first one starts them."""
    with Verifier() as verifier:
        judger = RuleJudger(verifier=verifier)
        began = time.perf_counter()
        judger.grade_text((r"\sqrt{12}",), r"2\sqrt{3}")
        first = time.perf_counter() - began
        took = []
        for _ in range(rounds):
            for gold, answer in SYMBOLIC:
                began = time.perf_counter()
                judger.grade_text((gold,), answer)
                took.append(1000 * (time.perf_counter() - began))
    took.sort()
    return {"first_check_ms": round(1000 * first), "median_ms": round(statistics.median(took), 2),
            "p99_ms": round(took[int(0.99 * len(took))], 2), "checks": len(took)}


def against_math_verify(pairs: int = 400, seed: int = 3) -> dict[str, Any]:
    """Counts of 'truth: ours, theirs' over kept and changed answers; theirs within 2 s a step."""
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    rng, judger, seen = random.Random(seed), RuleJudger(), Counter()
    for _ in range(pairs):
        gold, others = pair(rng)
        for truth, text in (("equal", gold), ("different", rng.choice(others))):
            answer = kept(rng, text)[1]
            ours = judger.grade_text((gold,), answer).status
            boxes = [parse(rf"$\boxed{{{t}}}$", parsing_timeout=2) for t in (gold, answer)]
            theirs = "equal" if verify(*boxes, timeout_seconds=2) else "different"
            seen[f"{truth}: ours {ours}, math-verify {theirs}"] += 1
    return {"pairs": 2 * pairs, **dict(sorted(seen.items()))}


if __name__ == "__main__":
    found = {"plain": plain(), "symbolic": symbolic(), "against_math_verify": against_math_verify(),
             "machine": f"{platform.machine()}, Python {platform.python_version()}, shared with other work"}
    text = json.dumps(found, indent=2)
    (Path(__file__).parent / "results" / "grading.json").write_text(text + "\n", encoding="utf-8")
    print(text)
