"""The nouns of the loop: everything a stage hands to the next one.

All are frozen and hold plain Python values, so a record can be printed, compared and written to
disk; tensors live in training/batch.py only. One word for one thing: `score` is what the judger
said, `advantage` what the group made of it, `weight` what the token-level model made of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

Status = Literal["correct", "incorrect", "unscorable"]
FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Message:
    """One message of a chat; `role` is system, user, assistant or tool."""

    role: str
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The OpenAI form, without empty fields."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            out["tool_calls"] = [dict(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out


@dataclass(frozen=True)
class Sample:
    """One question and what counts as its answer.

    `pass_rate` is the share of right answers that the untrained policy gave (None: not measured).
    """

    id: str
    messages: tuple[Message, ...]
    gold: tuple[str, ...]
    data_source: str = "math"
    pass_rate: float | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """The last user message."""
        return next((m.content for m in reversed(self.messages) if m.role == "user"), "")


@dataclass(frozen=True)
class Trajectory:
    """One answer, exactly as it was sampled: ids, never text that is encoded again.

    token_ids, action_mask, logprobs have one entry a token, prompt first, T in all.
    action_mask is True where the policy sampled the token; logprobs there are those of the
    distribution the token was drawn from (temperature and top-p/top-k included), 0.0 elsewhere.
    support holds, for a truncated distribution, the ids that were left at each sampled position.
    """

    messages: tuple[Message, ...]
    token_ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    finish_reason: FinishReason
    usage: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    support: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.action_mask) == len(self.logprobs):
            raise ValueError(
                "token_ids, action_mask and logprobs of a trajectory need the same length; got "
                f"{len(self.token_ids)}, {len(self.action_mask)} and {len(self.logprobs)}"
            )

    @property
    def response(self) -> str:
        """The text of the last message."""
        return self.messages[-1].content


@dataclass(frozen=True)
class Judgement:
    """What a judger said of one answer. `score` is None exactly when nobody could judge it."""

    score: float | None
    status: Status
    reason: str = ""
    source: Literal["rule", "llm", "plugin", "random"] = "rule"
    raw: str | None = None
    attempts: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if (self.score is None) != (self.status == "unscorable"):
            raise ValueError(
                f"a judgement has score None exactly when its status is 'unscorable'; "
                f"got score {self.score!r} with status {self.status!r}"
            )


@dataclass(frozen=True)
class Group:
    """One sample, its G trajectories, and what the later stages add to them.

    `advantages` is None for an unscorable member. `kept` lists the members that will be trained
    on: selection marks, it never drops, so that the baseline is that of the whole group.
    """

    sample: Sample
    trajectories: tuple[Trajectory, ...]
    judgements: tuple[Judgement, ...] | None = None
    advantages: tuple[float | None, ...] | None = None
    kept: tuple[int, ...] | None = None

    def with_(self, **changes: Any) -> Group:
        """The same group with some fields filled in."""
        return replace(self, **changes)

    @property
    def scores(self) -> tuple[float | None, ...]:
        if self.judgements is None:
            raise ValueError("this group has no judgements yet: call trainer.grade(groups) first")
        return tuple(j.score for j in self.judgements)

    def __repr__(self) -> str:
        scores = "not graded" if self.judgements is None else list(self.scores)
        kept = "" if self.kept is None else f", kept={list(self.kept)}"
        return f"Group({self.sample.id!r}, G={len(self.trajectories)}, scores={scores}{kept})"


@dataclass(frozen=True, repr=False)
class StepRecord:
    """What one step did: its groups and its numbers (the keys of metrics.jsonl)."""

    index: int
    groups: tuple[Group, ...]
    metrics: Mapping[str, float | int | None]

    def __repr__(self) -> str:
        m = self.metrics
        reward, kept = m.get("reward/mean"), m.get("groups/kept")
        loss = m.get("loss/total")
        shown = [f"reward {reward:.3f}" if reward is not None else "reward none", f"kept {kept}"]
        shown += [f"loss {loss:+.4f}"] if loss is not None else ["no update"]
        return f"StepRecord({self.index}: {', '.join(shown)})"


@runtime_checkable
class Judger(Protocol):
    """Says what each answer of a group is worth; looks at one answer at a time."""

    def grade(self, group: Group) -> tuple[Judgement, ...]: ...
