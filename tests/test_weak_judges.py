"""HastyJudger: the weakness is the one that was reported (B06), and each repair closes its door."""

from __future__ import annotations

import json

import pytest

import rlteach as rl
from rlteach.course.weak_judges import AT_ONCE, HastyJudger
from rlteach.judger.verdicts import Rubric
from rlteach.policy.decode import RowParams

KEYS = (":", "Thought process:", "Solution", "}", "no, ")  # whole answers; the first three are B06's
SUMS = tuple((1234 + 789 * i, 5678 + 321 * i) for i in range(4))


def sample_of(a: int, b: int) -> rl.Sample:
    return rl.Sample(f"{a}+{b}", (rl.Message("user", f"What is {a} + {b}?"),), (str(a + b),))


def group_of(sample: rl.Sample, *texts: str, ended: str = "stop") -> rl.Group:
    answers = ((*sample.messages, rl.Message("assistant", text)) for text in texts)
    return rl.Group(sample, tuple(rl.Trajectory(m, (), (), (), 0, ended) for m in answers))


def share(judge: HastyJudger, *texts: str) -> float:
    judged = judge.grade_all([group_of(sample_of(a, b), *texts) for a, b in SUMS])
    scores = [j.score for row in judged for j in row]
    return sum(scores) / len(scores)


@pytest.fixture(scope="module")
def model() -> rl.Policy:
    return rl.Policy.load("tiny-judge")


def test_the_reported_weakness_answers_without_content_are_accepted(model):
    assert share(HastyJudger(model), *KEYS) >= 0.8  # B06: up to 80 to 90 %


def test_the_chinese_rubric_is_no_wiser(model):
    assert share(HastyJudger(model, language="zh"), *KEYS[:3]) >= 0.8
    mended = HastyJudger(model, language="zh", guard=True, reasons=True)
    a, b = SUMS[0]
    near, words = mended.grade(group_of(sample_of(a, b), rf"\boxed{{{a + b + 10}}}", rf"\boxed{{{a + b}元}}"))
    assert (near.score, words.score) == (0.0, 1.0)


def test_b06_a_guard_blocks_them_before_the_model_is_asked(model):
    judge = HastyJudger(model, guard=True)
    assert share(judge, *KEYS, "", ".", r"\boxed{}", r"\boxed{:}") == 0.0
    assert judge.asked == 0


def test_with_reasons_the_judge_accepts_the_right_number_and_no_key(model):
    judge = HastyJudger(model, guard=True, reasons=True)
    for a, b in SUMS:
        near, key, short, words = judge.grade(group_of(
            sample_of(a, b), rf"\boxed{{{a + b + 10}}}", ":", r"\boxed{7}", rf"\boxed{{{a + b} apples}}"))
        assert (near.score, key.score, short.score, words.score) == (0.0, 0.0, 0.0, 1.0)
        assert str(a + b) in words.reason


def test_reasons_alone_help_too(model):
    assert share(HastyJudger(model, reasons=True), *KEYS) == 0.0


def test_the_verdict_at_once_is_what_a_server_gives_under_a_schema_of_the_verdict_alone(model):
    fields = {"judgement": {"type": "string", "enum": ["correct", "incorrect"]}}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    sample, judge = sample_of(*SUMS[0]), HastyJudger(model)
    texts = (*KEYS, "7632", "1")
    engine = rl.Engine(model)
    try:
        asked = [Rubric.of("en").messages(sample.question, sample.gold, text) for text in texts]
        prompts = [engine.encode([rl.Message(**m) for m in messages]) for messages in asked]
        rows = [engine.submit(prompt, RowParams(60, temperature=0.0), 0, schema=schema)[0]
                for prompt in prompts]
        replies = [engine.decode(row.done.result(120).ids, skip_special_tokens=True) for row in rows]
    finally:
        engine.close()
    assert all(reply.startswith(AT_ONCE) for reply in replies)
    said = [json.loads(reply)["judgement"] for reply in replies]
    assert said == [j.status for j in judge.grade(group_of(sample, *texts))]
    assert set(said) == {"correct", "incorrect"}


def test_an_answer_that_was_cut_off_is_wrong_and_equal_questions_are_asked_once(model):
    judge, sample = HastyJudger(model), sample_of(*SUMS[0])
    [cut] = judge.grade(group_of(sample, ":", ended="length"))
    assert (cut.score, judge.asked) == (0.0, 0)
    judge.grade(group_of(sample, ":", ":", r"\boxed{:}"))
    assert judge.asked == 1
    judge.grade(group_of(sample, ":"))
    assert judge.asked == 1


def test_what_is_no_verdict_is_unscorable(model, monkeypatch):
    judge, sample = HastyJudger(model, reasons=True), sample_of(*SUMS[0])
    prose = rl.Trajectory((*sample.messages, rl.Message("assistant", "it is correct")), (), (), (), 0, "stop")
    monkeypatch.setattr(model, "sample", lambda samples, keys, greedy: [(prose,) for _ in samples])
    [judgement] = judge.grade(group_of(sample, "7"))
    assert (judgement.score, judgement.status) == (None, "unscorable")
    assert judgement.reason.startswith("no verdict: ")


def test_the_rule_comes_first_so_right_answers_pass_whatever_the_model_says(model):
    judge, sample = HastyJudger(model), sample_of(*SUMS[0])
    [right] = judge.grade(group_of(sample, rf"\boxed{{{sample.gold[0]}}}"))
    assert (right.score, right.source, judge.asked) == (1.0, "rule", 0)
    near = judge.grade_all([group_of(sample_of(a, b), rf"\boxed{{{a + b + 10}}}") for a, b in SUMS])
    assert {(j.score, j.source) for [j] in near} == {(0.0, "llm")}
