"""A policy that follows a script, and one call of somebody's plug-in: what exercises judge plug-ins by.

    proxy = ScriptedProxy([{"content": "The answer is 4."}])
    outcome = outcome_of(my_rollout, "rollout", proxy, sample)
    outcome.status, proxy.requests
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlteach.agent import calling
from rlteach.agent.calling import Caller, Outcome
from rlteach.agent.calls import read_call
from rlteach.agent.graders import read_group
from rlteach.agent.plugins import Kind, plugin_of
from rlteach.agent.proxy import NOWHERE, RolloutInferenceProxy
from rlteach.agent.rollouts import read_result
from rlteach.agent.types import PluginContext

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

SECONDS = 10.0  # of one call: an exercise has no reason to take longer
MOST = 40  # requests that are answered: a loop without an end has to end
READ: dict[str, Callable[[Any], Outcome]] = {"rollout": read_result, "group_grader": read_group}


class ScriptedProxy(RolloutInferenceProxy):
    """A rollout's proxy whose policy says script[0], then script[1], and the last one for ever.

    script: assistant messages without their role, {"content"} or {"tool_calls"}. requests: what was asked,
    {"messages", "tools"} each, as it was when it was asked. Only clients that come from the proxy, or are
    wrapped, reach it.
    """

    def __init__(self, script: Sequence[Mapping[str, Any]]) -> None:
        self.script, self.requests = list(script), []

    @property
    def url(self) -> str:
        return NOWHERE

    @property
    def jwt_token(self) -> str:
        return "none"

    def answer(self, fields: Mapping[str, Any], _create: Callable[..., Any]) -> ChatCompletion:
        from openai.types.chat import ChatCompletion

        if len(self.requests) == MOST:
            raise RuntimeError(f"asked more than {MOST} times")
        asked = read_call(fields)  # refuses what training would refuse
        self.requests.append({"messages": [m.as_dict() for m in asked.messages], "tools": asked.tools})
        said = copy.deepcopy(self.script[min(len(self.requests), len(self.script)) - 1])
        ended = "tool_calls" if said.get("tool_calls") else "stop"
        return ChatCompletion.model_validate({
            "id": f"chatcmpl-{len(self.requests)}", "object": "chat.completion", "created": 0,
            "model": "script", "choices": [{"index": 0, "finish_reason": ended, "logprobs": None, "message": {
                "role": "assistant", "content": None, "refusal": None, **said}}]})

    async def aanswer(self, fields: Mapping[str, Any], create: Callable[..., Any]) -> ChatCompletion:
        return self.answer(fields, create)

    def update_state_from_messages(self, messages: Sequence[Any]) -> None:
        """Nothing is recorded."""

    def process_completion(self, completion: Any) -> None:
        """Nothing is recorded."""

    def close(self) -> None:
        """Nothing is kept open."""


def outcome_of(function: Any, kind: Kind, *arguments: Any) -> Outcome:
    """How one call of this plug-in ends, sync or async, with copies of nothing: hand over fresh arguments.
    It is called as a run calls it, on the plug-ins' own thread or loop, and has SECONDS for it.

    Raises:
        PluginError: it is no plug-in of this kind; or whatever interrupted it.
    """
    plugin = plugin_of(function, kind)
    runtime = plugin.runtime.model_copy(update={"timeout": min(SECONDS, plugin.runtime.timeout)})
    caller = Caller(function, replace(plugin, runtime=runtime), READ[kind])
    return calling.run(caller.call(PluginContext(type=kind, phase="test"), *arguments))
