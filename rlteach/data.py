"""Questions from JSONL files: one object a line, with the line's number in every complaint.

Schema (that of OREAL-RL-Prompts and a little more): question and gold_answer are needed; id,
pass_rate, data_source, level are optional; other keys go to Sample.extra.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlteach.config import Config, data_path
from rlteach.types import Message, Sample


class DataError(ValueError):
    """A data file that cannot be used; the message names file, line, field and remedy."""


def load_samples(name: str | Path) -> list[Sample]:
    """All questions of a JSONL file (a path, or a name under data/).

    Raises:
        DataError: the file is missing, empty, not UTF-8, or a line of it is wrong.
    """
    out, seen = [], {}
    for index, (at, entry) in enumerate(read_jsonl(name)):
        sample = to_sample(at, entry, index)
        for field, value in (("id", sample.id), ("question", sample.question)):
            if (field, value) in seen:
                raise DataError(f"{at}: the same {field} as {seen[field, value]} ({value!r}): keep one "
                                "of the two lines")
            seen[field, value] = at
        out.append(sample)
    return out


def read_jsonl(name: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """("file:line", object) for every line that is not blank."""
    path = find_data(name)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: byte {error.start} is not UTF-8: save the file as UTF-8") from None
    out: list[tuple[str, dict[str, Any]]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        at = f"{path}:{number}"
        try:
            entry = json.loads(line.strip().removeprefix("\ufeff"), parse_constant=_no_constant)
            json.dumps(entry, ensure_ascii=False).encode()  # half a character (a lone surrogate) is no text
        except (ValueError, RecursionError) as error:
            raise DataError(f"{at}: not a JSON object ({error}): write one object a line") from None
        if not isinstance(entry, dict):
            raise DataError(f"{at}: a {type(entry).__name__}, not a JSON object: write one object "
                            "{...} a line, no list around them")
        out.append((at, entry))
    if not out:
        raise DataError(f"{path} holds no line: write one JSON object a line")
    return out


def find_data(name: str | Path) -> Path:
    """The file itself, or the one of that name under data/."""
    path = Path(name)
    if not path.exists():
        path = data_path(str(name))
    if path.is_dir():
        raise DataError(f"{path} is a directory: name a .jsonl file")
    if not path.is_file():
        raise DataError(f"{name}: there is no such file here or under {data_path()}")
    return path


def balance(samples: Sequence[Sample], bins: Sequence[tuple[float, float, int]]) -> list[Sample]:
    """OREAL's difficulty balance: a question whose pass rate lies in [low, high) is taken `repeat`
    times, one in no bin is left out. No bins: every question once.

    Raises:
        DataError: a question has no pass rate, or nothing is left.
    """
    if not bins:
        return list(samples)
    out: list[Sample] = []
    for sample in samples:
        if sample.pass_rate is None:
            raise DataError(f"question {sample.id!r} has no pass_rate, which difficulty_bins needs: "
                            "measure it, or set difficulty_bins=[]")
        repeat = next((r for low, high, r in bins if low <= sample.pass_rate < high), 0)
        out += [sample] * repeat
    if not out:
        raise DataError("difficulty_bins leaves no question: no pass_rate lies in one of them")
    return out


def batch_of(samples: Sequence[Sample], config: Config, step: int) -> list[Sample]:
    """The B samples of a step: each epoch its own seeded order, no state to keep or to lose."""
    out, orders = [], {}
    for at in range(step * config.batch_size, (step + 1) * config.batch_size):
        epoch, place = divmod(at, len(samples))
        if epoch not in orders:
            orders[epoch] = list(range(len(samples)))
            random.Random(f"{config.seed} order {epoch}").shuffle(orders[epoch])
        out.append(samples[orders[epoch][place]])
    return out


def to_sample(at: str, entry: dict[str, Any], index: int) -> Sample:
    """One line as a Sample; `at` (file:line) is named in every complaint."""
    for field in ("question", "gold_answer"):
        if field not in entry:
            raise DataError(f"{at}: the field {field!r} is missing: add it")
    question, gold = entry["question"], entry["gold_answer"]
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{at}: question must be a text that is not empty; got {question!r}")
    golds = gold if isinstance(gold, list) else [gold]
    if not golds or not all(isinstance(g, str) and g.strip() for g in golds):
        raise DataError(f"{at}: gold_answer must be a text or a list of texts; got {gold!r} "
                        "(put numbers in quotes)")
    rate = entry.get("pass_rate")
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and 0 <= rate <= 1):
        raise DataError(f"{at}: pass_rate must be a number from 0 to 1, or null; got {rate!r}")
    known = ("question", "gold_answer", "pass_rate", "id", "data_source")
    extra = {k: v for k, v in entry.items() if k not in known}
    return Sample(
        id=str(index if entry.get("id") is None else entry["id"]),
        messages=(Message("user", question),), gold=tuple(golds),
        data_source=str(entry.get("data_source", "math")), pass_rate=rate,
        extra={"answer": gold, **extra},
    )


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
