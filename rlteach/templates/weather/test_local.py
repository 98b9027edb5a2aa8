"""The plug-ins of this workspace, tried without training, without a key, and without a network:

    python -m pytest -q test_local.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plugins.async_weather_rollout import async_weather_rollout
from plugins.raw_rollout import raw_rollout
from plugins.rollout import MAX_STEPS, weather_rollout
from plugins.test_utils import ScriptedModel, call, said
from plugins.weather_grader import weather_grader
from rlteach.agent import get_current_weather, test_with_dataset

FOLDER = Path(__file__).parent / "data"
LINES = [json.loads(line) for name in ("weather.jsonl", "weather_dev.jsonl")
         for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
DEV = FOLDER / "weather_dev.jsonl"
PLACES = {line["question"]: line["location"] for line in LINES}
ROLLOUTS = [weather_rollout, async_weather_rollout, raw_rollout]


def report(messages: list[dict]) -> dict:
    """Asks the tool, then says what it said."""
    if messages[-1]["role"] == "user":
        return call("get_current_weather", {"location": PLACES[messages[0]["content"]]})
    known = json.loads(messages[-1]["content"])
    return said(f"It is {known['sky']} in {known['location']}, {known['temperature']} degrees.")


def test_the_data_agrees_with_the_tool() -> None:
    for line in LINES:
        found = [json.loads(get_current_weather(line["location"], unit))
                 for unit in ("celsius", "fahrenheit")]
        assert line["gold_answer"] == [str(one["temperature"]) for one in found]
        assert line["sky"] == found[0]["sky"]


@pytest.mark.parametrize("plugin", ROLLOUTS)
def test_a_model_that_reports_what_the_tool_says_gets_1(plugin: object) -> None:
    with ScriptedModel(report) as model:
        trial = test_with_dataset(DEV, plugin, weather_grader, url=model.url, limit=3)
    assert trial.statuses == {"SUCCESS": 3}
    assert trial.mean_reward == 1.0


@pytest.mark.parametrize("plugin", ROLLOUTS)
@pytest.mark.parametrize(("script", "reward", "asked"), [
    (lambda m: call("get_current_weather", {"location": "Rome"}), 0.0, MAX_STEPS),  # never stops asking
    (lambda m: call("get_current_weather", {"town": "Rome"}), -1.0, 1),
    (lambda m: call("no_such_tool", {}), -1.0, 1),
    (lambda m: said("It is clear, 20 degrees."), -1.0, 1),  # never asked
])
def test_what_form_costs(plugin: object, script: object, reward: float, asked: int) -> None:
    with ScriptedModel(script) as model:
        trial = test_with_dataset(DEV, plugin, weather_grader, url=model.url, limit=1)
    assert trial.rewards == ((reward,),)
    assert len(model.requests) == asked
