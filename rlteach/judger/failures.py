"""What a failed request to a judge means: try again, put it another way, or say why there is no verdict.

Nothing here is ever a score. Two prefixes tell an outage (`judge unavailable: `; wait and ask again)
from an answer that got no verdict (`no verdict: `; asking again would not help).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from rlteach.judger.hosts import Host, Secret

UNAVAILABLE = "judge unavailable: "
NO_VERDICT = "no verdict: "


@dataclass(frozen=True)
class Try:
    """One request: what it came to, and how long the server asks to be left alone."""

    kind: Literal["verdict", "bad", "again", "adapted", "closed", "refused"]
    reason: str = ""
    correct: bool | None = None
    raw: str | None = None
    wait: float = 0.0


class RequestError(Exception):
    """A request without a usable reply."""

    def __init__(self, tried: Try) -> None:
        super().__init__(tried.reason)
        self.tried = tried


def time_limit(limit: float) -> Any:
    """For the HTTP client: a connection that is not there within 5 s will not come."""
    import openai

    return openai.Timeout(limit, connect=min(5.0, limit))


def _hint(code: int, model: str | None) -> str:
    return {401: ", the key is not accepted: set api_key or RLTEACH_JUDGE_KEY",
            403: ", the key is not allowed to do this: set api_key or RLTEACH_JUDGE_KEY",
            404: f", no model {model!r} there or a wrong path: set the judge's model and URL"}.get(code, "")


def root_cause(error: BaseException) -> str:
    """The first exception of a chain, in words: 'ConnectError: All connection attempts failed'."""
    seen: list[BaseException] = [error]
    while (below := seen[-1].__cause__ or seen[-1].__context__) and below not in seen and len(seen) < 10:
        seen.append(below)
    told = next((e for e in reversed(seen) if isinstance(e, OSError) and e.strerror), seen[-1])
    words = " ".join(str(told).split()) or str(error)
    return f"{type(told).__name__}: {words}"


def retry_after(value: str | None) -> float:
    """Seconds that a Retry-After header asks for (a number or a date); 0.0 for none or nonsense."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return min(max(0.0, seconds), 1e6) if seconds == seconds else 0.0


def clean(text: str, most: int) -> str:
    """Short, and writable as UTF-8: a server may send half characters."""
    return text[:most].encode("utf-8", "replace").decode("utf-8")


def failure(host: Host, error: Exception, limit: float, key: Secret, model: str | None,
            sent: Collection[str] = ()) -> Try:
    """What an exception of the client means; `sent` names the fields of the request. An exception of
    our own making is raised again."""
    import openai

    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Try("again", f"{host.url}: no answer within {limit:.3g} s")
    if isinstance(error, openai.APIStatusError):
        code, text = error.status_code, clean(key.hide_in(error.response.text), 300)
        reason = f"{host.url}: HTTP {code}{_hint(code, model)} ({' '.join(text.split())})"
        if code in (408, 409, 425, 429) or code >= 500:
            wait = retry_after(error.response.headers.get("retry-after"))
            return Try("again", reason + (f", asks to wait {wait:.0f} s" if wait else ""), wait=wait)
        if code in (400, 413, 422):  # this answer, not the judge
            return Try("adapted" if host.adapt(text, sent) else "refused", reason)
        return Try("closed", reason)
    if isinstance(error, openai.APIConnectionError):
        return Try("again", f"{host.url}: {clean(key.hide_in(root_cause(error)), 200)}")
    raise error
