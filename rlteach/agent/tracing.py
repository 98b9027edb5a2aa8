"""What happened in a rollout, as spans: rollout -> model call, tool, and grades, with ids and milliseconds.

    {"trace": "...", "span": "...", "parent": null, "kind": "rollout", "name": "demo", "start": 17e8,
     "ms": 12.5, "inputs": ..., "outputs": ..., "error": null, "events": [{"name": ..., ...}]}

A span knows its parent through a context variable, so threads and tasks that a plug-in is run on
never mix. Without a tracer, spans cost nearly nothing. Nothing secret is written: no header, no token.
"""

from __future__ import annotations

import functools
import inspect
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import uuid4

LONGEST = 20_000  # characters of one text in the file: a tool may send back a megabyte
_CURRENT: ContextVar[tuple[Tracer, Span] | None] = ContextVar("rlteach_span", default=None)


@dataclass
class Span:
    """One thing that took time; `start` is seconds since 1970."""

    trace: str
    span: str
    parent: str | None
    kind: str
    name: str
    start: float
    ms: float | None = None
    inputs: Any = None
    outputs: Any = None
    error: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    def event(self, name: str, **details: Any) -> None:
        """Something that took no time: a retry, a cut history."""
        self.events.append({"name": name, **plain(details)})


class Tracer:
    """Takes the spans that ended: into a file, one JSON object a line, and into `spans` (the last ones).

    path None: no file. keep: how many spans stay in memory.
    """

    def __init__(self, path: str | Path | None = None, *, keep: int = 1000) -> None:
        self.path, self.keep = None if path is None else Path(path), keep
        self.spans: list[Span] = []
        self._lock = threading.Lock()

    @contextmanager
    def span(self, kind: str, name: str, *, inputs: Any = None, root: bool = False, **about: Any
             ) -> Iterator[Span]:
        """A span that ends with the block; below the current one, unless `root`."""
        above = None if root else _CURRENT.get()
        trace = uuid4().hex if above is None else above[1].trace
        new = Span(trace, uuid4().hex[:16], None if above is None else above[1].span, kind, name, time.time(),
                   inputs=plain(inputs), about=plain(about))
        token, began = _CURRENT.set((self, new)), time.perf_counter()
        try:
            yield new
        except BaseException as error:
            new.error = new.error or f"{type(error).__name__}: {error}"[:LONGEST]
            raise
        finally:
            _CURRENT.reset(token)
            new.ms = round(1000 * (time.perf_counter() - began), 3)
            self.write(new)

    def write(self, span: Span) -> None:
        line = None
        if self.path is not None:
            line = json.dumps(asdict(span), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            self.spans.append(span)
            del self.spans[: -self.keep]
            if line is not None:
                with self.path.open("ab") as file:
                    file.write(line)


def current() -> tuple[Tracer, Span] | None:
    """Where the caller is in a trace; for `under` in another thread."""
    return _CURRENT.get()


@contextmanager
def under(scope: tuple[Tracer, Span] | None) -> Iterator[None]:
    """Trace below `scope`, unless the caller is in a trace already."""
    if scope is None or _CURRENT.get() is not None:
        yield
        return
    token = _CURRENT.set(scope)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def span(kind: str, name: str, *, inputs: Any = None, **about: Any) -> Iterator[Span | None]:
    """A span below the current one; None (and nothing is recorded) where nobody traces."""
    above = _CURRENT.get()
    if above is None:
        yield None
        return
    with above[0].span(kind, name, inputs=inputs, **about) as new:
        yield new


def event(name: str, **details: Any) -> None:
    """Note something on the current span."""
    if (found := _CURRENT.get()) is not None:
        found[1].event(name, **details)


def observe(function: Any = None, *, name: str | None = None, kind: str = "tool",
            process_inputs: Callable[[dict[str, Any]], Any] | None = None,
            process_outputs: Callable[[Any], Any] | None = None) -> Any:
    """Trace each call of a function (a tool, say), sync or async; usable with and without brackets.

    process_inputs is given {"args": ..., "kwargs": ...} and says what of it is written down,
    process_outputs is given the result.
    """
    if function is None:
        return functools.partial(observe, name=name, kind=kind, process_inputs=process_inputs,
                                 process_outputs=process_outputs)
    shown = name or getattr(function, "__name__", "call")
    read = process_inputs or (lambda given: given)
    told = process_outputs or (lambda result: result)

    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        @functools.wraps(function)
        async def traced_async(*args: Any, **kwargs: Any) -> Any:
            if _CURRENT.get() is None:
                return await function(*args, **kwargs)
            with span(kind, shown, inputs=read({"args": args, "kwargs": kwargs})) as here:
                result = await function(*args, **kwargs)
                here.outputs = plain(told(result))
                return result

        return traced_async

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if _CURRENT.get() is None:
            return function(*args, **kwargs)
        with span(kind, shown, inputs=read({"args": args, "kwargs": kwargs})) as here:
            result = function(*args, **kwargs)
            here.outputs = plain(told(result))
            return result

    return traced


def coze_monitor(function: Any) -> Any:
    """The Ark SDK's name for tracing a plug-in's own input and output: a span inside the rollout's."""
    return observe(function, kind="plugin", process_inputs=lambda given: _sample_of(given["args"]))


def wrap_inplace_trace(client: Any) -> Any:
    """Trace every chat.completions.create of an OpenAI client, sync or async. Returns the client.

    Order does not matter: a client that is also wrapped for a rollout is traced once.
    """
    completions = client.chat.completions
    if getattr(completions.create, "traces_itself", False):
        return client
    completions.create = observe(completions.create, name="chat.completions.create", kind="client",
                                 process_inputs=lambda given: {
                                     k: v for k, v in given["kwargs"].items() if k in ("model", "messages")})
    return client


def _sample_of(args: tuple[Any, ...]) -> Any:
    found = [a for a in args if hasattr(a, "messages") and not hasattr(a, "jwt_token")]
    return found[0].messages if found else None


def plain(value: Any, depth: int = 12) -> Any:
    """The value as JSON can hold it, long texts cut."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}... ({len(value)} characters)"
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)  # no NaN either: it is no JSON
    if depth == 0:
        return "..."
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(exclude_none=True), depth - 1)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value), depth - 1)
    if isinstance(value, Mapping):
        return {str(k): plain(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v, depth - 1) for v in value]
    return plain(repr(value))
