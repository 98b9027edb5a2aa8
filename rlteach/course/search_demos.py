"""Demonstrations of how to use tools: every one of them is right, from the first call to the answer.

    question -> call -> page -> answer                  a one-hop question
    question -> call -> page -> call -> page -> answer  a two-hop question
    fact and question -> answer                         nothing has to be looked up
    no tool, or no page                                 "I do not know."

The tools and their arguments are called something else in each: what a call looks like has to be read off the
prompt, and is as hard to learn as a name that has to be copied. The model that learns from them is
data/models/tiny-agent (scripts/build_agent.py).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from rlteach.agent.search import SEARCH_TOOL
from rlteach.agent.tools import get_current_weather, weather_tool
from rlteach.course.encyclopedia import RELATIONS, TWO_HOP, UNKNOWN, Cluster, NameMaker, answer_text
from rlteach.types import Message

KINDS = {"single": 50, "two": 24, "weather": 10, "given": 8, "nothing": 4, "toolless": 4}
COUNTS = (3, 4, 5)  # enough for every page of one name
STATED = 0.5  # share of the calls that state an argument which has a default
BOTH = 0.2  # share of the conversations with both tools
OFTEN = ("founder", "product", "founder_birthplace", "product_year")  # learned last: asked twice as often
# what tools and their arguments are called: a name is one of BEFORE and one of what follows
BEFORE = ("web", "wiki", "book", "page", "fact", "get", "ask", "find", "open", "list", "data", "info")
SEARCHING = ("_search", "_lookup", "_query", "_entry", "_article", "_title", "_index", "_record")
SKY = ("_current_weather", "_forecast", "_sky", "_climate")
SUBJECTS = ("Query", "name", "term", "key", "text", "word", "item", "topic", "subject", "phrase")
PLACES = ("location", "place", "town", "city", "area", "spot")
LIMITS = ("Count", "limit", "top", "size", "number", "most")
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
    two = kind == "two" or (kind in ("nothing", "toolless") and rng.random() < 0.3)
    relations = list(TWO_HOP if two else RELATIONS)
    question = cluster.ask(rng.choices(relations, [1 + (name in OFTEN) for name in relations])[0])
    tool = renamed(SEARCH_TOOL, SEARCHING, (SUBJECTS, LIMITS), rng)
    messages, tools = [Message("user", question.text)], _tools(tool, weather_tool, rng)
    if kind == "toolless":
        return [*messages, Message("assistant", UNKNOWN[cluster.language])], []
    if kind == "given":
        fact = next(page["text"] for page in cluster.pages()
                    if question.queries[0] in page["text"] and question.gold in page["text"])
        asked = Message("user", f"{fact} {question.text}")
        return [asked, Message("assistant", answer_text(question))], tools
    for i, query in enumerate(question.queries if kind != "nothing" else question.queries[:1]):
        found = results(cluster, query) if kind != "nothing" else []
        messages += _use(tool, (query, rng.choice(COUNTS)), rng, f"call_{i}", page_list(found))
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
    unit = rng.choice(("celsius", "fahrenheit"))
    tool = renamed(weather_tool, SKY, (PLACES, ("unit",)), rng)
    call, _ = _use(tool, (cluster.city, unit), rng, "call_0", "")
    stated = call.tool_calls[0]["function"]["arguments"]
    result = get_current_weather(cluster.city, *list(stated.values())[1:])
    known = json.loads(result)
    sky = known["sky"] if cluster.language == "en" else SKIES[known["sky"]]
    asked, said = WEATHER[cluster.language]
    answer = said.format(x=cluster.city, sky=sky, degrees=known["temperature"])
    return [Message("user", asked.format(x=cluster.city)), call, Message("tool", result, (), "call_0"),
            Message("assistant", answer)], _tools(tool, SEARCH_TOOL, rng)


def renamed(tool: dict[str, Any], ends: Sequence[str], arguments: Sequence[Sequence[str]],
            rng: random.Random) -> dict[str, Any]:
    """One that does the same under another name, with other names of its arguments."""
    function = tool["function"]
    old, new = list(function["parameters"]["properties"]), [rng.choice(names) for names in arguments]
    properties = {b: function["parameters"]["properties"][a] for a, b in zip(old, new, strict=True)}
    return {**tool, "function": {**function, "name": rng.choice(BEFORE) + rng.choice(ends), "parameters": {
        **function["parameters"], "properties": properties, "required": new[:1]}}}


def _use(tool: dict[str, Any], values: Sequence[Any], rng: random.Random, call_id: str, result: str
         ) -> list[Message]:
    """A call with the first of these values or with both, and what came of it."""
    names = list(tool["function"]["parameters"]["properties"])
    stated = dict(zip(names, values, strict=True)) if rng.random() < STATED else {names[0]: values[0]}
    call = {"id": call_id, "type": "function",
            "function": {"name": tool["function"]["name"], "arguments": stated}}
    return [Message("assistant", "", (call,)), Message("tool", result, (), call_id)]


def _tools(needed: dict[str, Any], other: dict[str, Any], rng: random.Random) -> list[dict[str, Any]]:
    tools = [needed, other] if rng.random() < BOTH else [needed]
    rng.shuffle(tools)
    return tools
