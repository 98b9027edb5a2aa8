"""What a weather report is worth, by rule: one temperature, the right one, and the right sky.

In the cloud this line changes: the import of `rlteach.agent`.
"""

from __future__ import annotations

import re

from rlteach.agent import (
    ChatCompletionSample,
    GroupGraderResult,
    PluginContext,
    PluginStatus,
    Runtime,
    Trajectory,
    group_grader,
)

# how a sky is told in English and in Chinese
SKIES = {"clear": r"clear|sunny|晴", "cloudy": r"cloud|多云|阴", "rain": r"rain|雨", "snow": r"snow|雪",
         "wind": r"wind|风", "fog": r"fog|mist|雾"}


@group_grader(runtime=Runtime(timeout=300, max_concurrency=100))
def weather_grader(context: PluginContext, sample: ChatCompletionSample, trajectories: list[Trajectory]
                   ) -> GroupGraderResult:
    """One reward for each report: 1.0 right, 0.0 wrong or out of steps, -1.0 empty or made up without the
    tool. What the rollout set itself (extra["reward"]) stays."""
    extra = sample.extra or {}
    if not extra.get("answer") or not extra.get("sky") or sample.messages[-1].role != "user":
        return GroupGraderResult(status=PluginStatus.DISCARD, rewards=[],
                                 error="the sample has no extra.answer or extra.sky, or its last message is "
                                       "not the user's")
    rewards = [reward(sample, trajectory) for trajectory in trajectories]
    right = sum(value == 1.0 for value in rewards) / max(len(rewards), 1)
    return GroupGraderResult(rewards=rewards, metrics={"right": right})


def reward(sample: ChatCompletionSample, trajectory: Trajectory) -> float:
    own = (trajectory.extra or {}).get("reward")
    if own is not None:
        return float(own)
    last = trajectory.messages[-1]
    if last.tool_calls:
        return 0.0
    if not last.content or not any(message.tool_calls for message in trajectory.messages):
        return -1.0
    return 1.0 if is_right(str(last.content), sample.extra or {}) else 0.0


def is_right(text: str, extra: dict) -> bool:
    """One number, and it is a gold one (Celsius or Fahrenheit); one sky, and it is the right one. A report
    that names several of either says nothing."""
    gold = extra["answer"] if isinstance(extra["answer"], list) else [extra["answer"]]
    told = text.replace(str(extra.get("location", "")), " ").lower()
    numbers = [number.replace("\u2212", "-") for number in re.findall(r"[-\u2212]?\d+", told)]
    skies = [sky for sky, words in SKIES.items() if re.search(words, told)]
    return len(numbers) == 1 and numbers[0] in map(str, gold) and skies == [extra["sky"]]
