"""Judgers made of judgers: who is asked, what becomes of a missing verdict (SEEDS rows 4, 36, 61, 62)."""

from __future__ import annotations

import asyncio
import re
import warnings

import pytest

from rlteach.judger.compose import (
    REGISTRY,
    RandomJudger,
    Router,
    RuleThenLLM,
    agrade,
    graders,
    register_judger,
)
from rlteach.judger.function import FunctionJudger, GroupFunctionJudger, as_judger
from rlteach.judger.rule import RuleJudger
from rlteach.types import Group, Judgement, Message, Sample, Trajectory


def group(*answers: str, source: str = "math", gold: str = "12") -> Group:
    asked = Message("user", "5 + 7?")
    rows = tuple(Trajectory((asked, Message("assistant", text)), (1,), (True,), (0.0,), 0, "stop")
                 for text in answers)
    return Group(Sample("s", (asked,), (gold,), data_source=source), rows)


class Scripted:
    """A model judge that knows some answers; notes what it was asked."""

    def __init__(self, **verdicts: float | None) -> None:
        self.verdicts, self.asked, self.submitted = verdicts, [], []

    def submit(self, groups: list[Group]) -> None:
        self.submitted += [t.response for g in groups for t in g.trajectories]

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        self.asked += [t.response for t in group.trajectories]
        return tuple(self.say(self.verdicts.get(t.response)) for t in group.trajectories)

    def say(self, score: float | None) -> Judgement:
        status = {None: "unscorable", 1.0: "correct"}.get(score, "incorrect")
        return Judgement(score, status, "the model says", "llm")


def rule(**verdicts: float | None) -> Scripted:
    return Scripted(**verdicts)


# the rule first -----------------------------------------------------------------------------------


def test_the_model_is_asked_only_about_what_the_rule_left_open() -> None:
    llm = Scripted(open=1.0)
    judger = RuleThenLLM(rule(right=1.0, wrong=0.0, open=None), llm)
    found = judger.grade(group("right", "wrong", "open"))
    assert [j.score for j in found] == [1.0, 0.0, 1.0]
    assert llm.asked == ["open"]


def test_row62_not_correct_asks_about_wrong_ones_too() -> None:
    llm = Scripted(wrong=1.0, open=0.0)
    judger = RuleThenLLM(rule(right=1.0, wrong=0.0, open=None), llm, "not_correct")
    assert [j.score for j in judger.grade(group("right", "wrong", "open"))] == [1.0, 1.0, 0.0]
    assert llm.asked == ["wrong", "open"]


def test_s12_a_model_without_a_verdict_leaves_no_number() -> None:
    """Not the rule's 0.0: it was not trusted alone."""
    judger = RuleThenLLM(rule(wrong=0.0, open=None), Scripted(), "not_correct")
    assert [j.score for j in judger.grade(group("wrong", "open"))] == [None, None]


def test_b06_what_has_no_answer_never_reaches_the_model() -> None:
    llm = Scripted()
    [found] = RuleThenLLM(RuleJudger(), llm, "not_correct").grade(group("Thought process:"))
    assert (found.score, llm.asked) == (0.0, [])


def test_the_model_is_not_called_for_nothing() -> None:
    llm = Scripted()
    RuleThenLLM(rule(right=1.0), llm).grade(group("right"))
    assert llm.asked == []


def test_submit_hands_over_the_open_ones() -> None:
    llm = Scripted()
    RuleThenLLM(rule(right=1.0, open=None), llm).submit([group("right", "open"), group("right")])
    assert llm.submitted == ["open"]


def test_a_wrong_setting_names_its_choices() -> None:
    with pytest.raises(ValueError, match="'unscorable' or 'not_correct'; got 'always'"):
        RuleThenLLM(RuleJudger(), Scripted(), "always")  # type: ignore[arg-type]


# sums ---------------------------------------------------------------------------------------------


def test_row04_weights() -> None:
    judger = graders((lambda s, t: t.response != "c", 3), (lambda s, t: t.response == "a", 1))
    found = judger.grade(group("a", "b", "c"))
    assert [j.score for j in found] == [1.0, 0.75, 0.0]
    assert [j.status for j in found] == ["correct", "incorrect", "incorrect"]


def test_s12_one_grader_without_a_score_leaves_the_sum_without_one() -> None:
    judger = graders((lambda s, t: 1.0, 1), (lambda s, t: None if t.response == "b" else 0.0, 1))
    assert [j.score for j in judger.grade(group("a", "b"))] == [0.5, None]


@pytest.mark.parametrize("weights", [(), (0,), (-1,), (1, float("nan"))])
def test_weights_that_are_none(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="every weight above 0"):
        graders(*((RuleJudger(), weight) for weight in weights))


# routes -------------------------------------------------------------------------------------------


def test_row61_each_source_has_its_judger() -> None:
    router = Router({"math": RuleJudger(), "poem": lambda s, t: 0.5})
    assert [j.score for j in router.grade(group(r"\boxed{12}"))] == [1.0]
    assert [j.score for j in router.grade(group("roses", source="poem"))] == [0.5]


def test_s24_a_source_without_a_judger_is_unscorable_and_warned_of() -> None:
    router = Router({"math": RuleJudger(), "code": RuleJudger()})
    with pytest.warns(RuntimeWarning) as found:
        router.check([group("", source="poem").sample, group("").sample])
    texts = sorted(str(w.message) for w in found)
    assert len(texts) == 2
    assert re.search("no judger for data_source 'poem'", texts[0])
    assert re.search("judger for 'code' is unused", texts[1])
    [judged] = router.grade(group("roses", source="poem"))
    assert (judged.score, judged.status) == (None, "unscorable")


def test_no_warning_when_everything_is_used() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Router({"math": RuleJudger()}).check([group("").sample])


def test_s23_a_cell_that_registers_may_be_run_twice() -> None:
    try:
        for score in (0.25, 0.75):

            @register_judger("twice")
            def judge(sample: Sample, trajectory: Trajectory, score: float = score) -> float:
                return score

        assert [j.score for j in Router().grade(group("x", source="twice"))] == [0.75]
        assert callable(judge)
    finally:
        REGISTRY.pop("twice")


# coins --------------------------------------------------------------------------------------------


def test_row36_random_rewards_know_nothing_and_repeat_themselves() -> None:
    answers = [f"answer {i}" for i in range(2000)]
    first, again, other = (RandomJudger(seed).grade(group(*answers)) for seed in (0, 0, 1))
    assert first == again != other
    share = sum(j.score for j in first) / len(first)
    assert abs(share - 0.5) < 0.05  # 4.5 standard deviations
    assert {j.source for j in first} == {"random"}


# functions ----------------------------------------------------------------------------------------


def test_group_and_single_graders_give_the_same_judgement() -> None:
    def right(sample: Sample, trajectory: Trajectory) -> float:
        return float(trajectory.response == "a")

    def all_right(group: Group) -> list[float]:
        return [float(t.response == "a") for t in group.trajectories]

    all_right.__name__ = right.__name__
    one, other = as_judger(right), as_judger(all_right)
    assert isinstance(one, FunctionJudger)
    assert isinstance(other, GroupFunctionJudger)
    assert one.grade(group("a", "b")) == other.grade(group("a", "b"))


@pytest.mark.parametrize("scores", [1.0, "ab", None, {1.0: 1}])
def test_a_group_function_gives_a_list(scores: object) -> None:
    with pytest.raises(ValueError, match="a list with one score for each answer"):
        as_judger(lambda group: scores).grade(group("a", "b"))


def test_a_class_is_no_judger() -> None:
    with pytest.raises(TypeError, match=r"give RuleJudger\(\)"):
        as_judger(RuleJudger)


# the asynchronous twin ----------------------------------------------------------------------------


@pytest.mark.parametrize("judger", [
    RuleJudger(), RandomJudger(), graders((RuleJudger(), 1), (RandomJudger(), 2)),
    Router({"math": RuleJudger()}), RuleThenLLM(rule(x=None), Scripted(x=1.0))],
    ids=lambda j: type(j).__name__)
def test_agrade_says_the_same(judger: object) -> None:
    asked = group("x", r"\boxed{12}")
    assert asyncio.run(agrade(judger, asked)) == judger.grade(asked)  # type: ignore[arg-type]
