"""Tools of a rollout: is a call of the model right, and the weather of a made-up world.

A wrong call is the model's doing. A rollout that trains does not mend it: it ends with a penalty
(extra["reward"]), or a model that calls wrongly would be rewarded like one that does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import jsonschema


class ToolCallError(ValueError):
    """A call that does not fit its tool; the message says what is wrong with it."""


def check_call(call: Any, tools: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """(name, arguments) of a tool call (of a client's message, or a dict), checked against the tools'
    JSON schemas.

    Raises:
        ToolCallError: an unknown tool, arguments that are no JSON object, a field that is missing,
            unknown, or of a wrong type.
    """
    entry = call if isinstance(call, Mapping) else call.model_dump()
    name, text = entry["function"]["name"], entry["function"]["arguments"]
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    if name not in schemas:
        raise ToolCallError(f"there is no tool {name!r}: {', '.join(sorted(schemas)) or 'none is offered'}")
    try:
        arguments = text if isinstance(text, Mapping) else json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ToolCallError(f"{name}: the arguments are not JSON ({error})") from None
    if not isinstance(arguments, Mapping):
        raise ToolCallError(f"{name}: the arguments are a {type(arguments).__name__}, not a JSON object")
    validator = jsonschema.validators.validator_for(schemas[name], jsonschema.Draft202012Validator)
    complaints = sorted(validator(schemas[name]).iter_errors(arguments), key=lambda e: e.json_path)
    wrong = complaints[0] if complaints else None
    if wrong is not None:
        place = wrong.json_path.removeprefix("$").removeprefix(".")
        raise ToolCallError(f"{name}: {f'{place}: ' if place else ''}{wrong.message}"[:500])
    unknown = sorted(set(arguments) - set(schemas[name].get("properties", arguments)))
    if unknown:
        raise ToolCallError(f"{name}: there is no argument {unknown[0]!r}")
    return name, dict(arguments)


weather_tool = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "The weather in a place, now",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "minLength": 1, "description": "a town, in any language"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            },
            "required": ["location"],
        },
    },
}
SKIES = ("clear", "cloudy", "rain", "snow", "wind", "fog")


def get_current_weather(location: str, unit: str = "celsius") -> str:
    """The weather of a made-up world as JSON: always the same for a place, so that answers can be graded.

    >>> get_current_weather("Beijing")
    '{"location": "Beijing", "temperature": 15, "unit": "celsius", "sky": "clear"}'
    """
    digest = blake2b(location.strip().lower().encode(), digest_size=2).digest()
    degrees, sky = digest[0] % 45 - 10, SKIES[digest[1] % len(SKIES)]
    if sky == "snow":
        degrees = min(degrees, 0)
    shown = round(degrees * 9 / 5 + 32) if unit == "fahrenheit" else degrees
    return json.dumps({"location": location, "temperature": shown, "unit": unit, "sky": sky},
                      ensure_ascii=False)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
