"""Demonstrations of how to search: every one of them is right, from the first call to the answer.

    question -> call -> page -> answer                  a one-hop question
    question -> call -> page -> call -> page -> answer  a two-hop question
    no tool, or no page                                 "I do not know."

The model that learns from them is data/models/tiny-agent (scripts/build_agent.py).
"""

from __future__ import annotations

import json
import random
from typing import Any

from rlteach.agent.search import SEARCH_TOOL
from rlteach.agent.tools import get_current_weather, weather_tool
from rlteach.course.encyclopedia import RELATIONS, TWO_HOP, UNKNOWN, Cluster, NameMaker, answer_text
from rlteach.types import Message

KINDS = {"single": 56, "two": 22, "weather": 14, "nothing": 4, "toolless": 4}
COUNTS = (3, 4, 5)  # enough for every page of one name
STATED = 0.5  # share of the calls that state an argument which has a default
BOTH = 0.2  # share of the conversations with both tools
WEATHER = {"en": ("What is the weather in {x}?", "It is {sky} in {x}, {degrees} degrees."),
           "zh": ("{x}的天气怎么样？", "{x}的天气：{sky}，{degrees}度。")}
SKIES = {"clear": "晴", "cloudy": "多云", "rain": "下雨", "snow": "下雪", "wind": "有风", "fog": "有雾"}


def demonstration(maker: NameMaker, rng: random.Random, kind: str | None = None
                  ) -> tuple[list[Message], list[dict[str, Any]]]:
    """A whole conversation, and the tools that it has; `kind` is a key of KINDS (None: drawn)."""
    kind = kind or rng.choices(list(KINDS), list(KINDS.values()))[0]
    cluster = maker.cluster(rng.choice(("en", "zh")))
    if kind == "weather":
        return _weather(cluster, rng)
    two = kind == "two" or (kind != "single" and rng.random() < 0.3)
    question = cluster.ask(rng.choice(list(TWO_HOP if two else RELATIONS)))
    messages, tools = [Message("user", question.text)], _tools(SEARCH_TOOL, weather_tool, rng)
    if kind == "toolless":
        return [*messages, Message("assistant", UNKNOWN[cluster.language])], []
    for i, query in enumerate(question.queries if kind != "nothing" else question.queries[:1]):
        arguments: dict[str, Any] = {"Query": query}
        if rng.random() < STATED:
            arguments["Count"] = rng.choice(COUNTS)
        found = results(cluster, query) if kind != "nothing" else []
        messages += _use("web_search", arguments, f"call_{i}", page_list(found))
    last = UNKNOWN[cluster.language] if kind == "nothing" else answer_text(question)
    return [*messages, Message("assistant", last)], tools


def results(cluster: Cluster, query: str) -> list[dict[str, str]]:
    """What a search finds of one cluster: pages of that title first, otherwise in their order."""
    pages = [page for page in cluster.pages() if query in page["text"]]
    return sorted(pages, key=lambda page: page["title"] != query)


def page_list(pages: list[dict[str, str]]) -> str:
    """The text of the tool message, as a plug-in makes it of web_search's answer."""
    found = [{"Title": page["title"], "Snippet": page["text"]} for page in pages]
    return json.dumps({"Result": {"ResultCount": len(found), "WebResults": found}}, ensure_ascii=False)


def _weather(cluster: Cluster, rng: random.Random) -> tuple[list[Message], list[dict[str, Any]]]:
    arguments = {"location": cluster.city}
    if rng.random() < STATED:
        arguments["unit"] = rng.choice(("celsius", "fahrenheit"))
    result = get_current_weather(**arguments)
    known = json.loads(result)
    sky = known["sky"] if cluster.language == "en" else SKIES[known["sky"]]
    asked, said = WEATHER[cluster.language]
    answer = said.format(x=cluster.city, sky=sky, degrees=known["temperature"])
    return [Message("user", asked.format(x=cluster.city)),
            *_use("get_current_weather", arguments, "call_0", result),
            Message("assistant", answer)], _tools(weather_tool, SEARCH_TOOL, rng)


def _use(name: str, arguments: dict[str, Any], call_id: str, result: str) -> list[Message]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [Message("assistant", "", (call,)), Message("tool", result, (), call_id)]


def _tools(needed: dict[str, Any], other: dict[str, Any], rng: random.Random) -> list[dict[str, Any]]:
    tools = [needed, other] if rng.random() < BOTH else [needed]
    rng.shuffle(tools)
    return tools
