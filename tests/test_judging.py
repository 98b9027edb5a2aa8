"""The grade stage: nothing is guessed while a judge is away (T10, B11, S1.12); it overlaps with sampling."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fakes import even_first, same, small_config, small_trainer, state

from rlteach.config import ConfigError
from rlteach.judger.compose import RuleThenLLM
from rlteach.judger.rule import RuleJudger
from rlteach.training import judging
from rlteach.training.judging import Grading, JudgeAwayError, disagreement, walk
from rlteach.types import Group, Judgement

AWAY = Judgement(None, "unscorable", "judge unavailable: http://judge refused the connection", "llm")


class Judge:
    """A model judge whose server can be away: `outages` are the numbers of the calls that find nobody."""

    def __init__(self, *, away: bool = False, back_after: int = 10**9, forgets: int = 0) -> None:
        self.away, self.back_after, self.forgets = away, back_after, forgets
        self.looks, self.graded, self.order = 0, 0, []

    def submit(self, groups: list[Group]) -> None:
        self.order.append(("submit", tuple(g.sample.id for g in groups)))

    def grade(self, group: Group) -> tuple[Judgement, ...]:
        self.order.append(("grade", group.sample.id))
        self.graded += len(group.trajectories)
        return tuple(self.say(group, i) for i in range(len(group.trajectories)))

    def say(self, group: Group, at: int) -> Judgement:
        if self.away or at < self.forgets:
            return AWAY
        right = even_first(group.sample, group.trajectories[at])
        return Judgement(right, "correct" if right else "incorrect", "the model says", "llm")

    def alive(self) -> str | None:
        self.looks += 1
        if self.looks >= self.back_after:
            self.away = False
        return AWAY.reason if self.away else None

    def statistics(self) -> dict[str, float | None]:
        asked, self.graded = self.graded, 0
        return {"judge/calls": asked, "judge/seconds_max": 0.5 if asked else None}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PAUSE", 0.02)


def trainer_of(judge: Any, **changes: Any) -> Any:
    return small_trainer(small_config(**{"total_steps": 3, "threads": 1, **changes}), judge)


# while the judge is away --------------------------------------------------------------------------


def test_t10_a_judge_that_comes_back_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """After the return, the same weights as without the fault; only the missing verdicts are asked again."""
    calm, stormy = Judge(), Judge(away=True, back_after=3)
    one, other = trainer_of(calm), trainer_of(stormy)
    for trainer in (one, other):
        for _ in trainer:
            pass
    assert same(state(one.policy.model), state(other.policy.model))
    scores = [[g.scores for r in trainer.history for g in r.groups] for trainer in (one, other)]
    assert scores[0] == scores[1]
    assert stormy.looks >= 3
    assert other.grading.waiting is None
    assert other.history[0].metrics["judge/waited"] > 0 == one.history[0].metrics["judge/waited"]
    assert "http://judge refused the connection; waiting" in caplog.text


def test_t10_a_judge_that_stays_away_stops_the_run_before_an_update() -> None:
    trainer = trainer_of(Judge(away=True), judge_wait=0.1)
    before = state(trainer.policy.model)
    with pytest.raises(JudgeAwayError, match=r"http://judge refused.*--resume"):
        trainer.step()
    assert trainer.step_index == 0
    assert same(before, state(trainer.policy.model))
    trainer.judger.away = False
    assert trainer.step().index == 1, "it goes on"


def test_b11_only_the_missing_verdicts_are_asked_again() -> None:
    judge = Judge(forgets=2)
    trainer = trainer_of(judge, judge_wait=5)
    real = judge.alive

    def mended() -> str | None:
        judge.forgets = 0
        return real()

    judge.alive = mended  # type: ignore[method-assign]
    trainer.step()
    assert judge.order.count(("grade", judge.order[-1][1])) == 2
    assert trainer.history[0].metrics["judge/calls"] == 12 + 6, "3 groups of 4, then 2 of each again"


def test_s12_below_the_limit_members_stay_unscorable() -> None:
    """1 of 4 in each group: left out, counted, and no reason to wait."""
    trainer = trainer_of(Judge(forgets=1), max_unscorable=0.25)
    record = trainer.step()
    assert record.metrics["judge/unscorable"] == 0.25
    for group in record.groups:
        assert group.scores[0] is None
        assert group.advantages[0] is None
        assert 0 not in group.kept


def test_what_a_rule_cannot_judge_is_no_outage() -> None:
    """Unreadable gold answers do not make a run wait: nobody will come back."""
    trainer = trainer_of(lambda sample, trajectory: None, max_unscorable=0.0, judge_wait=0.0)
    assert trainer.step().metrics["judge/unscorable"] == 1.0


def test_a_run_that_waits_can_be_stopped() -> None:
    trainer = trainer_of(Judge(away=True), judge_wait=1000)
    run = trainer.start()
    asked = threading.Event()
    while trainer.grading.waiting is None:
        asked.wait(0.01)
    assert "waiting" in repr(run)
    run.stop()
    run.wait(20)
    assert (run.state, trainer.step_index) == ("stopped", 0)
    trainer.judger.away = False
    assert trainer.fit().step_index == 3


# overlap ------------------------------------------------------------------------------------------


def test_a_part_of_the_batch_is_judged_while_the_next_is_sampled() -> None:
    judge = Judge()
    trainer = trainer_of(judge, judge_parts=3)
    rollout = trainer.rollouts

    def noted(policy: Any, samples: Any, keys: Any) -> list[Group]:
        judge.order.append(("rollout", tuple(s.id for s in samples)))
        return rollout(policy, samples, keys)

    trainer.rollouts = noted
    groups = trainer.rollout(trainer.draw())
    ids = [g.sample.id for g in groups]
    wanted = [(what, (i,)) for i in ids for what in ("rollout", "submit")]
    assert judge.order == wanted
    assert [g.sample.id for g in trainer.grade(groups)] == ids


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_parts_change_no_answer(parts: int) -> None:
    plain, parted = trainer_of(even_first), trainer_of(Judge(), judge_parts=parts)
    answers = [[[t.token_ids for t in g.trajectories] for g in trainer.rollout(trainer.draw())]
               for trainer in (plain, parted)]
    assert answers[0] == answers[1]


def test_a_rule_is_not_asked_in_parts() -> None:
    trainer = trainer_of(even_first, judge_parts=3)
    sizes: list[int] = []
    rollout = trainer.rollouts
    trainer.rollouts = lambda *asked: sizes.append(len(asked[1])) or rollout(*asked)
    trainer.rollout(trainer.draw())
    assert sizes == [3]


# numbers ------------------------------------------------------------------------------------------


def test_judge_numbers_are_in_the_metrics_and_only_then() -> None:
    record = trainer_of(Judge()).step()
    assert record.metrics["judge/calls"] == 12
    assert record.metrics["judge/seconds_max"] == 0.5
    plain = trainer_of(even_first).step()
    assert {k for k in plain.metrics if k.startswith("judge/")} == {"judge/unscorable", "judge/seconds"}


def test_disagreement_counts_where_both_have_a_verdict() -> None:
    from test_compose import group

    asked = group(r"\boxed{12}", r"\boxed{13}", r"\boxed{13}", r"\boxed{12}", r"\boxed{2^{3^{4^{5}}}}")
    verdicts = [Judgement(s, "correct" if s else "incorrect", "", "llm") for s in (1.0, 0.0, 1.0)]
    judged = (*verdicts, AWAY, Judgement(1.0, "correct", "", "llm"))
    assert disagreement([asked.with_(judgements=judged)], RuleJudger()) == pytest.approx(1 / 3)
    assert disagreement([asked.with_(judgements=(AWAY,) * 5)], RuleJudger()) is None


@pytest.mark.parametrize(("rule_mode", "share"), [("strict", 1.0), ("lenient", 0.0)])
def test_the_rule_that_disagrees_is_the_config_s(rule_mode: str, share: float, monkeypatch: pytest.MonkeyPatch
                                                 ) -> None:
    from test_compose import group

    judge = Judge()
    monkeypatch.setattr(judge, "say", lambda *_: Judgement(1.0, "correct", "the model says", "llm"))
    asked = group(r"\boxed{5 + 7}")  # gold: 12; only strict wants it worked out
    _, found = Grading(judge, [asked.sample], small_config(rule_mode=rule_mode)).grade(judge, [asked])
    assert found["judge/disagreement"] == share


def test_walk_finds_every_part() -> None:
    rule, llm = RuleJudger(), Judge()
    assert list(walk(RuleThenLLM(rule, llm)))[1:] == [rule, llm]


@pytest.mark.parametrize("changes", [
    {"judger": "lmm"}, {"judge_timeout": 0}, {"max_unscorable": 1.5}, {"judge_parts": 0},
    {"judge_in_flight": 0}])
def test_wrong_settings_name_the_field(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        small_config(**changes)
