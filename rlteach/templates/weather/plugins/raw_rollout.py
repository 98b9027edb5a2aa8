"""The same rollout with a client that is not wrapped: what the one-line wrapper does, written out.

    update_state_from_messages -> create(extra_body, extra_headers) -> process_completion

In the cloud these lines change: the import of `rlteach.agent`, and OpenAI becomes Ark.
"""

from __future__ import annotations

from openai import OpenAI

from rlteach.agent import (
    ChatCompletionMessage,
    ChatCompletionResponse,
    ChatCompletionSample,
    PluginContext,
    RolloutInferenceProxy,
    RolloutResult,
    Runtime,
    ToolCallError,
    rollout,
)

from .rollout import LOCAL_MODEL, MAX_STEPS, conversation, malformed, replies


@rollout(runtime=Runtime(timeout=900, max_concurrency=20))
def raw_rollout(context: PluginContext, proxy: RolloutInferenceProxy, sample: ChatCompletionSample
                ) -> RolloutResult | None:
    """One rollout; the step limit holds here, too, or a model that never stops calling runs for ever."""
    with OpenAI(base_url=proxy.url, api_key=proxy.jwt_token) as client:
        messages, tools = conversation(sample)
        for step in range(MAX_STEPS):
            # before the request: where the history was edited, the proxy cuts its token record
            proxy.update_state_from_messages([ChatCompletionMessage(**m) for m in messages])
            completion = client.chat.completions.create(
                model=context.model or LOCAL_MODEL, messages=messages, tools=tools,
                extra_body=proxy.get_extra_body(), extra_headers=proxy.headers)
            # after it: the proxy is shown the answer
            proxy.process_completion(ChatCompletionResponse(**completion.model_dump()))
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls or step == MAX_STEPS - 1:
                break
            try:
                messages += replies(message.tool_calls, tools)
            except ToolCallError as error:
                return malformed(error)
    return None
