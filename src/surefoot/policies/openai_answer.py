"""What an OpenAI-compatible server answers: checked, and as completions."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from surefoot.policies.openai_body import Mode
from surefoot.protocols import STOP_UNKNOWN, Completion, SampleRequest, SampleResult
from surefoot.records import ToolCall, Usage


class AnswerError(Exception):
    """A well-formed answer from which no completion can be taken."""


class Function(BaseModel):
    """What a tool call names."""

    name: str
    arguments: str = "{}"


class Call(BaseModel):
    """A tool call."""

    id: str | None = None
    function: Function


class Reply(BaseModel):
    """The assistant's message."""

    content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(BaseModel):
    """What is read of a choice of either endpoint; other fields are left alone."""

    index: int = 0
    finish_reason: str | None = None
    text: str | None = None
    message: Reply | None = None
    token_ids: list[int] | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None


class Counts(BaseModel):
    """Tokens of a call."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)


class Answer(BaseModel):
    """A whole answer of either endpoint."""

    choices: list[Choice]
    usage: Counts


def read(answer: Answer, request: SampleRequest, mode: Mode, usage: Usage) -> SampleResult:
    """An answer as a result; raises :class:`AnswerError` if nothing of it can be kept."""
    if not answer.choices:
        raise AnswerError("the answer has no choices")
    if len(answer.choices) > request.n:
        raise AnswerError(f"{len(answer.choices)} choices came, {request.n} were asked for")
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    completions = tuple(
        _completion(choice, mode, request.sampling.stop, _tokens(choice, answer)) for choice in choices
    )
    missing = request.n - len(completions)
    error = f"server: {missing} of {request.n} choices are missing" if missing else None
    return SampleResult(completions=completions, usage=usage, error=error)


def merge(results: Sequence[SampleResult]) -> SampleResult:
    """One result from calls of one sample each; the prompt, common to all, is counted once."""
    if len(results) == 1:
        return results[0]
    errors = [result.error for result in results if result.error]
    total = sum((result.usage for result in results), Usage())
    usage = total.model_copy(update={"prompt_tokens": max(result.usage.prompt_tokens for result in results)})
    completions = tuple(completion for result in results for completion in result.completions)
    error = f"{errors[0]} ({len(errors)} of {len(results)} samples are missing)" if errors else None
    return SampleResult(completions=completions, usage=usage, error=error)


def _completion(choice: Choice, mode: Mode, stop: tuple[str, ...], tokens: int) -> Completion:
    calls: tuple[ToolCall, ...] = ()
    if mode == "completions":
        text = choice.text
    elif choice.message is None:
        text = None
    else:
        made = choice.message.tool_calls or []
        calls = tuple(ToolCall(id=c.id, name=c.function.name, arguments=c.function.arguments) for c in made)
        # A reply of tool calls alone has no content; a null content without any is an empty reply.
        text = choice.message.content or ""
    if text is None:
        raise AnswerError(f"malformed answer: choice {choice.index} has no text; is mode={mode!r} right?")
    text, reason = _restore_stop(choice, text, stop)
    drawn = tuple(choice.token_ids or ())
    return Completion(text=text, finish_reason=reason, tokens=tokens, tool_calls=calls, token_ids=drawn)


def _restore_stop(choice: Choice, text: str, stop: tuple[str, ...]) -> tuple[str, str]:
    """Text with the stop text that ended it, and the finish reason; see ``OpenAIPolicy`` for the rule."""
    reason = choice.finish_reason or "unknown"
    if reason != "stop" or not stop or text.endswith(stop):
        return text, reason
    told = choice.model_fields_set & {"stop_reason", "matched_stop"}
    for mark in (choice.stop_reason, choice.matched_stop):
        if mark in stop:
            return f"{text}{mark}", reason
    # A reported null, or a token's number, is the end of the sequence.
    return text, reason if told else STOP_UNKNOWN


def _tokens(choice: Choice, answer: Answer) -> int:
    if choice.token_ids is not None:
        return len(choice.token_ids)
    if len(answer.choices) > 1:
        raise AnswerError("no token_ids came with several choices (an old vLLM?); use dialect='openai'")
    return answer.usage.completion_tokens
