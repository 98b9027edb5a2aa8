"""What a tokenizer's ids spell, and answers that cannot leave a JSON schema (llguidance).

A matcher says at each position which tokens may come next; everything else gets probability 0. The
JSON it allows is written as json.dumps writes it (", " and ": " and no other white space), so a
model cannot fill an answer with blanks. llguidance's torch helpers compile a kernel at first use
and stay unused: the mask is a numpy array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarError(ValueError):
    """A schema that cannot be used; the message says why."""


class Vocabulary:
    """The bytes of each token of a fast tokenizer, and matchers for JSON schemas.

    width: size of the model's output layer, V. stop_ids end an answer; where some of them are control
    tokens, only those end a JSON text (a letter that ends answers would cut every string short).
    """

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int], width: int) -> None:
        from llguidance.hf import from_tokenizer

        special = set(tokenizer.all_special_ids)
        self.ends = [i for i in stop_ids if i in special] or list(stop_ids)
        self.tokens = from_tokenizer(tokenizer, n_vocab=max(width, len(tokenizer)), eos_token=self.ends)
        self.width = width
        self.token_bytes = lru_cache(maxsize=None)(self._token_bytes)
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def _token_bytes(self, token: int) -> bytes:
        """What the token spells; nothing for an id that only pads the output layer."""
        return self.tokens.decode_bytes([token])

    def matcher(self, schema: Mapping[str, Any]) -> Any:
        """A fresh matcher for this JSON schema; a schema seen before is not compiled again.

        Raises:
            GrammarError: the schema is wrong, or uses what llguidance does not know.
        """
        return self._compiled(json.dumps(schema)).deep_copy()

    def _compile(self, schema: str) -> Any:
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_SPACING)
            matcher = LLMatcher(self.tokens, grammar, log_level=0)
        except ValueError as error:
            raise GrammarError(f"this JSON schema cannot be used: {_short(error)}") from None
        if matcher.is_error():
            raise GrammarError(f"this JSON schema cannot be used: {_short(matcher.get_error())}")
        return matcher


def forbid(logits: Tensor, matchers: Mapping[int, Any]) -> dict[int, str]:
    """Put -inf where the matcher of a line allows no token; in place. logits [N, V].

    Returns:
        line -> error, for a grammar that broke down (it grew too complex).
    """
    import numpy
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

    lines, width = list(matchers), logits.shape[-1]
    bits = allocate_token_bitmask(len(lines), width)
    broken = {}
    for at, line in enumerate(lines):
        fill_next_token_bitmask(matchers[line], bits, at)
        if matchers[line].is_error():
            broken[line] = _short(matchers[line].get_error())
            bits[at] = -1  # all bits: this row ends here, whatever it draws
    allowed = numpy.unpackbits(bits.view(numpy.uint8), axis=1, bitorder="little")[:, :width]
    wrong = torch.from_numpy(allowed == 0).to(logits.device)
    at = torch.tensor(lines, device=logits.device)
    logits[at] = logits[at].masked_fill(wrong, -torch.inf)
    return broken


def _short(error: object) -> str:
    return " ".join(str(error).partition("<state>")[0].split())[:200]
