"""The request of POST /v1/chat/completions, strict about its fields.

Three kinds of field: those the server honours (ChatRequest), standard ones that change nothing here
(taken, not looked at), and those with an effect that this server does not have (refused by name
unless they hold the value that means "no effect"). Nothing is ignored in silence.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

# standard fields that say nothing about the answer
WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                  "prompt_cache_options")
# field -> the values (beside null) at which it has no effect
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,), "min_p": (0,),
    "logit_bias": ({},), "store": (False,), "service_tier": ("auto", "default"), "modalities": (["text"],),
    "functions": ([],), "function_call": ("none",), "verbosity": ("medium",), "reasoning_effort": (),
    "audio": (), "prediction": (), "web_search_options": (), "moderation": (),
}


class WireError(ValueError):
    """A request that is refused: HTTP status, the field it is about, and a sentence."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400,
                 code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    def body(self) -> dict[str, Any]:
        """The error as OpenAI writes it."""
        kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error",
                 503: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class CalledFunction(_Strict):
    name: str
    arguments: str


class ToolCall(_Strict):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(_Strict):
    """refusal, audio, function_call and annotations: as an answer of ours holds them, sent back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class Function(_Strict):
    """strict: calls are read from the text, nothing binds them to their schema."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(_Strict):
    type: Literal["function"]
    function: Function


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class JsonSchema(_Strict):
    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(_Strict):
    """What the server honours. top_k and return_token_ids are vLLM's names for what OpenAI has not."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    n: int | None = Field(None, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=5)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: Annotated[str, Field(min_length=1)] | Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(max_length=4)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def longest(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def brief(self) -> bool:
        """Read and encoded in less time than a thread takes to start on it: short, and no grammar."""
        return self.schema_wanted is None and not self.tools and sum(len(m.text) for m in self.messages) < 4e3

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        if self.tool_choice == "none":
            return []
        return [tool.model_dump(exclude_none=True) for tool in self.tools or []]

    @property
    def schema_wanted(self) -> dict[str, Any] | None:
        """The JSON schema that the answer has to follow; None: plain text."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        return {"type": "object"} if wanted.type == "json_object" else wanted.json_schema.schema_ or {}


def read_object(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object. Raises WireError when the body is none."""
    try:
        raw = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise WireError(f"the body is not JSON in UTF-8 ({error})") from None
    if not isinstance(raw, dict):
        raise WireError("the body has to be a JSON object")
    return raw


def read_request(body: bytes) -> ChatRequest:
    """The request in these bytes.

    Raises:
        WireError: not JSON, an unknown field, or a value that is not possible; names the field.
    """
    raw = read_object(body)
    for name, neutral in NEUTRAL.items():
        value = raw.pop(name, None)
        if value is not None and value not in neutral:
            raise WireError(f"{name} has an effect that this server does not have: leave it out", name,
                            code="unsupported_parameter")
    for name in WITHOUT_EFFECT:
        raw.pop(name, None)
    try:
        request = ChatRequest.model_validate(raw, strict=True)
    except ValidationError as error:
        raise _refusal(error) from None
    _check(request)
    return request


def _refusal(error: ValidationError) -> WireError:
    """One complaint as a sentence: the one that goes deepest, for of a union each member complains."""
    first = max(error.errors(include_url=False, include_input=False), key=lambda e: len(e["loc"]))
    *above, last = map(str, first["loc"])
    fields = [part for part in above if re.fullmatch(r"[a-z_]+|\d+", part) and part != "str"]
    # the rest are names of a union's members ("constrained-str"), not of fields
    known = first["type"] == "extra_forbidden" or not above or re.fullmatch(r"[a-z_]+|\d+", last)
    name = ".".join([*fields, last[:100]] if known and last != "str" else fields)
    if first["type"] == "extra_forbidden":
        return WireError(f"{name} is not a field that this server knows: leave it out", name,
                         code="unknown_parameter")
    if first["type"] == "missing":
        return WireError(f"{name} is missing", name, code="missing_required_parameter")
    return WireError(f"{name}: {first['msg']}", name, code="invalid_value")


def _check(request: ChatRequest) -> None:
    """What one field alone does not show."""
    lengths = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(lengths) > 1:
        raise WireError("max_tokens and max_completion_tokens differ: give one of the two", "max_tokens")
    if request.top_logprobs and not request.logprobs:
        raise WireError("top_logprobs needs logprobs: true", "top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise WireError("stream_options needs stream: true", "stream_options")
    wanted = request.response_format
    if wanted is not None and (wanted.type == "json_schema") != (wanted.json_schema is not None):
        raise WireError("response_format: type json_schema and the field json_schema belong together",
                        "response_format")
    if request.schema_wanted is not None and request.offered:
        raise WireError("tools and a JSON response_format exclude each other here: leave one out", "tools")
    if request.offered and request.parallel_tool_calls is False:
        raise WireError("parallel_tool_calls: false cannot be enforced here: leave it out",
                        "parallel_tool_calls")
    for i, message in enumerate(request.messages):
        _check_message(message, f"messages.{i}")


def _check_message(message: ChatMessage, where: str) -> None:
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise WireError(f"{where}.content is missing", f"{where}.content")
    if message.tool_calls and message.role != "assistant":
        raise WireError(f"{where}.tool_calls: only an assistant calls tools", f"{where}.tool_calls")
    if (message.role == "tool") != (message.tool_call_id is not None):
        raise WireError(f"{where}.tool_call_id belongs to messages of role tool, and each has one",
                        f"{where}.tool_call_id")
