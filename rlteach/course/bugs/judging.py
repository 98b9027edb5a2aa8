"""Faults of those who say what an answer is worth: judges that are not asked, verdicts read wrongly, and
comparisons that take different answers for equal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from rlteach.course.planting import Bug, Curve, Patch, hold
from rlteach.course.short_run import FEW, short_trainer
from rlteach.judger import answers, exact, grading, verdicts
from rlteach.judger.rule import RuleJudger
from rlteach.training.judging import Grading
from rlteach.types import Judgement, Message, Sample, Trajectory

CANARY = "__import__('os').getpid()"
QUESTION = Sample("q", (Message("user", "?"),), ("12",))


def said(text: str) -> Trajectory:
    return Trajectory((*QUESTION.messages, Message("assistant", text)), (), (), (), 0, "stop")


def graded(gold: str, answer: str) -> str:
    return RuleJudger().grade_text((gold,), answer).status


# B1, S1.14


def judge_never_asked(patch: Patch) -> None:
    nothing = Judgement(0.0, "incorrect", "")
    patch.replace(Grading, "grade", lambda self, judger, groups: (
        [g.with_(judgements=(nothing,) * len(g.trajectories)) for g in groups], {}))


def judge_is_asked() -> None:
    """The judger is asked once about every answer, and what it says is the score."""
    asked: list[Trajectory] = []

    def always_right(sample: Sample, answer: Trajectory) -> float:
        asked.append(answer)
        return 1.0

    trainer = short_trainer(always_right, **FEW)
    groups = trainer.grade(trainer.rollout(trainer.draw()))
    answers_there = sum(len(g.trajectories) for g in groups)
    hold(len(asked) == answers_there, f"{answers_there} answers, and the judge was asked {len(asked)} times")
    hold({s for g in groups for s in g.scores} == {1.0}, "the judge said 1, and that is not the score")


def stop_word_demanded(patch: Patch) -> None:
    def fault(original: Any, self: RuleJudger, sample: Sample, answer: Trajectory) -> Judgement:
        if not answer.response.endswith("<|im_end|>"):
            return Judgement(0.0, "incorrect", "it does not end with the stop word")
        return original(self, sample, answer)

    patch.around(RuleJudger, "judge", fault)


def no_stop_word_needed() -> None:
    r"""\boxed{12} is right with the stop word in the text and without it."""
    for text in (r"\boxed{12}<|im_end|>", r"\boxed{12}"):
        status = RuleJudger().judge(QUESTION, said(text)).status
        hold(status == "correct", f"{text} is {status}, and 12 is asked for")


# O3, S1.11, B18


def letters_searched(patch: Patch) -> None:
    def fault(text: str, *_: Any, **__: Any) -> tuple[bool, str]:
        if "A" in text and "B" not in text:
            return True, text
        if "B" in text and "A" not in text:
            return False, text
        raise verdicts.NoVerdictError("neither A nor B")

    patch.replace(verdicts, "read_verdict", fault)


def verdict_of(reply: str) -> bool | None:
    try:
        return verdicts.read_verdict(reply, "en", "7", schema=False)[0]
    except verdicts.NoVerdictError:
        return None


def incorrect_is_not_correct() -> None:
    """"Answer is incorrect" is never read as "correct"."""
    found = verdict_of("Answer is incorrect")
    hold(not found, "\"Answer is incorrect\" holds a capital A and no B, and is read as \"correct\"")


def words_not_known(patch: Patch) -> None:
    def fault(original: Any, text: str, *rest: Any, **named: Any) -> Any:
        if not re.search(r"\b[AB]\b", text):
            raise verdicts.NoVerdictError("neither A nor B")
        return original(text, *rest, **named)

    patch.around(verdicts, "read_verdict", fault)


def asked_words_are_read() -> None:
    """A judge that answers with the word that it was asked for is understood."""
    for word in verdicts.VERDICTS["en"]:
        found = verdict_of(f"They are compared.\n{word}")
        hold(found is (word == "correct"), f"the judge says {word!r}, as asked, and is read as {found}")


# O6


def numbers_also_equal(patch: Patch, near: Callable[[Any, Any], bool]) -> None:
    patch.around(exact, "same_number", lambda original, gold, answer, lenient: (
        near(gold.value, answer.value) or original(gold, answer, lenient)))


def percent_both_ways(patch: Patch) -> None:
    numbers_also_equal(patch, lambda a, b: a == 100 * b or 100 * a == b)


def hundred_is_not_one() -> None:
    """Gold 1: neither 100 nor 0.01 is right."""
    wrong = [a for a in ("100", "0.01") if graded("1", a) == "correct"]
    hold(not wrong, f"1 is asked for, and {wrong} counts as right")


def integers_nearly_equal(patch: Patch) -> None:
    numbers_also_equal(patch, lambda a, b: abs(a - b) <= abs(a) / 10_000)


def no_tolerance() -> None:
    """Gold 20250: 20251 is wrong."""
    hold(graded("20250", "20251") == "incorrect", "20250 is asked for, and 20251 counts as right")


def parentheses_deleted(patch: Patch) -> None:
    patch.around(grading, "grade_answer", lambda original, golds, answer, *rest: original(
        [re.sub(r"[()]", "", g) for g in golds], re.sub(r"[()]", "", answer), *rest))


def parentheses_count() -> None:
    """2(x+1) is not 2x+1, the pair (1, 2) is not the list 1, 2, and 2(3) is not 23."""
    for gold, answer in (("2(x+1)", "2x+1"), ("(1, 2)", "1, 2"), ("2(3)", "23")):
        hold(graded(gold, answer) != "correct", f"{gold} is asked for, and {answer} counts as right")


# O8, O7, S1.7


def answer_evaluated(patch: Patch) -> None:
    """Behind glass: only the museum's own canary is worked out, never what a model wrote."""
    def fault(original: Any, golds: Any, answer: str, *rest: Any) -> Judgement:
        worked_out = str(os.getpid()) if answer == CANARY else answer
        return original(golds, worked_out, *rest)

    patch.around(grading, "grade_answer", fault)


def answers_do_not_run() -> None:
    """An answer that asks for the process id is not the process id."""
    status = graded(str(os.getpid()), CANARY)
    hold(status != "correct", f"{CANARY} was run: the model's text is a program now")


def whole_line_taken(patch: Patch) -> None:
    def fault(original: Any, text: str) -> str | None:
        _, found, rest = text.rpartition("answer is ")
        return rest.replace(" ", "").strip(".") if found else original(text)

    patch.around(answers, "announced", fault)


def sentence_ends() -> None:
    """"The answer is 7. But maybe 8." answers 7."""
    found = answers.final_answer("The answer is 7. But maybe 8.")
    hold(found == "7", f"\"The answer is 7. But maybe 8.\" is read as {found!r}")


def last_number_taken(patch: Patch) -> None:
    patch.around(answers, "final_answer", lambda original, text: original(text) or next(
        reversed(re.findall(r"\d+", text)), None))


def working_is_no_answer() -> None:
    """A response that only mentions a number has no final answer, and is not right by luck."""
    status = RuleJudger().judge(QUESTION, said("I tried 5 + 7 and gave up at 12")).status
    hold(status == "incorrect", f"a response without an answer is {status}: its last number was taken")


ALL_WRONG = Curve("reward/mean", "is exactly 0", lambda h, i: h > 0.05 and i == 0)
BUGS = (
    Bug("judge_never_asked", ("B1", "S2.26"), judge_never_asked, judge_is_asked, (
        "`judger_rewards = [0.0] * n`: the judge is built, its server has to run, and nobody asks it.",
        "Every group is flat, so there is nothing to learn; the tutorial's loss did not read it (B2)."),
        ALL_WRONG),
    Bug("stop_word_demanded", ("S1.14",), stop_word_demanded, no_stop_word_needed, (
        "A response that does not end with the stop word is wrong, without being looked at.",
        "Servers strip that token, and then every answer is wrong. The reasons say it; the curve does not."),
        ALL_WRONG),
    Bug("letters_searched", ("S1.11", "B18"), letters_searched, incorrect_is_not_correct, (
        "The verdict is \"a capital A somewhere and no capital B\".",
        "\"Answer is incorrect\" is correct, \"Because they are equal\" is not: thinking aloud is misread.")),
    Bug("words_not_known", ("O3", "S1.10"), words_not_known, asked_words_are_read, (
        "The prompt asks for CORRECT or INCORRECT, and the code reads A or B.",
        "A judge that does as it is told is never understood: None, and from there -1.")),
    Bug("percent_both_ways", ("O6", "S1.3"), percent_both_ways, hundred_is_not_one, (
        "Gold 1 accepts 100 and 0.01, in case a percent sign was forgotten.",
        "The reward is a little too high, on just those questions where a factor of 100 is the mistake.")),
    Bug("integers_nearly_equal", ("O6", "S1.4"), integers_nearly_equal, no_tolerance, (
        "Numbers are equal when they differ by one part in 10,000, integers as well.",
        "20250 = 20251: the last carry of a long addition need not be learned.")),
    Bug("parentheses_deleted", ("O6", "S1.5"), parentheses_deleted, parentheses_count, (
        "Parentheses are deleted before two answers are compared.",
        "2(x+1) = 2x+1: a mistake of sign or of order becomes a right answer.")),
    Bug("answer_evaluated", ("O8", "S1.1"), answer_evaluated, answers_do_not_run, (
        "The comparison hands the answer to a parser that evaluates Python.",
        "It grades well. But what a model writes is run on your machine.")),
    Bug("whole_line_taken", ("O7", "S1.8"), whole_line_taken, sentence_ends, (
        "extract_answer is defined twice, and the weaker one wins: it takes all that follows \"answer is\".",
        "\"The answer is 7. But maybe 8.\" becomes `7.Butmaybe8`, which is wrong for every gold answer.")),
    Bug("last_number_taken", ("S1.7",), last_number_taken, working_is_no_answer, (
        "Without a box, the last number of the text is taken for the answer.",
        "A policy learns to end on a number, and an answer that gave up is right by luck.")),
)
