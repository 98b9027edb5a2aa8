"""A web search over HTTP in place of the encyclopaedia; the standard library is enough for it.

    from .http_search import http_search as web_search      # in plugins/rollout.py

The variables SEARCH_URL (the whole address) and SEARCH_API_KEY are asked for when this module is
imported: a job without them does not start. Neither is written into a file. The reply has the form of
web_search: {"Result": {"ResultCount", "WebResults": [...]}}.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Any

SECONDS = 15.0  # below plugins.rollout.TOOL_SECONDS: the thread has ended when its rollout goes on
MOST_BYTES = 1_000_000
for variable in ("SEARCH_URL", "SEARCH_API_KEY"):
    if not os.environ.get(variable):
        raise RuntimeError(f"the environment variable {variable} is not set: plugins.http_search needs it")


class WebSearchError(RuntimeError):
    """The service did not give a result; the message says what it did instead."""


async def http_search(Query: str, Count: int = 10) -> dict[str, Any]:  # noqa: N803
    """What the service found. Raises WebSearchError where no result came."""
    url, key = os.environ["SEARCH_URL"], os.environ["SEARCH_API_KEY"]
    body = json.dumps({"Query": Query[:100], "Count": Count, "SearchType": "web"}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    return await asyncio.to_thread(post, urllib.request.Request(url, body, headers))


def post(request: urllib.request.Request) -> dict[str, Any]:
    """The status is looked at before the body: an error page is seldom JSON."""
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            text = response.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise WebSearchError(f"HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:  # refused, reset, timed out, cut off
        raise WebSearchError(f"{type(error).__name__}: {error}") from None
    try:
        found = json.loads(text)
    except ValueError:
        raise WebSearchError(f"no JSON, or more than {MOST_BYTES} bytes: {text[:100]!r}") from None
    if not isinstance(found, dict) or not found.get("Result"):
        raise WebSearchError(f"no Result in the reply: {text[:100]!r}")
    return found
