r"""Thousands of answers by grammar: nothing breaks the rule judger, and it says the truth.

T6: any text at all. T7: rewrites that keep or change the value. T8: against exact values worked out here.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import mpmath
import psutil
import pytest
from answer_grammar import decimal_text, fraction_text, kept, noise, pair

from rlteach.judger.numerals import written
from rlteach.judger.rule import RuleJudger
from rlteach.judger.verifier import Verifier, shared_verifier
from rlteach.types import Group, Judgement, Message, Sample, Trajectory

GOLDS = ("4", "1/2", "(1, 2)", "三十五", "3 cm", "1331 and 1728", "[2,7)", "yes", "12.5")
SYMBOLIC_GOLDS = (r"\sqrt{2}", "x+1", r"2\pi")


def graded(gold: str, response: str, judger: RuleJudger) -> Judgement:
    sample = Sample("q", (Message("user", "What is 2 + 2?"),), (gold,))
    messages = (*sample.messages, Message("assistant", response))
    [found] = judger.grade(Group(sample, (Trajectory(messages, (), (), (), 0, "stop"),)))
    return found


def fuzz(count: int, seed: int, canary: Path, judger: RuleJudger) -> tuple[list[str], list[float]]:
    """Statuses and seconds of `count` answers; each has to be one of the three, with its score."""
    rng, statuses, seconds = random.Random(seed), [], []
    for _ in range(count):
        gold = rng.choice(SYMBOLIC_GOLDS if rng.random() < 0.05 else GOLDS)
        text = noise(rng, str(canary))
        response = rng.choice([rf"\boxed{{{text}}}", rf"\boxed{{{text}}}", text, f"The answer is {text}"])
        began = time.perf_counter()
        found = graded(gold, response, judger)
        seconds.append(time.perf_counter() - began)
        assert {"correct": 1.0, "incorrect": 0.0, "unscorable": None}[found.status] == found.score, text
        assert found.source == "rule"
        assert "\n" not in found.reason
        statuses.append(found.status)
    return statuses, seconds


def test_t6_any_text_gets_one_of_three_verdicts(tmp_path: Path) -> None:
    statuses, _ = fuzz(5000, 0, tmp_path / "canary", RuleJudger())
    counts = Counter(statuses)
    assert set(counts) == {"correct", "incorrect", "unscorable"}, counts
    assert counts["incorrect"] > 500
    assert list(tmp_path.iterdir()) == [], "an answer was executed"


@pytest.mark.parametrize("text", [
    "{", "}", "(", "\\", "$", "9", "9,", "\\boxed{", "answer is ", " ", "a", "是", "1/", "\\frac", "<", "<a",
    "=", "\\pm", ";", "\\{1,", "**Final Answer**", "</think>", "\n", "√", "一", "*"])
def test_t6_a_megabyte_of_anything_is_graded_in_linear_time(text: str) -> None:
    response = text * (1_000_000 // len(text)) + text[:1] * 3 + " 5 x"
    began = time.process_time()
    for whole in (response, rf"\boxed{{{response}", rf"\boxed{{{response}}}", f"The answer is {response}",
                  f"The answer is 5{response}x", rf"\boxed{response}{{5}}"):
        assert graded("4", whole, RuleJudger()).status != "correct"
    assert RuleJudger().grade_text(("4",), response[:1000]).status != "correct"
    assert RuleJudger().grade_text((response,), "4").status == "unscorable"
    assert time.process_time() - began < 60, "ten times what it takes, and more"


@pytest.mark.gate
def test_t6_a_hundred_thousand(tmp_path: Path) -> None:
    """Also: the worst case, the usual one, the workers' memory, and the same verdicts from a thread."""
    canary = tmp_path / "canary"
    with Verifier() as verifier:
        judger = RuleJudger(verifier=verifier)
        judger.grade_text((r"\sqrt{8}",), r"2\sqrt{2}")  # the workers have started
        statuses, seconds = fuzz(100_000, 1, canary, judger)
        assert set(statuses) == {"correct", "incorrect", "unscorable"}
        assert list(tmp_path.iterdir()) == [], "an answer was executed"
        seconds.sort()
        assert seconds[-1] <= verifier.timeout + 0.5, f"the worst took {seconds[-1]:.2f} s"
        assert seconds[98_999] <= 0.05, f"the 99th percentile took {seconds[98_999]:.3f} s"
        assert set(verifier.failures) <= {"not readable", "timeout"}, verifier.failures
        for worker in (*verifier._idle, *verifier._busy):
            assert psutil.Process(worker.process.pid).memory_info().rss < 512 << 20
        again = fuzz(2000, 1, canary, judger)[0]
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(fuzz, 2000, 1, canary, judger).result()[0] == again == statuses[:2000]
    with Verifier() as fresh:
        assert fuzz(2000, 1, canary, RuleJudger(verifier=fresh))[0] == again


# T7 -----------------------------------------------------------------------------------------------


def metamorphic(
    pairs: int, each: int, seed: int
) -> tuple[list[tuple[str, str, str, str]], int, list[tuple[str, str]], int]:
    """Kept ones that were not correct, out of how many; changed ones that were, out of how many."""
    rng, judger = random.Random(seed), RuleJudger()
    misses, kept_count, false, changed_count = [], 0, [], 0
    for _ in range(pairs):
        gold, others = pair(rng)
        for _ in range(each):
            name, answer = kept(rng, gold)
            found = graded(gold, rf"so \boxed{{{answer}}}", judger)
            kept_count += 1
            if found.status != "correct":
                misses.append((name, gold, answer, found.reason))
            changed = rng.choice(others)
            answer = kept(rng, changed)[1]
            changed_count += 1
            if graded(gold, rf"so \boxed{{{answer}}}", judger).status == "correct":
                false.append((gold, answer))
    return misses, kept_count, false, changed_count


def test_t7_rewrites_keep_or_change_the_value() -> None:
    misses, kept_count, false, changed_count = metamorphic(150, 8, 0)
    assert len(misses) <= 0.02 * kept_count, misses
    assert false == []
    assert kept_count == changed_count == 1200


@pytest.mark.gate
def test_t7_two_thousand_pairs_with_twenty_rewrites_each() -> None:
    misses, kept_count, false, changed_count = metamorphic(2000, 20, 1)
    assert kept_count == changed_count == 40_000
    assert len(misses) <= 0.02 * kept_count, misses[:50]
    assert len(false) <= 0.001 * changed_count, false


# T8 -----------------------------------------------------------------------------------------------


def notations(rng: random.Random, value: Fraction) -> list[str]:
    """One value in many notations."""
    a, b = value.numerator, value.denominator
    k = rng.randrange(2, 9)
    out = [f"{a * k}/{b * k}", fraction_text(value), rf"\dfrac{{{a}}}{{{b}}}", f"{100 * a}/{100 * b}"]
    whole, part = divmod(abs(value), 1)
    sign = "-" if value < 0 else ""
    if whole and part:
        out += [
            f"{sign}{whole} {part.numerator}/{part.denominator}",
            rf"{sign}{whole}\frac{{{part.numerator}}}{{{part.denominator}}}",
        ]
    if b == 1:
        out += [
            str(a),
            f"{a:,}",
            f"{a}.0",
            rf"{a}\times 10^0",
            ("负" if a < 0 else "") + written(abs(a)),
            f"{a}e0",
        ]
    if b in (1, 2, 4, 5, 8, 10, 16, 20, 25, 40, 50, 100):
        places = 4
        out += [
            decimal_text(int(value * 10**places), places),
            f"{decimal_text(int(value * 10**6), 4)}\\%",
            f"{decimal_text(int(value * 10**places), places)}e0",
        ]
    return out


def test_t8_numbers_against_exact_values() -> None:
    """In every pair of notations: correct exactly when the two fractions are equal."""
    rng, judger = random.Random(8), RuleJudger()
    for _ in range(600):
        value = Fraction(
            rng.choice([-1, 1]) * rng.randrange(1, 3000), rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 25, 100])
        )
        other = value + rng.choice(
            [0, 0, 1, Fraction(1, value.denominator), -2 * value, Fraction(1, 10**4)]
        )
        gold, answer = rng.choice(notations(rng, value)), rng.choice(notations(rng, other))
        wanted = "correct" if value == other else "incorrect"
        found = judger.grade_text((gold,), answer)
        assert found.status == wanted, (gold, answer, found.reason)


def term(rng: random.Random, depth: int) -> tuple[str, mpmath.mpf]:
    """A constant in LaTeX and its value, worked out on its own with 50 digits."""
    if depth == 0 or rng.random() < 0.25:
        n = rng.randrange(1, 12)
        return rng.choice(
            [(str(n), mpmath.mpf(n)), (r"\pi", mpmath.pi()), (rf"\frac{{{n}}}{{7}}", mpmath.mpf(n) / 7)]
        )
    (a, x), (b, y) = term(rng, depth - 1), term(rng, depth - 1)
    return rng.choice(
        [
            (f"({a})+{b}", x + y),
            (rf"\frac{{{a}}}{{{b}}}", x / y),
            (rf"\sqrt{{{a}}}", mpmath.sqrt(x)),
            (rf"({a}) \cdot ({b})", x * y),
            (rf"({a})^{{2}}", x * x),
            (rf"\sqrt[3]{{{a}}}", mpmath.cbrt(x)),
        ]
    )


def constants(count: int, seed: int) -> Counter[str]:
    rng, judger, seen = random.Random(seed), RuleJudger(), Counter()
    with mpmath.workdps(50):
        for _ in range(count):
            (gold, x), (answer, y) = term(rng, 2), term(rng, 2)
            if rng.random() < 0.5:
                answer, y = rng.choice(
                    [
                        (rf"{gold}+0", x),
                        (rf"\frac{{2({gold})}}{{2}}", x),
                        (rf"1 \cdot ({gold})", x),
                        (rf"({gold})+10^{{-9}}", x + mpmath.mpf(10) ** -9),
                    ]
                )
            found = judger.grade_text((gold,), answer)
            equal = abs(x - y) < mpmath.mpf(10) ** -40
            assert equal or found.status != "correct", (gold, answer)
            assert not equal or found.status != "incorrect" or "not worked out" in found.reason, (
                gold,
                answer,
                found,
            )
            seen[f"{'equal' if equal else 'different'}: {found.status}"] += 1
    return seen


def test_t8_constants_against_fifty_digits() -> None:
    seen = constants(90, 0)
    assert seen["equal: correct"] > 20
    assert seen["different: incorrect"] > 20


@pytest.mark.gate
def test_t8_two_thousand_constants_against_fifty_digits() -> None:
    seen = constants(2000, 1)
    assert seen["equal: correct"] > 500
    assert seen["different: incorrect"] > 500


def test_the_shared_pool_lost_nothing_in_all_this() -> None:
    assert not set(shared_verifier().failures) & {"crash", "memory", "error"}, shared_verifier().failures
