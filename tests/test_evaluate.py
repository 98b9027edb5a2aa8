"""An honest measurement: the interval is Wilson's, and nobody's verdict is left out and counted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from fakes import even_first, small_config, tiny_policy

from rlteach.judger.function import FunctionJudger
from rlteach.judger.rule import RuleJudger
from rlteach.training.evaluate import Evaluation, evaluate, wilson
from rlteach.types import Message, Sample, Trajectory


def asked(count: int, **extra: Any) -> list[Sample]:
    return [Sample(f"q{i}", (Message("user", f"{i}+{i}=?"),), (str(2 * i),), extra=extra)
            for i in range(count)]


def measured(samples: list[Sample], judge: Callable[..., Any], **how: Any) -> Evaluation:
    return evaluate(tiny_policy(small_config()), FunctionJudger(judge), samples, **how)


def by_number(verdicts: list[float | None]) -> Callable[[Sample, Trajectory], float | None]:
    """The verdict of question i is verdicts[i], whatever was answered."""
    return lambda sample, _: verdicts[int(sample.id[1:])]


# Wilson's interval --------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "n", "low", "high"), [
    # by hand from (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), z = 1.959964
    (0, 1, 0.0, 0.793450), (1, 1, 0.206550, 1.0), (0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0),
    (5, 10, 0.236593, 0.763407), (8, 10, 0.490162, 0.943318), (1, 100, 0.001767, 0.054488),
    (50, 100, 0.403832, 0.596168), (514, 1000, 0.483028, 0.544865),
])
def test_wilson(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right, n) == pytest.approx((low, high), abs=2e-6)


def test_wilson_is_the_score_test_turned_round() -> None:
    """The ends are the shares p at which |right/n - p| is just z standard errors of p."""
    for right, n in ((3, 7), (17, 40), (514, 1000), (1, 200)):
        for end in wilson(right, n):
            assert abs(right / n - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / n), rel=1e-6)


def test_wilson_stays_a_share_and_is_symmetric() -> None:
    for n in (1, 2, 5, 37, 10_000):
        for right in {0, 1, n // 2, n - 1, n}:
            low, high = wilson(right, n)
            assert 0 <= low <= right / n <= high <= 1
            assert wilson(n - right, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    with pytest.raises(ValueError, match="at least one answer"):
        wilson(0, 0)


# counting -----------------------------------------------------------------------------------------


def test_accuracy_and_its_interval() -> None:
    found = measured(asked(10), by_number([1, 1, 0, 1, 0, 1, 1, 1, 1, 1]))
    assert (found.accuracy, found.n, found.k, found.unscorable) == (0.8, 10, 1, 0)
    assert found.ci95 == wilson(8, 10)
    assert found.pass_at_k == 0.8
    assert "80.0%" in repr(found)


def test_promise_1_unscorable_is_left_out_and_counted() -> None:
    found = measured(asked(6), by_number([1, None, 0, None, None, 1]))
    assert (found.accuracy, found.n, found.unscorable) == (2 / 3, 3, 3)
    assert found.ci95 == wilson(2, 3)
    nobody = measured(asked(4), by_number([None] * 4))
    assert (nobody.accuracy, nobody.ci95, nobody.pass_at_k) == (None, None, None)
    assert (nobody.n, nobody.unscorable, nobody.by_level) == (0, 4, {})
    assert "nothing judged" in repr(nobody)


def test_nothing_asked() -> None:
    found = measured([], by_number([]))
    assert (found.accuracy, found.n, found.unscorable, found.groups) == (None, 0, 0, ())


def test_half_marks_are_no_right_answers() -> None:
    assert measured(asked(4), by_number([0.5, 0.99, 1.0, 0.0])).accuracy == 0.25


def test_by_level() -> None:
    samples = [*asked(2, level=3), *[Sample(f"q{i}", (Message("user", "?"),), ("1",), extra={"level": 2})
                                     for i in (2, 3)], Sample("q4", (Message("user", "?"),), ("1",))]
    found = measured(samples, by_number([1, 0, None, 1, 0]))
    assert found.by_level == {"2": 1.0, "3": 0.5, "all": 0.0}
    assert list(found.by_level) == ["2", "3", "all"]


def test_pass_at_k() -> None:
    """Right at least once in k; the accuracy is over all answers."""
    turns: dict[str, list[float | None]] = {
        "q0": [0, 0, 1, 0], "q1": [1, 1, 1, 1], "q2": [0, 0, 0, 0], "q3": [None, None, 0, 1],
        "q4": [None] * 4}

    def judge(sample: Sample, _: Trajectory) -> float | None:
        return turns[sample.id].pop(0)

    found = measured(asked(5), judge, greedy=False, k=4)
    assert found.pass_at_k == 3 / 4, "q4 was never judged"
    assert found.accuracy == 6 / 14
    assert (found.n, found.k, found.unscorable) == (4, 4, 6)
    assert found.ci95 == wilson(6, 14)


@pytest.mark.parametrize(("greedy", "k"), [(True, 2), (True, 0), (False, 0), (False, -1)])
def test_greedy_answers_are_all_the_same(greedy: bool, k: int) -> None:
    with pytest.raises(ValueError, match=f"k must be at least 1, and 1 for greedy answers; got {k}"):
        measured(asked(2), by_number([1, 1]), greedy=greedy, k=k)


# what is asked ------------------------------------------------------------------------------------


def test_greedy_does_not_depend_on_the_seed_and_sampling_does() -> None:
    policy, judger = tiny_policy(small_config(max_new_tokens=8)), FunctionJudger(even_first)
    samples = asked(6)

    def answers(**how: Any) -> list[tuple[int, ...]]:
        found = evaluate(policy, judger, samples, **how)
        return [t.token_ids for g in found.groups for t in g.trajectories]

    assert answers(seed=0) == answers(seed=1)
    assert answers(greedy=False, seed=0) == answers(greedy=False, seed=0)
    assert answers(greedy=False, seed=0) != answers(greedy=False, seed=1)
    four = answers(greedy=False, k=4)
    assert len({four[i] for i in range(4)}) > 1, "k answers, not one answer k times"
    assert four[::4] == answers(greedy=False, k=1), "the first answer does not depend on k"


def test_an_answer_does_not_depend_on_what_else_is_asked() -> None:
    """The tokens; log-probabilities only to rounding, which differs with the size of a batch."""
    policy, judger = tiny_policy(small_config(max_new_tokens=8)), FunctionJudger(even_first)
    samples = asked(6)
    for greedy in (True, False):
        whole = evaluate(policy, judger, samples, greedy=greedy)
        part = evaluate(policy, judger, samples[2:4], greedy=greedy)
        for one, other in zip(part.groups, whole.groups[2:4], strict=True):
            [a], [b] = one.trajectories, other.trajectories
            assert (a.token_ids, a.finish_reason) == (b.token_ids, b.finish_reason)
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_a_measurement_is_plain_numbers() -> None:
    found = evaluate(tiny_policy(small_config()), RuleJudger(), asked(5))
    assert found.accuracy == 0.0, "a random model"
    assert [g.sample.id for g in found.groups] == [f"q{i}" for i in range(5)]
    entry = json.loads(json.dumps(found.as_dict()))
    assert set(entry) == {"accuracy", "ci95", "n", "k", "pass_at_k", "by_level", "unscorable"}
    assert entry["ci95"] == [0.0, pytest.approx(wilson(0, 5)[1])]


@pytest.mark.parametrize("greedy", [True, False])
def test_b16_an_exam_asks_in_the_chat_template(greedy: bool) -> None:
    """The prompt of a question is the one that training uses, token for token."""
    policy = tiny_policy(small_config())
    found = evaluate(policy, RuleJudger(), asked(3), greedy=greedy)
    for group in found.groups:
        prompt = tuple(policy.encode(group.sample))
        assert group.trajectories[0].token_ids[:len(prompt)] == prompt
        assert not any(group.trajectories[0].action_mask[:len(prompt)])
        assert all(group.trajectories[0].action_mask[len(prompt):])
