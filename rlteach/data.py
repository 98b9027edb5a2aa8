"""Questions from JSONL files: one object a line, with the line's number in every complaint.

Schema (that of OREAL-RL-Prompts and a little more):
    question, gold_answer       needed; in place of question may stand messages (OpenAI's form, the last one
                                from the user), and such a line needs no gold_answer
    id, pass_rate, data_source, level, tools                                        optional
    n, max_new_tokens, temperature, top_p, top_k, thinking      for rollout plug-ins: this sample's own
    extra and all other keys                                    go to Sample.extra
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlteach.config import Config, data_path
from rlteach.messages import MessageError, to_message
from rlteach.types import Message, Sample


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


SAMPLING = ("n", "max_new_tokens", "temperature", "top_p", "top_k")  # what a sample may ask for itself
_OWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n": (lambda v: _whole(v) and v >= 1, "a whole number from 1"),
    "max_new_tokens": (lambda v: _whole(v) and v >= 1, "a whole number from 1"),
    "temperature": (lambda v: _within(v, 5), "a number above 0, at most 5"),
    "top_p": (lambda v: _within(v, 1), "a number above 0, at most 1"),
    "top_k": (lambda v: _whole(v) and v >= 0, "a whole number from 0"),
    "thinking": (lambda v: isinstance(v, dict), "an object"),
    "tools": (lambda v: isinstance(v, list) and all(isinstance(t, dict) for t in v), "a list of objects"),
    "extra": (lambda v: isinstance(v, dict), "an object"),
}


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
        asked = repr((sample.messages, sample.tools))
        for field, value, shown in (("id", sample.id, sample.id), ("question", asked, sample.question)):
            if (field, value) in seen:
                raise DataError(f"{at}: the same {field} as {seen[field, value]} ({shown!r}): keep one "
                                "of the two lines")
            seen[field, value] = at
        out.append(sample)
    return out


def read_jsonl(name: str | Path, what: str = "line", *, cut_off: bool = False
               ) -> list[tuple[str, dict[str, Any]]]:
    """("file:line", object) for every line that is not blank.

    what: the word for a line in complaints. cut_off: the last line may have been cut off while it was
    written; it is left out then.

    Raises:
        DataError: the file is missing, empty, not UTF-8, or a line of it is no object.
    """
    path = find_data(name)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: byte {error.start} is not UTF-8: save the file as UTF-8") from None
    out: list[tuple[str, dict[str, Any]]] = []
    lines, kind = text.split("\n"), "" if what == "line" else f"no {what}: "
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        at = f"{path}:{number}"
        try:
            entry = json.loads(line.strip().removeprefix("\ufeff"), parse_constant=_no_constant)
            json.dumps(entry, ensure_ascii=False).encode()  # half a character (a lone surrogate) is no text
        except (ValueError, RecursionError) as error:
            if cut_off and number == len(lines):  # no line end after it
                break
            raise DataError(f"{at}: {kind}not a JSON object ({error}): write one object a line") from None
        if not isinstance(entry, dict):
            raise DataError(f"{at}: {kind}a {type(entry).__name__}, not a JSON object: write one object "
                            "{...} a line, no list around them")
        out.append((at, entry))
    if not out:
        raise DataError(f"{path} holds no {what}: write one JSON object a line")
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


def to_sample(at: str, entry: Mapping[str, Any], index: int) -> Sample:
    """One line as a Sample; `at` (file:line) is named in every complaint."""
    for field in ("question", "gold_answer") if "messages" not in entry else ():
        if field not in entry:
            raise DataError(f"{at}: the field {field!r} is missing: add it")
    for field, (right, rule) in _OWN.items():
        if entry.get(field) is not None and not right(entry[field]):
            raise DataError(f"{at}: {field} must be {rule}; got {entry[field]!r}")
    rate = entry.get("pass_rate")
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and 0 <= rate <= 1):
        raise DataError(f"{at}: pass_rate must be a number from 0 to 1, or null; got {rate!r}")
    given = dict(entry.get("extra") or {})
    for field in given.keys() & {*SAMPLING, "thinking"}:
        raise DataError(f"{at}: extra holds {field!r}, which a sample asks for beside it: move it out")
    known = ("question", "messages", "gold_answer", "pass_rate", "id", "data_source", "tools", "extra")
    own = {k: v for k, v in entry.items() if k not in known and not (k in _OWN and v is None)}
    gold = {"answer": entry["gold_answer"]} if "gold_answer" in entry else {}
    return Sample(
        id=str(index if entry.get("id") is None else entry["id"]), messages=_messages(at, entry),
        gold=_golds(at, entry, given), data_source=str(entry.get("data_source", "math")), pass_rate=rate,
        tools=tuple(entry.get("tools") or ()), extra={**gold, **given, **own},
    )


def _golds(at: str, entry: Mapping[str, Any], extra: Mapping[str, Any]) -> tuple[str, ...]:
    """gold_answer; without one what extra.answer says, if that is text."""
    gold = entry["gold_answer"] if "gold_answer" in entry else extra.get("answer")
    golds = gold if isinstance(gold, list) else [gold]
    if golds and all(isinstance(g, str) and g.strip() for g in golds):
        return tuple(golds)
    if "gold_answer" not in entry:  # it is the grader's, in whatever form that reads it
        return ()
    raise DataError(f"{at}: gold_answer must be a text or a list of texts; got {gold!r} "
                    "(put numbers in quotes)")


def _messages(at: str, entry: Mapping[str, Any]) -> tuple[Message, ...]:
    if "messages" not in entry:
        question = entry["question"]
        if not isinstance(question, str) or not question.strip():
            raise DataError(f"{at}: question must be a text that is not empty; got {question!r}")
        return (Message("user", question),)
    if "question" in entry:
        raise DataError(f"{at}: it has question and messages: keep one of the two")
    given = entry["messages"]
    if not isinstance(given, list) or not given:
        raise DataError(f"{at}: messages must be a list of messages {{role, content}}; got {given!r}")
    try:
        found = tuple(to_message(one if isinstance(one, dict) else {}, f"messages.{i}")
                      for i, one in enumerate(given))
    except MessageError as error:
        raise DataError(f"{at}: {error}") from None
    if found[-1].role != "user" or not found[-1].content.strip():
        raise DataError(f"{at}: the last of messages must be a question of the user; got {given[-1]!r}")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
