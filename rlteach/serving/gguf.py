"""Any GGUF file behind the same endpoints, answered by llama.cpp (the extra `rlteach[judger]`).

For judgers: llama.cpp is quick on a CPU, but its quantised numbers are not those of a policy, and it
gives no token ids. Everything the request says goes through the same checks (wire.py); every number of
the sampling distribution is written out, because llama.cpp's own defaults are not neutral.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlteach.serving.ports import ServeError
from rlteach.serving.wire import ChatRequest, WireError

SLOTS = 4  # answers at the same time


class GgufBackend:
    """llama.cpp in this process. Its own HTTP port is on the loopback, behind a key nobody is told."""

    def __init__(self, file: str, model: str) -> None:
        try:
            import xllamacpp
        except ImportError:
            raise ServeError(f"{file} needs llama.cpp: pip install rlteach[judger]") from None
        if not Path(file).is_file():
            raise ServeError(f"there is no file {file}")
        self.model, self._key = model, secrets.token_urlsafe(24)
        params = xllamacpp.CommonParams()
        params.model.path, params.verbosity, params.ui = file, -1, False
        params.api_keys, params.hostnames = [self._key], ["127.0.0.1"]
        params.n_parallel, params.kv_unified, params.use_jinja = SLOTS, True, True
        if threads := int(os.environ.get("OMP_NUM_THREADS") or 0):
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        try:
            self._server: Any = xllamacpp.Server(params)
        except Exception as error:  # whatever the library raises for a file that is no model
            raise ServeError(f"{file} cannot be loaded ({error}): is it a whole GGUF file?") from None
        self._threads = ThreadPoolExecutor(64, thread_name_prefix="rlteach-gguf")

    @property
    def facts(self) -> dict[str, Any]:
        return {}

    @property
    def load(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._server = None  # its destructor stops llama.cpp's threads

    async def answer(self, request: ChatRequest) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._whole, request)

    def _whole(self, request: ChatRequest) -> dict[str, Any]:
        return self._named(self._ask(self._wire(request)))

    async def start(self, request: ChatRequest) -> AsyncIterator[dict[str, Any]]:
        """The chunks; the first one is awaited here, so that a refusal is a status and no event."""
        loop, queue, gone = asyncio.get_running_loop(), asyncio.Queue[Any](), []

        def take(chunk: dict[str, Any]) -> bool:
            loop.call_soon_threadsafe(queue.put_nowait, chunk)
            return bool(gone)  # True ends the answer

        def work() -> None:
            try:
                end = self._ask(self._wire(request) | {"stream": True}, take)
            except Exception as error:
                end = error
            loop.call_soon_threadsafe(queue.put_nowait, end)

        async def chunks(chunk: Any) -> AsyncIterator[dict[str, Any]]:
            try:
                while chunk is not None:
                    yield self._named(_checked(chunk))
                    chunk = await queue.get()
            finally:
                gone.append(True)

        loop.run_in_executor(self._threads, work)
        return chunks(_checked(await queue.get()))

    def _ask(self, body: dict[str, Any], take: Any = None) -> Any:
        try:
            return _checked(self._server.handle_chat_completions(body, *([take] if take else [])))
        except ValueError as error:
            if isinstance(error, WireError):
                raise
            raise WireError(f"llama.cpp refuses the request ({error})") from None

    def _named(self, reply: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in reply.items() if name != "timings"} | {"model": self.model}

    def _wire(self, request: ChatRequest) -> dict[str, Any]:
        """The request in llama.cpp's words."""
        if request.return_token_ids:
            raise WireError("return_token_ids: llama.cpp gives no token ids here", "return_token_ids",
                            code="unsupported_parameter")
        body = request.model_dump(exclude_none=True, by_alias=True, exclude={
            "return_token_ids", "max_completion_tokens", "top_logprobs", "tools", "tool_choice"})
        for i, message in enumerate(body["messages"]):
            message["role"] = "system" if message["role"] == "developer" else message["role"]
            self._refuse_control_tokens(f"messages.{i}", message)
        if request.offered:
            self._refuse_control_tokens("tools", request.offered)
            body |= {"tools": request.offered, "tool_choice": "auto"}
        if request.longest:
            body["max_tokens"] = request.longest
        if request.logprobs:
            body["top_logprobs"] = request.top_logprobs or 0
        neutral = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "typical_p": 1.0}
        seed = secrets.randbits(31) if request.seed is None else request.seed % 2**32
        return neutral | body | {"top_k": max(request.top_k or 0, 0), "seed": seed, "cache_prompt": True}

    def _refuse_control_tokens(self, where: str, value: Any) -> None:
        """llama.cpp reads the whole prompt as control tokens and text alike, so typed ones are refused."""
        text = json.dumps(value, ensure_ascii=False)
        if self._tokenize(text, True) != self._tokenize(text, False):
            raise WireError(f"{where} holds a control token of this model: take it out", where)

    def _tokenize(self, text: str, special: bool) -> list[int]:
        ask = urllib.request.Request(
            f"{self._server.listening_address}/tokenize", method="POST",
            data=json.dumps({"content": text, "parse_special": special, "add_special": False}).encode(),
            headers={"authorization": f"Bearer {self._key}", "content-type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the loopback needs no proxy
        with opener.open(ask, timeout=30) as reply:
            return json.load(reply)["tokens"]


def _checked(reply: Any) -> Any:
    """The reply (None: the end of a stream), or the error in it, raised."""
    if isinstance(reply, Exception):
        raise reply
    error = (reply or {}).get("error")
    if error and error.get("code", 500) < 500:
        code = "context_length_exceeded" if "context" in error.get("type", "") else None
        raise WireError(f"llama.cpp refuses the request ({error['message']})", code=code)
    if error:
        raise RuntimeError(f"llama.cpp failed: {error.get('message')}")
    return reply
