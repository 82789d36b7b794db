"""Bodies of requests to the generating endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from surefoot.messages import message_fields
from surefoot.records import ALREADY_READ, Message
from surefoot.scores import TraceRule
from surefoot.server.gateway.errors import ApiError, invalid
from surefoot.server.gateway.settings import Candidates

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_k": (0, -1), "min_p": (0,), "repetition_penalty": (1,), "repeat_penalty": (1,),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs"), (0,)),
    "logit_bias": ({},), "logprobs": (False,),
}  # fmt: skip
"""Fields that would change the answer and are not supported, with their neutral values."""


class RequestModel(BaseModel):
    """Base of requests: types are not converted, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class StrategyOptions(BaseModel):
    """Field ``surefoot`` of a request: options that OpenAI's API does not have."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    strategy: str | None = Field(default=None, max_length=300)
    """A search such as ``beam:width=4,expand=4``, ``plain``, or a name that the server has for one. It takes
    precedence over the model's name."""
    problem: str | None = Field(default=None, min_length=1)
    """The problem that the reward model sees; by default the last user message, or the prompt."""
    abstain_below: float | None = Field(default=None, ge=0, le=1)
    aggregation: TraceRule | None = None
    separator: str | None = Field(default=None, min_length=1, max_length=20)
    step_tokens: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1, le=1000)
    candidates: Candidates | None = None
    """``null``: the server's default."""


NO_OPTIONS = StrategyOptions()


class StreamOptions(RequestModel):
    """Extra events of a stream."""

    include_usage: bool = False


StopText = Annotated[str, Field(min_length=1, max_length=200)]


class GeneratingRequest(RequestModel):
    """What the requests of all APIs have; ``seed`` and ``surefoot`` extend the others' APIs."""

    model: str = Field(max_length=300)
    """The policy's name, a strategy, ``surefoot`` (the server's default), or ``POLICY/STRATEGY``."""
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    surefoot: StrategyOptions | None = None
    metadata: dict[str, Any] | None = None
    """``session_id`` names the session that the request belongs to; other entries are ignored."""
    stream: bool | None = False
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=128)


class ChatRequest(GeneratingRequest):
    """Body of ``/v1/chat/completions``, to which the other APIs' requests are converted."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1)
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1000)
    """Of text and images; see :func:`read_message`."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    _rows: tuple[str, Sequence[Any]] | None = None

    @property
    def rows(self) -> tuple[str, Sequence[Any]]:
        """The messages as the client sent them, and the name of their field."""
        return self._rows or ("messages", self.messages)

    @property
    def options(self) -> StrategyOptions:
        """Field ``surefoot``, or its defaults."""
        return self.surefoot or NO_OPTIONS

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop texts."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop or ())

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [name for name, nothing in _NEUTRAL.items() if getattr(self, name) not in (None, *nothing)]
        if (self.response_format or {}).get("type", "text") != "text":
            names.append("response_format")
        if names:
            raise ValueError(f"{names[0]!r} is not supported here; leave it out")
        return self


class ConvertedRequest(GeneratingRequest):
    """Base of other APIs' requests, which run as chat completions."""

    def chat_request(self, rows: list[dict[str, Any]], source: str, **fields: Any) -> ChatRequest:
        """The same request for a chat with the messages ``rows`` of the field ``source``, and other
        ``fields`` that are not ``None``. Raises :class:`ApiError`."""
        for name in ("model", "stream", "temperature", "top_p", "seed", "metadata", "surefoot"):
            fields[name] = getattr(self, name)
        fields["messages"] = rows
        try:
            chat = ChatRequest.model_validate(
                {name: value for name, value in fields.items() if value is not None}
            )
        except ValidationError as error:
            raise invalid(error.errors()) from error
        chat._rows = (source, getattr(self, source))
        return chat


def refuse(field: str, present: bool, what: str = "it") -> None:
    """Raise :class:`ApiError` if an unsupported field that would change the answer is ``present``."""
    if present:
        raise ApiError(
            400, f"{field}: {what} cannot be had here; leave it out", param=field, code="unsupported"
        )


_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "reasoning", "attachments")
_ROLES = get_args(Message.model_fields["role"].annotation)


def read_message(number: int, row: Mapping[str, Any]) -> Message:
    """A message of a request, in any shape that :mod:`surefoot.messages` reads, without its other fields.

    Raises :class:`ApiError`.
    """
    role: Any = row.get("role")
    content = row.get("content")
    if len(row) == 2 and role in _ROLES and isinstance(content, str):  # as most are
        return Message.of_text(role, content)
    where = f"messages.{number}"
    try:
        read = message_fields(row)
        fields = {name: read[name] for name in _FIELDS if read.get(name) is not None}
        if (fields.get("reasoning") or {}).get("visibility") == "encrypted":
            del fields["reasoning"]
        if "tool_calls" not in fields:
            fields.setdefault("content", "")
        return Message.model_validate(fields, context=ALREADY_READ)
    except ValidationError as error:
        raise ApiError(400, f"{where}.{invalid(error.errors()).message}", param=where) from error
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ApiError(400, f"{where}: {error}", param=where) from error
