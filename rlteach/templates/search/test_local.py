"""The plug-ins of this workspace, tried without training, without a key, and without a network:

    python -m pytest -q test_local.py
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from plugins import llm_grader
from plugins.raw_rollout import raw_rollout
from plugins.rollout import MAX_STEPS, demo_rollout
from plugins.test_utils import ScriptedModel, call, reply, said, sample, trajectory
from rlteach.agent import PluginContext, PluginStatus, test_with_dataset

DATA = Path(__file__).parent / "data" / "search_dataset_dev_100.jsonl"
LINES = {line["question"]: line for line in map(json.loads, DATA.read_text(encoding="utf-8").splitlines())}
SEARCHED = [call("web_search", {"Query": "Guho"}), reply('{"Result": {"ResultCount": 0}}')]


def good_model(messages: list[dict]) -> dict:
    """Searches once, then gives the gold answer of the data file."""
    if messages[-1]["role"] == "user":
        return call("web_search", {"Query": LINES[messages[0]["content"]]["queries"][0], "Count": 3})
    return said(f"The answer is {LINES[messages[0]['content']]['gold_answer'][0]}.")


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.mark.parametrize("plugin", [demo_rollout, raw_rollout])
def test_a_model_that_searches_and_is_right_gets_1(plugin: object) -> None:
    with ScriptedModel(good_model) as model:
        trial = test_with_dataset(DATA, plugin, llm_grader.search_grader, url=model.url, limit=3, n_sample=2)
    assert trial.statuses == {"SUCCESS": 6}
    assert trial.mean_reward == 1.0
    seen = [m for body in model.requests for m in body["messages"] if m["role"] == "tool"]
    assert all("WebResults" in m["content"] for m in seen)
    assert seen


@pytest.mark.parametrize("plugin", [demo_rollout, raw_rollout])
@pytest.mark.parametrize(("script", "reward", "asked"), [
    (lambda m: call("web_search", {"Query": "Guho"}), 0.0, MAX_STEPS),  # never stops searching
    (lambda m: call("web_search", '{"Query": '), -1.0, 1),
    (lambda m: call("no_such_tool", {}), -1.0, 1),
    (lambda m: said('<tool_call>{"name": "web_sea</tool_call>'), -1.0, 1),  # no call that could be read
    (lambda m: said("The answer is anything."), -1.0, 1),  # never searched
])
def test_what_form_costs(plugin: object, script: object, reward: float, asked: int) -> None:
    with ScriptedModel(script) as model:
        trial = test_with_dataset(DATA, plugin, llm_grader.search_grader, url=model.url, limit=1)
    assert trial.rewards == ((reward,),)
    assert len(model.requests) == asked


def test_the_grader_on_conversations_written_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    llm_grader.main()
    told = dict(line.rsplit(None, 1) for line in capsys.readouterr().out.splitlines()[:6])
    assert told == {"good": "1.0", "partial": "0.0", "both at once": "0.0", "no search": "-1.0",
                    "out of steps": "0.0", "wrong call": "-1.0"}


def test_a_sample_without_an_answer_is_discarded() -> None:
    views = [trajectory(*SEARCHED, said("The answer is x."))]
    result = asyncio.run(llm_grader.search_grader(PluginContext(), sample("Who?", None), views))
    assert (result.status, result.rewards) == (PluginStatus.DISCARD, [])
