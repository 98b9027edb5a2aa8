"""One question to a judge, until there is a verdict or a named reason why there is none.

Transient failures (connection, time, 408, 409, 425, 429, 5xx) are tried again with full jitter and
Retry-After within one deadline. A reply that is no verdict would be the same again at temperature 0:
it is asked for once more with a repair prompt, never more. 400, 401, 403, 404 are never repeated.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlteach.judger.failures import NO_VERDICT, UNAVAILABLE, RequestError, Try, clean, failure, time_limit
from rlteach.judger.hosts import Host, Secret, pick
from rlteach.judger.limits import Clock, Counts, Limits
from rlteach.judger.verdicts import NoVerdictError, Rubric, read_verdict, reply_text

DOWN_SECONDS = 5.0  # so long after a given-up answer the next ones are not even tried
REQUEST_ID = "X-Client-Request-Id"


@dataclass(frozen=True)
class Outcome:
    """What came of one question; `correct` is None without a verdict, and `reason` says why."""

    correct: bool | None
    reason: str
    raw: str | None = None
    attempts: int = 0
    seconds: float = 0.0
    url: str = ""


class JudgeClient:
    """All requests of one judger; lives in one event loop, so its limits hold for all who ask."""

    def __init__(self, hosts: Sequence[Host], rubric: Rubric, limits: Limits, key: Secret) -> None:
        self.hosts, self.rubric, self.limits, self.key = list(hosts), rubric, limits, key
        self.model: str | None = None
        self.counts = Counts()
        self._slots = asyncio.Semaphore(limits.in_flight)
        self._next_turn = 0.0
        self._last_reply = float("-inf")
        self._down_until, self._down_cause = float("-inf"), ""

    async def ask(self, question: str, gold: Sequence[str], candidate: str) -> Outcome:
        """One verdict, with retries; never raises for what a server does.

        It holds one of `in_flight` places until it is done, waits included: a judge in trouble gets
        fewer requests, and the deadline does not run while a question stands in the queue.
        """
        async with self._slots:
            if time.monotonic() < self._down_until:
                return Outcome(None, UNAVAILABLE + self._down_cause, url=self.hosts[0].url)
            await self._turn()
            clock = Clock(self.limits.timeout)
            prefix, tried = await self._tries(clock, question, gold, candidate)
            self.counts.seconds.append(clock.passed())
        return Outcome(tried.correct, prefix + tried.reason, tried.raw, clock.attempts, clock.passed(),
                       clock.url)

    async def _tries(self, clock: Clock, *asked: Any) -> tuple[str, Try]:
        """Attempts until one of them is the last: (prefix of the reason, that attempt)."""
        repair = False
        while True:
            host = pick(self.hosts, time.monotonic())
            clock.url, clock.attempts = host.url, clock.attempts + 1
            limit = max(0.01, min(clock.left(), self.limits.attempt_timeout))
            tried = await self.attempt(host, *asked, repair=repair, limit=limit)
            if tried.kind == "verdict":
                return "", tried
            if tried.kind in ("closed", "refused"):
                return UNAVAILABLE if tried.kind == "closed" else NO_VERDICT, tried
            if tried.kind == "bad":
                if repair or clock.attempts > self.limits.retries or clock.left() <= 0:
                    return NO_VERDICT, tried
                repair = True
                self.counts.repairs += 1
            if tried.kind == "again" and not await self._pause(tried, clock):
                return UNAVAILABLE, tried
            clock.began += await self._turn()  # our own rate limit is not the judge's delay

    async def _pause(self, tried: Try, clock: Clock) -> bool:
        """Wait before the next attempt; False when there will be none."""
        first, longest = self.limits.backoff
        wait = random.uniform(0, min(longest, first * 2 ** min(clock.attempts - 1, 16)))
        if not any(host.rests_until <= time.monotonic() for host in self.hosts):
            wait += tried.wait  # else another host answers meanwhile
        if clock.attempts > self.limits.retries or wait >= clock.left():
            if self._last_reply < clock.began and not tried.wait:  # nobody got an answer all this time
                self._down_until, self._down_cause = time.monotonic() + DOWN_SECONDS, tried.reason
            return False
        self.counts.retries += 1
        await asyncio.sleep(wait)
        return True

    async def _turn(self) -> float:
        """Requests start at most `rate` times a second; the seconds that were waited."""
        if self.limits.rate is None:
            return 0.0
        now = time.monotonic()
        mine = max(now, self._next_turn)
        self._next_turn = mine + 1 / self.limits.rate
        await asyncio.sleep(mine - now)
        return mine - now

    async def attempt(self, host: Host, question: str, gold: Sequence[str], candidate: str, *,
                      repair: bool = False, limit: float) -> Try:
        """One request to one host, within `limit` seconds."""
        schema = host.json_schema is not False
        messages = self.rubric.messages(question, gold, candidate, schema=schema, repair=repair)
        extra = {"response_format": self.rubric.response_format} if schema else {}
        try:
            body = await self.send(host, messages, limit=limit, **extra)
        except RequestError as failed:
            return failed.tried
        try:
            text = reply_text(body)
        except NoVerdictError as error:
            return Try("bad", f"{host.url}: {error}", raw=clean(self.key.hide_in(body), 2000))
        raw = clean(self.key.hide_in(text), 2000)
        try:
            correct, rationale = read_verdict(text, self.rubric.language, candidate, schema=schema)
        except NoVerdictError as error:
            if schema and host.json_schema is None and not text.startswith(("{", "```")):
                host.json_schema = False  # it never kept to a schema, and now answers in prose
            return Try("bad", f"{host.url}: {error}", raw=raw)
        if schema:
            host.json_schema = True
        return Try("verdict", clean(self.key.hide_in(rationale), 500), correct, raw)

    async def send(self, host: Host, messages: list[dict[str, str]], *, limit: float, **extra: Any) -> str:
        """The body of one reply of /chat/completions.

        Raises:
            RequestError: there is none; says what to do about it.
        """
        model = await self.know_model(host, limit)
        request, self.counts.calls = uuid.uuid4().hex, self.counts.calls + 1
        fields: dict[str, Any] = {"model": model, "messages": messages,
                                  host.token_field: self.limits.max_tokens, **extra}
        if host.temperature:
            fields["temperature"] = 0
        host.in_flight += 1
        try:
            async with asyncio.timeout(limit):
                reply = await host.client.chat.completions.with_raw_response.create(
                    **fields, timeout=time_limit(limit), extra_headers={REQUEST_ID: request})
            body, echoed = reply.http_response.text, reply.headers.get(REQUEST_ID)
        except Exception as error:
            tried = failure(host, error, limit, self.key, self.model, fields)
            if tried.kind in ("again", "closed"):
                host.failed(time.monotonic(), tried.wait)
            raise RequestError(tried) from None
        finally:
            host.in_flight -= 1
        if echoed is not None and echoed != request:
            with suppress(KeyError):  # every later reply of this connection would be one behind as well
                await reply.http_response.extensions["network_stream"].aclose()
            raise RequestError(Try("again", f"{host.url}: the reply belongs to another request"))
        host.answered()
        self._last_reply, self._down_until = time.monotonic(), float("-inf")
        return body

    async def models(self, host: Host, limit: float) -> list[str]:
        """The names that a host lists, or RequestError."""
        try:
            async with asyncio.timeout(limit):
                reply = await host.client.models.with_raw_response.list(timeout=time_limit(limit))
            listed = json.loads(reply.http_response.text)["data"]
            return [entry["id"] for entry in listed if isinstance(entry["id"], str)]
        except (ValueError, TypeError, KeyError):
            raise RequestError(Try("again", f"{host.url}: its list of models cannot be read")) from None
        except Exception as error:
            tried = failure(host, error, limit, self.key, self.model)
            host.failed(time.monotonic(), tried.wait)
            raise RequestError(tried) from None

    async def know_model(self, host: Host, limit: float) -> str:
        """The model's name: the one given, or the first that the first host lists."""
        if self.model is None:
            names = await self.models(host, limit)
            if not names:
                raise RequestError(Try("closed", f"{host.url}: it serves no model"))
            self.model = self.model or names[0]
        return self.model

    async def find_model(self) -> None:
        """Ask the hosts for the model's name; when nobody answers, the questions themselves will say so."""
        for host in self.hosts:
            if self.model is None:
                with suppress(RequestError):
                    await self.know_model(host, min(5.0, self.limits.timeout))

    def forget_outage(self) -> None:
        """The judge is back: the next question is asked at once."""
        self._down_until = float("-inf")
        for host in self.hosts:
            host.answered()
