"""What a plug-in sees and gives back: the Ark SDK's names, as thin views of the nouns of the loop.

Token ids and masks never reach a plug-in; they stay in rlteach.types.Trajectory. Fields that these
types do not name are kept, so a message that some client made can be handed on as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rlteach.data import SAMPLING
from rlteach.types import Message, Sample
from rlteach.types import Trajectory as TokenTrajectory

SIZES = {f"CPU{cores}MEM{cores * each}": f"CPU{cores}MEM{cores * each}"
         for cores in (1, 2, 4, 8, 16) for each in (2, 4, 8)}
PluginInstance = Enum("PluginInstance", SIZES)  # what the cloud rents: checked here, without effect
SPAN = "rollout_span"  # key of a trajectory's extra: the id of its span, for the grade's span to name


class PluginStatus(Enum):
    """How a call of a plug-in ended; what follows from it is in ARCHITECTURE.md (statuses)."""

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    DISCARD = "DISCARD"
    FAILURE = "FAILURE"


class RolloutRetryException(Exception):  # noqa: N818  (the Ark SDK's name)
    """Raised in a rollout: run it again (status RETRY)."""


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Runtime(BaseModel):
    """Where and how a plug-in runs. Of these, timeout (seconds a call) and max_concurrency (calls at
    the same time) count on this machine; instance and replicas are checked and recorded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instance: PluginInstance = PluginInstance.CPU1MEM2
    timeout: float = Field(900, gt=0, le=900)
    max_concurrency: int = Field(10, ge=1, le=100)
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(1, ge=1)


class PluginContext(_Open):
    """Of the run that calls: `phase` is train or test; is_mock is True where nothing is trained."""

    job_id: str = ""
    model: str = ""
    type: str = ""
    phase: Literal["train", "test"] = "train"
    is_mock: bool = False


class CalledFunction(_Open):
    name: str = ""
    arguments: str = ""


class ToolCall(_Open):
    id: str = ""
    type: str = "function"
    function: CalledFunction = Field(default_factory=CalledFunction)


class ChatCompletionMessage(_Open):
    """One message in OpenAI's form."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @classmethod
    def of(cls, message: Message) -> ChatCompletionMessage:
        """The view of a message; an assistant that only called tools has no content."""
        content = message.content if message.content or not message.tool_calls else None
        calls = [_call(c) for c in message.tool_calls] or None
        return cls(role=message.role, content=content, tool_calls=calls, tool_call_id=message.tool_call_id)


class ChatCompletionSample(_Open):
    """One question as a plug-in sees it; None: as the run's config says."""

    messages: list[ChatCompletionMessage]
    tools: list[dict[str, Any]] | None = None
    thinking: dict[str, Any] | None = None
    extra: dict[str, Any] | None = None
    n: int | None = Field(None, ge=1)
    max_new_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, gt=0, le=5)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)

    @classmethod
    def of(cls, sample: Sample) -> ChatCompletionSample:
        """The view of a sample. n, max_new_tokens, temperature, top_p, top_k and thinking of its
        data line become fields; the rest of `extra` stays, with the gold answer as extra["answer"]."""
        extra = dict(sample.extra)
        own = {name: extra.pop(name) for name in (*SAMPLING, "thinking") if name in extra}
        if sample.gold:
            extra.setdefault("answer", sample.gold[0] if len(sample.gold) == 1 else list(sample.gold))
        return cls(messages=[ChatCompletionMessage.of(m) for m in sample.messages],
                   tools=[dict(tool) for tool in sample.tools] or None, extra=extra, **own)


class ChatCompletionResponse(_Open):
    """A whole completion, as the raw protocol hands it to `proxy.process_completion`."""

    id: str
    choices: list[dict[str, Any]]


class Trajectory(_Open):
    """What a grader sees of a rollout: the whole conversation, the answer last."""

    messages: list[ChatCompletionMessage]
    finish_reason: str | None = None
    usage: dict[str, Any] = Field(default_factory=dict)
    extra: dict[str, Any] | None = None

    @classmethod
    def of(cls, trajectory: TokenTrajectory) -> Trajectory:
        extra = {k: v for k, v in trajectory.extra.items() if k != SPAN}
        return cls(messages=[ChatCompletionMessage.of(m) for m in trajectory.messages],
                   finish_reason=trajectory.finish_reason, usage=dict(trajectory.usage), extra=extra or None)


class RolloutResult(_Open):
    """What a rollout returns (None means SUCCESS). `extra` goes to the grader; extra["reward"]
    replaces the grader's value for this trajectory."""

    status: PluginStatus = PluginStatus.SUCCESS
    error: str | None = None
    extra: dict[str, Any] | None = None

    @field_validator("extra")
    @classmethod
    def _reward_is_a_number(cls, extra: dict[str, Any] | None) -> dict[str, Any] | None:
        return check_reward(extra)


class GroupGraderResult(_Open):
    """One reward a trajectory, in their order (None: this one could not be judged)."""

    rewards: list[float | None] = Field(default_factory=list)
    metrics: dict[str, float] = Field(default_factory=dict)
    status: PluginStatus = PluginStatus.SUCCESS
    error: str | None = None


def check_reward(extra: dict[str, Any] | None) -> dict[str, Any] | None:
    """ValueError where extra["reward"] is no number (null means: not set)."""
    if extra and extra.get("reward") is not None and not is_number(extra["reward"]):
        raise ValueError(f"extra['reward'] must be a finite number; got {extra['reward']!r}")
    return extra


def is_number(value: Any) -> bool:
    """A finite number that is no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _call(call: Mapping[str, Any]) -> ToolCall:
    """Arguments as text, whatever form a message kept them in."""
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(id=str(call.get("id") or ""), type="function",
                    function=CalledFunction(name=function["name"], arguments=arguments))
