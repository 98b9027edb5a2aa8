"""Search, then answer: the rollout of this workspace.

    question -> call of web_search -> what it found -> ... -> answer

In the cloud these lines change: the import of `rlteach.agent` (the SDK's modules have the same names)
and `web_search` (to plugins.http_search, or your own). The client comes from the proxy in both places;
an SDK without `async_rollout_client` writes wrap_async_client_inplace(AsyncArk(base_url=proxy.url,
api_key=proxy.jwt_token), proxy=proxy).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from rlteach.agent import (
    ChatCompletionSample,
    PluginContext,
    PluginStatus,
    RolloutInferenceProxy,
    RolloutResult,
    RolloutRetryException,
    Runtime,
    ToolCallError,
    check_call,
    coze_monitor,
    observe,
    rollout,
)
from rlteach.agent.search import SEARCH_TOOL, web_search

LOCAL_MODEL = "local"  # a name for trials; training ignores it
MAX_STEPS = 6  # answers of the model
TOOL_TRIES = 3
TOOL_SECONDS = 20.0  # of one try
TOOL_PAUSE = 0.4  # seconds before the second try; twice as long before each one after it
AT_ONCE = 20  # searches at the same time
TOOLS = [SEARCH_TOOL]

Search = Callable[..., Awaitable[dict[str, Any]]]
log = logging.getLogger(__name__)


@rollout(name="demo_rollout", description="searches, then answers",
         runtime=Runtime(timeout=900, max_concurrency=100))
@coze_monitor
async def demo_rollout(context: PluginContext, proxy: RolloutInferenceProxy, sample: ChatCompletionSample
                       ) -> RolloutResult:
    """One rollout: at most MAX_STEPS answers; it ends with the first one that calls no tool."""
    return await search_and_answer(context, proxy, sample, web_search)


async def search_and_answer(context: PluginContext, proxy: RolloutInferenceProxy,
                            sample: ChatCompletionSample, search: Search) -> RolloutResult:
    """The loop, for any `search(Query=..., Count=...)`: in this process, over HTTP, or of an MCP server."""
    client = proxy.async_rollout_client()
    messages = [message.model_dump(exclude_none=True) for message in sample.messages]
    for step in range(MAX_STEPS):
        # no temperature and the like: they belong to the data line or to the run
        completion = await client.chat.completions.create(
            model=context.model or LOCAL_MODEL, messages=messages, tools=TOOLS)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls or step == MAX_STEPS - 1:
            break  # an answer, or out of steps: the grader sees which
        try:
            wanted = [arguments_of(call) for call in message.tool_calls]
        except ToolCallError as error:
            return malformed(error)
        found = await asyncio.gather(*(exec_tool_call(search, arguments) for arguments in wanted))
        for call, text in zip(message.tool_calls, found, strict=True):
            messages.append({"role": "tool", "content": text, "tool_call_id": call.id})
    return RolloutResult(status=PluginStatus.SUCCESS)


def arguments_of(call: Any) -> dict[str, Any]:
    """The arguments of a right call of web_search. Raises ToolCallError."""
    _, arguments = check_call(call, TOOLS)
    if not arguments["Query"].strip():
        raise ToolCallError("web_search: Query holds nothing but white space")
    return arguments


def malformed(error: ToolCallError) -> RolloutResult:
    """The end of a rollout whose model called wrongly: usable, and punished. Mending the call here would
    teach the model that it does not matter."""
    log.info("wrong call: %s", error)
    return RolloutResult(status=PluginStatus.SUCCESS, extra={"reward": -1, "malformed": str(error)})


@observe(process_inputs=lambda given: given["args"][1:])
async def exec_tool_call(search: Search, arguments: dict[str, Any]) -> str:
    """What the search says, as the text of a tool message.

    Raises:
        RolloutRetryException: it failed TOOL_TRIES times. Not the model's doing: the engine runs the
            rollout again, and in the end leaves the question out.
    """
    for again in range(TOOL_TRIES):
        if again:
            await asyncio.sleep(random.uniform(0, TOOL_PAUSE * 2 ** (again - 1)))
        try:
            async with limiter(asyncio.get_running_loop()):
                found = await asyncio.wait_for(search(**arguments), TOOL_SECONDS)
            return json.dumps(found, ensure_ascii=False)
        except TimeoutError:
            reason = f"no answer within {TOOL_SECONDS:g} s"
        except (TypeError, NameError, AttributeError):
            raise  # a mistake in this code: the run stops and says so
        except Exception as error:  # whatever else a tool raises, a service does
            reason = f"{type(error).__name__}: {error}"
        log.warning("web_search failed: %s", reason)
    raise RolloutRetryException(f"web_search failed {TOOL_TRIES} times: {reason}")


@lru_cache(maxsize=8)
def limiter(loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    """All rollouts of one event loop share a limit; one made with the module would belong to whichever
    loop came first, and fail in every other."""
    return asyncio.Semaphore(AT_ONCE)
