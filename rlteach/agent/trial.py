"""Try plug-ins on a data file without training, against any OpenAI-compatible server.

    report = test_with_dataset("data/dev.jsonl", rollout, grader, url=..., model=..., limit=8, n_sample=4)

The same plug-in code runs; only the proxy differs: it sends the requests on to the server with the
sample's sampling parameters, and keeps messages in place of token ids.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rlteach.agent.calling import Caller, Outcome, all_or_raise, run
from rlteach.agent.calls import read_call, unset
from rlteach.agent.graders import PluginJudger
from rlteach.agent.plugins import plugin_of
from rlteach.agent.proxy import (
    RolloutInferenceProxy,
    _clients,
    wrap_async_client_inplace,
    wrap_client_inplace,
)
from rlteach.agent.rollouts import read_result
from rlteach.agent.types import (
    ChatCompletionMessage,
    ChatCompletionSample,
    PluginContext,
    PluginStatus,
    Trajectory,
)
from rlteach.data import DataError, load_samples


class TrialError(ValueError):
    """A trial that cannot start; the message names file:line, or what is missing."""


@dataclass(frozen=True)
class Trial:
    """What came of it. rewards: of each sample, one a rollout (None: no reward)."""

    rewards: tuple[tuple[float | None, ...], ...]
    statuses: Mapping[str, int]
    seconds: tuple[float, ...] = field(repr=False)
    reasons: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def mean_reward(self) -> float | None:
        found = [r for row in self.rewards for r in row if r is not None]
        return fmean(found) if found else None

    def __str__(self) -> str:
        mean = "none" if self.mean_reward is None else f"{self.mean_reward:.3f}"
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.statuses.items()))
        lines = [f"mean reward {mean}; statuses: {told}; seconds a rollout: median "
                 f"{median(self.seconds):.2f}, longest {max(self.seconds):.2f}"]
        return "\n".join(lines + [f"  {count} x {why}" for why, count in self.reasons.items()])


class RemoteProxy(RolloutInferenceProxy):
    """The proxy of a trial: a server somewhere, asked with this sample's sampling parameters."""

    def __init__(self, sample: ChatCompletionSample, url: str, jwt_token: str, model: str | None = None
                 ) -> None:
        self._url, self._token, self._model = url, jwt_token, model
        wanted = {"max_tokens": sample.max_new_tokens, "temperature": sample.temperature,
                  "top_p": sample.top_p, "top_k": sample.top_k, "thinking": sample.thinking}
        self._sampling = {k: v for k, v in wanted.items() if v is not None}
        self._messages: list[Any] = []
        self.trajectory: Trajectory | None = None

    @property
    def url(self) -> str:
        return self._url

    @property
    def jwt_token(self) -> str:
        return self._token

    def get_extra_body(self) -> dict[str, Any]:
        return dict(self._sampling)

    def update_state_from_messages(self, messages: Sequence[Any]) -> None:
        self._messages = [_entry(m) for m in messages]

    def process_completion(self, completion: Any) -> None:
        body = _entry(completion)
        choice = body["choices"][0]
        messages = [ChatCompletionMessage(**m) for m in [*self._messages, choice["message"]]]
        self.trajectory = Trajectory(messages=messages, finish_reason=choice["finish_reason"],
                                     usage=body.get("usage") or {})

    def rollout_client(self) -> Any:
        client = _clients()[0].with_options(api_key=self._token, base_url=self._url)
        return wrap_client_inplace(client, proxy=self)

    def async_rollout_client(self) -> Any:
        client = _clients()[1].with_options(api_key=self._token, base_url=self._url)
        return wrap_async_client_inplace(client, proxy=self)

    def answer(self, fields: Mapping[str, Any], create: Callable[..., Any]) -> Any:
        completion = create(**self._request(fields))
        self.process_completion(completion)
        return completion

    async def aanswer(self, fields: Mapping[str, Any], create: Callable[..., Any]) -> Any:
        completion = await create(**self._request(fields))
        self.process_completion(completion)
        return completion

    def close(self) -> None:
        """Nothing is kept open."""

    def _request(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        read_call(fields)  # what a rollout may not ask is refused here as it is in training
        given = {k: v for k, v in fields.items() if not unset(v)}
        self.update_state_from_messages(given["messages"])
        body = {**self._sampling, **(given.pop("extra_body", None) or {})}
        return {**given, "model": self._model or given.get("model"), "extra_body": body}


def try_with_dataset(
    jsonl: str | Path, rollout: Callable[..., Any], grader: Callable[..., Any] | None = None, *,
    url: str | None = None, api_key: str | None = None, model: str | None = None, limit: int | None = None,
    max_concurrent: int | None = None, n_sample: int = 1,
) -> Trial:
    """Run a rollout (and a grader) on the first `limit` samples, n_sample times each.

    url, api_key: of the server; default: the variables OPENAI_BASE_URL and OPENAI_API_KEY.
    model: overrides the model that the plug-in names. Each rollout runs once: its status is counted.

    Raises:
        TrialError: there is no address, or the file or a line of it cannot be used.
    """
    url = url or os.environ.get("OPENAI_BASE_URL")
    api_key = api_key or os.environ.get("OPENAI_API_KEY", "none")
    if not url:
        raise TrialError("url is missing: give the base URL of an OpenAI-compatible server")
    samples = read_samples(jsonl)[:limit]
    plugin = plugin_of(rollout, "rollout")
    judger = None if grader is None else PluginJudger(grader, phase="test")
    caller = Caller(rollout, plugin, read_result, max_concurrent)
    context = PluginContext(model=model or "", type="rollout", phase="test", is_mock=True)
    calls = [[_one(caller, context, s, RemoteProxy(s, url, api_key, model)) for _ in range(n_sample)]
             for s in samples]
    return run(_all(samples, calls, judger))


test_with_dataset = try_with_dataset  # the Ark SDK's name
test_with_dataset.__test__ = False  # pytest would take it for one of its own


async def _all(samples: Sequence[ChatCompletionSample], calls: Sequence[Sequence[Any]], judger: Any
               ) -> Trial:
    found = await all_or_raise([_graded(s, group, judger) for s, group in zip(samples, calls, strict=True)])
    ended = [one for _, group in found for one in group]
    reasons = Counter(o.reason for o, _, _ in ended if o.status is not PluginStatus.SUCCESS)
    return Trial(tuple(rewards for rewards, _ in found), Counter(o.status.value for o, _, _ in ended),
                 tuple(seconds for _, _, seconds in ended), reasons)


async def _graded(sample: ChatCompletionSample, calls: Sequence[Any], judger: Any) -> tuple[Any, Any]:
    group = await asyncio.gather(*calls)
    views = [view for outcome, view, _ in group if outcome.status is PluginStatus.SUCCESS]
    given: list[float | None] = [None] * len(views)
    if judger is not None and views:
        given = await judger.rewards(sample, views)
    left = iter(given)
    rewards = tuple(next(left) if o.status is PluginStatus.SUCCESS else None for o, _, _ in group)
    return rewards, group


async def _one(caller: Caller, context: PluginContext, sample: ChatCompletionSample, proxy: RemoteProxy
               ) -> tuple[Outcome, Trajectory | None, float]:
    began = time.perf_counter()
    outcome = await caller.call(context, proxy, sample.model_copy(deep=True))
    view = proxy.trajectory
    if outcome.status is PluginStatus.SUCCESS and view is None:
        outcome = Outcome(PluginStatus.FAILURE, "SUCCESS, but no model was asked")
    elif view is not None:
        view = view.model_copy(update={"extra": outcome.value or None})
    return outcome, view, time.perf_counter() - began


def read_samples(path: str | Path) -> list[ChatCompletionSample]:
    """Samples of a JSONL file, as rlteach.load_samples reads it and a plug-in sees them.

    Raises:
        TrialError: the file or a line of it cannot be used.
    """
    try:
        return [ChatCompletionSample.of(sample) for sample in load_samples(path)]
    except DataError as error:
        raise TrialError(str(error)) from None


def _entry(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else value.model_dump()
