"""A judge under fire and a judge that is dead: never lost, never invented, never mixed up (T9, T10)."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate

import pytest
from judge_cases import asked, boxed, judger, scores, sums

from rlteach.judger.failures import retry_after
from rlteach.judger.hosts import JudgeError
from rlteach.judger.llm import NO_VERDICT, UNAVAILABLE
from rlteach.serving.fake_judge import FakeJudge
from rlteach.serving.fake_replies import BODY, FAULTS, HTTP, TRANSPORT

AGAIN = ("refuse", "reset", "reset_body", "silent", "late", "drip", "swapped", "busy", "error_500",
         "html_502", "unready_503")  # 1-6, 9, 11-13 and 23: asked again within the deadline
ONCE = ("denied_401", "no_model_404", "too_long_400")  # 14-16: never asked again
BAD = tuple(name for name in BODY if name != "echo")  # 17-22: once more, with a repair prompt


def under_fire(groups: int, size: int, seed: int) -> None:
    retries, in_flight = 6, 32
    batch, truth = sums(groups, size, seed)
    server = FakeJudge(faults=FAULTS, seed=seed, share=0.3, pace=0.15)
    with server, judger(server, timeout=20, attempt_timeout=1.0, retries=retries,
                        in_flight=in_flight) as judge:
        async def all_at_once() -> list[tuple]:
            return await asyncio.gather(*(judge.agrade(group) for group in batch))

        judged = asyncio.run(all_at_once())
        counts = judge.statistics()
    requests = Counter(json.loads(r.body["messages"][1]["content"])["candidate"] for r in server.requests)
    met = {json.loads(r.body["messages"][1]["content"])["candidate"] for r in server.requests if r.fault}

    assert [len(row) for row in judged] == [size] * groups  # lost: 0
    for group, row, right in zip(batch, judged, truth, strict=True):
        for answer, judgement, score in zip(group.trajectories, row, right, strict=True):
            if judgement.score is None:
                assert judgement.reason.startswith((UNAVAILABLE, NO_VERDICT)), judgement
                assert server.url in judgement.reason
                assert answer.response.split("{")[1][:-1] in met, "no verdict although nothing went wrong"
            else:
                assert judgement.score == score  # invented, misordered: 0; as in the run without faults
    total = groups * size
    assert len(requests) == total  # each answer was asked for
    assert max(requests.values()) <= 1 + retries
    assert counts["judge/calls"] >= len(server.requests) >= total
    assert server.busiest <= in_flight
    unscorable = sum(j.score is None for row in judged for j in row)
    assert counts["judge/unavailable"] + counts["judge/no_verdict"] == unscorable
    assert 0 < unscorable < total / 5, "some faults are final; the others must not cost the verdict"


def test_t9_two_hundred_answers_with_thirty_in_a_hundred_replies_broken() -> None:
    under_fire(groups=50, size=4, seed=0)


@pytest.mark.gate
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_t9_a_thousand_answers(seed: int) -> None:
    under_fire(groups=125, size=8, seed=seed)


def test_every_fault_of_the_catalogue_has_its_rule() -> None:
    rest = {"busy_long", "busy_date", "duplicate", "echo"}
    assert set(FAULTS) == {*AGAIN, *ONCE, *BAD, *rest}
    assert len(TRANSPORT + HTTP + BODY) == len(FAULTS) == len(set(FAULTS))


@pytest.mark.parametrize("fault", AGAIN)
def test_transient_faults_are_asked_again_until_the_judge_answers(fault: str) -> None:
    with FakeJudge(faults=fault, share=1, pace=0.05) as server, judger(
            server, attempt_timeout=0.2, timeout=20, retries=60) as judge:
        heal = threading.Timer(0.3, lambda: server.set(()))
        heal.start()
        judged = judge.grade(asked(boxed(7), boxed(8)))
        heal.join()
    assert scores(judged) == [1.0, 0.0]
    assert min(j.attempts for j in judged) > 1


@pytest.mark.parametrize("fault", AGAIN)
def test_transient_faults_that_stay_end_as_unavailable(fault: str) -> None:
    with FakeJudge(faults=fault, share=1, pace=0.05) as server, judger(
            server, attempt_timeout=0.15, timeout=2, retries=2) as judge:
        judged = judge.grade(asked(boxed(7)))[0]
    assert (judged.score, judged.attempts) == (None, 3)
    assert judged.reason.startswith(UNAVAILABLE)
    assert server.url in judged.reason


@pytest.mark.parametrize("fault", ONCE)
def test_14_to_16_are_never_asked_again(fault: str) -> None:
    with FakeJudge(faults=fault, share=1) as server, judger(server) as judge:
        judged = judge.grade(asked(boxed(7)))[0]
        assert len(server.requests) == judged.attempts == 1
    assert judged.score is None
    assert f"HTTP {fault[-3:]}" in judged.reason
    assert judged.reason.startswith(NO_VERDICT if fault == "too_long_400" else UNAVAILABLE)


@pytest.mark.parametrize("schema", [True, False])
@pytest.mark.parametrize("fault", BAD)
def test_17_to_22_s3_38_a_bad_body_is_asked_for_once_more_with_a_repair_prompt(
        fault: str, schema: bool) -> None:
    with FakeJudge(faults=fault, share=1, json_schema=schema) as server, judger(server) as judge:
        judged = judge.grade(asked(boxed(7)))[0]
        prompts = [r.body["messages"] for r in server.requests]
    assert (judged.score, judged.attempts, len(prompts)) == (None, 2, 2)
    assert judged.reason.startswith(NO_VERDICT)
    assert prompts[0][0] != prompts[1][0], "at temperature 0 the same prompt gives the same reply"
    assert prompts[0][1] == prompts[1][1], "the user message stays exactly the data"


def test_18_a_repaired_reply_counts() -> None:
    def reply(question: object) -> str:
        return "no" if len(server.requests) == 1 else '{"rationale": "r", "judgement": "correct"}'

    with FakeJudge(reply=reply) as server, judger(server) as judge:
        server.requests.clear()
        judged = judge.grade(asked(boxed(7)))[0]
    assert judged.attempts <= 2
    assert judged.score == 1.0


def test_24_a_late_duplicate_reaches_no_other_question() -> None:
    batch, truth = sums(20, 4, 5)
    with FakeJudge(faults="duplicate", share=0.5) as server, judger(server, in_flight=2) as judge:
        for group, right in zip(batch, truth, strict=True):
            assert scores(judge.grade(group)) == right


class OneBehind(FakeJudge):
    """Each connection answers its second question, and every later one, with the reply before."""

    async def _serve(self, held: socket.socket) -> None:
        self.last = None
        await super()._serve(held)

    async def _answer(self, path: str, headers: dict[str, str], *rest: object) -> None:
        if path.endswith("/models"):
            return await super()._answer(path, headers, *rest)  # type: ignore[arg-type]
        self.last, late = (path, headers, *rest), self.last
        await super()._answer(*(late or self.last))


def test_24_a_connection_that_is_one_reply_behind_is_not_used_again() -> None:
    with OneBehind() as server, judger(server, in_flight=1, retries=1) as judge:
        assert scores(judge.grade(asked(boxed(7), boxed(8), boxed(9)))) == [1.0, 0.0, 0.0]
        assert judge.statistics()["judge/retries"] == 2


def test_s3_42_one_bad_reply_leaves_the_other_rewards() -> None:
    def reply(question: object) -> str | None:
        label = "correct" if question.verdict else "incorrect"  # type: ignore[attr-defined]
        return None if question.candidate == "9" else f'{{"rationale": "r", "judgement": "{label}"}}'  # type: ignore[attr-defined]

    with FakeJudge(reply=reply) as server, judger(server) as judge:
        assert scores(judge.grade(asked(boxed(7), boxed(9), boxed(8)))) == [1.0, None, 0.0]


def test_10_a_wait_beyond_the_deadline_is_not_waited_for() -> None:
    for fault in ("busy_long", "busy_date"):
        with FakeJudge(faults=fault, share=1) as server, judger(server) as judge:
            judged = judge.grade(asked(boxed(7)))[0]
        assert judged.score is None
        assert judged.attempts == 1
        assert "asks to wait" in judged.reason


def test_9_retry_after_is_honoured() -> None:
    with FakeJudge(faults="busy", share=1, pace=0.4) as server, judger(server, backoff=(0.0, 0.0)) as judge:
        began = time.monotonic()
        threading.Timer(0.1, lambda: server.set(())).start()
        assert scores(judge.grade(asked(boxed(7)))) == [1.0]
        assert time.monotonic() - began >= 0.4


def test_retry_after_is_a_number_a_date_or_nonsense() -> None:
    assert retry_after("1.5") == 1.5
    assert 590 < retry_after(formatdate(time.time() + 600, usegmt=True)) <= 600
    assert [retry_after(v) for v in (None, "", "-3", "nan", "soon", "Mon, 99 Foo 2026")] == [0.0] * 6
    assert retry_after("inf") == 1e6


def test_b11_a_storm_of_429_changes_no_reward() -> None:
    batch, truth = sums(6, 8, 7)
    with FakeJudge(faults="busy", share=1, pace=0.05) as server, judger(
            server, timeout=30, retries=100) as judge:
        threading.Timer(0.6, lambda: server.set(())).start()
        assert [scores(judge.grade(group)) for group in batch] == truth
        assert judge.statistics()["judge/retries"] > 0


def test_b16_s1_13_a_black_hole_costs_the_deadline_and_no_more() -> None:
    with FakeJudge(faults="silent", share=1) as server, judger(
            server, timeout=1.0, attempt_timeout=0.4, in_flight=4) as judge:
        batch, _ = sums(10, 4, 0)
        judge.submit(batch)
        judged = [j for group in batch for j in judge.grade(group)]
    assert {j.score for j in judged} == {None}
    assert all(j.reason.startswith(UNAVAILABLE) and "no answer within" in j.reason for j in judged)
    assert max(j.seconds for j in judged) < 10
    assert min(j.attempts for j in judged) == 0, "who comes after a given-up answer is not even tried"


# T10: the judge is dead

def hears_nothing() -> socket.socket:
    """Accepts a connection (by its queue) and never says a word."""
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    hole.listen(8)
    return hole


def test_t10_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with judger(address, timeout=60, attempt_timeout=None) as judge:
        began = time.monotonic()
        with pytest.raises(JudgeError, match=f"http://{address}/v1: .*[Rr]efused"):
            judge.probe()
        assert "efused" in judge.alive()
        assert time.monotonic() - began < 10


def test_t10_a_host_that_hears_and_never_answers() -> None:
    with hears_nothing() as hole, judger(f"127.0.0.1:{hole.getsockname()[1]}", timeout=0.3) as judge:
        with pytest.raises(JudgeError, match=r"http://127\.0\.0\.1:[0-9]+/v1: no answer within"):
            judge.probe()
        assert "no answer within" in judge.alive()
        judged = judge.grade(asked(boxed(7)))[0]
    assert judged.score is None
    assert "no answer within" in judged.reason


@pytest.mark.gate
def test_t10_a_black_hole_is_named_within_ten_seconds_whatever_the_timeout() -> None:
    with hears_nothing() as hole, judger(f"127.0.0.1:{hole.getsockname()[1]}", timeout=60) as judge:
        began = time.monotonic()
        with pytest.raises(JudgeError, match=r"http://127\.0\.0\.1:[0-9]+/v1: no answer within"):
            judge.probe()
        assert time.monotonic() - began < 10


def test_t10_an_unknown_name() -> None:
    with judger("http://judge.invalid:9/v1") as judge, pytest.raises(JudgeError, match=r"judge\.invalid"):
        judge.probe()


def test_t10_401_and_a_wrong_model_name() -> None:
    with FakeJudge(api_key="right-key-1") as server:
        with judger(server, api_key="wrong-key-1") as judge:
            with pytest.raises(JudgeError, match=f"{server.url}: HTTP 401, the key"):
                judge.probe()
            assert "401" in judge.alive()
            assert "401" in judge.grade(asked(boxed(7)))[0].reason
        with judger(server, api_key="right-key-1", model="other") as judge:
            with pytest.raises(JudgeError, match=f"{server.url}: HTTP 404, no model 'other'.*fake-judge"):
                judge.probe()
            assert judge.grade(asked(boxed(7)))[0].score is None


def test_t10_dies_half_way_and_comes_back() -> None:
    batch, truth = sums(8, 4, 3)
    with FakeJudge(delay=0.01) as server, judger(server, retries=3, in_flight=2) as judge:
        judge.probe()
        first = [judge.grade(group) for group in batch[:4]]
        server.go_down()
        lost = [judge.grade(group) for group in batch[4:]]
        cause = judge.alive()
        server.come_back()
        assert judge.alive() is None
        again = [judge.grade(group) for group in batch[4:]]
    assert {j.score for row in lost for j in row} == {None}
    assert all(j.reason.startswith(UNAVAILABLE) and server.url in j.reason for row in lost for j in row)
    assert server.url in cause
    assert [scores(row) for row in first + again] == truth


def test_a_server_that_starts_late_is_waited_for() -> None:
    with FakeJudge(faults="unready_503", share=1) as server, judger(
            server, timeout=20, backoff=(0.3, 0.3)) as judge:
        threading.Timer(0.2, lambda: server.set(())).start()
        assert judge.probe()[0].json_schema is True


def test_the_probe_finds_what_a_server_can_do() -> None:
    with FakeJudge() as server, judger(server) as judge:
        found = judge.probe()[0]
        assert (found.url, found.model, found.json_schema) == (server.url, "fake-judge", True)
        assert found.served == ("fake-judge",)
    with FakeJudge(json_schema=False) as server, judger(server) as judge:
        assert judge.probe()[0].json_schema is False
        assert scores(judge.grade(asked(boxed(7), boxed(8)))) == [1.0, 0.0]
        assert "response_format" not in server.requests[-1].body


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_self_test_passes_a_judge_that_knows(language: str) -> None:
    with FakeJudge() as server, judger(server, language=language) as judge:
        report = judge.self_test()
    assert (report.known, report.right, report.accepted, report.no_verdict) == (12, 12, 0, 0)
    assert report.blocked >= 5  # the master keys of B06
    assert report.wrong >= 20


@pytest.mark.parametrize(("language", "oracle", "cause"), [
    ("en", lambda *_: True, "accepts wrong answers"), ("zh", lambda *_: True, "accepts wrong answers"),
    ("en", lambda *_: False, "knows only 0"),
    ("en", lambda q, g, c: c in g or "gnore" in c, "gnore the rubric"),
    ("zh", lambda q, g, c: c in g or "忽略" in c, "accepts wrong answers"),
    ("en", lambda q, g, c: any(n in c for n in g), "5 of 28")])
def test_the_self_test_refuses_a_judge_that_accepts_nonsense_or_knows_nothing(
        language: str, oracle: Callable[..., bool], cause: str) -> None:
    with FakeJudge(oracle) as server, judger(server, language=language) as judge, pytest.raises(
            JudgeError, match=f"{server.url} .*{cause}"):
        judge.self_test()


def test_the_self_test_needs_replies_that_can_be_read() -> None:
    with FakeJudge(faults="prose", share=1) as server, judger(server) as judge:
        with pytest.raises(JudgeError, match="knows only 0 of 12"):
            judge.self_test()
        server.set("denied_401")
        with pytest.raises(JudgeError, match=r"self-test of the judge did not end.*401"):
            judge.self_test()
