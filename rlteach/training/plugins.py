"""Plug-ins in the loop: functions with @rollout made into rollouts, and what plug-ins counted in a step.

    rollout(policy, samples, keys, *, phase="train", greedy=False) -> groups      (serving/proxy_http.py)

Whatever has a method take_metrics() -> {name: number}, a rollout or a judger, is asked for it once a step.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlteach.agent.loading import load_plugin
from rlteach.agent.plugins import Kind, PluginError, is_plugin
from rlteach.agent.rollouts import check_temperature
from rlteach.agent.types import ChatCompletionSample
from rlteach.config import Config, ConfigError
from rlteach.data import SAMPLING
from rlteach.policy.policy import Policy
from rlteach.policy.sampler import check_fit
from rlteach.types import Group, Judger, Sample

KINDS: tuple[Kind, ...] = ("rollout", "group_grader", "single_grader")


def of_config(field: str, name: str, *kinds: Kind) -> Any:
    """The plug-in that a config field names. Raises ConfigError, with the field in the message."""
    try:
        return load_plugin(name, *kinds)
    except PluginError as error:
        raise ConfigError(f"{field}: {error}") from None


def rollout_of(config: Config) -> Any:
    """The function that config.rollout names; None: one answer a question. Raises ConfigError."""
    return None if config.rollout is None else of_config("rollout", config.rollout, "rollout")


def as_rollout(rollout: Callable[..., Any], policy: Policy | None = None) -> Callable[..., list[Group]]:
    """A function with @rollout as a PluginRollout; anything else is a rollout already.

    Raises:
        PluginError: it is a grader; ModelError: the policy's chat template is not fit for many turns.
    """
    if not is_plugin(rollout, *KINDS):
        return rollout
    from rlteach.serving.proxy_http import plugin_rollout  # a server's libraries take a while to load

    return plugin_rollout(rollout, policy)


@contextmanager
def opened(rollout: Callable[..., Any], policy: Policy) -> Iterator[Callable[..., list[Group]]]:
    """`as_rollout` for the length of a block; what was made for it is closed."""
    made = as_rollout(rollout, policy)
    try:
        yield made
    finally:
        close(made, given=rollout)


def close(rollout: Any, *, given: Any) -> None:
    """End a rollout that was made for the function `given`; what was given as it is stays open."""
    if rollout is not given and hasattr(rollout, "close"):
        rollout.close()


def take_metrics(part: Any) -> dict[str, float]:
    """What a rollout or a judger counted since it was last asked; nothing when it does not count."""
    return dict(getattr(part, "take_metrics", dict)())


def grader_metrics(judger: Judger) -> dict[str, float]:
    """grader/NAME of all that a judger is made of; NAME that two of them use gets the plug-in before it."""
    out: dict[str, float] = {}
    for part in walk(judger):
        name = getattr(getattr(part, "plugin", None), "name", type(part).__name__)
        for key, value in take_metrics(part).items():
            out[f"grader/{name}/{key}" if f"grader/{key}" in out else f"grader/{key}"] = value
    return out


def walk(judger: Judger) -> Iterator[Any]:
    """The judger and all that it is made of."""
    yield judger
    for part in getattr(judger, "children", tuple)():
        yield from walk(part)


def trace(tracer: Any, rollout: Any, *judgers: Judger) -> None:
    """Let all plug-ins among these write their spans to one tracer."""
    for part in (rollout, *(part for judger in judgers for part in walk(judger))):
        if hasattr(part, "tracer"):
            part.tracer = tracer


def by_sample(samples: Sequence[Sample], groups: Sequence[Group]) -> list[Group | None]:
    """The group of each sample, None for one that the rollout discarded.

    Raises:
        ValueError: the groups are not in the order of the samples.
    """
    left, out = list(reversed(groups)), []
    for sample in samples:
        mine = left and (left[-1].sample is sample or left[-1].sample.id == sample.id)
        out.append(left.pop() if mine else None)
    if left:
        raise ValueError(f"the rollout gave a group of {left[-1].sample.id!r} that was not asked for, or not "
                         "in the order of the samples: it gives one group a sample, or none to discard it")
    return out


def check_questions(policy: Policy, train: Sequence[Sample], others: Sequence[Sample], *, plugin: bool
                    ) -> None:
    """Before a run: has the model room to answer, and can the samples be given what they ask for?

    Under a plug-in max_new_tokens is the most for one turn, and a turn gets the room that is left: there
    has to be some after the question and its tools. Otherwise the whole of max_new_tokens has to fit.

    Raises:
        ConfigError: a question is too long, or one to train on asks for another temperature.
    """
    def size(sample: Sample) -> int:
        return sum(len(m.content.encode()) for m in sample.messages) + len(json.dumps(list(sample.tools)))

    longest = sorted([*train, *others], key=size, reverse=True)[:20]
    prompts = [policy.encode(sample) for sample in longest]
    check_fit(policy.model, prompts, 1 if plugin else policy.config.max_new_tokens)
    for sample in train:
        if plugin:
            check_temperature(sample, ChatCompletionSample.of(sample), policy.config.temperature)
        elif own := sorted({*SAMPLING, "thinking"} & sample.extra.keys()):
            warnings.warn(f"sample {sample.id!r} asks for its own {own[0]}, which only rollout plug-ins "
                          "honour: set config.rollout, or leave it out", RuntimeWarning, stacklevel=2)
            return
