"""The same rollout as a coroutine: many of them share one thread, so nothing in it may block.

In the cloud this line changes: the import of `rlteach.agent`. An SDK without `async_rollout_client` writes
wrap_async_client_inplace(AsyncArk(base_url=proxy.url, api_key=proxy.jwt_token), proxy=proxy).
"""

from __future__ import annotations

from rlteach.agent import (
    ChatCompletionSample,
    PluginContext,
    RolloutInferenceProxy,
    RolloutResult,
    Runtime,
    ToolCallError,
    coze_monitor,
    rollout,
    wrap_inplace_trace,
)

from .rollout import LOCAL_MODEL, MAX_STEPS, conversation, malformed, replies


@rollout(runtime=Runtime(timeout=900, max_concurrency=100))
@coze_monitor
async def async_weather_rollout(context: PluginContext, proxy: RolloutInferenceProxy,
                                sample: ChatCompletionSample) -> RolloutResult | None:
    """One rollout: at most MAX_STEPS answers; it ends with the first one that calls no tool."""
    client = wrap_inplace_trace(proxy.async_rollout_client())  # each request is a line of the trace
    messages, tools = conversation(sample)
    for step in range(MAX_STEPS):
        completion = await client.chat.completions.create(
            model=context.model or LOCAL_MODEL, messages=messages, tools=tools)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls or step == MAX_STEPS - 1:
            break
        try:
            messages += replies(message.tool_calls, tools)
        except ToolCallError as error:
            return malformed(error)
    return None
