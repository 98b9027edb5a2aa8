"""The weather tool: a made-up but fixed weather for every place, so that runs can be repeated."""

from __future__ import annotations

import json
import zlib
from typing import Any

UNITS = ("celsius", "fahrenheit")
SKIES = ("sunny", "cloudy", "rainy", "windy")

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "The weather of a place, now. 查询一个地点现在的天气。",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "minLength": 1, "description": "name of the place"},
                "unit": {"type": "string", "enum": list(UNITS), "default": UNITS[0]},
            },
            "required": ["location"],
        },
    },
}


def get_current_weather(location: str, unit: str = "celsius") -> str:
    """JSON text {"location", "weather", "temperature", "unit"}; the same for the same place, always.

    Raises:
        ValueError: location is no text or empty, or unit is not one of UNITS.

    >>> get_current_weather("Zudan")
    '{"location": "Zudan", "weather": "sunny", "temperature": 24, "unit": "celsius"}'
    """
    if not isinstance(location, str) or not location.strip():
        raise ValueError(f"location must be a text that is not empty; got {location!r}")
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}; got {unit!r}")
    number = zlib.crc32(location.encode("utf-8", "replace"))
    degrees = number // len(SKIES) % 35
    if unit == "fahrenheit":
        degrees = round(degrees * 9 / 5 + 32)
    return json.dumps({"location": location, "weather": SKIES[number % len(SKIES)], "temperature": degrees,
                       "unit": unit}, ensure_ascii=False)
