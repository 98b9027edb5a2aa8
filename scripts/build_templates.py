"""Make the data of the weather workspace: questions about places of the encyclopaedia, answered by the tool.

    python scripts/build_templates.py

The other workspaces copy theirs from data/ when they are made.
"""

from __future__ import annotations

import json
from pathlib import Path

from rlteach.agent import get_current_weather
from rlteach.config import data_path
from rlteach.course.search_demos import WEATHER

FOLDER = Path(__file__).resolve().parents[1] / "rlteach" / "templates" / "weather" / "data"
SIZES = {"weather.jsonl": 80, "weather_dev.jsonl": 20}


def places() -> list[tuple[str, str]]:
    """(place, language): where companies have their seat, each once, in the order of the questions."""
    lines = data_path("search/search_dataset.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    found = {e["gold_answer"][0]: e["language"] for e in entries if e["relation"] == "city"}
    return list(found.items())


def main() -> None:
    named = iter(places())
    for name, size in SIZES.items():
        lines = []
        for number in range(size):
            place, language = next(named)
            celsius, fahrenheit = (json.loads(get_current_weather(place, unit))
                                   for unit in ("celsius", "fahrenheit"))
            lines.append({
                "id": f"{Path(name).stem}-{number:04d}", "question": WEATHER[language][0].format(x=place),
                "gold_answer": [str(celsius["temperature"]), str(fahrenheit["temperature"])],
                "data_source": "weather", "location": place, "sky": celsius["sky"], "language": language})
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (FOLDER / name).write_bytes(text.encode())


if __name__ == "__main__":
    main()
