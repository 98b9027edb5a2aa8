"""Cases that a learner's grader and rollout are judged by, and what a rollout got wrong in one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rlteach.agent.tools import get_current_weather
from rlteach.agent.types import ChatCompletionSample, Trajectory
from rlteach.course.scripted import ScriptedProxy

MOST_ANSWERS = 4
QUESTION = "Who founded Guho?"


def tool_call(name: str, arguments: dict[str, Any] | str, call_id: str = "call_0") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def says(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"content": None, "tool_calls": list(calls)}


def talk(answer: str | None, searched: bool = True) -> Trajectory:
    """A rollout that says this in the end, with a search before it or without one."""
    asked = {"role": "user", "content": QUESTION}
    called = {"role": "assistant", **says(tool_call("web_search", {"Query": "Guho"}))}
    reply = {"role": "tool", "content": "Guho was founded by Jupasi.", "tool_call_id": "call_0"}
    said = {"role": "assistant", "content": answer}
    search = [called, reply] if searched else []
    return Trajectory(messages=[asked, *search, said], finish_reason="stop")


Member = tuple[str | None, bool, float, str]  # answer, did it search, its reward, what it is
RIGHT, WRONG = "The answer is Jupasi.", "The answer is Rivori."
GROUPS: tuple[tuple[str | list[str], tuple[Member, ...]], ...] = (
    ("Jupasi", ((RIGHT, True, 1, "right, after a search"), (WRONG, True, 0, "wrong, after a search"),
                (RIGHT, False, -1, "right, but it never called a tool"))),
    ("Jupasi", (("The answer is Jupa.", True, 0, "a part of the gold answer"),
                ("Not Jupasi. The answer is Guho.", True, 0, "the gold answer in passing"),
                (None, True, 0, "an answer without text"), (WRONG, False, -1, "it never called a tool"))),
    (["Jupasi", "朱帕西"], ((RIGHT, True, 1, "one of two gold answers"),
                          ("答案是朱帕西。", True, 1, "the other of two gold answers"))),
    ("Jupasi", ((WRONG, True, 0, "the only member"),)),
)


def sample(gold: str | list[str] | None) -> ChatCompletionSample:
    return ChatCompletionSample(messages=[{"role": "user", "content": QUESTION}],
                                extra=None if gold is None else {"answer": gold})


OSLO, ROME = ({"location": town} for town in ("Oslo", "Rome"))
GOOD = tool_call("get_current_weather", OSLO, "call_a")
TWO = says(GOOD, tool_call("get_current_weather", {**ROME, "unit": "fahrenheit"}, "call_b"))
BROKEN = tool_call("get_current_weather", '{"name": "get_current_weather", "arguments": {"loc', "call_c")
DONE = {"content": "It is snowing."}
SCRIPTS: tuple[tuple[str, list[dict[str, Any]], int, float | None], ...] = (  # about, script, answers, reward
    ("a model that answers at once", [DONE], 1, None),
    ("a model that calls the tool, then answers", [says(GOOD), DONE], 2, None),
    ("a model with two calls in one answer", [TWO, DONE], 2, None),
    ("a model that calls a tool that does not exist", [says(tool_call("weather", OSLO))], 1, -1.0),
    ("a model that asks for kelvin", [says(tool_call("get_current_weather", {**OSLO, "unit": "kelvin"}))], 1,
     -1.0),
    ("a model whose second call is broken", [says(GOOD), says(BROKEN)], 2, -1.0),
    ("a model that never stops calling", [says(GOOD)], MOST_ANSWERS, None),
)


def talk_trouble(proxy: ScriptedProxy, asked: Sequence[Any]) -> str | None:
    """What is wrong with what the model was shown."""
    for at, request in enumerate(proxy.requests):
        if "get_current_weather" not in [tool.get("function", {}).get("name") for tool in request["tools"]]:
            return "the model was not offered weather_tool"
        shown = request["messages"]
        if [(m["role"], m["content"]) for m in shown[:2]] != [(m["role"], m["content"]) for m in asked]:
            return "the conversation does not begin with the sample's messages"
        if (answers := sum(m["role"] == "assistant" for m in shown)) != at:
            return f"request {at + 1} shows {answers} answers of the model"
        wanted = {c["id"]: get_current_weather(**json.loads(c["function"]["arguments"]))
                  for said in proxy.script[:at] for c in said.get("tool_calls") or ()}
        told = {m.get("tool_call_id"): m["content"] for m in shown if m["role"] == "tool"}
        if missing := sorted(set(wanted) - set(told)):
            return f"the call {missing[0]} got no reply of the tool"
        if wrong := sorted(i for i in wanted if told[i] != wanted[i]):
            return f"the reply to {wrong[0]} is not what get_current_weather says"
    return None
