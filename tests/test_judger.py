r"""Who says what an answer is worth: exact numbers, no invented reward, nothing executed.

In these tests `verdict("4", r"\boxed{4}")` is the whole way: gold answer, response, judgement.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from fakes import group as graded
from fakes import trajectory

from rlteach.judger.answers import final_answer
from rlteach.judger.control import control_judgements
from rlteach.judger.forms import Items
from rlteach.judger.function import FunctionJudger, as_judger
from rlteach.judger.quantity import Number
from rlteach.judger.reading import read
from rlteach.judger.rule import RuleJudger
from rlteach.types import Group, Judgement, Judger, Message, Sample, Trajectory


def sample(*gold: str) -> Sample:
    return Sample("q", (Message("user", "?"),), gold)


def answer(text: str, finish: str = "stop") -> Trajectory:
    return Trajectory((Message("user", "?"), Message("assistant", text)), (), (), (), 0, finish)


def judge(gold: str | tuple[str, ...], response: str, finish: str = "stop") -> Judgement:
    golds = (gold,) if isinstance(gold, str) else gold
    return RuleJudger().judge(sample(*golds), answer(response, finish))


def verdict(gold: str | tuple[str, ...], response: str, finish: str = "stop") -> str:
    """The status; the score has to fit to it."""
    found = judge(gold, response, finish)
    assert found.score == {"correct": 1.0, "incorrect": 0.0, "unscorable": None}[found.status]
    assert found.reason
    assert "\n" not in found.reason
    assert found.source == "rule"
    return found.status


def parse_number(text: str) -> Fraction | None:
    """The value of an answer that is a number and nothing else: no unit, no percent, no arithmetic."""
    try:
        found = read(text)
    except ValueError:  # too large, or without a value
        return None
    return found.value if found == Number(getattr(found, "value", 0)) else None


def several_numbers(text: str) -> bool:
    """Whether an answer is a list of numbers that are not all the same."""
    try:
        found = read(text)
    except ValueError:
        return False
    values = {getattr(item, "value", None) for item in getattr(found, "items", ())} - {None}
    return isinstance(found, Items) and found.kind == "list" and len(values) > 1


def boxed(text: str) -> str:
    return rf"so \boxed{{{text}}}"


# the last closed box ------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "found"), [
    (r"\boxed{4}", "4"),
    (r"first \boxed{1}, no: \boxed{2}", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{{{5}}}", "{{5}}"),
    (r"\boxed{1} then \boxed{2", "1"),  # S7 of the seeds: the unclosed one is no answer
    (r"\boxed{1} then \boxed{\frac{2}{3}", "1"),
    (r"\boxed{2", None),
    (r"\boxed{\boxed{7}}", "7"),
    (r"\boxed{ \boxed{3}", "3"),
    (r"} { \boxed{6} }{", "6"),
    (r"\boxed {8}", "8"),
    ("\\boxed\n{9}", "9"),
    (r"\boxed{  10  }", "10"),
    (r"\boxed{}", ""),
    (r"\boxed", None),
    (r"\boxed5", None),
    (r"boxed{5}", None),
    ("\boxed{5}", None),  # S8: a backspace and "oxed"
    ("12 candles, 1/2", None),  # S7: numbers of the prose are no answer
    (r"The answer is \boxed{4.", None),
    ("", None),
])
def test_s07_the_last_closed_box(text: str, found: str | None) -> None:
    assert final_answer(text) == found


def test_a17_a_text_of_boxes_is_read_in_linear_time() -> None:
    """Model text never leaves the time given to it: a megabyte of open boxes, in a moment."""
    for size in (3_000, 150_000):  # where each box looks for its own end, the first one already takes long
        began = time.process_time()
        assert final_answer("\\boxed{" * size) is None
        assert final_answer("{" * size + r"\boxed{3}" + "}" * size) == "3"
        assert final_answer(r"\boxed{" + "{" * size) is None
        assert final_answer(r"\boxed{1}" * size) == "1"
        assert time.process_time() - began < size / 10_000 + 1


# exact numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [
    ("0", 0), ("7", 7), ("007", 7), ("-7", -7), ("+7", 7), ("-0", 0), ("\u22125", -5), ("20250", 20250),
    ("1,234", 1234), ("1,234,567", 1234567), ("58,500", 58500), ("1,234.50", Fraction(2469, 2)),
    ("0.5", Fraction(1, 2)), (".5", Fraction(1, 2)), ("-.25", Fraction(-1, 4)), ("0.1", Fraction(1, 10)),
    ("3/4", Fraction(3, 4)), ("6/8", Fraction(3, 4)), ("-3/4", Fraction(-3, 4)), ("0/5", 0),
    (r"\frac{3}{4}", Fraction(3, 4)), (r"\dfrac{3}{4}", Fraction(3, 4)), (r"\tfrac{3}{4}", Fraction(3, 4)),
    (r"-\frac{6}{8}", Fraction(-3, 4)), (" 5 ", 5), ("$5$", 5), ("5.", 5), ("\u221212.5", Fraction(-25, 2)),
    ("0.30000000000000004", Fraction("0.30000000000000004")),
])
def test_a01_numbers_are_read_exactly(text: str, value: object) -> None:
    found = parse_number(text)
    assert found == value
    assert isinstance(found, Fraction)


@pytest.mark.parametrize("text", [
    "", " ", ".", "-", "+", "--5", "1/0", r"\frac{1}{0}", "0/0", "1/2/3", "10,11", "1,23", "12,3456",
    "1,,234", ",123", "1.2.3", "1..2", "1_000", "0x10", "1E40000", "inf", "-inf", "nan", "Infinity", "and",
    "infer", "2(3)", "2*3", "2+3", "9**9**9", "5!", "x", "12 candles", "5cm", "50%", "52_8",
    "1 2", "True", "None", "²", "\x00", "4\n5",
])
def test_s07_what_is_no_number_is_none(text: str) -> None:
    assert parse_number(text) is None


def test_a17_digits_without_end_are_refused_at_once() -> None:
    began = time.process_time()
    for text in ("9" * 1_000_000, "1e40000", "1" + "0" * 4001, "0." + "3" * 1_000_000, "1/" + "7" * 1_000_000,
                 rf"\frac{{{'1' * 500_000}}}{{3}}", "-" * 1_000_000, "1," * 500_000, "9**9**9**9", "1000000!",
                 "10^{10^{16}}", "123456^{7654321}"):
        assert parse_number(text) is None
        assert not several_numbers(text)
        assert verdict("5", boxed(text)) != "correct"
        assert verdict("5", boxed(text)) == verdict("5", boxed(text)), "the same each time"
    assert time.process_time() - began < 5


def test_decimals_are_no_floating_point_numbers() -> None:
    assert verdict("0.3", boxed("0.30000000000000004")) == "incorrect"
    assert verdict("0.3", boxed("0.3")) == "correct"
    assert verdict("0.30", boxed("3/10")) == "correct"
    assert parse_number("0.1") + parse_number("0.2") == parse_number("0.3")
    rng = random.Random(0)
    for _ in range(500):
        top, bottom = rng.randrange(-999, 999), rng.randrange(1, 999)
        gold = Fraction(top, bottom)
        assert parse_number(f"{top}/{bottom}") == gold
        assert verdict(f"{top}/{bottom}", boxed(f"{top * 7}/{bottom * 7}")) == "correct"
        assert verdict(f"{top}/{bottom}", boxed(f"{top * 7 + 1}/{bottom * 7}")) == "incorrect"
        digits = rng.randrange(1, 12)
        cents = rng.randrange(-(10**14), 10**14)
        text = f"{'-' if cents < 0 else ''}{abs(cents) // 10**digits}.{abs(cents) % 10**digits:0{digits}d}"
        assert parse_number(text) == Fraction(cents, 10**digits)


# the rule judger ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("gold", "text"), [
    ("2/3", r"\frac{2}{3}"), ("0.5", r"\dfrac{1}{2}"), ("1/2", "0.50"), ("10080", "10,080"),
    ("58500", "58,500"), ("-5", "\u22125"), ("4", "4."), ("4", "$4$"), ("4", " 4 "), ("4", "+4"),
    ("4", "4.000"), ("1,000,000", "1000000"), ("0", "-0"),
])
def test_a01_the_same_value_is_correct_in_both_orders(gold: str, text: str) -> None:
    assert verdict(gold, boxed(text)) == "correct"
    assert verdict(text, boxed(gold)) == "correct"


@pytest.mark.parametrize(("gold", "text"), [
    ("20250", "20251"), ("123456", "123457"), ("10000", "10001"),  # S4: no tolerance
    ("0.5", "50"), ("42", "4200"), ("1", "100"), ("1", "0.01"),  # S3: no percent
    ("1011", "10,11"), ("2", "2/3"), ("1/2", "2"), ("5", "-5"), ("0.33", "1/3"), ("3.14", "3.141"),
    ("8", "08.1"), ("0.1", "0.10000000000000001"),
])
def test_s03_s04_another_value_is_incorrect_in_both_orders(gold: str, text: str) -> None:
    assert verdict(gold, boxed(text)) == "incorrect"
    assert verdict(text, boxed(gold)) != "correct"


@pytest.mark.parametrize(("gold", "text"), [
    ("23", "2(3)"), ("2", "2 2/3"), ("10", "4 10/3"), ("528", "52_8"), ("5", "5!"), ("23", "2^3"),
    ("12", "1 2"), ("5", "x=5 or x=6"), ("3", "[2,3]"), ("2", "1,2"), ("4", "2+2"), ("50", "50%"),
    ("1000", "1_000"),
    ("100", "1e100"), ("52", "5²"), ("12", "1½"),
])
def test_s05_what_is_not_read_is_never_correct(gold: str, text: str) -> None:
    assert verdict(gold, boxed(text)) != "correct"


@pytest.mark.parametrize("text", ["3 or 4", "3, 4", "3,4", "3; 4", "3 and 4", "3 或 4", "3和4", "4 or 3",
                                  "10,11", "3 or 3.5", "1331 and 1728", "3 or 4 or 3"])
def test_a09_two_different_answers_are_incorrect(text: str) -> None:
    assert several_numbers(text)
    for gold in ("3", "4", "10", "1728"):
        found = judge(gold, boxed(text))
        assert (found.status, found.score) == ("incorrect", 0.0)
        assert found.reason.startswith("two different answers")


def test_d11_what_the_model_caused_is_incorrect_and_says_why() -> None:
    for text in ("", " ", "So it is 4.", "4", r"\boxed{}", r"\boxed{ }", r"\boxed{4", "What is 2 + 2?",
                 "Solution", "Thought process:", ":", "<|im_end|>", "\\boxed{4\n"):
        found = judge("4", text)
        assert (found.status, found.score) == ("incorrect", 0.0), text
        assert found.reason.startswith("no final answer"), "metrics count this reason"
    assert judge("4", boxed("apple")).reason == "not a number: apple"
    assert judge("4", boxed("4"), "length").reason.startswith("truncated")
    assert verdict("4", boxed("4"), "length") == "incorrect"


def test_a_long_answer_does_not_become_a_long_reason() -> None:
    """Reasons go into trajectory files, one for every answer."""
    assert len(judge("4", boxed("word " * 100_000)).reason) < 1000
    assert len(judge("4", boxed("(" * 100_000)).reason) < 1000


@pytest.mark.parametrize("gold", ["see solution", "", " ", "x equals y", "1/0", "10^{10^{16}}", "9" * 3000])
def test_a24_a_gold_answer_that_cannot_be_read_is_nobody_s_mistake(gold: str) -> None:
    for response in (boxed("4"), boxed(gold), gold, "", "no box"):
        found = judge(gold, response)
        assert (found.status, found.score) == ("unscorable", None)
        assert found.reason.startswith("the gold answer cannot be read")


def test_a24_no_gold_answer_at_all() -> None:
    assert verdict((), boxed("4")) == "unscorable"


@pytest.mark.parametrize("text", [
    r"\int_0^4 x dx", r"\sum_{k=1}^4 k", "2(3)", "4 10/3", "f(4)", "4 or so, I think", "9**9**9", "1 000",
    r"\lim_{x\to 4} x", r"\unknown{4}", "4'", "{4",
])
def test_what_lies_beyond_the_rules_is_unscorable(text: str) -> None:
    for gold in ("4", "13", "1024"):
        found = RuleJudger().grade_text((gold,), text)
        assert (found.status, found.score) == ("unscorable", None)
        assert text in found.reason


@pytest.mark.parametrize(("gold", "text"), [
    ("3/2", "1 1/2"),  # A02
    ("0.5", "50%"), ("1/2", "½"), ("100000", "1e5"), ("0.001", "1E-3"), ("-1/2", "1/-2"), ("-5", "- 5"),
    ("12", "１２"), ("3", "٣"),
])
def test_a02_a_number_in_another_notation_is_not_punished(gold: str, text: str) -> None:
    """Correct where the rules read it, unscorable where they do not: a right answer is never 0."""
    assert verdict(gold, boxed(text)) != "incorrect"
    assert verdict("7", boxed(text)) != "correct"


def test_any_of_many_gold_answers_will_do() -> None:
    assert verdict(("1/3", "0.25"), boxed(r"\frac{1}{4}")) == "correct"
    assert verdict(("1/3", "0.25"), boxed("2/6")) == "correct"
    assert verdict(("1/3", "0.25"), boxed("0.33")) == "incorrect"
    assert verdict(("4", "4"), boxed("4")) == "correct"


PAYLOADS = (
    "__import__('os').getpid()", "__import__('pathlib').Path('{canary}').write_text('x')",
    "().__class__.__bases__[0].__subclasses__()", "open('{canary}','w')", "exec('open(\"{canary}\",\"w\")')",
    "$(touch {canary})", "`touch {canary}`", "{canary}; import os", "eval(2+2)", r"\input{{/etc/passwd}}",
    "sympy.sympify('4')", "lambda: 4",
)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a21_an_answer_is_never_executed(tmp_path: Path, payload: str) -> None:
    """The released code's parser ran such answers; a canary file would appear here."""
    canary = tmp_path / "canary"
    text = payload.format(canary=canary)
    for gold in ("4", str(os.getpid()), text):
        assert verdict(gold, boxed(text)) != "correct"
        assert verdict(gold, text) != "correct"
    assert not canary.exists()


def test_a19_grading_works_in_any_thread_and_in_an_event_loop() -> None:
    """No signal is used, so there is no main thread to be in."""
    pairs = [(str(i), boxed(str(i + i % 2))) for i in range(200)]
    wanted = [verdict(*pair) for pair in pairs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda pair: verdict(*pair), pairs)) == wanted

    async def inside() -> list[str]:
        return [verdict(*pair) for pair in pairs]

    assert asyncio.run(inside()) == wanted


def test_t06_no_text_breaks_the_judger() -> None:
    """Fuzz: three verdicts and nothing else, for any bytes, in a moment."""
    rng = random.Random(6)
    pieces = ["\\boxed{", "}", "{", "\\frac{", *"0123.,/- ^(e%$\x00\n", "\u2212", "or", "和", "\U0001f600",
              "\ud800", "\u202e", "９"]
    seen = Counter()
    for _ in range(5000):
        text = "".join(rng.choices(pieces, k=rng.randrange(0, 30)))
        gold = rng.choice(["4", "1/2", "", text])
        found = judge(gold, rng.choice([text, boxed(text)]))
        assert (found.score is None) == (found.status == "unscorable")
        seen[found.status] += 1
    assert set(seen) == {"correct", "incorrect", "unscorable"}
    assert max(seen.values()) < 5000


def test_d05_one_judgement_an_answer_in_their_order() -> None:
    texts = [boxed("4"), boxed("5"), "", boxed(r"\int x"), boxed("4.0")]
    group = Group(sample("4"), tuple(answer(text) for text in texts))
    found = RuleJudger().grade(group)
    assert [j.score for j in found] == [1.0, 0.0, 0.0, None, 1.0]
    assert RuleJudger().grade(group) == found
    assert isinstance(RuleJudger(), Judger)


# a judgement --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "status"), [(None, "correct"), (None, "incorrect"), (0.0, "unscorable"),
                                               (1.0, "unscorable"), (-1.0, "unscorable")])
def test_s12_nobody_s_verdict_is_no_number(score: float | None, status: str) -> None:
    with pytest.raises(ValueError, match="score None exactly when its status is 'unscorable'"):
        Judgement(score, status)


def test_a_judgement_is_frozen() -> None:
    judgement = Judgement(None, "unscorable", "down")
    with pytest.raises(AttributeError):
        judgement.score = 0.0
    with pytest.raises(TypeError):
        judgement.score + 1  # arithmetic with nobody's verdict is an error, not a number


# a function is a judger ---------------------------------------------------------------------------


def test_function_judger() -> None:
    def half_marks(_: Sample, given: Trajectory) -> float | bool | None:
        return {"a": None, "b": 0, "c": 0.5, "d": 1, "e": True, "f": False}[given.response]

    group = Group(sample("4"), tuple(answer(text) for text in "abcdef"))
    found = FunctionJudger(half_marks).grade(group)
    assert [j.score for j in found] == [None, 0.0, 0.5, 1.0, 1.0, 0.0]
    assert [j.status for j in found] == [
        "unscorable", "incorrect", "incorrect", "correct", "correct", "incorrect"]
    assert all(type(j.score) is float for j in found[1:])
    assert all(j.source == "plugin" and "half_marks" in j.reason for j in found)


@pytest.mark.parametrize("score", [-1, -0.001, 1.001, 2, float("nan"), float("inf"), "1", "yes", [1.0], {}])
def test_function_judger_refuses_what_is_no_score(score: object) -> None:
    def mine(*_: object) -> object:
        return score

    with pytest.raises(ValueError, match=r"mine returned .* for 'q': a score is a number from 0 to 1"):
        FunctionJudger(mine).grade(Group(sample("4"), (answer(""),)))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, asyncio.CancelledError])
def test_a20_an_error_in_a_judger_is_no_verdict(error: type[BaseException]) -> None:
    def broken(*_: object) -> float:
        raise error("in the judger")

    with pytest.raises(error, match="in the judger"):
        FunctionJudger(broken).grade(Group(sample("4"), (answer(""),)))


def test_d12_a_judger_is_asked_once_an_answer() -> None:
    asked: list[str] = []

    def note(_: Sample, given: Trajectory) -> float:
        asked.append(given.response)
        return 0.0

    FunctionJudger(note).grade(Group(sample("4"), tuple(answer(text) for text in "abc")))
    assert asked == ["a", "b", "c"]


def test_as_judger() -> None:
    rule = RuleJudger()
    assert as_judger(rule) is rule
    assert isinstance(as_judger(lambda *_: 1.0), FunctionJudger)
    with pytest.raises(TypeError, match="a judger has a method grade"):
        as_judger("rule")


# null experiments ---------------------------------------------------------------------------------


def dealt(seed: int = 0) -> list[Group]:
    """Five groups of scores, some of them nobody's."""
    rng = random.Random(seed)
    return [graded([trajectory([1], [2])] * 8, rng.choices([0.0, 1.0, 0.5, None], k=8), name=f"g{i}")
            for i in range(5)]


def scores(groups: list[Group]) -> list[float | None]:
    return [s for g in groups for s in g.scores]


@pytest.mark.parametrize("control", ["random", "shuffled"])
def test_controls_leave_nobody_s_verdict_alone(control: str) -> None:
    before = dealt()
    after = control_judgements(before, control, random.Random(1))
    for one, other in zip(before, after, strict=True):
        assert (one.sample, one.trajectories) == (other.sample, other.trajectories)
        for old, new in zip(one.judgements, other.judgements, strict=True):
            if old.score is None:
                assert new == old
            else:
                assert new.score is not None
                assert (new.reason, new.source) == (f"control: {control}", "random")
                assert new.status == ("correct" if new.score >= 1 else "incorrect")


def test_shuffled_deals_the_same_scores_to_other_answers() -> None:
    before = dealt()
    after = control_judgements(before, "shuffled", random.Random(1))
    assert Counter(scores(before)) == Counter(scores(after))
    assert scores(before) != scores(after)
    assert any(Counter(a.scores) != Counter(b.scores) for a, b in zip(before, after, strict=True)), \
        "over the whole batch, not inside a group"


def test_random_is_a_fair_coin() -> None:
    groups = [graded([trajectory([1], [2])] * 8, [1.0] * 8, name=f"g{i}") for i in range(250)]
    heads = sum(scores(control_judgements(groups, "random", random.Random(2))))
    assert abs(heads / 2000 - 0.5) < 0.05  # 4.5 standard deviations


@pytest.mark.parametrize("control", ["random", "shuffled"])
def test_a_control_repeats_itself(control: str) -> None:
    first = control_judgements(dealt(), control, random.Random(5))
    assert control_judgements(dealt(), control, random.Random(5)) == first
    assert control_judgements(dealt(), control, random.Random(6)) != first


@pytest.mark.parametrize("control", ["none", "own_samples"])
def test_other_controls_keep_the_scores(control: str) -> None:
    assert control_judgements(dealt(), control, random.Random(1)) == dealt()
