"""What a judge server may send: the right reply, and every way in which one was seen to go wrong.

The names are the fault catalogue of a fake judge (RELIABILITY.md section 4); each builds the answer
to one request. What happens to the connection itself is in fake_judge.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from rlteach.judger.verdicts import VERDICTS

# what happens to the connection
TRANSPORT = ("refuse", "reset", "reset_body", "silent", "late", "drip", "duplicate", "swapped")


@dataclass(frozen=True)
class Asked:
    """One judge request, taken apart."""

    question: str
    gold: tuple[str, ...]
    candidate: str
    language: str
    schema: bool
    verdict: bool  # what the oracle says

    @classmethod
    def read(cls, body: Mapping[str, Any], oracle: Callable[[str, tuple[str, ...], str], bool]) -> Asked:
        """Raises ValueError, KeyError or TypeError for another kind of request."""
        system, user = body["messages"][0]["content"], json.loads(body["messages"][-1]["content"])
        question, gold, candidate = user["question"], tuple(user["gold"]), user["candidate"]
        return cls(question, gold, candidate, "zh" if "正确" in system else "en",
                   body.get("response_format") is not None, bool(oracle(question, gold, candidate)))

    def label(self, verdict: bool | None = None) -> str:
        right, wrong = VERDICTS[self.language]
        return right if (self.verdict if verdict is None else verdict) else wrong


def exact(question: str, gold: tuple[str, ...], candidate: str) -> bool:
    """The oracle unless you give one: the candidate is an accepted answer, letter for letter."""
    return candidate.strip() in [g.strip() for g in gold]


def verdict_text(asked: Asked, verdict: bool | None = None) -> str:
    """The reply that was asked for: JSON under a schema, else prose with a last line."""
    rationale = f"compared with {len(asked.gold)} accepted answers"
    label = asked.label(verdict)
    if not asked.schema:
        return f"{rationale}.\n{label}"
    return json.dumps({"rationale": rationale, "judgement": label}, ensure_ascii=False)


def completion(content: str | None, model: str, *, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """A body of /chat/completions with one choice."""
    return {"id": "chatcmpl-fake", "object": "chat.completion", "created": int(time.time()), "model": model,
            "choices": [{"index": 0, "finish_reason": finish, "logprobs": None,
                         "message": {"role": "assistant", "content": content, **message}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


Answer = tuple[int, dict[str, str], bytes]  # HTTP status, headers, body


def as_json(status: int, body: object, **headers: str) -> Answer:
    return status, {"Content-Type": "application/json", **headers}, json.dumps(
        body, ensure_ascii=False).encode()


def refusal(status: int, text: str, **headers: str) -> Answer:
    return as_json(status, {"error": {"message": text, "type": "fake", "code": status}}, **headers)


def _http(asked: Asked, model: str, pace: float) -> dict[str, Callable[[], Answer]]:
    page = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
    return {
        "busy": lambda: refusal(429, "too many requests", **{"Retry-After": f"{pace:g}"}),
        "busy_long": lambda: refusal(429, "quota used up", **{"Retry-After": "600"}),
        "busy_date": lambda: refusal(429, "too many requests", **{
            "Retry-After": formatdate(time.time() + 600, usegmt=True)}),
        "error_500": lambda: refusal(500, "internal error"),
        "html_502": lambda: (502, {"Content-Type": "text/html"}, page),
        "unready_503": lambda: refusal(503, "the model is loading"),
        "denied_401": lambda: refusal(401, "Incorrect API key provided"),
        "no_model_404": lambda: refusal(404, f"The model `{model}` does not exist"),
        "too_long_400": lambda: refusal(400, "this model's maximum context length is 512 tokens"),
    }


def _bodies(asked: Asked, model: str) -> dict[str, Callable[[], Any]]:
    """A dict is sent as JSON, bytes as they are, a text as the content of a good completion."""
    good, right, wrong = verdict_text(asked), asked.label(True), asked.label(False)
    whole = json.dumps(completion(good, model)).encode()
    field = lambda verdict: json.dumps(  # noqa: E731
        {"rationale": "seen", "judgement": verdict}, ensure_ascii=False)
    return {
        "not_json": lambda: b"upstream connect error or disconnect",
        "cut_json": lambda: whole[: len(whole) * 2 // 3],
        "no_choices": lambda: {**completion(good, model), "choices": []},
        "choices_missing": lambda: {"id": "chatcmpl-fake", "object": "chat.completion"},
        "null_content": lambda: completion(None, model),
        "empty_content": lambda: completion("", model),
        "only_reasoning": lambda: completion(None, model, reasoning_content=f"it is {asked.label()}"),
        "open_thinking": lambda: completion(f"<think>it is {asked.label()}\n{good}", model),
        "refused": lambda: completion(None, model, refusal="I cannot judge this."),
        "tool_call": lambda: completion(None, model, finish="tool_calls", tool_calls=[
            {"id": "c", "type": "function", "function": {"name": "judge", "arguments": "{}"}}]),
        "length": lambda: completion(good[:-8], model, finish="length"),
        "content_filter": lambda: completion(good, model, finish="content_filter"),
        "prose": lambda: f"I looked at it. The candidate seems {right} to me, but see above.",
        "both_labels": lambda: f"It could be {right} or {wrong}.\n{right} / {wrong}",
        "other_language": lambda: field("richtig"),
        "other_case": lambda: field(asked.label().upper() + " "),
        "negated": lambda: field(f"not {right}" if asked.language == "en" else f"不{right}"),
        "no_field": lambda: json.dumps({"rationale": f"it is {asked.label()}"}, ensure_ascii=False),
        "cut_verdict": lambda: f'{{"rationale": "equal", "judgement": "{right[:1]}',
        "echo": lambda: asked.candidate,
    }


def broken(fault: str, asked: Asked, model: str, pace: float) -> Answer:
    """The answer that a fault of HTTP or of the body makes of a request."""
    if (http := _http(asked, model, pace)).get(fault):
        return http[fault]()
    made = _bodies(asked, model)[fault]()
    if isinstance(made, bytes):
        return 200, {"Content-Type": "application/json"}, made
    return as_json(200, completion(made, model) if isinstance(made, str) else made)


_SOME = Asked("", (), "", "en", True, False)
HTTP, BODY = tuple(_http(_SOME, "", 1.0)), tuple(_bodies(_SOME, ""))
FAULTS = (*TRANSPORT, *HTTP, *BODY)
