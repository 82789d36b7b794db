"""The generating endpoints: request, plan, run, record, respond."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from surefoot.errors import NotFoundError, UnavailableError
from surefoot.server.gateway.admission import cancel
from surefoot.server.gateway.dialects import (
    CountRequest,
    MessagesRequest,
    MessagesWriter,
    ResponsesRequest,
    ResponsesWriter,
)
from surefoot.server.gateway.errors import ApiError, ClientDisconnectedError, answered
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.plan import Plan
from surefoot.server.gateway.request_log import LogEntry, log_unavailable
from surefoot.server.gateway.responses import ChatWriter, Emit, ResponseWriter, held_response
from surefoot.server.gateway.schemas import ChatRequest
from surefoot.server.gateway.sessions import session_name, session_turn

_LOG = logging.getLogger("surefoot.server")


async def chat_completions(gateway: Gateway, request: Request, body: ChatRequest) -> Response:
    """Answer a conversation, by the strategy in the model's name or `surefoot.strategy`."""
    return await _respond(gateway, request, body, ChatWriter)


async def openai_responses(gateway: Gateway, request: Request, body: ResponsesRequest) -> Response:
    """Answer a conversation in the format of OpenAI's Responses API; nothing is stored for later."""
    return await _respond(gateway, request, body, ResponsesWriter)


async def anthropic_messages(gateway: Gateway, request: Request, body: MessagesRequest) -> Response:
    """Answer a conversation in the format of Anthropic's Messages API."""
    return await _respond(gateway, request, body, MessagesWriter)


async def count_tokens(gateway: Gateway, request: Request, body: CountRequest) -> Response:
    """Count a conversation's tokens as its policy does, which reads them and writes one; not recorded."""
    chat, plan = await _planned(gateway, request, body)
    async with gateway.admission.reserve(receive=request.receive, cost=plan.tokens):
        await gateway.admit_images(chat.rows, plan)
        return answered({"input_tokens": await gateway.count_tokens(plan)})


async def held(gateway: Gateway, request: Request, number: int) -> Response:
    """A person's decision about a call that the guard held, for the same key as the request.

    An approved call is in the first answer alone, and in none if the waiting request got it.
    """
    if gateway.holds is None:
        raise ApiError(404, "this server does not hold calls", code="not_found")
    key = request.state.key
    try:
        held_call, delivered = await gateway.holds.find(number, key.id if key else None)
    except NotFoundError as error:
        raise ApiError(404, str(error), param="number", code="not_found") from error
    except UnavailableError as error:
        raise log_unavailable() from error
    return answered(held_response(number, held_call, delivered=delivered))


_Body = ChatRequest | ResponsesRequest | MessagesRequest


async def _planned(gateway: Gateway, request: Request, body: _Body) -> tuple[ChatRequest, Plan]:
    def read() -> tuple[ChatRequest, Plan]:
        chat = body if isinstance(body, ChatRequest) else body.as_chat()
        return chat, gateway.planner.chat(chat)

    sent: bytes = request.state.body
    # images take time to read: 20 ms for a screenshot
    return await gateway.compute(len(sent), read) if b"base64" in sent else read()


async def _respond(gateway: Gateway, request: Request, sent: _Body, form: type[ResponseWriter]) -> Response:
    body, plan = await _planned(gateway, request, sent)
    name = session_name(request.headers, body.metadata)
    if name is not None:
        plan.logprobs, plan.session = gateway.settings.record_logprobs, name
    if plan.tools:
        plan.request = hashlib.sha256(request.state.body).hexdigest()
    entry = LogEntry.of(
        request,
        form.id_prefix,
        model=body.model,
        strategy=plan.strategy.name,
        problem=plan.problem,
        policy=gateway.planner.policy,
        scorer=gateway.planner.scorer if plan.strategy.needs_scorer else None,
        request=_parameters(body, plan),
        session=session_turn(name, plan.messages, plan.tools) if name is not None else None,
    )
    writer = form(body, entry.record, gateway.settings)
    slot = gateway.admission.reserve(receive=request.receive, cost=plan.tokens)
    if plan.images:  # in a turn of their own: before a stream begins, so that a client gets the status
        try:
            async with slot:
                await gateway.admit_images(body.rows, plan, entry.record)
        except BaseException as error:
            gateway.record_failure(entry, error, plan.usage, {})
            raise
        slot = gateway.admission.reserve(receive=request.receive, cost=plan.tokens)
    if not body.stream:
        return answered(writer.response(await gateway.generate(slot, entry, plan)))

    async def write(emit: Emit) -> None:
        writer.emit = emit
        writer.begin(plan.n)
        writer.end(await gateway.generate(slot, entry, plan, writer))

    return EventStream(write, keep_alive_s=gateway.limits.keep_alive_s, last_event=writer.last_event)


_TEXTS: Final = {"messages", "model", "tools", "metadata", "surefoot"}


def _parameters(body: ChatRequest, plan: Plan) -> dict[str, Any]:
    """The parameters of a request, without its texts."""
    values = {name: getattr(body, name) for name in body.model_fields_set - _TEXTS}
    if body.tools:
        values["tools"] = len(body.tools)
    if body.surefoot:
        values["surefoot"] = body.surefoot.model_dump(exclude_none=True, exclude={"problem"})
    return {name: value for name, value in values.items() if value is not None} | {"seed": plan.seed}


class EventStream(Response):
    """Server-sent events that ``work`` emits, then ``last_event`` with its error or ``None``.

    After ``keep_alive_s`` seconds without an event a comment is sent.
    """

    def __init__(
        self,
        work: Callable[[Emit], Awaitable[None]],
        *,
        keep_alive_s: float,
        last_event: Callable[[ApiError | None], str],
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._work, self._keep_alive_s, self._last_event = work, keep_alive_s, last_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the stream."""
        events: asyncio.Queue[str | None] = asyncio.Queue()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        sender = asyncio.ensure_future(self._send(events, send))
        try:
            error = None
            try:
                await self._work(events.put_nowait)
            except ApiError as failure:
                error = failure
            except ClientDisconnectedError:
                return
            except Exception as failure:
                _LOG.exception("a stream failed")
                error = ApiError(500, f"unexpected error: {type(failure).__name__}")
            events.put_nowait(self._last_event(error))
            events.put_nowait(None)
            await sender
        finally:
            await cancel(sender)

    async def _send(self, events: asyncio.Queue[str | None], send: Send) -> None:
        text: str | None = ""
        while text is not None:
            try:
                async with asyncio.timeout(self._keep_alive_s):
                    text = await events.get()
            except TimeoutError:
                text = ": keep-alive\n\n"
            more = text is not None
            body = (text or "").encode("utf-8")
            await send({"type": "http.response.body", "body": body, "more_body": more})
