"""Where judges live: base URLs, one client each, and which of them takes the next question."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit


class JudgeError(ValueError):
    """A judge that cannot be used; the message names its URL, the cause and the remedy."""


class Secret:
    """A key that shows itself to nobody who prints, logs or formats it."""

    def __init__(self, value: str) -> None:
        self._value = value

    def checked(self) -> Secret:
        """Itself, when it can stand in a header."""
        if not (self._value.isascii() and self._value.isprintable()) or " " in self._value:
            raise JudgeError("the judge's key holds characters that no key has (a line break, a space, "
                             "a letter beyond ASCII): check RLTEACH_JUDGE_KEY or api_key")
        return self

    def reveal(self) -> str:
        return self._value

    def hide_in(self, text: str) -> str:
        """The text without the key: servers like to quote it in their errors."""
        return text if len(self._value) < 6 else text.replace(self._value, "[key]")

    def __repr__(self) -> str:
        return "[key]"

    def __reduce__(self) -> Any:
        raise TypeError("a key is never pickled")


def base_url(text: str) -> str:
    """`host:port`, or a URL with or without /v1, as the base that the OpenAI client wants.

    >>> base_url("127.0.0.1:10003"), base_url("https://ark.example.com/api/v3/")
    ('http://127.0.0.1:10003/v1', 'https://ark.example.com/api/v3')

    Raises:
        JudgeError: it is not an address.
    """
    text = text.strip() if isinstance(text, str) else f"<{text!r}>"  # refused below, by name
    full = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(full)
        host, port = parts.hostname, parts.port  # reading the port checks it
    except ValueError:
        host = port = None
    if host and (parts.username is not None or parts.password is not None):
        raise JudgeError(f"the URL of the judge at {host} holds a user or a key: give the key as api_key or "
                         "in the environment variable RLTEACH_JUDGE_KEY, so that it is written nowhere")
    good = host and re.fullmatch(r"[\w.:-]+", host) and parts.scheme in ("http", "https")
    if not good or port == 0 or parts.query or parts.fragment:
        raise JudgeError(f"{text!r} is not the address of a judge: give host:port or a URL such as "
                         "http://127.0.0.1:10003/v1")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    if not re.search(r"/v\d+\w*(/|$)", path):
        path += "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def base_urls(urls: str | Sequence[str]) -> list[str]:
    """Every address once, in the order given."""
    if not isinstance(urls, str | list | tuple):
        raise JudgeError(f"a judge needs a URL or a list of them; got {urls!r}")
    found = list(dict.fromkeys(base_url(url) for url in ([urls] if isinstance(urls, str) else urls)))
    if not found:
        raise JudgeError("a judge needs at least one URL, such as http://127.0.0.1:10003/v1")
    return found


def is_loopback(url: str) -> bool:
    """This machine; a proxy of the environment knows nothing about it."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


class Host:
    """One server: its client, what it can do, how busy it is and since when it is in trouble."""

    def __init__(self, url: str, key: Secret) -> None:
        import openai  # heavy, and only needed once a judge is asked

        self.url = url
        http: dict[str, Any] = {}
        if is_loopback(url):
            http["trust_env"] = False  # a proxy of the environment cannot reach this machine's loopback
            if url.startswith("http://"):  # no certificates to load (50 ms), and none to follow to
                http |= {"verify": False, "follow_redirects": False}
        # max_retries=0: the judge's own retries know the deadline, the other hosts and Retry-After
        self.client = openai.AsyncOpenAI(base_url=url, api_key=key.reveal(), max_retries=0,
                                         http_client=openai.DefaultAsyncHttpxClient(**http))
        self.json_schema: bool | None = None  # None: not known yet
        self.logprobs: bool | None = None
        self.token_field = "max_tokens"
        self.temperature = True
        self.in_flight = 0
        self.failures = 0  # since the last reply
        self.rests_until = 0.0  # of the loop's clock

    def failed(self, now: float, wait: float) -> None:
        """Leave it alone for a moment, longer with every failure in a row."""
        self.failures += 1
        self.rests_until = now + max(wait, min(10.0, 0.5 * 2 ** min(self.failures, 6)))

    def answered(self) -> None:
        self.failures, self.rests_until = 0, 0.0

    def adapt(self, refusal: str, sent: Collection[str]) -> bool:
        """True when a request that had the fields `sent` can be put without the one that was refused."""
        if "response_format" in sent and re.search(r"response_format|json_schema|guided|structured", refusal):
            self.json_schema = False
        elif "max_tokens" in sent and "max_completion_tokens' instead" in refusal:
            self.token_field = "max_completion_tokens"
        elif "temperature" in sent and re.search(r"temperature.{0,40}(not|un)[- ]?support|"
                                            r"unsupported.{0,40}temperature", refusal, re.IGNORECASE):
            self.temperature = False
        else:
            return False
        return True


def pick(hosts: Sequence[Host], now: float) -> Host:
    """The least busy of those that are not resting; if all rest, the one that rests the shortest."""
    ready = [host for host in hosts if host.rests_until <= now]
    if ready:
        return min(ready, key=lambda host: host.in_flight)
    return min(hosts, key=lambda host: host.rests_until)
