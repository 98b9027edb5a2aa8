"""Ask for the weather, then answer: a rollout as a plain function, which runs on a thread.

In the cloud this line changes: the import of `rlteach.agent` (the SDK's modules have the same names; its
demonstrations bring their own weather tool). The client comes from the proxy in both places; an SDK
without `rollout_client` writes wrap_client_inplace(Ark(base_url=proxy.url, api_key=proxy.jwt_token),
proxy=proxy), which here is the same with openai.OpenAI, only slower.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rlteach.agent import (
    ChatCompletionSample,
    PluginContext,
    PluginStatus,
    RolloutInferenceProxy,
    RolloutResult,
    Runtime,
    ToolCallError,
    check_call,
    coze_monitor,
    get_current_weather,
    rollout,
    weather_tool,
)

LOCAL_MODEL = "local"  # a name for trials; training ignores it
MAX_STEPS = 6  # answers of the model
log = logging.getLogger(__name__)


@rollout(runtime=Runtime(timeout=900, max_concurrency=100))
@coze_monitor
def weather_rollout(context: PluginContext, proxy: RolloutInferenceProxy, sample: ChatCompletionSample
                    ) -> RolloutResult | None:
    """One rollout: at most MAX_STEPS answers; it ends with the first one that calls no tool."""
    client = proxy.rollout_client()  # an openai.OpenAI whose answers are recorded for training
    messages, tools = conversation(sample)
    for step in range(MAX_STEPS):
        completion = client.chat.completions.create(
            model=context.model or LOCAL_MODEL, messages=messages, tools=tools)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls or step == MAX_STEPS - 1:
            break
        try:
            messages += replies(message.tool_calls, tools)
        except ToolCallError as error:
            return malformed(error)
    return None  # the same as SUCCESS


def conversation(sample: ChatCompletionSample) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages and the tools that a rollout begins with: the sample's own tools, then this one."""
    messages = [message.model_dump(exclude_none=True) for message in sample.messages]
    return messages, [*(sample.tools or ()), weather_tool]


def replies(calls: Sequence[Any], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One tool message for each call: without it the next request would be invalid.

    Raises:
        ToolCallError: a tool that was not offered, or arguments that do not fit it.
    """
    return [{"role": "tool", "content": tool_reply(call, tools), "tool_call_id": call.id} for call in calls]


def tool_reply(call: Any, tools: Sequence[Mapping[str, Any]]) -> str:
    name, arguments = check_call(call, tools)
    if name != weather_tool["function"]["name"]:  # offered by the sample; nobody runs it here
        return json.dumps({"error": f"{name} is not available"})
    return get_current_weather(**arguments)


def malformed(error: ToolCallError) -> RolloutResult:
    """The end of a rollout whose model called wrongly: usable, and punished."""
    log.info("wrong call: %s", error)
    # RETRY would run this rollout again and in the end drop the sample, DISCARD would drop it at once, and
    # FAILURE would stop the run: none of them teaches the model anything
    return RolloutResult(status=PluginStatus.SUCCESS, extra={"reward": -1, "malformed": str(error)})
