"""How a judger is called: threads, loops, ahead of time, remembered, over several hosts, behind a proxy."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from judge_cases import asked, boxed, judger, said, scores, sums

from rlteach.judger.cache import Remembered, VerdictCache, cache_key
from rlteach.judger.hosts import JudgeError, base_url, base_urls, is_loopback
from rlteach.judger.llm import UNAVAILABLE, LLMJudger
from rlteach.serving.fake_judge import FakeJudge
from rlteach.types import Judger

KEY = "sk-canary-4711"


def plain(judged: tuple) -> list[tuple]:
    """Without attempts and seconds, which differ from call to call."""
    return [(j.score, j.status, j.reason, j.source, j.raw) for j in judged]


def test_group_and_single_graders_give_the_same_judgement_wherever_they_run() -> None:
    answers = (boxed(7), boxed(8), said("none"), boxed(":"), boxed(7), boxed("7 or 8"))
    group = asked(*answers)
    with FakeJudge() as server, judger(server) as judge:
        assert isinstance(judge, Judger)
        together = plain(judge.grade(group))
        assert [score for score, *_ in together] == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
        assert together == plain(tuple(judge.judge(group.sample, answer) for answer in answers))
        assert together == plain(asyncio.run(judge.agrade(group)))  # row 46: another loop each time
        assert together == plain(asyncio.run(judge.agrade(group)))

        async def in_a_notebook() -> list[tuple]:  # a loop is running, and the cell calls grade()
            return plain(judge.grade(group))

        assert together == asyncio.run(in_a_notebook())
        with ThreadPoolExecutor(8) as pool:
            for result in pool.map(lambda _: plain(judge.grade(group)), range(16)):
                assert result == together


def test_equal_answers_are_one_question() -> None:
    with FakeJudge() as server, judger(server) as judge:
        judged = judge.grade(asked(*[boxed(7)] * 9, boxed(8)))
        assert scores(judged) == [1.0] * 9 + [0.0]
        assert len(server.requests) == 2


def test_at_most_in_flight_requests_at_the_same_time() -> None:
    batch, truth = sums(6, 4, 0)
    with FakeJudge(delay=0.02) as server, judger(server, in_flight=3) as judge:
        judge.submit(batch)
        assert [scores(judge.grade(group)) for group in batch] == truth
        assert server.busiest == 3


def test_at_most_rate_requests_a_second() -> None:
    with FakeJudge() as server, judger(server, rate=40) as judge:
        began = time.monotonic()
        judge.grade(asked(*map(boxed, range(9))))
        assert time.monotonic() - began >= 8 / 40


def test_submitted_groups_are_graded_meanwhile_and_asked_once() -> None:
    batch, truth = sums(5, 4, 1)
    with FakeJudge() as server, judger(server) as judge:
        judge.submit(batch)
        judge.submit(batch)  # again changes nothing
        judge.submit(batch[0])
        until = time.monotonic() + 30
        while len(server.requests) < 20 and time.monotonic() < until:
            time.sleep(0.01)  # nobody grades, and the judge works
        assert len(server.requests) == 20
        assert [scores(judge.grade(group)) for group in batch] == truth
        assert len(server.requests) == 20
        assert scores(judge.grade(batch[0])) == truth[0]  # collected once; now it is a new question
        assert len(server.requests) == 24
        twice = asked(boxed(1), boxed(1), name="twice")
        judge.submit(twice)
        while judge._client.counts.calls < 25 or judge._client.hosts[0].in_flight:
            time.sleep(0.01)
        assert scores(judge.grade(twice)) == [0.0, 0.0]
        assert len(server.requests) == 25, "the answer that came ahead of time is there for both"


def test_s3_37_cancelling_and_interrupting_propagate_and_score_nothing() -> None:
    with FakeJudge(faults="silent", share=1) as server, judger(
            server, timeout=600, attempt_timeout=600, in_flight=1) as judge:
        async def asked_and(give_up: Callable[[asyncio.Task], object], count: int) -> None:
            task = asyncio.ensure_future(judge.agrade(asked(boxed(7))))
            until = time.monotonic() + 30
            while len(server.requests) < count and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert len(server.requests) == count, "the one before did not give its place back"
            give_up(task)
            await asyncio.wait_for(task, 0.05)

        with pytest.raises(TimeoutError):
            asyncio.run(asked_and(lambda task: None, 1))
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(asked_and(asyncio.Task.cancel, 2))
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it

        def interrupt() -> None:
            until = time.monotonic() + 30
            while len(server.requests) < 3 and time.monotonic() < until:
                time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            judge.grade(asked(boxed(7)))
        signal.signal(signal.SIGINT, before)
        server.set(())
        assert scores(judge.grade(asked(boxed(7), boxed(8)))) == [1.0, 0.0], "and it goes on afterwards"


def test_one_caller_who_gives_up_takes_nothing_from_another() -> None:
    with FakeJudge(delay=0.3) as server, judger(server) as judge:
        async def two() -> list[float | None]:
            first = asyncio.ensure_future(judge.agrade(asked(boxed(7))))
            second = asyncio.ensure_future(judge.agrade(asked(boxed(7))))
            await asyncio.sleep(0.1)
            first.cancel()
            return scores(await second)

        assert asyncio.run(two()) == [1.0]
        assert len(server.requests) == 1


def test_a_fault_of_our_own_is_not_hidden_as_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("rlteach.judger.llm_client.read_verdict", wrong)
    with FakeJudge() as server, judger(server) as judge, pytest.raises(ZeroDivisionError):
        judge.grade(asked(boxed(7)))


def test_closing() -> None:
    before = threading.active_count()
    with FakeJudge(faults="silent", share=1) as server:
        judge = judger(server, timeout=60)
        judge.submit(asked(boxed(7), boxed(8)))
        judge.close()
        judge.close()
        with pytest.raises(RuntimeError, match="closed"):
            judge.grade(asked(boxed(7)))
    assert threading.active_count() == before


def test_a_judger_that_nobody_closes_does_not_hang_or_complain_at_exit() -> None:
    code = ("import sys; sys.path.insert(0, 'tests')\n"
            "from judge_cases import *\n"
            "server = FakeJudge(faults='silent', share=1).start()\n"
            "judge = judger(server, timeout=60)\n"
            "judge.submit(asked(boxed(7)))\n")
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True,
                          cwd=root, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


# the cache

def test_a_resumed_run_asks_nothing_twice(tmp_path: Path) -> None:
    batch, truth = sums(4, 4, 2)
    file = tmp_path / "new" / "verdicts.sqlite"
    with FakeJudge() as server:
        with judger(server, cache=file) as judge:
            first = [plain(judge.grade(group)) for group in batch]
        with judger(server, cache=file) as judge:
            again = [judge.grade(group) for group in batch]
            counts = judge.statistics()
        assert len(server.requests) == 16
        server.go_down()
        with judger(server, cache=file, model="fake-judge") as judge:  # the judge is not even needed
            assert [plain(judge.grade(group)) for group in batch] == first
    assert [plain(row) for row in again] == first
    assert [scores(row) for row in again] == truth
    assert (counts["judge/cached"], counts["judge/calls"]) == (16, 0)


def test_the_key_of_the_cache_is_everything_a_verdict_depends_on(tmp_path: Path) -> None:
    base = ("3+4=?", ("7",), "7", "rubric", "model")
    others = [("3+5=?", *base[1:]), (base[0], ("7", "8"), *base[2:]), (*base[:2], "8", *base[3:]),
              (*base[:3], "other", base[4]), (*base[:4], "other"), ("3+4=?7", ("",), *base[2:])]
    assert len({cache_key(*parts) for parts in [base, *others]}) == 1 + len(others)
    file = tmp_path / "c.sqlite"
    with FakeJudge() as server:
        for arguments in ({}, {"language": "zh"}, {"model": "fake-judge"},
                          {"rubric": "correct or incorrect, my own rules"}):
            with judger(server, cache=file, **arguments) as judge:
                judge.grade(asked(boxed(7)))
        assert len(server.requests) == 3  # `model` by name is the model that was found
        with judger(server, cache=file) as judge:
            judge.grade(asked(boxed(7), gold=("7", "8")))
        assert len(server.requests) == 4


def test_a_failure_is_never_remembered(tmp_path: Path) -> None:
    with FakeJudge(share=1) as server, judger(server, cache=tmp_path / "c", retries=1) as judge:
        for fault in ("prose", "error_500", "denied_401", "cut_json"):
            server.set(fault)
            assert scores(judge.grade(asked(boxed(7)))) == [None]
        server.set(())
        judge.alive()
        assert scores(judge.grade(asked(boxed(7)))) == [1.0]


WRITER = """
import sys
from rlteach.judger.cache import Remembered, VerdictCache
name, who = sys.argv[1], int(sys.argv[2])
cache = VerdictCache(name)
print("ready", flush=True)
for i in range(10**9 if who < 0 else 60):
    cache.put(f"{who}/{i}", Remembered(i % 2 == 0, f"r{i}", "x" * 2000))
    cache.put(f"all/{i}", Remembered(True, "first", ""))
    assert cache.get(f"{who}/{i}") == (i % 2 == 0, f"r{i}", "x" * 2000)
cache.close()
"""


def writer(file: Path, who: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(file), str(who)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def test_several_processes_share_a_cache(tmp_path: Path) -> None:
    file = tmp_path / "c.sqlite"
    running = [writer(file, who) for who in range(3)]
    done = [process.communicate(timeout=120) for process in running]
    assert [errors for _, errors in done] == [""] * 3
    assert [process.returncode for process in running] == [0] * 3
    cache = VerdictCache(file)
    assert len(cache) == 3 * 60 + 60
    assert cache.get("2/59") == Remembered(False, "r59", "x" * 2000)
    cache.put("2/59", Remembered(True, "later", ""))
    assert cache.get("2/59") == Remembered(False, "r59", "x" * 2000), "what was said first stays"
    cache.close()


def test_a_killed_writer_leaves_a_whole_cache(tmp_path: Path) -> None:
    file = tmp_path / "c.sqlite"
    for _ in range(3):
        process = writer(file, -1)
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.15)
        process.kill()
        process.communicate()
        cache = VerdictCache(file)
        rows = len(cache)
        assert rows > 0
        for i in range((rows - 1) // 2):
            assert cache.get(f"-1/{i}") == (i % 2 == 0, f"r{i}", "x" * 2000)
        cache.close()


def test_a_damaged_cache_is_named_with_its_remedy(tmp_path: Path) -> None:
    file = tmp_path / "c.sqlite"
    file.write_bytes(b"not a database " * 1000)
    with FakeJudge() as server:
        with pytest.raises(JudgeError, match=r"c\.sqlite.*remove the file"):
            judger(server, cache=file)
        base = sqlite3.connect(tmp_path / "other.sqlite")
        base.execute("PRAGMA user_version=99")
        base.close()
        with pytest.raises(JudgeError, match=r"other\.sqlite.*version"):
            judger(server, cache=tmp_path / "other.sqlite")
        with pytest.raises(JudgeError, match="cannot be opened"):
            judger(server, cache=tmp_path)


def test_a_full_disk_costs_the_memory_and_not_the_verdict(tmp_path: Path) -> None:
    with FakeJudge() as server, judger(server, cache=tmp_path / "c.sqlite") as judge:
        judge._caches[-1]._base.execute("PRAGMA query_only=1")
        with pytest.warns(RuntimeWarning, match=r"c\.sqlite does not work"):
            first = judge.grade(asked(boxed(7)))
        second = judge.grade(asked(boxed(8)))  # said once
        assert scores(first + second) == [1.0, 0.0]


# hosts, keys, proxies

@pytest.mark.parametrize(("given", "meant"), [
    ("127.0.0.1:10003", "http://127.0.0.1:10003/v1"), ("localhost:1", "http://localhost:1/v1"),
    ("http://h:1/v1/", "http://h:1/v1"), ("https://h", "https://h/v1"), (" http://h:1 ", "http://h:1/v1"),
    ("https://h/api/v3", "https://h/api/v3"), ("http://h:1/v1/chat/completions", "http://h:1/v1"),
    ("http://h/base/", "http://h/base/v1"), ("[::1]:8000", "http://[::1]:8000/v1"),
    ("https://h/v1beta/openai", "https://h/v1beta/openai")])
def test_s1_25_addresses(given: str, meant: str) -> None:
    assert base_url(given) == meant
    assert base_url(meant) == meant


@pytest.mark.parametrize("given", ["", " ", "http://", "ftp://h/v1", "http://h:port", "h:99999", "http://h:0",
                                   "a b", "http://h/v1?x=1", "http://h/#a", "http:///v1", "::1", None, 7])
def test_what_is_no_address_is_refused_with_an_example(given: object) -> None:
    with pytest.raises(JudgeError, match=r"not the address of a judge: give host:port"):
        base_url(given)  # type: ignore[arg-type]


def test_several_addresses_and_a_key_in_one() -> None:
    assert base_urls(["h:1", "http://h:1/v1", "h:2"]) == ["http://h:1/v1", "http://h:2/v1"]
    for none in ([], ()):
        with pytest.raises(JudgeError, match="at least one URL"):
            base_urls(none)
    with pytest.raises(JudgeError, match="got None"):
        base_urls(None)  # type: ignore[arg-type]
    with pytest.raises(JudgeError, match="RLTEACH_JUDGE_KEY") as told:
        base_url(f"http://user:{KEY}@h:1/v1")
    assert KEY not in str(told.value)


def test_loopback() -> None:
    assert all(map(is_loopback, ("http://127.0.0.1:1/v1", "http://127.9.9.9/v1", "http://[::1]:1/v1",
                                 "http://localhost:1/v1", "http://a.localhost/v1", "http://0.0.0.0:1/v1")))
    assert not any(map(is_loopback, ("http://10.0.0.1/v1", "http://localhost.example/v1", "http://[fe80::1]/v1")))


@pytest.mark.parametrize("changes", [{"timeout": 0}, {"in_flight": 0}, {"rate": 0}, {"retries": -1},
                                     {"max_tokens": 0}, {"backoff": (-1, 2)}, {"sees": "all"},
                                     {"language": "de"}])
def test_arguments_out_of_bounds_are_named(changes: dict) -> None:
    (name, value), = changes.items()
    with pytest.raises(ValueError, match=f"{name}.*{re.escape(str(value))}"):
        judger("h:1", **changes)


def test_a_dead_host_is_left_out_and_both_share_the_work() -> None:
    batch, truth = sums(10, 4, 4)
    with (FakeJudge(delay=0.01) as one, FakeJudge(delay=0.01) as two,
          judger([one.url, two.url], in_flight=4) as judge):
        judge.submit(batch)
        assert [scores(judge.grade(group)) for group in batch] == truth
        assert min(len(one.requests), len(two.requests)) >= 10  # least loaded: both work
        one.go_down()
        assert judge.alive() is None
        assert [scores(judge.grade(group)) for group in batch] == truth
        assert judge.statistics()["judge/retries"] <= 20, "a failing host rests for a while"
        with pytest.raises(JudgeError, match=one.url):
            judge.probe()  # at the start of a run a host that is missing is a mistake


def test_i03_a_dead_proxy_in_the_environment_does_not_reach_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with FakeJudge() as server:
        for url in (server.url, f"localhost:{server.port}"):  # localhost may be ::1 first
            with judger(url) as judge:
                assert judge.probe()[0].model == "fake-judge"
                assert scores(judge.grade(asked(boxed(7), boxed(8)))) == [1.0, 0.0]
        with judger("http://192.0.2.1:9/v1", timeout=3, retries=0) as judge:  # elsewhere the proxy is used
            assert "127.0.0.1" in judge.alive() or "efused" in judge.alive()


def test_i08_no_key_is_written_shown_or_raised_anywhere(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLTEACH_JUDGE_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other-key")
    shown = []
    arguments = {"cache": tmp_path / "c.sqlite", "log": tmp_path / "judge.jsonl", "retries": 0}
    repeats = lambda _: json.dumps({"rationale": f"your key is {KEY}", "judgement": "correct"})  # noqa: E731
    with FakeJudge(api_key=KEY, reply=repeats) as server, judger(server, **arguments) as judge:
        judged = judge.grade(asked(boxed(7)))
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        shown += [repr(judge), repr(judged), repr(judge.probe()), repr(judge.statistics()),
                  repr(vars(judge)), repr(vars(judge._client))]
        server.reply = lambda _: f"<think>{KEY}"  # no verdict, and the key is in the raw body
        shown += [repr(judge.grade(asked(boxed(99))))]
        server.set(("error_500", "denied_401", "cut_json"), share=1)
        shown += [repr(judge.grade(asked(boxed(n)))) for n in range(9)]
        server.go_down()
        shown += [judge.alive(), repr(judge.grade(asked(boxed(9))))]
        try:
            judge.probe()
        except JudgeError as error:
            trace = traceback.TracebackException.from_exception(error, capture_locals=True)
            shown += ["".join(trace.format())]
    wrong = FakeJudge(api_key="x")
    with wrong, judger(wrong, **arguments) as judge:
        monkeypatch.setattr("rlteach.serving.fake_replies.refusal", lambda status, text, **_: (
            status, {"Content-Type": "application/json"}, f'{{"error": "bad key {KEY}"}}'.encode()))
        shown += [judge.alive(), repr(judge.grade(asked(boxed(7), gold=("8",))))]
        assert "[key]" in shown[-1]
    written = [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(written) >= 2
    assert scores(judged) == [1.0]
    assert KEY not in "".join(shown)
    assert not any(KEY.encode() in data for data in written)


def test_the_key_is_the_judge_s_own_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLTEACH_JUDGE_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    keys = ((None, "none"), ("OPENAI_API_KEY", "none"), ("RLTEACH_JUDGE_KEY", "sk-first"))
    with FakeJudge() as server:
        for name, value in keys:
            if name:
                monkeypatch.setenv(name, "sk-first" if name == "RLTEACH_JUDGE_KEY" else "sk-of-another")
            with judger(server) as judge:
                judge.grade(asked(boxed(7)))
            assert server.requests[-1].headers["authorization"] == f"Bearer {value}"
        with judger(server, api_key="sk-given") as judge:
            judge.grade(asked(boxed(7)))
        assert server.requests[-1].headers["authorization"] == "Bearer sk-given"
    for bad in ("two\nlines", "a key", "ключ"):
        with pytest.raises(JudgeError, match="key holds characters") as told:
            LLMJudger("h:1", api_key=bad)
        assert bad not in str(told.value)


# records

def test_row_24_every_log_line_bears_the_prompt_and_the_sample(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "judge.jsonl"
    with FakeJudge() as server, judger(server, log=log) as judge:
        judge.grade(asked(boxed(7), said("none"), name="first"))
        judge.grade(asked(boxed(8), name="second"))
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        assert {line["prompt_id"] for line in lines} == {judge.prompt_id}
    assert [(x["sample"], x["member"], x["score"], x["model"]) for x in lines] == [
        ("first", 0, 1.0, "fake-judge"), ("first", 1, 0.0, "fake-judge"), ("second", 0, 0.0, "fake-judge")]


def test_statistics_count_since_the_last_call() -> None:
    with FakeJudge() as server, judger(server, retries=2) as judge:
        judge.probe()
        judge.self_test()
        assert judge.statistics()["judge/calls"] == 0  # theirs are not answers
        judge.grade(asked(boxed(7), boxed(8), boxed(7), said("none")))
        first = judge.statistics()
        server.set("error_500", share=1)
        assert judge.grade(asked(boxed(9)))[0].reason.startswith(UNAVAILABLE)
        server.set("prose", share=1)
        judge.alive()
        judge.grade(asked(boxed(6), gold=("6",)))
        second = judge.statistics()
        third = judge.statistics()
    assert {k: first[k] for k in ("judge/answers", "judge/blocked", "judge/calls", "judge/retries")} == {
        "judge/answers": 4, "judge/blocked": 1, "judge/calls": 2, "judge/retries": 0}
    assert 0 < first["judge/seconds_mean"] <= first["judge/seconds_max"]
    assert [second[f"judge/{k}"] for k in ("calls", "retries", "repairs", "unavailable", "no_verdict")] == [
        5, 2, 1, 1, 1]
    assert third["judge/answers"] == 0
    assert third["judge/seconds_mean"] is None


def test_servers_that_refuse_a_field_are_asked_without_it() -> None:
    """By name of the field, once each; the words are those of public servers."""
    refusals = {"response_format": "'response_format' of type 'json_schema' is not supported",
                "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. "
                              "Use 'max_completion_tokens' instead.",
                "temperature": "Unsupported value: 'temperature' does not support 0 with this model."}
    with FakeJudge() as server, judger(server) as judge:
        host = judge._client.hosts[0]
        for field, text in refusals.items():
            assert host.adapt(text, {"model", field})
            assert not host.adapt(text, {"model"}), "nothing is left to leave out"
        assert not host.adapt("maximum context length is 512 tokens; max_tokens=512 is too much", {
            "max_tokens"})
        assert scores(judge.grade(asked(boxed(7), boxed(8)))) == [1.0, 0.0]
        assert set(server.requests[0].body) == {"model", "messages", "max_completion_tokens"}


def test_a_strict_server_refuses_the_schema_of_many_requests_at_once() -> None:
    batch, truth = sums(2, 8, 6)
    with FakeJudge(refuses=["response_format"], delay=0.02) as server, judger(server) as judge:
        judge.submit(batch)
        assert [scores(judge.grade(group)) for group in batch] == truth
    with FakeJudge(refuses=["response_format", "logprobs"]) as server, judger(server) as judge:
        assert [(found.json_schema, found.logprobs) for found in judge.probe()] == [(False, False)]


def test_an_import_of_rlteach_needs_no_client() -> None:
    code = "import sys, rlteach.judger.llm; raise SystemExit('openai' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
