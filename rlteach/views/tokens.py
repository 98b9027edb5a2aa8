"""Tokens as a person reads them: no control token hidden, no half character lost, spaces that are seen.

A byte-level token may be a part of a character: its bytes are shown as escapes (\\xe4), never as U+FFFD.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from rlteach.types import Trajectory

SIGNS = {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}",
         "\t": "\N{RIGHTWARDS ARROW TO BAR}"}
FirstWrong = int | Callable[[Trajectory], int | None] | None  # place in a response, or who knows it


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """One readable text a token: `␣no`, `↵`, `<|im_end|>`, `\\xe4` for a byte that is no whole character,
    `<id 700>` for an id that the tokenizer has no token for."""
    return [readable(s) if isinstance(s, bytes) else s for s in spellings(tokenizer, ids)]


def spellings(tokenizer: Any, ids: Sequence[int]) -> list[bytes | str]:
    """The bytes of each token; a str for control tokens and ids without a token."""
    control = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", ()))
    byte_level = b"ByteLevel" in _decoder(tokenizer)
    out: list[bytes | str] = []
    for i, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if token is None:
            out.append(f"<id {i}>")
        else:
            out.append(token if i in control else _bytes(token, byte_level))
    return out


def readable(spelled: bytes) -> str:
    """Bytes as text: escapes where they are no UTF-8, signs for spaces, line ends and tabs.

    >>> readable(b" no"), readable(b"\\xe4\\xbd"), readable("好".encode())
    ('␣no', '\\\\xe4\\\\xbd', '好')
    """
    text = spelled.decode("utf-8", "backslashreplace")
    return "".join(SIGNS.get(c) or (c if unicodedata.category(c)[0] != "C" else ascii(c)[1:-1]) for c in text)


def answer_places(trajectory: Trajectory) -> list[int]:
    """Places of the sampled tokens in token_ids."""
    return [at for at, sampled in enumerate(trajectory.action_mask) if sampled]


def first_wrong_place(tokenizer: Any, trajectory: Trajectory, first_wrong: FirstWrong) -> int | None:
    """Where in token_ids the first wrong character of the response begins; None when there is none.

    A place just behind the response is the token that ended it: the answer stopped too early.

    Raises:
        ValueError: there is no such place in the response, or the response is not the text of the last
            sampled tokens.
    """
    wrong = first_wrong(trajectory) if callable(first_wrong) else first_wrong
    if wrong is None:
        return None
    if not 0 <= wrong <= len(trajectory.response):
        raise ValueError(f"first_wrong is a place in a response of {len(trajectory.response)} characters; "
                         f"got {wrong}")
    places = answer_places(trajectory)
    last = [at for i, at in enumerate(places) if at - i == places[-1] - len(places) + 1]  # of the last turn
    ids = [trajectory.token_ids[at] for at in last]
    before = tokenizer.decode(ids, skip_special_tokens=False).find(trajectory.response)
    if before < 0:
        raise ValueError("first_wrong counts characters of trajectory.response, and here that is not the "
                         "text of the last sampled tokens: give no first_wrong")
    reached = characters_reached(spellings(tokenizer, ids))
    return next((at for at, count in zip(last, reached, strict=True) if count > before + wrong), None)


def characters_reached(spelled: Sequence[bytes | str]) -> list[int]:
    """How many characters have begun when a token ends; one counts when its first byte is there.

    >>> characters_reached([b"a", b"\\xe5\\xa5", b"\\xbdb", "<|im_end|>"])
    [1, 2, 3, 13]
    """
    decoder, done, out = codecs.getincrementaldecoder("utf-8")("replace"), 0, []
    for token in spelled:
        if isinstance(token, str):
            done += len(decoder.decode(b"", final=True)) + len(token)
            decoder.reset()
        else:
            done += len(decoder.decode(token))
        out.append(done + bool(decoder.getstate()[0]))
    return out


def _bytes(token: str, byte_level: bool) -> bytes:
    if byte_level and all(c in _byte_of() for c in token):
        return bytes(_byte_of()[c] for c in token)
    if found := re.fullmatch(r"<0x([0-9A-F]{2})>", token):  # sentencepiece's spelling of a byte
        return bytes.fromhex(found[1])
    return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _decoder(tokenizer: Any) -> bytes:
    """How the tokenizer turns tokens into text, as JSON; empty for one without a fast backend."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return b"" if decoder is None else decoder.__getstate__()


@cache
def _byte_of() -> dict[str, int]:
    """The letter that byte-level vocabularies write for a byte -> that byte."""
    return {letter: byte for byte, letter in bytes_to_unicode().items()}
