"""Rewards that mean nothing: a test of the plumbing, and the null baseline that a real grader has to beat.

In the cloud this line changes: the import of `rlteach.agent`.
"""

from __future__ import annotations

import random

from rlteach.agent import (
    ChatCompletionSample,
    GroupGraderResult,
    PluginContext,
    Runtime,
    Trajectory,
    group_grader,
)


@group_grader(name="random_reward", runtime=Runtime(timeout=300, max_concurrency=100))
def random_reward(context: PluginContext, sample: ChatCompletionSample, trajectories: list[Trajectory]
                  ) -> GroupGraderResult:
    """A number drawn evenly from [0, 1) for each answer, whatever the answer says; no gold answer is looked
    at. A reward that the rollout set itself (extra["reward"]) is kept. Two runs draw other numbers."""
    own = [(trajectory.extra or {}).get("reward") for trajectory in trajectories]
    return GroupGraderResult(rewards=[random.random() if value is None else float(value) for value in own])
