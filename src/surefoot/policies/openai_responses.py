"""Responses of an OpenAI-compatible server, whole or streamed in pieces, as completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, zip_longest
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    InstanceOf,
    PrivateAttr,
    StrictFloat,
    model_validator,
)

from surefoot.messages import message_fields, parse_arguments
from surefoot.printable import quoted
from surefoot.protocols import STOP_UNKNOWN, Completion, SampleRequest, SampleResult, TokenPosition
from surefoot.records import Count, Reasoning, ToolCall, Usage, as_json

Mode = Literal["chat", "completions"]
"""Endpoint: ``/chat/completions`` or ``/completions``."""

Show = Callable[[int, str], None]
"""Called with the number of a choice and its new text."""

Text = InstanceOf[str]
"""Text that may begin or end with half a character: a server may cut a JSON string between surrogates."""

_REASON_CHARACTERS = 100
"""Of a finish reason."""
TOKEN_CHARACTERS, _MORE_CHARACTERS = 128, 256
"""Characters of a token at most (runs of white space in GPT-4's vocabulary), and of an answer beyond them."""
TOKEN_EVENTS, _MORE_EVENTS = 4, 256
"""Events of a stream for each token at most, and beyond them."""
_TOKEN_PARTS, _MORE_PARTS = 32, 1024
"""Objects of an answer for each token at most (with its alternatives), and beyond them."""
_MOST_ALTERNATIVES = 100
_MOST_PARTS = 4096
"""Choices of an answer, and calls or pieces of reasoning of a message: each costs microseconds to read."""
_MOST_CHECKS = 64
"""Checks whether a call's arguments are whole: a server may repeat the name in each piece."""


class ResponseError(Exception):
    """A well-formed answer from which no completion can be taken."""


class _Function(BaseModel):
    name: str | None = None
    arguments: Text | None = None
    _pieces: list[str] = PrivateAttr(default_factory=list)
    """Of the arguments, after the first, in a stream."""
    _checks: int = PrivateAttr(default=0)
    """How often the arguments so far were checked to be whole."""


class ResponseToolCall(BaseModel):
    """A tool call, or a piece of one; only a server that numbers its calls gives an ``index``."""

    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class ReasoningDetail(BaseModel):
    """A piece of reasoning in the form of OpenRouter; ``type`` is ``reasoning.text`` or another kind."""

    type: str = ""
    text: str | None = None
    summary: str | None = None
    data: str | None = None


class ResponseMessage(BaseModel):
    """The assistant's message, or a piece of it.

    Reasoning comes under several names. ``reasoning_content``: DeepSeek, vLLM before 0.12, SGLang, llama.cpp;
    ``reasoning``: vLLM, OpenRouter; ``reasoning_details``: OpenRouter, which also marks summaries and
    encrypted text.
    """

    content: Text | None = None
    """Its text; of a list of parts, as Mistral gives, reasoning and calls move to the message."""
    tool_calls: list[ResponseToolCall] | None = Field(default=None, max_length=_MOST_PARTS)
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    reasoning_details: list[ReasoningDetail] | None = Field(default=None, max_length=_MOST_PARTS)

    @model_validator(mode="before")
    @classmethod
    def _of_parts(cls, message: Any) -> Any:
        """Raises ``ValueError`` for a part of an unknown type, and for too many."""
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            return message
        if len(message["content"]) > _MOST_PARTS:
            raise ValueError(f"more than {_MOST_PARTS} parts")
        fields = message_fields({"role": "assistant", **message})
        calls = [{"id": call.get("id"), "function": call} for call in fields.get("tool_calls", ())]
        reasoning = (fields.get("reasoning") or {}).get("text")
        return {
            **message,
            "content": fields.get("content"),
            "tool_calls": message.get("tool_calls") or calls or None,
            "reasoning_content": reasoning,
        }

    @property
    def characters(self) -> int:
        """Characters of all that the model wrote."""
        details, calls = self.reasoning_details or (), self.tool_calls or ()
        texts = [self.content, self.reasoning_content or self.reasoning]
        texts += [text for detail in details for text in (detail.text, detail.summary, detail.data)]
        texts += [call.function.arguments for call in calls if call.function is not None]
        return sum(len(text) for text in texts if text)


class _TokenLogprob(BaseModel):
    token: str = ""
    logprob: StrictFloat
    top_logprobs: list[_TokenLogprob] | None = Field(default=None, max_length=_MOST_ALTERNATIVES)

    def position(self) -> TokenPosition:
        """The token with its alternatives, of equal texts the most probable."""
        tokens = sorted([self, *(self.top_logprobs or ())], key=lambda token: token.logprob)
        return TokenPosition(token=self.token, logprobs={token.token: token.logprob for token in tokens})


class _Logprobs(BaseModel):
    """Log-probabilities of the sampled tokens, in either endpoint's form."""

    token_logprobs: list[StrictFloat] | None = None
    tokens: list[str] | None = None
    top_logprobs: list[Annotated[dict[str, StrictFloat], Field(max_length=_MOST_ALTERNATIVES)]] | None = None
    content: list[_TokenLogprob] | None = None

    @property
    def positions(self) -> tuple[TokenPosition, ...]:
        """The tokens with their alternatives."""
        if self.content:
            return tuple(token.position() for token in self.content)
        pairs = zip_longest(self.tokens or (), self.top_logprobs or (), fillvalue=None)
        return tuple(TokenPosition(token=token or "", logprobs=top) for token, top in pairs if top)

    @property
    def values(self) -> tuple[float, ...]:
        """One per token."""
        return tuple(self.token_logprobs or (token.logprob for token in self.content or ()))


class ResponseChoice(BaseModel):
    """What is read of a choice of either endpoint, whole or in pieces; other fields are left alone."""

    index: int = 0
    text: Text | None = None
    message: ResponseMessage | None = Field(default=None, validation_alias=AliasChoices("message", "delta"))
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    """Of ``/completions``, where each choice has them; ``/chat/completions`` has them outside the choices."""
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None
    logprobs: _Logprobs | None = None

    @property
    def characters(self) -> int:
        """Characters of all that the model wrote."""
        return len(self.text or "") + (self.message.characters if self.message is not None else 0)


_UNSEEN_TOKENS = 65_536
"""Tokens of a prompt beyond one per byte that was sent: from the chat template, or from linked images."""


def limited_prompt(tokens: int, body: Mapping[str, Any]) -> int:
    """A server's count of a prompt's tokens, bounded by what a request with this body could have used."""
    if tokens <= _UNSEEN_TOKENS:
        return tokens
    return min(tokens, _UNSEEN_TOKENS + len(as_json(body).encode("utf-8", "replace")))


class TokenDetails(BaseModel):
    """What the tokens of a prompt, or of a completion, were."""

    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class TokenCounts(BaseModel):
    """Tokens of a call."""

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the server says it had in its cache."""
        details = self.prompt_tokens_details
        return min(details.cached_tokens or 0, self.prompt_tokens) if details else 0

    def limit(self, body: Mapping[str, Any], *, completion: int) -> None:
        """Bound the counts by what a request with this body and so many new tokens could have used."""
        self.prompt_tokens = limited_prompt(self.prompt_tokens, body)
        self.completion_tokens = min(self.completion_tokens, completion)
        details = self.completion_tokens_details
        if details is not None and details.reasoning_tokens is not None:
            details.reasoning_tokens = min(details.reasoning_tokens, completion)


class _Chunk(BaseModel):
    choices: Annotated[list[ResponseChoice], BeforeValidator(lambda choices: choices or [])] = Field(
        default=[], max_length=_MOST_PARTS
    )
    usage: TokenCounts | None = None
    prompt_token_ids: list[int] | None = None


class ResponseBody(_Chunk):
    """A whole answer of either endpoint."""

    choices: list[ResponseChoice] = Field(max_length=_MOST_PARTS)
    usage: TokenCounts


def read(
    answer: ResponseBody, request: SampleRequest, mode: Mode, usage: Usage, *, divide_tokens: bool = False
) -> SampleResult:
    """An answer as a result; raises :class:`ResponseError` if nothing of it can be kept.

    ``divide_tokens``: several choices without ``token_ids`` share the tokens of the call by their lengths.
    """
    if not answer.choices:
        raise ResponseError("the answer has no choices")
    if len(answer.choices) > request.n:
        raise ResponseError(f"{len(answer.choices)} choices came, {request.n} were asked for")
    most = request.n * request.sampling.max_tokens
    _check_size(sum(choice.characters for choice in answer.choices), 0, most)
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    parts: Sequence[int | None] = [None] * len(choices)
    if divide_tokens and len(choices) > 1:
        parts = _divided_tokens(choices, answer.usage.completion_tokens)
    completions = tuple(
        _completion(choice, mode, request.sampling.stop, answer, part)
        for choice, part in zip(choices, parts, strict=True)
    )
    if request.logprobs or request.alternatives:
        values = [choice.logprobs or _Logprobs() for choice in choices]
        completions = tuple(
            replace(
                completion,
                logprobs=row.values if request.logprobs else (),
                positions=row.positions if request.alternatives else (),
            )
            for completion, row in zip(completions, values, strict=True)
        )
    missing = request.n - len(completions)
    error = f"server: {missing} of {request.n} choices are missing" if missing else None
    prompt = answer.prompt_token_ids or choices[0].prompt_token_ids or ()
    return SampleResult(completions=completions, usage=usage, error=error, prompt_token_ids=tuple(prompt))


def _check_size(characters: int, events: int, tokens: int) -> None:
    """Raise :class:`ResponseError` for more than so many tokens can be: the work for an answer is bounded."""
    if characters > _MORE_CHARACTERS + TOKEN_CHARACTERS * tokens:
        raise ResponseError(f"the answer has more characters than {tokens} tokens can have")
    if events > _MORE_EVENTS + TOKEN_EVENTS * tokens:
        raise ResponseError(f"the answer has more events than {tokens} tokens can have")


def check_parts(data: bytes, tokens: int) -> None:
    """Raise :class:`ResponseError` for unread JSON of more objects than so many tokens can have."""
    if data.count(b"{") > _MORE_PARTS + _TOKEN_PARTS * tokens:
        raise ResponseError(f"the answer has more objects than {tokens} tokens can have")


def merge(results: Sequence[SampleResult]) -> SampleResult:
    """One result from calls of one sample each; the prompt, common to all, is counted once."""
    if len(results) == 1:
        return results[0]
    errors = [result.error for result in results if result.error]
    total = sum((result.usage for result in results), Usage())
    once = ("prompt_tokens", "cached_tokens")
    most = {name: max(getattr(result.usage, name) for result in results) for name in once}
    usage = total.model_copy(update=most)
    completions = tuple(completion for result in results for completion in result.completions)
    error = f"{errors[0]} ({len(errors)} of {len(results)} samples are missing)" if errors else None
    prompt = next((result.prompt_token_ids for result in results if result.prompt_token_ids), ())
    return SampleResult(completions=completions, usage=usage, error=error, prompt_token_ids=prompt)


def _completion(
    choice: ResponseChoice, mode: Mode, stop: tuple[str, ...], answer: ResponseBody, part: int | None
) -> Completion:
    """``part``: its part of the tokens of the call, if it is known."""
    message = choice.message if mode == "chat" else None
    # A reply of tool calls alone has null content; null content without calls is an empty reply.
    text = choice.text if mode == "completions" else None if message is None else message.content or ""
    if text is None:
        raise ResponseError(f"malformed answer: choice {choice.index} has no text; is mode={mode!r} right?")
    text, reason = _restore_stop(choice, text, stop)
    return Completion(
        text=text,
        finish_reason=reason,
        tokens=_tokens(choice, answer, part),
        tool_calls=tuple(map(_tool_call, (message.tool_calls if message else None) or ())),
        token_ids=tuple(choice.token_ids or ()),
        reasoning=_reasoning(message, answer),
    )


def _tool_call(call: ResponseToolCall) -> ToolCall:
    if call.function is None or call.function.name is None:
        raise ResponseError("malformed answer: a tool call without the name of a function")
    first, pieces = call.function.arguments, call.function._pieces
    arguments = "{}" if first is None and not pieces else whole_characters((first or "") + "".join(pieces))[0]
    return ToolCall(id=call.id, name=call.function.name, arguments=arguments)


def _reasoning(message: ResponseMessage | None, answer: ResponseBody) -> Reasoning | None:
    """What a server tells of the reasoning; tokens that it counts and does not show are withheld."""
    details = answer.usage.completion_tokens_details
    # With several choices the count is of all of them.
    tokens = details.reasoning_tokens if details and len(answer.choices) == 1 else None
    if message and (message.reasoning_details or message.reasoning_content or message.reasoning):
        parts = message.reasoning_details or []
        summary = "\n\n".join(part.summary for part in parts if part.summary)
        readable = "".join(part.text for part in parts if part.text)
        alone = message.reasoning_content or message.reasoning or ""
        readable = readable or ("" if summary else whole_characters(alone)[0])
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


def _divided_tokens(choices: Sequence[ResponseChoice], total: int) -> list[int]:
    """Each choice's part of the tokens; the parts add up to ``total``."""
    texts = [choice.text or (choice.message and choice.message.content) or "" for choice in choices]
    ends = list(accumulate(len(text) + 1 for text in texts))
    return [
        total * end // ends[-1] - total * start // ends[-1]
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def _tokens(choice: ResponseChoice, answer: ResponseBody, part: int | None) -> int:
    if part is not None and choice.token_ids is None:
        return part
    if choice.token_ids is not None:
        return len(choice.token_ids)
    if len(answer.choices) > 1:
        raise ResponseError("no token_ids came with several choices (an old vLLM?); use dialect='openai'")
    return answer.usage.completion_tokens


def whole_characters(text: str) -> tuple[str, str]:
    """Text with its surrogates joined, and half a character that it may end with.

    Raises ``UnicodeDecodeError`` for half a character anywhere else.
    """
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    complete = text[: len(text) - len(half)]
    return complete.encode("utf-16-le", "surrogatepass").decode("utf-16-le"), half


class ResponseBuilder:
    """Puts a streamed answer together; ``show`` gets the text of each piece."""

    def __init__(self, request: SampleRequest, mode: Mode, show: Show) -> None:
        self._n, self._mode, self._show = request.n, mode, show
        self._most_tokens = request.n * request.sampling.max_tokens
        self._characters = self._events = 0
        self._choices: dict[int, ResponseChoice] = {}
        self._texts: defaultdict[int, list[str]] = defaultdict(list)
        self._reasoning: defaultdict[int, list[str]] = defaultdict(list)
        self._halves: dict[int, str] = {}
        """By choice: the first half of a character whose second is still to come."""
        self._calls: dict[tuple[int, int | None], ResponseToolCall] = {}
        """The latest call by choice and number."""
        self._usage: TokenCounts | None = None
        self._prompt_token_ids: list[int] | None = None

    def add(self, event: object) -> None:
        """Add the next event. Raises ``ValueError`` for one of another form, and :class:`ResponseError` for
        more events, or more text, than was asked for."""
        chunk = _Chunk.model_validate(event)
        self._events += 1
        self._characters += sum(new.characters for new in chunk.choices)
        _check_size(self._characters, self._events, self._most_tokens)
        self._usage = chunk.usage or self._usage
        self._prompt_token_ids = chunk.prompt_token_ids or self._prompt_token_ids
        for new in chunk.choices:
            if not 0 <= new.index < self._n:
                raise ResponseError(f"choice {new.index} came, {self._n} were asked for")
            choice = self._choices.setdefault(new.index, ResponseChoice(index=new.index))
            if text := self._merge(choice, new):
                self._show(new.index, text)

    def answer(self) -> ResponseBody:
        """The whole answer. Raises :class:`ResponseError` if the stream ended before it did."""
        for index, choice in self._choices.items():
            if choice.finish_reason is None or self._halves[index]:
                raise ResponseError(f"the stream ended within choice {index}")
            text = "".join(self._texts[index])
            choice.text = None if choice.text is None else text
            if choice.message is not None:
                choice.message.content, choice.message.reasoning = text, "".join(self._reasoning[index])
        if self._usage is None:
            raise ResponseError("the stream ended without usage (the server must know stream_options)")
        return ResponseBody(
            choices=list(self._choices.values()), usage=self._usage, prompt_token_ids=self._prompt_token_ids
        )

    def _merge(self, choice: ResponseChoice, new: ResponseChoice) -> str:
        """Add a piece to what has arrived of a choice; returns the text that it adds."""
        index, piece = new.index, new.message
        of_text = new.text if self._mode == "completions" else piece and piece.content
        text, self._halves[index] = whole_characters(self._halves.get(index, "") + (of_text or ""))
        self._texts[index].append(text)
        if self._mode == "completions":
            choice.text = new.text if choice.text is None else choice.text
        elif piece is not None:
            message = choice.message = choice.message or ResponseMessage()
            self._reasoning[index].append(piece.reasoning_content or piece.reasoning or "")
            message.reasoning_details = message.reasoning_details or []
            message.reasoning_details += piece.reasoning_details or ()
            message.tool_calls = message.tool_calls or []
            for call in piece.tool_calls or ():
                self._add_call(index, message.tool_calls, call)
        if new.token_ids is not None:
            choice.token_ids = choice.token_ids or []
            choice.token_ids += new.token_ids
        if new.logprobs is not None:
            logprobs = choice.logprobs = choice.logprobs or _Logprobs()
            logprobs.token_logprobs = logprobs.token_logprobs or []
            logprobs.token_logprobs += new.logprobs.values
        choice.prompt_token_ids = new.prompt_token_ids or choice.prompt_token_ids
        if new.finish_reason is not None:
            for name in new.model_fields_set & {"finish_reason", "stop_reason", "matched_stop"}:
                setattr(choice, name, getattr(new, name))
        return text

    def _add_call(self, choice: int, calls: list[ResponseToolCall], new: ResponseToolCall) -> None:
        """Add a piece to the calls so far, which are in the order in which they began.

        Pieces of a call have the same number; a server that numbers none sends each call whole. Some servers
        give all calls the number 0: a piece with another id, or with a name after a whole call, then begins
        the next call. Other servers make a new id for each piece, so that arguments without a name continue
        the previous call, whatever their id.
        """
        call = None if new.index is None else self._calls.get((choice, new.index))
        continued = new.function and new.function.arguments and not new.function.name
        has_other_id = call is not None and call.id and new.id and new.id != call.id and not continued
        if call is None or has_other_id or (not (call.id and call.id == new.id) and _ends_before(call, new)):
            calls.append(new)
            self._calls[choice, new.index] = new
            return
        call.id = call.id or new.id
        if call.function is None or new.function is None:
            call.function = call.function or new.function
            return
        call.function.name = call.function.name or new.function.name
        if new.function.arguments is not None:
            call.function._pieces.append(new.function.arguments)


def _ends_before(call: ResponseToolCall, new: ResponseToolCall) -> bool:
    """Whether ``call`` is whole, so that a piece that names a tool again begins another call."""
    old, function = call.function, new.function
    if old is None or function is None or not old.name or not function.name:
        return False
    if function.name != old.name:
        return True
    last = old._pieces[-1] if old._pieces else old.arguments or ""
    if not last.rstrip().endswith("}") or old._checks == _MOST_CHECKS:
        return False
    old._checks += 1
    try:
        parse_arguments((old.arguments or "") + "".join(old._pieces))
    except ValueError:
        return False
    return True
