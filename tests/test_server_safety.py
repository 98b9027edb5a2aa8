"""Who may ask, how much, and how the server begins and ends (RELIABILITY T17, FAULTS I03, I04, I08)."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from fakes import tiny_policy

from rlteach.config import Config
from rlteach.policy.registry import ModelError
from rlteach.serving import ServeError, Server, serve
from rlteach.serving.loading import load_policy, served_name
from rlteach.serving.ports import holder

KEY = "canary-7f3a91-key"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "1+1=?"}], "max_tokens": 4}
COMMAND = """
import sys
from rlteach import cli
from rlteach.serving.command import serve_command
if not any(c.name == "serve" for c in cli.app.registered_commands):
    cli.app.command("serve")(serve_command)
cli.main()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(tiny_policy(), name="tiny", api_key=KEY, body_seconds=1.0) as server:
        yield server


def send(server: Server, path: str = "/v1/chat/completions", *, method: str = "POST", body: Any = None,
         **headers: str) -> tuple[int, str]:
    """(status, body); headers as keyword arguments, `Host` among them."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, json.dumps(ASK) if body is None else body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


RIGHT = {"Authorization": f"Bearer {KEY}"}


# who may ask --------------------------------------------------------------------------------------
@pytest.mark.parametrize("headers", [
    {}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Bearer wrong"},
    {"Authorization": f"Basic {KEY}"}, {"Authorization": KEY}, {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": f"Bearer {KEY[:-1]}"}, {"Authorization": "Bearer \xe9"}, {"Api-Key": KEY}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/models/tiny", "/nothing"])
def test_without_the_key_401(server: Server, headers: dict[str, str], path: str) -> None:
    status, body = send(server, path, **headers)
    assert status == 401
    assert json.loads(body)["error"]["code"] == "invalid_api_key"


def test_with_the_key_200(server: Server) -> None:
    assert send(server, **RIGHT)[0] == 200
    assert send(server, **{"authorization": f"bearer {KEY}"})[0] == 200


def test_health_needs_no_key_and_tells_no_secret(server: Server) -> None:
    status, body = send(server, "/health", method="GET")
    assert status == 200
    assert json.loads(body)["model"] == "tiny"
    assert KEY not in body


@pytest.mark.parametrize(("host", "status"), [
    ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("", 403), ("localhost.evil.example:1", 403),
    ("127.0.0.1:1", 200), ("localhost", 200), ("LOCALHOST:80", 200), ("[::1]:80", 200)])
def test_a_page_under_another_name_is_turned_away(server: Server, host: str, status: int) -> None:
    """A web page whose name was pointed at the loopback sends its own name as Host."""
    assert send(server, Host=host, **RIGHT)[0] == status
    assert send(server, "/health", method="GET", Host=host)[0] == status


def test_a_host_that_was_asked_for_takes_any_name() -> None:
    with serve(tiny_policy(), name="tiny", host="0.0.0.0") as server:
        assert send(server, Host="judge.lab", Authorization=f"Bearer {server.api_key}")[0] == 200
        assert send(server, Host="judge.lab")[0] == 401


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers on all of 127.0.0.0/8")
def test_only_the_loopback_listens(server: Server) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


def test_keys_are_random_and_long() -> None:
    with serve(tiny_policy()) as a, serve(tiny_policy()) as b:
        assert a.api_key != b.api_key
        assert len(a.api_key) >= 32


@pytest.mark.parametrize("key", ["", " x", "a\nb", "schlüssel", "\x7f"])
def test_a_key_that_no_header_carries_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(ServeError, match="api_key"):
        serve(tiny_policy(), api_key=key)


@pytest.mark.parametrize("path", [
    "/../../etc/passwd", "/v1/../../../etc/passwd", "/v1/models/../../etc/passwd", "//etc/passwd", "/v1", "/",
    "/%2e%2e/%2e%2e/etc/passwd", "/v1/models/%2fetc%2fpasswd"])
def test_paths_lead_nowhere_else(server: Server, path: str) -> None:
    status, body = send(server, path, method="GET", **RIGHT)
    assert status == 404
    assert "root:" not in body
    assert json.loads(body)["error"]["message"]


def test_a_wrong_method_is_said(server: Server) -> None:
    assert send(server, method="GET", **RIGHT)[0] == 405
    assert send(server, "/v1/models", method="DELETE", **RIGHT)[0] == 405


# how much -----------------------------------------------------------------------------------------
def test_100_megabytes_are_413_however_they_are_sent() -> None:
    chunk = b" " * 2**20
    with serve(tiny_policy(), name="tiny", api_key=KEY, body_bytes=100_000) as server:
        assert send(server, body=chunk * 100, **RIGHT)[0] == 413
        assert send(server, body=iter([chunk] * 100), **RIGHT)[0] == 413, "in chunks, without a length"
        assert send(server, body=b" " * 100_001, **RIGHT)[0] == 413
        assert send(server, body=json.dumps(ASK).encode().rjust(100_000), **RIGHT)[0] == 200


def test_a_slow_body_is_408_and_holds_nobody_up(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
                     b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n{")
        assert send(server, **RIGHT)[0] == 200
        assert b" 408 " in slow.recv(4096).split(b"\r\n")[0]


def test_the_key_is_nowhere(server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """FAULTS I08: not in logs, errors, replies, the server's own words or a failure inside."""
    told = [repr(server), str(server), server.url]
    with caplog.at_level(logging.DEBUG):
        for fields in ({}, {"n": 0}, {"x": KEY[:5]}, {"model": "other"}, {"messages": 3}):
            told.append(send(server, body=json.dumps(ASK | fields), **RIGHT)[1])
        told += [send(server, body=b"{", **RIGHT)[1], send(server, Authorization="Bearer no")[1]]
        told += [send(server, Host="evil", **RIGHT)[1], send(server, "/v1/nothing", **RIGHT)[1]]
        with monkeypatch.context() as patch:
            patch.setattr(server.backend, "answer", None)
            status, body = send(server, **RIGHT)
        assert (status, json.loads(body)["error"]["type"]) == (500, "server_error")
    try:
        serve(tiny_policy(), port=server.port, api_key=KEY)
    except ServeError as error:
        told.append(str(error))
    assert KEY not in "\n".join([*told, caplog.text])
    assert "a request failed" in caplog.text, "a failure of our own is logged"


# begin and end ------------------------------------------------------------------------------------
def test_a_port_of_ours_is_said_to_be_ours(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS I03: a proxy in the environment changes nothing on the loopback."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(ServeError, match=rf"rlteach server with the model tiny \(process {os.getpid()}\)"):
        serve(tiny_policy(), port=server.port)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc to see who listens")
def test_a_port_of_somebody_else_s_names_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:  # never answers
        port = other.getsockname()[1]
        with pytest.raises(ServeError, match=rf"port {port} is taken by \S+ \(process {os.getpid()}\)"):
            serve(tiny_policy(), port=port)
    assert holder("127.0.0.1", port) == "another process", "nobody is there: nothing is made up"


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70_000),
                                            ("198.51.100.7", 0), ("127.0.0.1", -1)])
def test_an_address_that_is_none_is_a_sentence(host: str, port: int) -> None:
    with pytest.raises(ServeError, match=re.escape(host)):
        serve(tiny_policy(), port=port, host=host)


def test_close_frees_the_port_and_says_so() -> None:
    server = serve(tiny_policy(), name="tiny")
    server.close()
    server.close()
    assert "closed" in repr(server)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    with serve(tiny_policy(), port=server.port) as again:
        assert again.port == server.port
    assert not server._app.alive
    assert not server.backend.engine._worker.is_alive()


def test_a_request_under_way_gets_503_when_the_server_stops() -> None:
    server = serve(tiny_policy(), name="tiny")
    statuses: list[int] = []

    def ask() -> None:
        with openai.OpenAI(base_url=server.url, api_key=server.api_key, max_retries=0) as client:
            try:
                client.chat.completions.create(**ASK | {"max_tokens": 200, "n": 100})
            except openai.APIStatusError as error:
                statuses.append(error.status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    until = time.monotonic() + 60
    while not server.backend.load["running"] and time.monotonic() < until:
        time.sleep(0.005)
    server.close()
    thread.join(60)
    assert statuses == [503]


def test_names_and_models(tmp_path: Path) -> None:
    """A folder is served under its own name, not under where it lies; a run with its own config."""
    tiny_policy().save(tmp_path / "judge")
    assert served_name(str(tmp_path / "judge")) == "judge"
    assert served_name("tiny-math") == "tiny-math"
    assert load_policy(str(tmp_path / "judge")).config.stop_tokens == ("<|im_end|>",)
    with pytest.raises(ModelError, match="no model 'tiny-nonsense'"):
        serve("tiny-nonsense")
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    tiny_policy().save(run / "checkpoints" / "best")
    (run / "config.json").write_text(Config(system_prompt="Be brief.").model_dump_json(), encoding="utf-8")
    assert load_policy(str(run)).config.system_prompt == "Be brief."


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", COMMAND, "serve", *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=os.environ | environment)


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM is POSIX's")
def test_the_command_serves_until_sigterm_and_keeps_a_given_key_to_itself() -> None:
    with start("tiny-math", "--port", "0", RLTEACH_API_KEY=KEY) as process:
        url = re.search(r"http\S+", process.stdout.readline())[0]
        with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            reply = client.chat.completions.create(**ASK | {"model": "tiny-math"})
            assert reply.usage.completion_tokens <= 4
            with pytest.raises(ServeError, match=rf"model tiny-math \(process {process.pid}\)"):
                serve(tiny_policy(), port=int(url.split(":")[2].split("/")[0]))
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.endswith("stopped\n")
    assert err == ""
    assert KEY not in out


def test_the_command_on_a_busy_port_is_one_sentence_and_exit_code_2(server: Server) -> None:
    with start("tiny-math", "--port", str(server.port)) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"rlteach: port {server.port} is taken by an rlteach server with the model tiny ")


@pytest.mark.gate
def test_a_process_that_served_ends_by_itself() -> None:
    """As a notebook's kernel does: no thread of ours keeps it alive, and nothing is printed."""
    code = ("from rlteach.policy.decode import RowParams; from rlteach.serving import serve\n"
            "server = serve('tiny-math'); server.backend.engine.submit([5], RowParams(400), 0, 50)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
