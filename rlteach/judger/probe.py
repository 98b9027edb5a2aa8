"""Is the judge there, what can it do, and does it know right from wrong? Asked before it may reward."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from rlteach.judger.candidates import LONGEST, harmless, has_content, is_gold
from rlteach.judger.failures import UNAVAILABLE, RequestError, Try
from rlteach.judger.hosts import Host, JudgeError
from rlteach.judger.known_pairs import Pair, known_pairs
from rlteach.judger.llm_client import JudgeClient, Outcome

HARD_LIMIT = 8.0  # seconds until a host that says nothing at all is given up
_PAIR = ("What is 1 + 1?", ("2",), "2")


@dataclass(frozen=True)
class Capabilities:
    """What one host can do; `json_schema` False means that its replies are read as prose."""

    url: str
    model: str
    served: tuple[str, ...]
    json_schema: bool
    logprobs: bool


@dataclass(frozen=True)
class SelfTest:
    """How a judge did on the known pairs; blocked ones never reached it."""

    known: int
    right: int
    wrong: int
    blocked: int
    accepted: int
    no_verdict: int
    seconds: float


async def alive(client: JudgeClient) -> str | None:
    """None when a host answers at all and takes the key; else each host's cause."""
    causes = []
    for found in asyncio.as_completed([_said(client, host) for host in client.hosts]):
        cause = await found
        if cause is None:
            client.forget_outage()
            return None
        causes.append(cause)
    return "; ".join(causes)


async def _said(client: JudgeClient, host: Host) -> str | None:
    try:
        await client.models(host, min(5.0, client.limits.timeout))
    except RequestError as failed:
        return None if _lists_none(failed.tried) else failed.tried.reason
    return None


def _lists_none(tried: Try) -> bool:
    """A server without a list of models is alive, and so is one whose list has another form."""
    return "HTTP 404" in tried.reason or "list of models" in tried.reason


async def probe(client: JudgeClient) -> list[Capabilities]:
    """Each host: its models, one question by schema (else in prose), one with logprobs."""
    return list(await asyncio.gather(*(_probe(client, host) for host in client.hosts)))


async def _probe(client: JudgeClient, host: Host) -> Capabilities:
    served = await _served(client, host)
    try:
        model = await client.know_model(host, HARD_LIMIT)
    except RequestError as failed:
        raise JudgeError(f"the judge cannot be used: {failed.tried.reason}") from None
    host.json_schema = None
    tried = await _try(client, host, repair=False)
    if tried.kind == "bad":  # its schema may be dropped: the second time it is asked for prose
        tried = await _try(client, host, repair=True)
    if tried.kind != "verdict":
        listed = f"; it serves {', '.join(served)}" if served else ""
        kind = "gives no verdict" if tried.kind == "bad" else "cannot be used"
        raise JudgeError(f"the judge {kind}: {tried.reason}{listed}")
    host.logprobs = await _has_logprobs(client, host)
    return Capabilities(host.url, model, tuple(served), bool(host.json_schema), host.logprobs)


async def _served(client: JudgeClient, host: Host) -> list[str]:
    """The models that the host lists; none when it has no list. A host that is not there is an error."""
    until = time.monotonic() + min(HARD_LIMIT, client.limits.timeout)
    while True:
        try:
            return await client.models(host, max(0.1, until - time.monotonic()))
        except RequestError as failed:
            tried = failed.tried
        if _lists_none(tried):
            return []
        refused = any(word in tried.reason for word in ("Refused", "refused", "gaierror"))
        pause = max(0.2, tried.wait)
        if tried.kind != "again" or refused or time.monotonic() + pause >= until:
            raise JudgeError(f"the judge cannot be reached: {tried.reason}")
        await asyncio.sleep(pause)


async def _try(client: JudgeClient, host: Host, *, repair: bool) -> Try:
    """One question to this host; a transient failure is tried again, three times in all."""
    limit, tried = client.limits.attempt_timeout, Try("again")
    for attempt in range(6):
        tried = await client.attempt(host, *_PAIR, repair=repair, limit=limit)
        if tried.kind not in ("again", "adapted") or (tried.kind == "again" and attempt >= 2):
            break
        if tried.kind == "again":
            await asyncio.sleep(min(1.0, client.limits.backoff[0] * 2 ** attempt))
    return tried


async def _has_logprobs(client: JudgeClient, host: Host) -> bool:
    messages = client.rubric.messages(*_PAIR, schema=False)
    try:
        body = await client.send(host, messages, limit=client.limits.attempt_timeout, logprobs=True)
        return bool(json.loads(body)["choices"][0].get("logprobs"))
    except (RequestError, ValueError, LookupError, TypeError, AttributeError):
        return False  # refused, or a reply of another form: it has none that could be used


async def self_test(client: JudgeClient, least_known: float) -> SelfTest:
    """Asks for every known pair, past the cache; what is blocked before the judge counts as rejected."""
    began, pairs = time.monotonic(), known_pairs(client.rubric.language)
    asked = [p for p in pairs if has_content(p.candidate) or is_gold(p.candidate, p.gold)]
    said = dict(zip(asked, await asyncio.gather(*(_ask(client, p) for p in asked)), strict=True))
    for outcome in said.values():
        if outcome.correct is None and outcome.reason.startswith(UNAVAILABLE):
            raise JudgeError(f"the self-test of the judge did not end: {outcome.reason}")
    accepted = [p for p, outcome in said.items() if outcome.correct and not p.correct]
    right = [p for p in pairs if p.correct]
    known = sum(said[p].correct is True for p in right)
    name = f"the judge {client.model!r} at {', '.join(host.url for host in client.hosts)}"
    if accepted:
        raise JudgeError(f"{name} accepts wrong answers ({len(accepted)} of {len(pairs) - len(right)}), so "
                         f"it must not give rewards: to {accepted[0].question!r} it accepted "
                         f"{accepted[0].candidate!r}; choose another model")
    if known < least_known * len(right):
        raise JudgeError(f"{name} knows only {known} of {len(right)} right answers (at least "
                         f"{least_known:.0%} are needed): choose another model")
    return SelfTest(known, len(right), len(pairs) - len(right), len(pairs) - len(asked), 0,
                    sum(outcome.correct is None for outcome in said.values()), time.monotonic() - began)


async def _ask(client: JudgeClient, pair: Pair) -> Outcome:
    sent = [harmless(text, LONGEST["final"]) for text in (pair.question, pair.candidate)]
    return await client.ask(sent[0], pair.gold, sent[1])
