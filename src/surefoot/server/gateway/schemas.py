"""Bodies of the generating interfaces: requests, and OpenAI's answers with a field ``surefoot``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from surefoot.guard import Review
from surefoot.guard.records import Action, Stage
from surefoot.records import StepPart, Usage
from surefoot.scores import Aggregator
from surefoot.search.method import SearchCounts
from surefoot.server.gateway.settings import Candidates

_NEUTRAL = {"top_k": (0, -1), "min_p": (0,), "repetition_penalty": (1,), "repeat_penalty": (1,)}
"""Fields of other servers that would change the answer, with the values at which they do nothing."""


class RequestModel(BaseModel):
    """Base of what clients send: types are not converted, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class StrategyOptions(BaseModel):
    """Field ``surefoot`` of a request: what the OpenAI interface has no field for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    strategy: str | None = Field(default=None, max_length=100)
    """Takes precedence over the model's name."""
    problem: str | None = Field(default=None, min_length=1)
    """The problem as the reward model reads it; default: the last user message, or the prompt."""
    threshold: float | None = Field(default=None, ge=0, le=1)
    retries: int | None = Field(default=None, ge=0, le=100)
    abstain_below: float | None = Field(default=None, ge=0, le=1)
    aggregation: Aggregator | None = None
    separator: str | None = Field(default=None, min_length=1, max_length=20)
    step_tokens: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1, le=1000)
    candidates: Candidates | None = None
    """``null`` = as the server says."""


class StreamOptions(RequestModel):
    """What a stream holds besides text."""

    include_usage: bool = False


class TextPart(RequestModel):
    """A piece of a message; only text is supported."""

    type: Literal["text"]
    text: str


class InputFunctionCall(RequestModel):
    """Function and arguments of a tool call."""

    name: str
    arguments: str = "{}"


class InputToolCall(RequestModel):
    """A tool call that the assistant made earlier."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: InputFunctionCall


class ChatMessage(RequestModel):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[InputToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """Reasoning of an assistant's message, as this server returned it."""

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: Any) -> Any:
        if isinstance(content, list):
            for part in content:
                kind = part.get("type") if isinstance(part, dict) else None
                if isinstance(kind, str) and kind != "text":
                    raise ValueError(f"parts of type {kind[:40]!r} are not supported here; send text")
        return content


StopText = Annotated[str, Field(min_length=1, max_length=200)]


class SamplingRequest(RequestModel):
    """How something is to be generated."""

    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    surefoot: StrategyOptions | None = None

    @property
    def options(self) -> StrategyOptions:
        """Field ``surefoot``, or that of a request that says nothing."""
        return self.surefoot or StrategyOptions()


class GenerationRequest(SamplingRequest):
    """What both generating interfaces share."""

    model: str = Field(max_length=300)
    """The policy's name, a strategy, ``surefoot`` (the server's default), or ``POLICY/STRATEGY``."""
    n: int | None = Field(default=None, ge=1)
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    metadata: dict[str, Any] | None = None
    """``session_id`` names the session that the request is a turn of; the rest is not read."""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop texts."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop or ())

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.unsupported():
            raise ValueError(f"{name!r} is not supported here; leave it out")
        return self

    def unsupported(self) -> list[str]:
        """Fields that would change the answer, and are not supported."""
        names = [name for name, nothing in _NEUTRAL.items() if getattr(self, name) not in (None, *nothing)]
        penalties = ("frequency_penalty", "presence_penalty", "logit_bias")
        return [*names, *(name for name in penalties if getattr(self, name))]


class ChatRequest(GenerationRequest):
    """Body of ``/v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=1000)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=128)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None

    def unsupported(self) -> list[str]:
        """As :meth:`GenerationRequest.unsupported`."""
        names = [name for name in ("logprobs", "top_logprobs") if getattr(self, name)]
        if (self.response_format or {}).get("type", "text") != "text":
            names.append("response_format")
        return [*super().unsupported(), *names]


class CompletionRequest(GenerationRequest):
    """Body of ``/v1/completions``."""

    prompt: str
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def unsupported(self) -> list[str]:
        """As :meth:`GenerationRequest.unsupported`; for ``best_of`` there are strategies."""
        names = [name for name in ("logprobs", "echo", "suffix") if getattr(self, name)]
        return [*super().unsupported(), *names, *(["best_of"] if (self.best_of or 1) > 1 else [])]


class ResponseModel(BaseModel):
    """Base of what is answered."""

    model_config = ConfigDict(frozen=True)


class TokenUsage(ResponseModel):
    """Tokens. Prompt and completion are the policy's, over all candidates; the verifier's are apart."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    verifier_tokens: int
    calls: int
    """Calls of policy and verifier."""

    @classmethod
    def of(cls, usage: Usage) -> TokenUsage:
        """From the usage of a search."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            verifier_tokens=usage.verifier_tokens,
            calls=usage.calls,
        )


class ScoredStep(ResponseModel):
    """A step as a span of the candidate's text, or of what ``part`` says, in characters."""

    start: int
    end: int
    score: float | None
    part: StepPart | None = Field(default=None, exclude_if=lambda value: value is None)
    """``tool_call`` (of its arguments) or ``reasoning``; absent for the text."""
    call: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """Which of ``tool_calls``."""


class CandidateResponse(ResponseModel):
    """A solution that was found."""

    text: str
    answer: str | None
    """Final answer, as extracted."""
    value: float | None
    """Aggregated score."""
    weight: int
    """How often it was drawn."""
    chosen: bool
    finish_reason: str | None
    steps: list[ScoredStep]
    unscored_reason: str | None = None
    tool_calls: list[OutputToolCall] | None = Field(default=None, exclude_if=lambda value: value is None)


class DroppedStep(ResponseModel):
    """A step that was drawn and dropped."""

    step: int
    """Its place in the solution, counted from 0."""
    text: str
    score: float | None


class GuardSummary(ResponseModel):
    """What the guard decided about one message with tool calls."""

    action: Action
    stage: Stage | None
    """The stage for which it was not released."""
    reason: str
    held: str | None
    """Number to ask ``/v1/held/NUMBER`` for."""
    review: Review | None
    latency_ms: float


class SearchResponse(ResponseModel):
    """How one choice came about."""

    index: int
    seed: int
    rule: str
    chosen: int | None
    """Index of the chosen one of all candidates that were found."""
    value: float | None
    """Its aggregated score."""
    abstained: bool
    usage: TokenUsage
    counts: SearchCounts
    error: str | None
    candidates: list[CandidateResponse]
    """Solutions that were found."""
    dropped: list[DroppedStep] = []
    """Steps that lead to none of them; where all candidates are shown."""
    guard: list[GuardSummary] = Field(default=[], exclude_if=lambda value: not value)
    """One for each message with tool calls that was drawn."""


class Extension(ResponseModel):
    """Field ``surefoot`` of an answer: how it was found, and what it cost."""

    strategy: str
    seed: int
    """The same request with this seed gives the same answer."""
    policy: str
    scorer: str | None
    searches: list[SearchResponse]
    """One a choice."""


class OutputFunctionCall(ResponseModel):
    """Function and arguments of a tool call."""

    name: str
    arguments: str


class OutputToolCall(ResponseModel):
    """A tool call; ``index`` is there in streams only."""

    index: int | None = Field(default=None, exclude_if=lambda value: value is None)
    id: str
    type: Literal["function"] = "function"
    function: OutputFunctionCall


class OutputMessage(ResponseModel):
    """The assistant's message; ``refusal`` says why there is no answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | None = Field(default=None, exclude_if=lambda value: value is None)
    tool_calls: list[OutputToolCall] | None = Field(default=None, exclude_if=lambda value: value is None)


class ChatChoice(ResponseModel):
    """One answer."""

    index: int
    message: OutputMessage
    logprobs: None = None
    finish_reason: str


class _GenerationResponse(ResponseModel):
    id: str
    object: str
    created: int
    model: str
    usage: TokenUsage
    surefoot: Extension


class ChatResponse(_GenerationResponse):
    """Answer of ``/v1/chat/completions``."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class TextChoice(ResponseModel):
    """One answer."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str


class HeldResponse(ResponseModel):
    """Answer of ``/v1/held/NUMBER``."""

    number: int
    state: Literal["waiting", "approved", "denied"]
    comment: str
    """What the person said."""
    message: OutputMessage | None
    """The message with its calls, once it is approved."""


class CompletionResponse(_GenerationResponse):
    """Answer of ``/v1/completions``."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
