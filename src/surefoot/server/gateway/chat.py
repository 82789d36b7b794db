"""The generating endpoints: request, plan, run, record, respond."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from surefoot.errors import NotFoundError, UnavailableError
from surefoot.server.gateway.admission import Jobs, cancel, wait_for_disconnect
from surefoot.server.gateway.dialects import (
    MessagesRequest,
    MessagesWriter,
    ResponsesRequest,
    ResponsesWriter,
)
from surefoot.server.gateway.errors import ApiError, answered
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.plan import Plan
from surefoot.server.gateway.request_log import LogEntry, log_unavailable
from surefoot.server.gateway.responses import ChatWriter, Emit, ResponseWriter, TextWriter, held_response
from surefoot.server.gateway.schemas import ChatRequest, CompletionRequest, GenerationRequest
from surefoot.server.gateway.sessions import session_name, session_turn

_LOG = logging.getLogger("surefoot.server")


async def chat_completions(gateway: Gateway, request: Request, body: ChatRequest) -> Response:
    """Answer a conversation, by the strategy in the model's name or `surefoot.strategy`."""
    return await _respond(gateway, request, body, gateway.planner.chat(body), ChatWriter)


async def completions(gateway: Gateway, request: Request, body: CompletionRequest) -> Response:
    """Continue a prompt, by the strategy in the model's name or `surefoot.strategy`."""
    return await _respond(gateway, request, body, gateway.planner.completion(body), TextWriter)


async def openai_responses(gateway: Gateway, request: Request, body: ResponsesRequest) -> Response:
    """Answer a conversation in the format of OpenAI's Responses API; nothing is stored for later."""
    chat = body.as_chat()
    return await _respond(gateway, request, chat, gateway.planner.chat(chat), ResponsesWriter)


async def anthropic_messages(gateway: Gateway, request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation in the format of Anthropic's Messages API."""
    chat = body.as_chat()
    return await _respond(gateway, request, chat, gateway.planner.chat(chat), MessagesWriter)


async def held(gateway: Gateway, request: Request, number: int) -> Response:
    """A person's decision about a call that the guard held, for the same key as the request.

    An approved call is in the first answer alone, and in none if the waiting request got it.
    """
    if gateway.holds is None:
        raise ApiError(404, "this server holds no calls", code="not_found")
    key = request.state.key
    try:
        held_call, delivered = await gateway.holds.find(number, key.id if key else None)
    except NotFoundError as error:
        raise ApiError(404, str(error), param="number", code="not_found") from error
    except UnavailableError as error:
        raise log_unavailable() from error
    return answered(held_response(number, held_call, delivered=delivered))


async def _respond(
    gateway: Gateway, request: Request, body: GenerationRequest, plan: Plan, form: type[ResponseWriter]
) -> Response:
    name = session_name(request.headers, body.metadata) if plan.messages else None
    if name is not None:
        plan = replace(plan, logprobs=gateway.settings.record_logprobs, session=name)
    if plan.tools:
        plan = replace(plan, request=hashlib.sha256(await request.body()).hexdigest())
    entry = LogEntry.of(
        request,
        form.id_prefix,
        model=body.model,
        strategy=plan.strategy.name,
        problem=plan.problem,
        policy=gateway.policy.name,
        scorer=gateway.planner.scorer if plan.strategy.needs_scorer else None,
        request=_parameters(body, plan),
        session=session_turn(name, plan.messages, plan.tools) if name is not None else None,
    )
    writer = form(body, entry.record, gateway.settings)
    if not body.stream:
        choices = await gateway.serve(request, lambda slot: gateway.generate(slot, entry, plan))
        return answered(writer.response(choices))
    slot = gateway.admission.reserve(request.state.key)

    async def write(emit: Emit) -> None:
        writer.emit = emit
        writer.begin(plan.n)
        writer.end(await gateway.generate(slot, entry, plan, writer))

    return EventStream(
        write,
        jobs=gateway.jobs,
        keep_alive_s=gateway.limits.keep_alive_s,
        on_disconnect=gateway.metrics.disconnects.inc,
        on_end=slot.close,
        last_event=writer.last_event,
    )


_TEXTS: Any = {
    **dict.fromkeys(("messages", "prompt", "model", "tools", "metadata"), True),
    "surefoot": {"problem"},
}


def _parameters(body: GenerationRequest, plan: Plan) -> dict[str, Any]:
    """The parameters of a request, without its texts."""
    parameters = body.model_dump(mode="json", exclude_none=True, exclude=_TEXTS)
    tools = getattr(body, "tools", None)
    return {**parameters, "seed": plan.seed, **({"tools": len(tools)} if tools else {})}


class EventStream(Response):
    """Server-sent events that ``work`` emits, then ``last_event`` with its error or ``None``.

    After ``keep_alive_s`` seconds without an event a comment is sent. If the client disconnects, ``work`` is
    cancelled and ``on_disconnect`` is called; ``on_end`` is always called at the end.
    """

    def __init__(
        self,
        work: Callable[[Emit], Coroutine[Any, Any, None]],
        *,
        jobs: Jobs,
        keep_alive_s: float,
        on_disconnect: Callable[[], None],
        on_end: Callable[[], None],
        last_event: Callable[[ApiError | None], str],
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._work, self._jobs, self._keep_alive_s = work, jobs, keep_alive_s
        self._on_disconnect, self._on_end, self._last_event = on_disconnect, on_end, last_event

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
                await _send_text(send, data)
            if task.done():
                await _send_text(send, self._last_event(self._error_of(task)))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                self._on_disconnect()
        finally:
            await cancel(task, disconnect)

    def _error_of(self, task: asyncio.Task[None]) -> ApiError | None:
        try:
            self._jobs.result(task)
        except ApiError as error:
            return error
        except Exception as error:
            _LOG.exception("a stream failed")
            return ApiError(500, f"unforeseen error: {type(error).__name__}")
        return None


async def _send_text(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode("utf-8"), "more_body": True})
