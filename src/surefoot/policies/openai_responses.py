"""Responses of an OpenAI-compatible server, whole or streamed in pieces, as completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel, InstanceOf, StrictFloat

from surefoot.printable import quoted
from surefoot.protocols import STOP_UNKNOWN, Completion, SampleRequest, SampleResult
from surefoot.records import Count, Reasoning, ToolCall, Usage, as_json

Mode = Literal["chat", "completions"]
"""Endpoint: ``/chat/completions`` or ``/completions``."""

Show = Callable[[int, str], None]
"""Called with the number of a choice and its new text."""

Text = InstanceOf[str]
"""Text that may begin or end with half a character: a server may cut a JSON string between surrogates."""


_REASON_CHARACTERS = 100
"""Of a finish reason."""


class ResponseError(Exception):
    """A well-formed answer from which no completion can be taken."""


class CalledFunction(BaseModel):
    """What a tool call names."""

    name: str
    arguments: str = "{}"


class CompleteToolCall(BaseModel):
    """A tool call."""

    id: str | None = None
    function: CalledFunction


class ReasoningDetail(BaseModel):
    """A piece of reasoning in the form of OpenRouter; ``type`` is ``reasoning.text`` or another kind."""

    type: str = ""
    text: str | None = None
    summary: str | None = None
    data: str | None = None


class _WithReasoning(BaseModel):
    """Reasoning apart from the content, under the names that servers use.

    ``reasoning_content``: DeepSeek, vLLM before 0.12, SGLang, llama.cpp; ``reasoning``: vLLM, OpenRouter;
    ``reasoning_details``: OpenRouter, which also marks summaries and encrypted text.
    """

    reasoning_content: Text | None = None
    reasoning: Text | None = None
    reasoning_details: list[ReasoningDetail] | None = None


class ResponseMessage(_WithReasoning):
    """The assistant's message."""

    content: str | None = None
    tool_calls: list[CompleteToolCall] | None = None


class _TokenLogprob(BaseModel):
    """One sampled token (``/chat/completions``)."""

    logprob: StrictFloat


class _Logprobs(BaseModel):
    """Log-probabilities of the sampled tokens, in either endpoint's form."""

    token_logprobs: list[StrictFloat] | None = None
    content: list[_TokenLogprob] | None = None

    @property
    def values(self) -> tuple[float, ...]:
        """One per token."""
        return tuple(self.token_logprobs or (token.logprob for token in self.content or ()))


class _Choice(BaseModel):
    """What is read of a choice of either endpoint, whole or in pieces; other fields are left alone."""

    index: int = 0
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    """Of ``/completions``, where each choice has them; ``/chat/completions`` has them outside the choices."""
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None
    logprobs: _Logprobs | None = None


class ResponseChoice(_Choice):
    """A whole choice."""

    text: str | None = None
    message: ResponseMessage | None = None


_UNSEEN_TOKENS = 65_536
"""Tokens of a prompt beyond one per byte that was sent: a chat template's, or those of linked images."""


def limited_prompt(tokens: int, body: Mapping[str, Any]) -> int:
    """A server's count of a prompt's tokens, bounded by what a request with this body could have used."""
    if tokens <= _UNSEEN_TOKENS:
        return tokens
    return min(tokens, _UNSEEN_TOKENS + len(as_json(body).encode("utf-8", "replace")))


class TokenDetails(BaseModel):
    """What the tokens of a completion were."""

    reasoning_tokens: Count | None = None


class TokenCounts(BaseModel):
    """Tokens of a call."""

    prompt_tokens: Count
    completion_tokens: Count
    completion_tokens_details: TokenDetails | None = None

    def limit(self, body: Mapping[str, Any], *, completion: int) -> None:
        """Bound the counts by what a request with this body and so many new tokens could have used."""
        self.prompt_tokens = limited_prompt(self.prompt_tokens, body)
        self.completion_tokens = min(self.completion_tokens, completion)
        details = self.completion_tokens_details
        if details is not None and details.reasoning_tokens is not None:
            details.reasoning_tokens = min(details.reasoning_tokens, completion)


class ResponseBody(BaseModel):
    """A whole answer of either endpoint."""

    choices: list[ResponseChoice]
    usage: TokenCounts
    prompt_token_ids: list[int] | None = None


def read(answer: ResponseBody, request: SampleRequest, mode: Mode, usage: Usage) -> SampleResult:
    """An answer as a result; raises :class:`ResponseError` if nothing of it can be kept."""
    if not answer.choices:
        raise ResponseError("the answer has no choices")
    if len(answer.choices) > request.n:
        raise ResponseError(f"{len(answer.choices)} choices came, {request.n} were asked for")
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    completions = tuple(_completion(choice, mode, request.sampling.stop, answer) for choice in choices)
    if request.logprobs:
        completions = tuple(
            replace(completion, logprobs=choice.logprobs.values if choice.logprobs else ())
            for completion, choice in zip(completions, choices, strict=True)
        )
    missing = request.n - len(completions)
    error = f"server: {missing} of {request.n} choices are missing" if missing else None
    prompt = answer.prompt_token_ids or choices[0].prompt_token_ids or ()
    return SampleResult(completions=completions, usage=usage, error=error, prompt_token_ids=tuple(prompt))


def merge(results: Sequence[SampleResult]) -> SampleResult:
    """One result from calls of one sample each; the prompt, common to all, is counted once."""
    if len(results) == 1:
        return results[0]
    errors = [result.error for result in results if result.error]
    total = sum((result.usage for result in results), Usage())
    usage = total.model_copy(update={"prompt_tokens": max(result.usage.prompt_tokens for result in results)})
    completions = tuple(completion for result in results for completion in result.completions)
    error = f"{errors[0]} ({len(errors)} of {len(results)} samples are missing)" if errors else None
    prompt = next((result.prompt_token_ids for result in results if result.prompt_token_ids), ())
    return SampleResult(completions=completions, usage=usage, error=error, prompt_token_ids=prompt)


def _completion(
    choice: ResponseChoice, mode: Mode, stop: tuple[str, ...], answer: ResponseBody
) -> Completion:
    calls: tuple[ToolCall, ...] = ()
    if mode == "completions":
        text = choice.text
    elif choice.message is None:
        text = None
    else:
        calls = tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in choice.message.tool_calls or []
        )
        # A reply of tool calls alone has null content; null content without calls is an empty reply.
        text = choice.message.content or ""
    if text is None:
        raise ResponseError(f"malformed answer: choice {choice.index} has no text; is mode={mode!r} right?")
    text, reason = _restore_stop(choice, text, stop)
    token_ids = tuple(choice.token_ids or ())
    return Completion(
        text=text,
        finish_reason=reason,
        tokens=_tokens(choice, answer),
        tool_calls=calls,
        token_ids=token_ids,
        reasoning=_reasoning(choice.message if mode == "chat" else None, answer),
    )


def _reasoning(message: ResponseMessage | None, answer: ResponseBody) -> Reasoning | None:
    """What a server tells of the reasoning; tokens that it counts and does not show are withheld."""
    details = answer.usage.completion_tokens_details
    # With several choices the count is of all of them.
    tokens = details.reasoning_tokens if details and len(answer.choices) == 1 else None
    if message is not None:
        parts = message.reasoning_details or []
        summary = "\n\n".join(part.summary for part in parts if part.summary)
        readable = "".join(part.text for part in parts if part.text)
        readable = readable or ("" if summary else message.reasoning_content or message.reasoning or "")
        encrypted = "".join(part.data for part in parts if part.data)
        if readable.strip():
            return Reasoning(text=readable, tokens=tokens)
        if summary:
            return Reasoning(text=summary, visibility="summarised", tokens=tokens)
        if encrypted:
            return Reasoning(text=encrypted, visibility="encrypted", tokens=tokens)
    return Reasoning(visibility="withheld", tokens=tokens) if tokens else None


def _restore_stop(choice: ResponseChoice, text: str, stop: tuple[str, ...]) -> tuple[str, str]:
    """Text with the stop text that ended it, and the finish reason; see ``OpenAIPolicy`` for the rule."""
    reason = quoted(choice.finish_reason or "unknown", _REASON_CHARACTERS)
    if reason != "stop" or not stop or text.endswith(stop):
        return text, reason
    reported = choice.model_fields_set & {"stop_reason", "matched_stop"}
    for mark in (choice.stop_reason, choice.matched_stop):
        if mark in stop:
            return f"{text}{mark}", reason
    # A reported null, or a token's number, is the end of the sequence.
    return text, reason if reported else STOP_UNKNOWN


def _tokens(choice: ResponseChoice, answer: ResponseBody) -> int:
    if choice.token_ids is not None:
        return len(choice.token_ids)
    if len(answer.choices) > 1:
        raise ResponseError("no token_ids came with several choices (an old vLLM?); use dialect='openai'")
    return answer.usage.completion_tokens


class FunctionDelta(BaseModel):
    """The function in a piece of a tool call."""

    name: str | None = None
    arguments: Text | None = None


class ToolCallDelta(BaseModel):
    """A piece of a tool call."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class ToolCallBuilder:
    """The tool calls of a choice, as far as they have arrived, in the order in which they began.

    Pieces of a call have the same number; a server that numbers none sends each call whole. Some servers
    give all calls the number 0: a piece with another id then begins the next call. Other servers make a new
    id for each piece, so that arguments without a name continue the previous call, whatever their id.
    """

    def __init__(self) -> None:
        self._all: list[_PartialToolCall] = []
        self._latest: dict[int, _PartialToolCall] = {}
        """The latest call of each number."""

    def add(self, pieces: Sequence[ToolCallDelta]) -> None:
        """Add new pieces."""
        for new in pieces:
            call = None if new.index is None else self._latest.get(new.index)
            if call is None or call.ended_by(new):
                call = _PartialToolCall()
                self._all.append(call)
                if new.index is not None:
                    self._latest[new.index] = call
            call.add(new)

    @property
    def whole(self) -> list[dict[str, Any]]:
        """All of them, as an answer in one piece has them."""
        return [call.whole for call in self._all]


@dataclass
class _PartialToolCall:
    """A tool call, as far as it has arrived: its first piece has the name, all have arguments."""

    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list)

    def ended_by(self, new: ToolCallDelta) -> bool:
        """Whether a piece of the same number begins another call."""
        more = new.function and new.function.arguments and not new.function.name
        return bool(self.id and new.id and new.id != self.id and not more)

    def add(self, new: ToolCallDelta) -> None:
        self.id = self.id or new.id
        if new.function:
            self.name = self.name or new.function.name
            self.arguments += [] if new.function.arguments is None else [new.function.arguments]

    @property
    def whole(self) -> dict[str, Any]:
        arguments = {"arguments": whole_characters("".join(self.arguments))[0]} if self.arguments else {}
        return {"id": self.id, "function": {"name": self.name, **arguments}}


def whole_characters(text: str) -> tuple[str, str]:
    """Text with its surrogates joined, and half a character that it may end with.

    Raises ``UnicodeDecodeError`` for half a character anywhere else.
    """
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    complete = text[: len(text) - len(half)]
    return complete.encode("utf-16-le", "surrogatepass").decode("utf-16-le"), half


class _Delta(_WithReasoning):
    content: Text | None = None
    tool_calls: list[ToolCallDelta] | None = None


class _ChoiceDelta(_Choice):
    text: Text | None = None
    delta: _Delta | None = None


class _Chunk(BaseModel):
    choices: list[_ChoiceDelta] = []
    usage: TokenCounts | None = None
    prompt_token_ids: list[int] | None = None


class ResponseBuilder:
    """Puts an answer together; ``shown`` says whether any text of it was."""

    def __init__(self, n: int, mode: Mode, show: Show) -> None:
        self._n, self._mode, self._show = n, mode, show
        self._choices: dict[int, _ChoiceBuilder] = {}
        self._usage: TokenCounts | None = None
        self._prompt_token_ids: list[int] | None = None
        self.shown = False

    def add(self, event: object) -> None:
        chunk = _Chunk.model_validate(event)
        self._usage = chunk.usage or self._usage
        self._prompt_token_ids = chunk.prompt_token_ids or self._prompt_token_ids
        for choice in chunk.choices:
            if not 0 <= choice.index < self._n:
                raise ResponseError(f"choice {choice.index} came, {self._n} were asked for")
            builder = self._choices.setdefault(choice.index, _ChoiceBuilder(self._mode))
            text = builder.add(choice)
            if text:
                self.shown = True
                self._show(choice.index, text)

    def answer(self) -> ResponseBody:
        choices = [builder.choice(index) for index, builder in self._choices.items()]
        if self._usage is None:
            raise ResponseError("the stream ended without usage (the server must know stream_options)")
        return ResponseBody(choices=choices, usage=self._usage, prompt_token_ids=self._prompt_token_ids)


@dataclass
class _ChoiceBuilder:
    """A choice, as far as it has arrived."""

    mode: Mode
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    details: list[ReasoningDetail] = field(default_factory=list)
    half: str = ""
    """First half of a character whose second is still to come."""
    calls: ToolCallBuilder = field(default_factory=ToolCallBuilder)
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None
    has_text: bool = False
    end: dict[str, Any] | None = None

    def add(self, new: _ChoiceDelta) -> str:
        """Add the new piece; returns the text that it adds."""
        if self.mode == "chat":
            text = new.delta.content if new.delta else None
            self.has_text |= new.delta is not None
            self.calls.add((new.delta.tool_calls if new.delta else None) or ())
            if new.delta is not None:
                self.reasoning.append(new.delta.reasoning_content or new.delta.reasoning or "")
                self.details += new.delta.reasoning_details or ()
        else:
            text = new.text
            self.has_text |= text is not None
        if new.token_ids is not None:
            self.token_ids = self.token_ids or []
            self.token_ids += new.token_ids
        if new.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *new.logprobs.values]
        self.prompt_token_ids = new.prompt_token_ids or self.prompt_token_ids
        if new.finish_reason is not None:
            self.end = new.model_dump(
                include={"finish_reason", "stop_reason", "matched_stop"}, exclude_unset=True
            )
        complete, self.half = whole_characters(self.half + (text or ""))
        self.texts.append(complete)
        return complete

    def choice(self, index: int) -> ResponseChoice:
        """All of it. Raises :class:`ResponseError` if the stream ended before it did."""
        if self.end is None or self.half:
            raise ResponseError(f"the stream ended within choice {index}")
        fields: dict[str, Any] = {
            "index": index,
            "token_ids": self.token_ids,
            "prompt_token_ids": self.prompt_token_ids,
            "logprobs": {"token_logprobs": self.logprobs},
            **self.end,
        }
        text = "".join(self.texts) if self.has_text else None
        if self.mode == "completions":
            fields["text"] = text
        elif text is not None:
            fields["message"] = {
                "content": text,
                "tool_calls": self.calls.whole,
                "reasoning": whole_characters("".join(self.reasoning))[0],
                "reasoning_details": self.details,
            }
        return ResponseChoice.model_validate(fields)
