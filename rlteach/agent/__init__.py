"""Rollouts that use tools: plug-ins in the form of the Ark SDK, whose names these are."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "rlteach.agent.plugins": ("rollout", "group_grader", "single_grader", "PluginError"),
    "rlteach.agent.types": (
        "Runtime", "PluginInstance", "PluginContext", "PluginStatus", "RolloutResult",
        "RolloutRetryException", "GroupGraderResult", "ChatCompletionSample", "ChatCompletionMessage",
        "ChatCompletionResponse", "Trajectory"),
    "rlteach.agent.proxy": ("RolloutInferenceProxy", "wrap_client_inplace", "wrap_async_client_inplace"),
    "rlteach.agent.by_hand": ("OpenProxy", "open_proxy"),
    "rlteach.agent.tracing": ("Tracer", "wrap_inplace_trace", "observe", "coze_monitor"),
    "rlteach.agent.tools": ("ToolCallError", "check_call", "get_current_weather", "weather_tool"),
    "rlteach.agent.calling": ("PluginStopError",),
    "rlteach.agent.rollouts": ("PluginRollout",),
    "rlteach.agent.graders": ("PluginJudger",),
    "rlteach.agent.loading": ("load_plugin",),
    "rlteach.agent.trial": ("test_with_dataset",),
}
_HOME = {name: module for module, names in _WHERE.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'rlteach.agent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
