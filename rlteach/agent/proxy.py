"""The training-aware proxy of a rollout: an append-only token record with a chat face.

    client = openai.OpenAI(base_url=proxy.url, api_key=proxy.jwt_token)
    wrap_client_inplace(client, proxy=proxy)      # or: client = proxy.rollout_client()
    client.chat.completions.create(model="any", messages=messages, tools=tools)

A wrapped client reaches the session directly; one that is not wrapped reaches the same session over
HTTP (the raw protocol: update_state_from_messages, create, process_completion). `model=` is ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from rlteach.agent.calls import CallError
from rlteach.agent.session import Session

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion

NOWHERE = "http://127.0.0.1:9/v1"  # a wrapped client needs an address, and never asks it


class Face(Protocol):
    """HTTP over sessions; made in another room (serving/proxy_http.py) and handed in."""

    url: str

    def add(self, session: Session) -> None: ...
    def remove(self, session: Session) -> None: ...


class RolloutInferenceProxy:
    """What a rollout is given to ask the policy. One proxy a call of the plug-in; they never mix.

    face: gives the HTTP face, once it is needed; None: only wrapped clients work.
    """

    _base = NOWHERE  # where the client of rollout_client() would send what it is not asked to

    def __init__(self, session: Session, face: Callable[[], Face] | None = None) -> None:
        self._session, self._face, self._added = session, face, False

    @property
    def url(self) -> str:
        """The base URL for an OpenAI client, /v1 included."""
        if self._face is None:
            return NOWHERE
        if not self._added:
            self._face().add(self._session)
            self._added = True
        return self._face().url

    @property
    def jwt_token(self) -> str:
        """The bearer token of this rollout, and of no other."""
        return self._session.token

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the raw protocol."""
        return {"Authorization": f"Bearer {self.jwt_token}"}

    def get_extra_body(self) -> dict[str, Any]:
        """Fields of the raw protocol. The session knows all that is needed: nothing has to be added."""
        return {}

    def update_state_from_messages(self, messages: Sequence[Any]) -> None:
        """Raw protocol, before a request: where these messages changed the history, the record is cut."""
        self._session.align(messages)

    def process_completion(self, completion: Any) -> None:
        """Raw protocol, after a request: the answer has to be this rollout's last one.

        Raises:
            CallError: it is another one.
        """
        found = completion.get("id") if isinstance(completion, Mapping) else getattr(completion, "id", None)
        if found != self._session.last_id:
            raise CallError(f"process_completion: {found!r} is not the last answer of this rollout "
                            f"({self._session.last_id!r}): hand over each answer right after it came", "id")

    def rollout_client(self) -> openai.OpenAI:
        """A wrapped openai.OpenAI; quicker to make than one of your own (all share one connection pool)."""
        client = _clients()[0].with_options(api_key=self.jwt_token, base_url=self._base)
        return wrap_client_inplace(client, proxy=self)

    def async_rollout_client(self) -> openai.AsyncOpenAI:
        """A wrapped openai.AsyncOpenAI; quicker to make than one of your own."""
        client = _clients()[1].with_options(api_key=self.jwt_token, base_url=self._base)
        return wrap_async_client_inplace(client, proxy=self)

    def answer(self, fields: Mapping[str, Any], _create: Callable[..., Any]) -> ChatCompletion:
        """What a wrapped client's `create` does; `_create` is the client's own, not needed here."""
        return _completion(self._session.complete(fields))

    async def aanswer(self, fields: Mapping[str, Any], _create: Callable[..., Any]) -> ChatCompletion:
        return _completion(await self._session.acomplete(fields))

    def close(self) -> None:
        """End the session; the runner calls it when the plug-in has returned."""
        self._session.close()
        if self._added and self._face is not None:
            self._face().remove(self._session)


def wrap_client_inplace(client: openai.OpenAI, *, proxy: Any) -> openai.OpenAI:
    """From now on client.chat.completions.create asks the proxy's policy. Returns the same client.

    Raises:
        TypeError: it is an asynchronous client.
    """
    _check_kind(client, asynchronous=False)
    own = client.chat.completions.create

    def create(**fields: Any) -> ChatCompletion:
        return proxy.answer(fields, own)

    create.traces_itself = True
    client.chat.completions.create = create
    return client


def wrap_async_client_inplace(client: openai.AsyncOpenAI, *, proxy: Any) -> openai.AsyncOpenAI:
    """`wrap_client_inplace` for openai.AsyncOpenAI."""
    _check_kind(client, asynchronous=True)
    own = client.chat.completions.create

    async def create(**fields: Any) -> ChatCompletion:
        return await proxy.aanswer(fields, own)

    create.traces_itself = True
    client.chat.completions.create = create
    return client


def _check_kind(client: Any, *, asynchronous: bool) -> None:
    function = inspect.unwrap(type(client.chat.completions).create)
    if inspect.iscoroutinefunction(function) != asynchronous:
        what, right = ("not asynchronous", "wrap_client_inplace") if asynchronous else (
            "asynchronous", "wrap_async_client_inplace")
        raise TypeError(f"{type(client).__name__} is {what}: use {right}")


def _completion(body: dict[str, Any]) -> ChatCompletion:
    from openai.types.chat import ChatCompletion

    return ChatCompletion.model_validate(body)


@cache
def _clients() -> tuple[openai.OpenAI, openai.AsyncOpenAI]:
    """One of each for the process: reading the certificates takes longer than a small model's answer."""
    import openai

    return (openai.OpenAI(api_key="none", base_url=NOWHERE),
            openai.AsyncOpenAI(api_key="none", base_url=NOWHERE))
