"""The grader of this workspace, tried without training:

    python -m pytest -q test_local.py
"""

from __future__ import annotations

from plugins.random_reward import random_reward
from plugins.test_utils import said, sample, trajectory
from rlteach.agent import PluginContext


def test_rewards_are_numbers_that_have_nothing_to_do_with_the_answer() -> None:
    views = [trajectory(said("The answer is 4.")) for _ in range(200)]
    result = random_reward(PluginContext(), sample("2 + 2?", "4"), views)
    assert all(0 <= reward < 1 for reward in result.rewards)
    assert len(set(result.rewards)) > 100
    assert random_reward(PluginContext(), sample("2 + 2?", None), views).rewards != result.rewards


def test_a_reward_of_the_rollout_is_kept() -> None:
    views = [trajectory(said("x"), reward=-1), trajectory(said("x"), reward=0)]
    assert random_reward(PluginContext(), sample("?", None), views).rewards == [-1.0, 0.0]
