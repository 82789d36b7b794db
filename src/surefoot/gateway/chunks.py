"""Answers piece by piece: what the events of a stream hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from surefoot.gateway.answers import FILTERED, told_calls
from surefoot.gateway.extension import TokenUsage, extension
from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.schemas import Candidates
from surefoot.gateway.tasks import Choice, Generation


class Chunks:
    """Base of both forms. ``emit`` is given each event's data.

    The last event with a choice has the field ``surefoot``; with ``usage`` there is one more, which has it.
    """

    form: str

    def __init__(
        self,
        emit: Callable[[str], None],
        *,
        id: str,
        created: int,
        model: str,
        candidates: Candidates,
        usage: bool,
        refusal_as_text: bool = False,
    ) -> None:
        self.refusal_as_text = refusal_as_text
        self._emit, self._candidates, self._usage = emit, candidates, usage
        self._head = {"id": id, "object": self.form, "created": created, "model": model}
        self.sent: dict[int, str] = {}
        """What was shown of each choice."""

    def begin(self, count: int) -> None:
        """The stream begins; it has ``count`` choices."""

    def accepted(self, number: int, text: str) -> None:
        """A choice's text begins with ``text``: send what is new of it."""
        before = self.sent.get(number, "")
        if len(text) > len(before):
            self.sent[number] = text
            self._send([self.piece(number, text[len(before) :])])

    def end(self, generation: Generation) -> None:
        """Send the rest. Raises :class:`ApiError` if something else was sent before."""
        for number, choice in enumerate(generation.choices):
            text = "" if choice.withheld else choice.text
            if not text.startswith(self.sent.get(number, "")):
                raise ApiError(500, "the answer does not begin with what was sent of it", code="stream")
            self.accepted(number, text)
            last = number == len(generation.choices) - 1
            told = extension(generation, self._candidates).model_dump(mode="json") if last else None
            self._send(self.closing(number, choice), told)
        if self._usage:
            self._dump([], {"usage": TokenUsage.of(generation.usage).model_dump(mode="json")})

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """A choice with new text."""
        raise NotImplementedError

    def closing(self, number: int, choice: Choice) -> list[dict[str, Any]]:
        """A choice's last pieces."""
        raise NotImplementedError

    def _send(self, pieces: list[dict[str, Any]], told: dict[str, Any] | None = None) -> None:
        for place, piece in enumerate(pieces):
            more = {"surefoot": told} if told is not None and place == len(pieces) - 1 else {}
            self._dump([piece], more)

    def _dump(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> None:
        self._emit(json.dumps({**self._head, "choices": choices, **more}, ensure_ascii=False))


class ChatChunks(Chunks):
    """``chat.completion.chunk``: the message in pieces."""

    form = "chat.completion.chunk"

    def begin(self, count: int) -> None:
        """Each choice's role."""
        self._send([_delta(number, {"role": "assistant", "content": ""}) for number in range(count)])

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """New content."""
        return _delta(number, {"content": text})

    def closing(self, number: int, choice: Choice) -> list[dict[str, Any]]:
        """Refusal, tool calls, and why it ended."""
        pieces = []
        if choice.withheld and self.refusal_as_text:
            return [_delta(number, {"content": choice.withheld}), _delta(number, {}, FILTERED)]
        if choice.withheld:
            pieces.append(_delta(number, {"refusal": choice.withheld}))
        if choice.tool_calls:
            calls = [call.model_dump(mode="json") for call in told_calls(choice, numbered=True)]
            pieces.append(_delta(number, {"tool_calls": calls}))
        return [*pieces, _delta(number, {}, choice.finish_reason)]


class TextChunks(Chunks):
    """``text_completion``: the text in pieces."""

    form = "text_completion"

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """New text."""
        return {"index": number, "text": text, "logprobs": None, "finish_reason": None}

    def closing(self, number: int, choice: Choice) -> list[dict[str, Any]]:
        """Why it ended."""
        reason = FILTERED if choice.withheld else choice.finish_reason
        return [{"index": number, "text": "", "logprobs": None, "finish_reason": reason}]


def _delta(number: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": reason}
