"""An answer of an OpenAI-compatible server that comes in pieces: asked for, shown, and put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from openai import APIConnectionError, APIError, AsyncOpenAI, AsyncStream
from pydantic import BaseModel

from surefoot.policies.openai_answer import Answer, AnswerError, Choice, Counts
from surefoot.policies.openai_body import Mode
from surefoot.policies.openai_tool_pieces import BegunCalls, NewCall, Text, whole_characters

Show = Callable[[int, str], None]
"""Told a choice's number and the text that is new."""

_PATHS: dict[Mode, str] = {"chat": "/chat/completions", "completions": "/completions"}
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0


@dataclass
class Calls:
    """How many calls to the server were made for an answer, those tried again among them."""

    before: int = 0
    now: int = 1

    @property
    def made(self) -> int:
        """All so far."""
        return self.before + self.now

    def tried(self, error: APIError) -> None:
        """A request failed: the client tells its number of tries only in this header."""
        self.now = 1 + int(error.request.headers.get("x-stainless-retry-count", 0))


async def answer_in_pieces(
    client: AsyncOpenAI, body: Mapping[str, Any], *, n: int, mode: Mode, show: Show, calls: Calls
) -> Answer:
    """The answer to ``body``, whose text ``show`` is given as it comes.

    The client tries again, as ever, until an answer begins; one that breaks off before any text of it was
    shown is asked for anew, within the same number of retries. Raises what the client raises, and
    :class:`AnswerError` or ``ValueError`` for what cannot be read.
    """
    sent = {"stream_options": {"include_usage": True}, **body, "stream": True}
    while True:
        pieces = _Pieces(n, mode, show)
        left = client.max_retries - calls.before
        try:
            async with aclosing(_events(client, _PATHS[mode], sent, left, calls)) as events:
                async for event in events:
                    if isinstance(event, Answer):
                        return event  # a server that does not stream
                    pieces.add(event)
            return pieces.answer()
        except APIError as error:
            calls.tried(error)
            if pieces.shown or calls.now > left or not _passes(error):
                raise
        await asyncio.sleep(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (calls.made - 1)))
        calls.before, calls.now = calls.made, 1


async def _events(
    client: AsyncOpenAI, path: str, body: dict[str, Any], retries: int, calls: Calls
) -> AsyncGenerator[object]:
    """Data of each event, as it came: the client would build its objects unchecked."""
    stream = await client.post(
        path,
        body=body,
        options={"max_retries": retries},
        cast_to=object,
        stream=True,
        stream_cls=AsyncStream[object],
    )
    async with stream:
        answer = stream.response
        calls.now = 1 + int(answer.request.headers.get("x-stainless-retry-count", 0))
        try:
            if answer.headers.get("content-type", "").startswith("application/json"):
                yield Answer.model_validate_json(await answer.aread())
                return
            async for event in stream:
                yield event
        except (APIError, ValueError):
            raise
        except Exception as error:  # older clients raise here what their transport raises
            raise APIConnectionError(request=answer.request) from error


def _passes(error: APIError) -> bool:
    """Whether it may go well next time: the client's own rule, for errors that are events."""
    if isinstance(error, APIConnectionError):
        return True
    code = error.body.get("code") if isinstance(error.body, Mapping) else None
    return isinstance(code, int) and (code in (408, 409, 429) or code >= 500)


class _Delta(BaseModel):
    content: Text | None = None
    tool_calls: list[NewCall] | None = None


class _NewChoice(BaseModel):
    index: int = 0
    finish_reason: str | None = None
    text: Text | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None


class _Chunk(BaseModel):
    choices: list[_NewChoice] = []
    usage: Counts | None = None


class _Pieces:
    """Puts an answer together; ``shown`` says whether any text of it was."""

    def __init__(self, n: int, mode: Mode, show: Show) -> None:
        self._n, self._mode, self._show = n, mode, show
        self._begun: dict[int, _Begun] = {}
        self._usage: Counts | None = None
        self.shown = False

    def add(self, event: object) -> None:
        chunk = _Chunk.model_validate(event)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            if not 0 <= choice.index < self._n:
                raise AnswerError(f"choice {choice.index} came, {self._n} were asked for")
            begun = self._begun.setdefault(choice.index, _Begun(self._mode))
            text = begun.add(choice)
            if text:
                self.shown = True
                self._show(choice.index, text)

    def answer(self) -> Answer:
        choices = [begun.choice(index) for index, begun in self._begun.items()]
        if self._usage is None:
            raise AnswerError("the stream ended without usage (the server must know stream_options)")
        return Answer(choices=choices, usage=self._usage)


@dataclass
class _Begun:
    """A choice, as far as it has come."""

    mode: Mode
    texts: list[str] = field(default_factory=list)
    half: str = ""
    """First half of a character whose second is still to come."""
    calls: BegunCalls = field(default_factory=BegunCalls)
    token_ids: list[int] | None = None
    has_text: bool = False
    end: dict[str, Any] | None = None

    def add(self, new: _NewChoice) -> str:
        """Take in what is new; gives the text that it adds."""
        if self.mode == "chat":
            text = new.delta.content if new.delta else None
            self.has_text |= new.delta is not None
            self.calls.add((new.delta.tool_calls if new.delta else None) or ())
        else:
            text = new.text
            self.has_text |= text is not None
        if new.token_ids is not None:
            self.token_ids = self.token_ids or []
            self.token_ids += new.token_ids
        if new.finish_reason is not None:
            self.end = new.model_dump(
                include={"finish_reason", "stop_reason", "matched_stop"}, exclude_unset=True
            )
        whole, self.half = whole_characters(self.half + (text or ""))
        self.texts.append(whole)
        return whole

    def choice(self, index: int) -> Choice:
        """All of it. Raises :class:`AnswerError` if the stream ended before it did."""
        if self.end is None or self.half:
            raise AnswerError(f"the stream ended within choice {index}")
        fields: dict[str, Any] = {"index": index, "token_ids": self.token_ids, **self.end}
        text = "".join(self.texts) if self.has_text else None
        if self.mode == "completions":
            fields["text"] = text
        elif text is not None:
            fields["message"] = {"content": text, "tool_calls": self.calls.whole}
        return Choice.model_validate(fields)
