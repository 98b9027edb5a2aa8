"""The fake judge is a real HTTP server: it tells the truth, and it breaks in the ways its names say."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import suppress

import openai
import pytest
from judge_cases import asked, boxed, judger, scores

from rlteach.judger.verdicts import Rubric
from rlteach.serving.fake_judge import FakeJudge
from rlteach.serving.fake_replies import BODY, FAULTS


def request(candidate: str = "7", *, language: str = "en", schema: bool = True) -> dict[str, object]:
    rubric = Rubric.of(language)
    fields = {"response_format": rubric.response_format} if schema else {}
    return {"model": "fake-judge", "messages": rubric.messages("3+4=?", ["7"], candidate, schema=schema),
            **fields}


def post(server: FakeJudge, body: object, *, timeout: float = 5, path: str = "/v1/chat/completions",
         **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def test_the_official_client_reads_it() -> None:
    with FakeJudge() as server, openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["fake-judge"]
        for language, labels in (("en", ("correct", "incorrect")), ("zh", ("正确", "错误"))):
            said = [json.loads(client.chat.completions.create(**request(c, language=language)).choices[0]
                               .message.content) for c in ("7", "8")]
            assert [list(reply) for reply in said] == [["rationale", "judgement"]] * 2
            assert tuple(reply["judgement"] for reply in said) == labels
        prose = client.chat.completions.create(**request("8", schema=False)).choices[0].message.content
        assert prose.splitlines()[-1] == "incorrect"
        assert [seen.fault for seen in server.requests] == [None] * 5


def test_an_oracle_and_a_reply_of_your_own() -> None:
    with FakeJudge(lambda question, gold, candidate: candidate == "8") as server, judger(server) as judge:
        assert scores(judge.grade(asked(boxed(7), boxed(8)))) == [0.0, 1.0]
    with FakeJudge(reply=lambda asked: asked.question) as server:
        body = json.loads(post(server, request())[2])
        assert body["choices"][0]["message"]["content"] == "3+4=?"


def test_the_same_requests_break_in_every_run_and_about_the_share_of_them() -> None:
    def run(seed: int, order: list[int]) -> dict[int, str | None]:
        with FakeJudge(faults=("error_500", "prose"), seed=seed, share=0.3) as server:
            for n in order:
                post(server, request(str(n)))
            return {n: seen.fault for n, seen in zip(order, server.requests, strict=True)}

    order = list(range(120))
    first = run(0, order)
    assert first == run(0, order[::-1]), "whatever the order"
    assert first != run(1, order)
    broken = sum(fault is not None for fault in first.values())
    assert 15 <= broken <= 60  # 36 on average
    assert set(first.values()) == {None, "error_500", "prose"}


def test_a_repeated_request_draws_again() -> None:
    with FakeJudge(faults="error_500", share=0.5) as server:
        assert {post(server, request())[0] for _ in range(30)} == {200, 500}


@pytest.mark.parametrize(("fault", "status"), [
    ("busy", 429), ("busy_long", 429), ("busy_date", 429), ("error_500", 500), ("html_502", 502),
    ("unready_503", 503), ("denied_401", 401), ("no_model_404", 404), ("too_long_400", 400)])
def test_faults_of_http(fault: str, status: int) -> None:
    with FakeJudge(faults=fault, share=1, pace=2) as server:
        got, headers, body = post(server, request())
    assert got == status
    assert headers["Retry-After"] == {"busy": "2", "busy_long": "600"}.get(fault, headers["Retry-After"])
    assert (headers["Retry-After"] is not None) == fault.startswith("busy")
    assert body.startswith(b"<html>") == (fault == "html_502")


@pytest.mark.parametrize("fault", BODY)
def test_faults_of_the_body_are_http_200_and_not_the_right_reply(fault: str) -> None:
    with FakeJudge(faults=fault, share=1) as server:
        status, _, body = post(server, request("8"))
        server.set(())
        good = post(server, request("8"))[2]
    assert status == 200
    assert good != body
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError):
        content = None
    assert content != '{"rationale": "compared with 1 accepted answers", "judgement": "incorrect"}' or (
        fault == "content_filter")


def test_faults_of_the_connection() -> None:
    with FakeJudge(share=1, pace=0.02) as server:
        for fault in ("reset", "refuse"):
            server.set(fault)
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                post(server, request())
        time.sleep(0.3)  # after `refuse` it listens again
        server.set("reset_body")
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            post(server, request())
        server.set("silent")
        with pytest.raises(TimeoutError):
            post(server, request(), timeout=0.3)
        server.set("late")
        with pytest.raises(TimeoutError):
            post(server, request(), timeout=0.05)
        assert post(server, request(), timeout=5)[0] == 200
        server.set("swapped")
        _, headers, body = post(server, request("7"), **{"X-Client-Request-Id": "mine"})
        assert headers["X-Client-Request-Id"] != "mine"
        assert b"incorrect" in body
        server.set(())
        _, headers, _ = post(server, request("7"), **{"X-Client-Request-Id": "mine"})
        assert headers["X-Client-Request-Id"] == "mine"


def test_drip_sends_byte_by_byte_and_duplicate_sends_twice() -> None:
    with FakeJudge(faults="drip", share=1, pace=0.01) as server:
        body = json.dumps(request()).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
            wire.sendall(head + body)
            assert max(len(wire.recv(1000)) for _ in range(5)) < 60, "never the whole at once"
        server.set("duplicate")
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
            wire.sendall(head + body)
            got = b""
            while got.count(b"HTTP/1.1 200") < 2:
                got += wire.recv(10_000)
    assert got.count(b"chat.completion") == 2


def test_down_and_back_on_the_same_port() -> None:
    with FakeJudge() as server:
        port = server.port
        held = socket.create_connection(("127.0.0.1", port), timeout=5)
        assert post(server, request())[0] == 200
        server.go_down()
        server.go_down()
        with pytest.raises(ConnectionRefusedError):
            post(server, request())
        with pytest.raises(ConnectionResetError):
            held.recv(10)
        held.close()
        server.come_back()
        server.come_back()
        assert (server.port, post(server, request())[0]) == (port, 200)


def test_what_it_refuses() -> None:
    with FakeJudge(api_key="k-1") as server:
        assert post(server, request())[0] == 401
        assert post(server, request(), Authorization="Bearer k-1")[0] == 200
    with FakeJudge() as server:
        assert post(server, {"model": "fake-judge", "messages": []})[0] == 400
        assert post(server, [1])[0] == 400
        assert post(server, {**request(), "model": "gpt"})[0] == 404
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
            wire.sendall(b"nonsense\r\n\r\n")
            assert wire.recv(100) == b""
    with pytest.raises(ValueError, match="no such fault: flood; choose from refuse"):
        FakeJudge(faults=("flood", "reset"))
    with pytest.raises(ValueError, match="share"):
        FakeJudge(faults=FAULTS, share=30)
    with pytest.raises(ValueError, match="not running"):
        FakeJudge().go_down()


def test_it_leaves_nothing_behind() -> None:
    before = threading.active_count()
    with FakeJudge(faults="silent", share=1) as server:
        def wait() -> None:
            with suppress(OSError, http.client.HTTPException):
                post(server, request(), timeout=30)

        thread = threading.Thread(target=wait)
        thread.start()
        until = time.monotonic() + 30
        while not server.requests and time.monotonic() < until:
            time.sleep(0.01)
    thread.join(30)
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        post(server, request())
