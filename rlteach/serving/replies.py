"""The bodies that go back: chat.completion, and chat.completion.chunk for streams.

token_ids, logprobs.content and usage.completion_tokens count the same tokens, the stop token
included; prompt_token_ids and token_ids are vLLM's names.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from rlteach import __version__
from rlteach.policy.decode import Row
from rlteach.policy.grammar import Vocabulary
from rlteach.serving.tool_calls import split_calls


def head(kind: str, model: str, version: int) -> dict[str, Any]:
    """id, object, created, model; system_fingerprint changes with the weights' version."""
    return {"id": f"chatcmpl-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": model,
            "system_fingerprint": f"rlteach-{__version__}-v{version}"}


def usage(rows: Sequence[Row]) -> dict[str, int]:
    prompt, completion = len(rows[0].prompt), sum(len(row.ids) for row in rows)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def token_logprobs(row: Row, vocabulary: Vocabulary, first: int = 0, last: int | None = None
                   ) -> dict[str, Any]:
    """logprobs.content of tokens first..last of a row; `id` is the token's id."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        spelt = vocabulary.token_bytes(token)
        return {"token": spelt.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(spelt),
                "id": token}

    last = len(row.ids) if last is None else last
    content = []
    for at in range(first, last):
        alternatives = row.top[at] if row.params.top_logprobs else []
        content.append(entry(row.ids[at], row.logprobs[at])
                       | {"top_logprobs": [entry(t, value) for t, value in alternatives]})
    return {"content": content, "refusal": None}


def choice(index: int, row: Row, *, vocabulary: Vocabulary | None, tools: bool, ids: bool) -> dict[str, Any]:
    """One element of `choices`. vocabulary None: without logprobs."""
    content, calls = split_calls(row.text or "") if tools else (row.text, [])
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    body = {"index": index, "message": message, "finish_reason": "tool_calls" if calls else row.finish,
            "logprobs": None if vocabulary is None else token_logprobs(row, vocabulary)}
    return body | ({"token_ids": row.ids} if ids else {})


def chunk_choice(index: int, delta: dict[str, Any], *, finish: str | None = None,
                 logprobs: dict[str, Any] | None = None, ids: list[int] | None = None) -> dict[str, Any]:
    body = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
    return body | ({} if ids is None else {"token_ids": ids})
