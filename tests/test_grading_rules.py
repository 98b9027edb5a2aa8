r"""What the rule judger decides: the policy tables of docs/grading.md, and one test a reported fault.

Ids are those of the fault list: A01 ... A24 are public reports, S1.x are faults of the released OREAL code.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from rlteach.judger.answers import final_answer
from rlteach.judger.numerals import chinese, written
from rlteach.judger.rule import RuleJudger
from rlteach.types import Group, Message, Sample, Trajectory

PAGE = Path(__file__).resolve().parents[1] / "docs" / "grading.md"
SCORES = {"correct": 1.0, "incorrect": 0.0, "unscorable": None}


def table(header: str) -> list[list[str]]:
    """Cells of the rows under a header line of docs/grading.md, without their backticks."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = []
    for line in lines[lines.index(header) + 2:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


POLICY = table("| topic | gold | answer | strict | lenient |")
FINAL = table("| response | final answer |")


def status(gold: str | tuple[str, ...], answer: str, mode: str = "strict", question: str = "") -> str:
    """Graded from the box and as bare text: both have to agree."""
    golds = (gold,) if isinstance(gold, str) else gold
    judger = RuleJudger(mode)
    bare = judger.grade_text(golds, answer, question)
    assert bare.score == SCORES[bare.status]
    assert bare.reason
    sample = Sample("q", (Message("user", question),), golds)
    messages = (*sample.messages, Message("assistant", rf"so \boxed{{{answer}}}"))
    [boxed] = judger.grade(Group(sample, (Trajectory(messages, (), (), (), 0, "stop"),)))
    if answer.count("{") == answer.count("}"):
        assert boxed == bare, "A11: taken out of the box twice, or not at all"
    return bare.status


# the page -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "gold", "answer", "strict", "lenient"), POLICY,
                         ids=[f"{row[0]}: {row[1]} / {row[2]}" for row in POLICY])
def test_the_policy_table_is_what_the_judger_does(
        topic: str, gold: str, answer: str, strict: str, lenient: str) -> None:
    assert status(gold, answer) == strict, topic
    assert status(gold, answer, "lenient") == lenient, topic


def test_the_policy_table_has_every_verdict() -> None:
    assert len(POLICY) > 60
    assert {row[3] for row in POLICY} == {row[4] for row in POLICY} == set(SCORES)
    assert all(row[4] != "correct" or row[3] != "correct" or row[3] == row[4] for row in POLICY)


@pytest.mark.parametrize(("response", "found"), FINAL)
def test_the_table_of_final_answers_is_what_is_found(response: str, found: str) -> None:
    assert final_answer(response) == (found or None)


def test_row_62_answers_after_the_thinking() -> None:
    """Seed 4: split at the markers, then the box, then "answer is"; a number of the prose, never."""
    assert final_answer("<think> \\boxed{1} </think>\n\\boxed{2}") == "2"
    assert final_answer("a </think> b \\boxed{1} </think> The answer is $\\frac{1}{2}$.") == r"$\frac{1}{2}$"
    assert final_answer("\\boxed{1}\n**Final Answer:**\nThe final answer is \\boxed{2}.") == "2"
    assert final_answer("**Final answer**\n\n42") is None
    assert final_answer("the answer is not here, 42") == "not here, 42"
    assert final_answer("Let me think. What answer is wanted? 5 apples.") == "wanted"


@pytest.mark.parametrize("tail", ["", "<|im_end|>", "</s>", "<eos>\n", "  \n<|endoftext|> "])
def test_s1_14_nothing_depends_on_a_stop_word(tail: str) -> None:
    for text in (r"so \boxed{4}", "The answer is 4.", "**Answer:** 4.", "答案是4"):
        assert final_answer(text + tail) == "4", text


@pytest.mark.parametrize(("text", "found"), [
    ("answer is 7. But maybe 8.", "7"),  # O7
    ("The answer is 3.5.", "3.5"), ("the answer is: 12", "12"), ("Answer: 4", "4"), ("Answer：４", "４"),
    ("the answer is\n4", "4"), ("**Answer:** 4.", "4"), ("**Answer**: 4", "4"), ("answer is **4**.", "4"),
    ("The answer is 5, because 2+3=5", "5"), ("The answer is $x = 5$.", "$x = 5$"), ("答案：8", "8"),
    ("答案是7。可能是8。", "7"), ("The answer is 1. No, the answer is 2.", "2"), ("The answer is", None),
    ("my answers island 5", None), (r"The answer is \boxed{4", None), ("the answer is .", None),
])
def test_a15_what_an_answer_is_announced_by(text: str, found: str | None) -> None:
    assert final_answer(text) == found


# the fault list -----------------------------------------------------------------------------------


def test_a01_a_fraction_is_not_its_first_integer() -> None:
    assert status("2/3", r"\frac{2}{3}") == "correct"
    assert status("2", "2/3") == "incorrect"


def test_a02_mixed_numbers_do_not_fall_apart() -> None:
    assert status("3/2", "1 1/2") == "correct"
    assert status("2", "2 2/3") == "incorrect"
    assert status("10", "4 10/3") != "correct"
    assert status(r"-\frac{7}{3}", r"-2\frac{1}{3}") == "correct"
    assert status("4", r"4\frac{10}{3}") != "correct"
    assert status(r"\frac{40}{3}", r"4\frac{10}{3}") != "correct", "nor is it a product"


def test_a04_intervals_and_inequalities_in_both_orders() -> None:
    for interval, relation in (
            (r"(-\infty,3)", "x<3"), (r"[2,\infty)", r"x \geq 2"), ("(1,5]", r"1 < x \le 5"),
            (r"(-\infty, -2]", r"-2 \ge t"), ("[2,7)", r"7 > x \geq 2")):
        assert status(interval, relation) == "correct"
        assert status(relation, interval) == "correct"
    assert status(r"(-\infty,3)", r"x \le 3") == "incorrect"
    assert status("(1,5]", "1<x<5") == "incorrect"


def test_a05_two_equations_are_not_their_right_hand_sides() -> None:
    for wrap in ("{}", "${}$"):
        assert status(wrap.format("3x-y+13=0"), wrap.format("3x+4y+14=0")) == "incorrect"
        assert status(wrap.format("2x+4y=3"), wrap.format("y=3/4-x/2")) == "correct"
        assert status(wrap.format("y=3/4-x/2"), wrap.format("2x+4y=3")) == "correct"
    assert status("x^2+y^2=4", "x^2+y^2=9") != "correct"


def test_a06_a_number_in_text_in_both_orders() -> None:
    assert status("13", r"\text{13}") == "correct"
    assert status(r"\text{13}", "13") == "correct"


def test_a09_every_part_is_asked_for() -> None:
    assert status("1331 and 1728", "1728") == "incorrect"
    assert status("1331 and 1728", "1728, 1331") == "correct"
    assert status("1331 and 1728", "1331, 1728, 5") == "incorrect"
    assert status(r"\sqrt{2} and \sqrt{3}", r"\sqrt{3}") == "incorrect"
    assert status("1331", "1331 and 1728") == "incorrect"


def test_a11_an_answer_that_was_taken_out_of_its_box_already() -> None:
    for gold, answer in (("5", "5"), ("5", r"\boxed{5}"), (r"\boxed{5}", "5"), (r"$\boxed{\frac12}$", "0.5")):
        assert RuleJudger().grade_text((gold,), answer).status == "correct"
    assert status("5", "5") == "correct"


def test_a12_fbox() -> None:
    assert final_answer(r"\fbox{\frac{1}{2}}") == r"\frac{1}{2}"
    assert final_answer(r"\fbox{42") is None
    assert final_answer(r"\boxed{1} \fbox{2}") == "2"


A14 = ((r"1\pm\sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"), (r"\text{east}", r"\text{East}"),
       (r"10,\!080", "10080"), ("58,500", "58500"), (r"864\mbox{ inches}^2", "864"),
       (r"5.4\text{ cents}", "5.4"), (r"12^{\text{th}}", "12"), (r"x\in[-2,7]", "[-2,7]"),
       (r"\frac{11+9a}{20}", r"\dfrac{9a+11}{20}"),
       (r"\begin{pmatrix} -\frac{1}{3} \\ 2 \end{pmatrix}", r"\begin{pmatrix}-\dfrac{1}{3}\\2\end{pmatrix}"),
       (r"\text{(C)}", "C"))


@pytest.mark.parametrize(("one", "other"), A14)
def test_a14_pairs_that_are_equal_in_both_orders(one: str, other: str) -> None:
    assert status(one, other) == "correct"
    assert status(other, one) == "correct"


def test_a14_a_base_is_not_a_digit() -> None:
    assert status("52_8", "528") == "incorrect"
    assert status("528", "52_8") == "incorrect"
    assert status("52_8", "52_{8}") == "correct"


def test_a15_markdown_and_the_full_stop_are_no_part_of_it() -> None:
    sample = Sample("q", (Message("user", "?"),), ("4",))
    messages = (*sample.messages, Message("assistant", "2+2.\n**Answer:** 4."))
    given = Trajectory(messages, (), (), (), 0, "stop")
    assert RuleJudger().judge(sample, given).status == "correct"


@pytest.mark.parametrize("gold", [
    "see solution", "", "  ", "none of the above is true", "1/0", r"\frac{5}{0}", "().__class__",
    "5^{5^{5^{5}}}", "9" * 3000, "?"])
def test_a24_a_gold_answer_that_cannot_be_read(gold: str) -> None:
    for answer in ("4", gold, "x", "nothing"):
        found = RuleJudger().grade_text((gold,), answer)
        assert (found.score, found.status) == (None, "unscorable")
        assert found.reason.startswith("the gold answer cannot be read")


def test_a24_one_readable_gold_answer_is_enough_to_be_right_and_not_to_be_wrong() -> None:
    assert status(("see solution", "4"), "4") == "correct"
    assert status(("see solution", "4"), "5") == "unscorable"
    assert status((), "4") == "unscorable"


# the released code --------------------------------------------------------------------------------


@pytest.mark.parametrize(("gold", "answer"), [
    ("0.5", "50"), ("50", "0.5"), ("42", "4200"), ("4200", "42"),  # S1.3
    ("20250", "20251"), ("123456", "123457"),  # S1.4
    ("2(x+1)", "2x+1"), ("2x+1", "2(x+1)"), ("2*(x+1)", "2*x+1"), ("2*x+1", "2*(x+1)"),  # S1.5
    ("1", "100"), ("1", "0.01"), ("10000", "10001"), ("1011", "10,11"), ("10,11", "1011"),  # O6
])
def test_s1_3_s1_4_s1_5_o6_what_the_released_code_took_for_equal(gold: str, answer: str) -> None:
    assert status(gold, answer) == "incorrect"


@pytest.mark.parametrize(("gold", "answer"), [
    (r"\frac{1}{2}", "0.5"), (r"\frac12", "1/2"), ("5", "x=5"), ("x=5", "5"), ("5", "5cm"), ("5cm", "5"),
    ("300000000", r"3\times10^8"), (r"3\times10^8", "3e8"), ("-5", "\u22125"), ("0.5", "50%"),  # S1.6
    ("2^{10}", "1024"), ("1024", "2^{10}"),  # O6
])
def test_s1_6_o6_what_the_released_code_took_for_different(gold: str, answer: str) -> None:
    assert status(gold, answer) == "correct"


def test_s1_7_an_open_box_prose_and_underscores() -> None:
    assert final_answer(r"\boxed{1} then \boxed{2") == "1"
    assert final_answer("12 candles, 1/2") is None
    assert status("1000", "1_000") != "correct"
    assert status("23", "2(3)") != "correct"


def test_s1_8_the_box_does_not_begin_with_a_backspace() -> None:
    assert final_answer("\boxed{5}") is None


@pytest.mark.parametrize(("word", "other"), [("sand", "s"), ("infer", "inf"), ("infinity", "inference"),
                                             ("sand", "5"), ("5%", "5"), ("j", "i"), ("and", "or")])
def test_s1_9_no_letters_are_taken_out(word: str, other: str) -> None:
    assert status(word, other) != "correct"
    assert status(other, word) != "correct"


@pytest.mark.parametrize("word", ["sand", "infer", "band", r"\text{Anderson}"])
def test_s1_9_a_word_is_itself(word: str) -> None:
    assert status(word, word) == "correct"


# known false positives of math-verify ----------------------------------------------------------------


@pytest.mark.parametrize(("gold", "answer"), [
    (r"1-\frac{1}{e}", r"1+\frac{1}{e}"),  # its own tests expect these to be equal
    ("0", "10^{-20}"), ("0", "e^{-200}"), ("10^{-12}", "2\\times10^{-12}"), ("9", r"9\%"), ("7", "7%"),
    (r"\frac{\pi}{2}", "1.5707963267948966"), (r"\sqrt{2}", "1.414214"), ("10", "4 10/3"), ("52", "52_8"),
    ("5", "2(3)"), ("5", "(2)(3)"), ("5", "2{3}"), ("9", "3(2)(4)"), (r"\frac{17}{7}", r"2(\frac{3}{7})"),
    (r"\frac{1}{2x}", "1/2x"), (r"\frac{1}{2\pi}", r"1/2\pi"), ("abc", "bca"), ("x=1", "y=1"),
    (r"\sin 30", r"\sin 30^\circ"), ("(1,2)", r"\{1,2\}"), ("2", "2)"),
])
def test_a08_what_math_verify_takes_for_equal(gold: str, answer: str) -> None:
    assert status(gold, answer) != "correct"
    assert status(answer, gold) != "correct"


@pytest.mark.parametrize(("gold", "answer"), [
    (r"\sqrt{8}", r"2\sqrt{2}"), (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"), ("4", r"\sqrt{16}"),
    (r"\log_2 8", "3"), ("120", "5!"), ("10", r"\binom{5}{2}"), (r"x^2-1", "(x-1)(x+1)"), ("2i", "(1+i)^2"),
    (r"\frac{x}{2}", "0.5x"), (r"2^{\frac{1}{2}}", "2^{0.5}"), (r"18\pi", r"18\pi\text{ cm}^2"),
    (r"e^x", r"\exp(x)"), (r"\frac{\pi}{6}", "π/6"), (r"3\sqrt{2}", "3√2"), (r"y = 2x+1", "2x + 1"),
    (r"\{\sqrt{2}, -\sqrt{2}\}", r"\pm\sqrt{2}"), (r"(\sqrt{8}, 1)", r"(2\sqrt 2, 1)"),
    (r"[0, \sqrt{8}]", r"0 \le x \le 2\sqrt{2}"),
])
def test_symbolic_pairs_in_both_orders(gold: str, answer: str) -> None:
    assert status(gold, answer) == "correct"
    assert status(answer, gold) == "correct"


@pytest.mark.parametrize(("gold", "answer"), [
    (r"\sqrt{8}", r"3\sqrt{2}"), ("x^2-1", "(x-1)^2"), (r"18\pi", "18"), (r"\frac{\pi}{6}", r"\frac{\pi}{3}"),
    (r"1\pm\sqrt{19}", r"1+\sqrt{19}"), (r"1\pm\sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{18}"),
    (r"18\pi\text{ cm}", r"18\pi\text{ m}"), (r"[0, \sqrt{8}]", r"[0, \sqrt{8})"),
    (r"(\sqrt{2}, 1)", r"(1, \sqrt{2})"), ("2x+y=3", "2x-y=3"), ("x+1", "x"),
])
def test_symbolic_pairs_that_differ(gold: str, answer: str) -> None:
    assert status(gold, answer) != "correct"
    assert status(answer, gold) != "correct"


# the question -------------------------------------------------------------------------------------


def test_repeating_the_question_is_no_answer() -> None:
    """A reward for the value of "25 + 50" would teach the model to copy."""
    for gold, answer, question in (
            ("75", "25 + 50", "What is 25 + 50?"), ("3", r"\log_2 8", r"Find $\log_2 8$."),
            ("4", r"\sqrt{16}", r"What is \sqrt{16}?"), ("75", "25+50+0", "What is 25 + 50?"),
            ("5", r"\sqrt{9+16}", "the hypotenuse?")):
        assert status(gold, answer, question=question) == "incorrect"
        assert status(gold, gold, question=question) == "correct"
    assert status("3", r"\log_2 8", question="How many bits?") == "correct"
    assert status(r"2+\sqrt{3}", r"\sqrt{3}+2", question="Find the sum.") == "correct"


def test_a_noun_of_the_question_is_what_is_counted() -> None:
    assert status("12", "12 candles", question="How many candles are left?") == "correct"
    assert status("12", "13 candles", question="How many candles are left?") == "incorrect"
    assert status("12", "12 dozen", question="How many dozen?") == "incorrect"
    assert status("12", "12 more", question="How many more?") != "correct"
    assert status("12", "12 m", question="How many marks? Say m.") == "unscorable", "m may be a variable"
    assert status("12", "12 and", question="Candles and lamps?") != "correct"
    assert status("12", "12 can", question="How many candles are left?") == "unscorable"
    assert status("12", "12 支蜡烛", question="还剩多少支蜡烛？") != "incorrect"
    assert status("12", "12 candles", question="How many lights are left?") == "unscorable"


# numerals -----------------------------------------------------------------------------------------


def test_chinese_numerals_are_read_as_they_are_written() -> None:
    for value in [*range(0, 12_000), *range(12_345, 10**9, 7_654_321), 10**8, 10**12 + 1]:
        text = written(value)
        assert chinese(text) == value, text
        assert chinese("负" + text) == -value
    assert [chinese(t) for t in ("十五", "一十五", "两百", "二〇二四", "三点一四")] == \
        [15, 15, 200, 2024, Fraction(157, 50)]


@pytest.mark.parametrize("text", [
    "", "十百", "一百二", "百", "零零五十", "一万千", "三分之", "分之二", "三分之零点", "一百零十", "负",
    "负负三", "点五", "三点", "二十二十", "五又二", "零分之一", "一又三分之四", "千千", "两两", "三点十"])
def test_chinese_that_is_no_full_numeral_is_not_read(text: str) -> None:
    assert chinese(text) is None


def test_versions_and_modes() -> None:
    assert re.fullmatch(r"rule-\d+-strict", RuleJudger().version)
    assert RuleJudger("lenient").version.endswith("-lenient")
    with pytest.raises(ValueError, match="mode must be 'strict' or 'lenient'; got 'soft'"):
        RuleJudger("soft")
