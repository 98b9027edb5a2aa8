"""What tests of plug-ins need: conversations written by hand, and a model that follows a script.

In the cloud: `rlteach.agent` becomes the SDK's module of the same names; nothing else changes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from rlteach.agent import ChatCompletionSample, Trajectory

Message = dict[str, Any]


def sample(question: str, answer: str | list[str] | None, **extra: Any) -> ChatCompletionSample:
    """A question as a grader sees it; answer None: a data line that forgot its answer."""
    known = extra if answer is None else {"answer": answer, **extra}
    return ChatCompletionSample(messages=[{"role": "user", "content": question}], extra=known)


def call(name: str, arguments: Mapping[str, Any] | str, call_id: str = "call_0") -> Message:
    """An assistant's message that calls a tool; arguments as a text are sent as they are."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    made = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def reply(content: str, call_id: str = "call_0") -> Message:
    """A tool's message."""
    return {"role": "tool", "content": content, "tool_call_id": call_id}


def said(content: str) -> Message:
    """An assistant's message without calls."""
    return {"role": "assistant", "content": content}


def trajectory(*messages: Message, finish_reason: str = "stop", **extra: Any) -> Trajectory:
    """A rollout as a grader sees it; `extra` is what the rollout handed on."""
    return Trajectory(messages=list(messages), finish_reason=finish_reason, usage={}, extra=extra or None)


class ScriptedModel:
    """An OpenAI-compatible server on this machine whose answers `script(messages)` writes.

        with ScriptedModel(lambda messages: said("The answer is 4.")) as model:
            test_with_dataset("data/dev.jsonl", rollout, url=model.url)
    """

    def __init__(self, script: Callable[[Sequence[Message]], Message]) -> None:
        self.script, self.requests = script, []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def _handler(model) -> type[BaseHTTPRequestHandler]:  # noqa: N805  (`self` is the request's)
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.requests.append(body)
                raw = json.dumps(model.completion(body), ensure_ascii=False).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        return Handler

    def completion(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the answer to one request."""
        message = self.script(body["messages"])
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return {"id": f"chatcmpl-{len(self.requests)}", "object": "chat.completion", "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
