"""A queue in front of one model: whatever waits is sampled as one batch.

    submit(prompt, params, seed, count) -> rows -> waiting -> batch (one thread) -> row.done

One thread owns the model. Rows join between two tokens, and each leaves as soon as it has ended, so
a short answer does not wait for a long one. Callers are threads and event loops alike: a row's
`done` is a concurrent.futures.Future.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch

from rlteach.policy.chat import Piece, chat_text, encode_pieces
from rlteach.policy.decode import Batch, EngineError, Row, RowParams
from rlteach.policy.grammar import Vocabulary
from rlteach.policy.policy import Policy
from rlteach.policy.registry import ModelError
from rlteach.types import Message

# In parameters. Float32 rounds a row differently in another company: 1e-5 in some log-probabilities of
# tiny-math, and now and then another token. Float64 costs a fifth of the speed, and gives every row the
# same answer in any batch; above this size the copy and the time would cost more than that is worth.
SMALL = 10_000_000
JOIN_EVERY = 4  # tokens: a prefill costs as much as a step, so rows that wait join a few at a time


class EngineClosedError(RuntimeError):
    """The engine was closed before this row was answered."""


class EngineFullError(RuntimeError):
    """More rows wait than the queue holds: come back later."""


def row_key(*coordinates: int) -> int:
    """A noise key of these numbers and of nothing else, 63 bits: (seed, index) is that of answer `index`
    of a request with this seed."""
    digest = blake2b(",".join(map(str, coordinates)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def wants_double(model: torch.nn.Module) -> bool:
    """Should an engine sample from this model in float64? True of small float32 models on a CPU."""
    size = sum(weight.numel() for weight in model.parameters())
    return size <= SMALL and model.device.type == "cpu" and model.dtype == torch.float32


class Engine:
    """Answers over a policy's model. Do not train that policy while the engine answers: rows that
    began before an update would go on with the states of the old weights.

    max_rows: sampled at the same time, at most (default: config.row_cap); max_waiting: more are refused.
    """

    def __init__(self, policy: Policy, *, max_rows: int | None = None, max_waiting: int = 4096) -> None:
        self.policy = policy
        self.max_rows, self.max_waiting = max_rows or policy.config.row_cap, max_waiting
        # a copy: encoding switches control tokens on and off in the tokenizer itself
        self.tokenizer = copy.deepcopy(policy.tokenizer)
        self.width = policy.model.get_output_embeddings().weight.shape[0]
        if (highest := max(self.tokenizer.get_vocab().values())) >= self.width:
            raise ModelError(f"the tokenizer has an id {highest}, the model only {self.width} tokens: save "
                             "the two together again")
        self.limit: int | None = getattr(policy.model.config, "max_position_embeddings", None)
        self.largest_batch = self._steps = 0  # most rows sampled together so far; tokens since the start
        self._text_lock = threading.Lock()  # the tokenizer's
        self._batch = Batch(policy.model, self)
        self._waiting: deque[Row] = deque()
        self._wake, self._closed = threading.Condition(), False
        self._threads = policy.config.threads or torch.get_num_threads()
        self._worker = threading.Thread(target=self._work, name="rlteach-engine", daemon=True)
        self._worker.start()

    @cached_property
    def vocabulary(self) -> Vocabulary:
        with self._text_lock:
            return Vocabulary(self.tokenizer, self.policy.stop_ids, self.width)

    @property
    def template(self) -> str:
        return str(self.tokenizer.chat_template or "")

    def encode(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The prompt's ids, as Policy.encode makes them; text never becomes a control token.

        Raises:
            EngineError: the chat template cannot take these messages.
        """
        (pieces,) = self.render(messages, tools)
        return self.encode_pieces(pieces)

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (),
               gaps: Collection[int] = ()) -> list[list[Piece]]:
        """The prompt's text, split at the messages `gaps` (policy/chat.py); raises EngineError."""
        system = self.policy.config.system_prompt
        try:
            with self._text_lock:
                return chat_text(self.tokenizer, messages, tools=tools, system_prompt=system, gaps=gaps)
        except Exception as error:  # a template is a program of somebody else's
            why = " ".join(str(error).split())[:200]
            raise EngineError(f"messages: the chat template cannot take them ({why})") from None

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[int]:
        with self._text_lock:
            return encode_pieces(self.tokenizer, pieces)

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        with self._text_lock:
            return self.tokenizer.decode(ids, **options)

    def room(self, prompt: Sequence[int], max_tokens: int | None) -> int:
        """How long the answer may get: max_tokens, and no more than the model's positions have left.

        Raises:
            EngineError: there is no prompt, or it fills the model's positions.
        """
        if not prompt:
            raise EngineError("messages: the chat template makes an empty prompt of them")
        if self.limit is None:
            return max_tokens or self.policy.config.max_new_tokens
        left = self.limit - len(prompt)
        if left < 1:
            raise EngineError(f"messages: {len(prompt)} tokens leave no room for an answer in the model's "
                              f"{self.limit} positions: shorten them")
        return min(max_tokens or left, left)

    def submit(self, prompt: Sequence[int], params: RowParams, seed: int, count: int = 1, *,
               schema: Mapping[str, Any] | None = None, watch: Callable[[], None] | None = None) -> list[Row]:
        """`count` rows with noise from (seed, row, position); each row's `done` resolves when it ended.

        Raises:
            EngineClosedError, EngineFullError, GrammarError.
        """
        matcher = None if schema is None else self.vocabulary.matcher(schema)
        stop_ids = self.policy.stop_ids if schema is None else self.vocabulary.ends
        rows = [Row(prompt, params, row_key(seed, index), stop_ids=stop_ids, watch=watch,
                    matcher=None if matcher is None else matcher.deep_copy()) for index in range(count)]
        with self._wake:
            if self._closed:
                raise EngineClosedError("the server is stopping")
            if len(self._waiting) + len(rows) > self.max_waiting:
                raise EngineFullError(f"{len(self._waiting)} answers are waiting already: try again later")
            self._waiting += rows
            self._wake.notify()
        return rows

    @staticmethod
    def cancel(rows: Sequence[Row]) -> None:
        """Nobody waits for these any more: they leave the batch at the next token."""
        for row in rows:
            row.cancelled = True

    def close(self, timeout: float = 10.0) -> None:
        """Stop after the running token; rows that have not ended get EngineClosedError."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._worker.join(timeout)

    @property
    def load(self) -> dict[str, int]:
        return {"running": len(self._batch.rows), "waiting": len(self._waiting)}

    def _work(self) -> None:
        torch.set_num_threads(self._threads)  # a thread has its own setting
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._waiting or self._batch.rows)
                if self._closed:
                    break
                new = self._admit()
            try:
                self._turn(new)
            except Exception as error:  # out of memory, say: these rows fail, the next ones may not
                self._fail([*self._batch.rows, *new], error)
        self._fail([*self._batch.rows, *self._waiting], EngineClosedError("the server is stopping"))

    def _admit(self) -> list[Row]:
        new: list[Row] = []
        self._steps += 1
        if self._batch.rows and self._steps % JOIN_EVERY:
            return new
        while self._waiting and self._batch.joinable and len(self._batch.rows) + len(new) < self.max_rows:
            row = self._waiting.popleft()
            if not row.cancelled:
                new.append(row)
        return new

    def _turn(self, new: list[Row]) -> None:
        if new:
            self._batch.add(new)
            self.largest_batch = max(self.largest_batch, len(self._batch.rows))
        if not self._batch.rows:
            return  # what waited was cancelled
        running = self._batch.rows
        ended = self._batch.step()
        for row in ended:
            if not row.done.done():
                row.done.set_result(row)
        for row in running:
            if row.watch is not None:
                row.watch()

    def _fail(self, rows: Sequence[Row], error: Exception) -> None:
        self._batch.clear()
        for row in rows:
            if not row.done.done():
                row.done.set_exception(error)
                if row.watch is not None:
                    row.watch()
