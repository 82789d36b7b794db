"""Answers as server-sent events: the stream itself, and the chunks that it holds."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from surefoot.gateway.admission import Jobs, cancel, wait_for_disconnect
from surefoot.gateway.errors import ApiError
from surefoot.gateway.plan import GeneratedChoice, Generation
from surefoot.gateway.responses import CONTENT_FILTER, TokenUsage, extension, output_tool_calls
from surefoot.gateway.settings import Candidates

_LOG = logging.getLogger("surefoot.gateway")

Emit = Callable[[str], None]
"""Sends the data of one event."""


class EventStream(Response):
    """Server-sent events that ``work`` emits, each a line ``data: …``; then ``data: [DONE]``.

    After ``keep_alive_s`` seconds of silence a comment is sent. An error of ``work`` is an event in the
    OpenAI form, and ends the stream. If the client disconnects, ``work`` is cancelled and ``on_disconnect``
    called; ``on_end`` is called at the end in any case.
    """

    def __init__(
        self,
        work: Callable[[Emit], Coroutine[Any, Any, None]],
        *,
        jobs: Jobs,
        keep_alive_s: float,
        on_disconnect: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._work, self._jobs, self._keep_alive_s = work, jobs, keep_alive_s
        self._on_disconnect, self._on_end = on_disconnect, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the stream."""
        try:
            await self._stream(receive, send)
        finally:
            self._on_end()

    async def _stream(self, receive: Receive, send: Send) -> None:
        events: asyncio.Queue[str | None] = asyncio.Queue()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        task = self._jobs.start(self._work(events.put_nowait))
        disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
        for ending in (task, disconnect):
            ending.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while True:
                try:
                    async with asyncio.timeout(self._keep_alive_s):
                        data = await events.get()
                except TimeoutError:
                    await _send_text(send, ": keep-alive\n\n")
                    continue
                if data is None:
                    break
                await _send_text(send, f"data: {data}\n\n")
            if task.done():
                await _send_text(send, f"data: {self._last_event(task)}\n\n")
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                self._on_disconnect()
        finally:
            await cancel(task, disconnect)

    def _last_event(self, task: asyncio.Task[None]) -> str:
        try:
            self._jobs.result(task)
        except ApiError as error:
            return json.dumps(error.body)
        except Exception as error:
            _LOG.exception("a stream failed")
            return json.dumps(ApiError(500, f"unforeseen error: {type(error).__name__}").body)
        return "[DONE]"


async def _send_text(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode("utf-8"), "more_body": True})


class Chunks:
    """Base of both forms of chunks. ``emit`` gets each event's data.

    The last event with a choice has the field ``surefoot``; with ``usage`` there is one more, which has it.
    """

    form: str

    def __init__(
        self,
        emit: Emit,
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
        """Text of each choice that the client has received."""

    def begin(self, count: int) -> None:
        """Start a stream of ``count`` choices."""

    def on_text(self, number: int, text: str) -> None:
        """Send what is new in ``text``, with which a choice is certain to begin."""
        sent = self.sent.get(number, "")
        if len(text) > len(sent):
            self.sent[number] = text
            self._send([self.piece(number, text[len(sent) :])])

    def end(self, generation: Generation) -> None:
        """Send the rest. Raises :class:`ApiError` if it contradicts what was sent before."""
        for number, choice in enumerate(generation.choices):
            text = "" if choice.withheld else choice.text
            if not text.startswith(self.sent.get(number, "")):
                raise ApiError(500, "the answer does not begin with what was sent of it", code="stream")
            self.on_text(number, text)
            last = number == len(generation.choices) - 1
            field = extension(generation, self._candidates).model_dump(mode="json") if last else None
            self._send(self.closing(number, choice), field)
        if self._usage:
            self._dump([], {"usage": TokenUsage.of(generation.usage).model_dump(mode="json")})

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """A choice with new text."""
        raise NotImplementedError

    def closing(self, number: int, choice: GeneratedChoice) -> list[dict[str, Any]]:
        """A choice's last pieces."""
        raise NotImplementedError

    def _send(self, pieces: list[dict[str, Any]], field: dict[str, Any] | None = None) -> None:
        for place, piece in enumerate(pieces):
            more = {"surefoot": field} if field is not None and place == len(pieces) - 1 else {}
            self._dump([piece], more)

    def _dump(self, choices: list[dict[str, Any]], more: dict[str, Any]) -> None:
        self._emit(json.dumps({**self._head, "choices": choices, **more}, ensure_ascii=False))


class ChatChunks(Chunks):
    """``chat.completion.chunk``: the message in pieces."""

    form = "chat.completion.chunk"

    def begin(self, count: int) -> None:
        """Send each choice's role."""
        self._send([_delta(number, {"role": "assistant", "content": ""}) for number in range(count)])

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """New content."""
        return _delta(number, {"content": text})

    def closing(self, number: int, choice: GeneratedChoice) -> list[dict[str, Any]]:
        """Refusal, tool calls, and the reason for the end."""
        pieces = []
        if choice.withheld and self.refusal_as_text:
            return [_delta(number, {"content": choice.withheld}), _delta(number, {}, CONTENT_FILTER)]
        if choice.withheld:
            pieces.append(_delta(number, {"refusal": choice.withheld}))
        if choice.tool_calls:
            calls = [call.model_dump(mode="json") for call in output_tool_calls(choice, numbered=True)]
            pieces.append(_delta(number, {"tool_calls": calls}))
        return [*pieces, _delta(number, {}, choice.finish_reason)]


class TextChunks(Chunks):
    """``text_completion``: the text in pieces."""

    form = "text_completion"

    def piece(self, number: int, text: str) -> dict[str, Any]:
        """New text."""
        return {"index": number, "text": text, "logprobs": None, "finish_reason": None}

    def closing(self, number: int, choice: GeneratedChoice) -> list[dict[str, Any]]:
        """The reason for the end."""
        reason = CONTENT_FILTER if choice.withheld else choice.finish_reason
        return [{"index": number, "text": "", "logprobs": None, "finish_reason": reason}]


def _delta(number: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": reason}
