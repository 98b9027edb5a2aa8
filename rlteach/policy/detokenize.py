"""From ids to text while an answer grows: stop strings, and the part that no later token changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of these ids, control tokens written out: nothing that was sampled is hidden."""
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def cut_at_stop(tokenizer: Any, ids: Sequence[int], stop: Sequence[str]) -> str | None:
    """The text before the first stop string, once the newest token has completed one; else None.

    Only an end of the ids is decoded that is long enough for every stop string (a token spells at
    least one byte, a character has at most four), so the cost does not grow with the answer.
    """
    window = 4 * max(len(s) for s in stop) + 4
    ending = text_of(tokenizer, ids[-window:])
    if not any(s in ending for s in stop):
        return None
    text = text_of(tokenizer, ids)
    places = [text.find(s) for s in stop if s in text]
    return text[: min(places)] if places else None


def settled(text: str, stop: Sequence[str] = ()) -> str:
    """What can be sent already: without half a character or the beginning of a stop string at its end.

    >>> settled("1, 2 EN", ["END"])
    '1, 2 '
    """
    text = text.rstrip("\ufffd")
    held = max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
    return text[: len(text) - held]
