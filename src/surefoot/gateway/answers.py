"""What the generating interfaces answer: OpenAI's bodies, with a field ``surefoot``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from surefoot.gateway.extension import Extension, TokenUsage, Told
from surefoot.gateway.tasks import Choice

FILTERED = "content_filter"
"""Why a text ended that was withheld."""


class ToldFunction(Told):
    """Function and arguments of a tool call."""

    name: str
    arguments: str


class ToldToolCall(Told):
    """A tool call; ``index`` is there in streams only."""

    index: int | None = Field(default=None, exclude_if=lambda value: value is None)
    id: str
    type: Literal["function"] = "function"
    function: ToldFunction


class ToldMessage(Told):
    """The assistant's message; ``refusal`` says why an answer was withheld."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    tool_calls: list[ToldToolCall] | None = Field(default=None, exclude_if=lambda value: value is None)


class ChatChoice(Told):
    """One answer."""

    index: int
    message: ToldMessage
    logprobs: None = None
    finish_reason: str


class ChatAnswer(Told):
    """Answer of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage
    surefoot: Extension


class TextChoice(Told):
    """One answer."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str


class CompletionAnswer(Told):
    """Answer of ``/v1/completions``."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: TokenUsage
    surefoot: Extension


def chat_choice(index: int, choice: Choice, *, refusal_as_text: bool = False) -> ChatChoice:
    """A choice as a whole message."""
    if choice.withheld and refusal_as_text:
        return ChatChoice(index=index, message=ToldMessage(content=choice.withheld), finish_reason=FILTERED)
    message = ToldMessage(
        content=None if choice.withheld or (choice.tool_calls and not choice.text) else choice.text,
        refusal=choice.withheld,
        tool_calls=told_calls(choice) or None,
    )
    return ChatChoice(index=index, message=message, finish_reason=choice.finish_reason)


def text_choice(index: int, choice: Choice) -> TextChoice:
    """A choice as a text; one that was withheld has none."""
    reason = FILTERED if choice.withheld else choice.finish_reason
    return TextChoice(index=index, text="" if choice.withheld else choice.text, finish_reason=reason)


def told_calls(choice: Choice, *, numbered: bool = False) -> list[ToldToolCall]:
    """A choice's tool calls."""
    return [
        ToldToolCall(
            index=number if numbered else None,
            id=call.id or f"call_{number}",
            function=ToldFunction(name=call.name, arguments=call.arguments),
        )
        for number, call in enumerate(choice.tool_calls)
    ]
