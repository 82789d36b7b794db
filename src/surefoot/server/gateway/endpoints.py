"""The endpoints of the gateway: generating (request, plan, run, record, respond), held calls and
``/v1/score``, step scores and verdicts for solutions that clients send."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from surefoot.errors import NotFoundError, ScoreError, UnavailableError
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, StepScores, Trace, Usage
from surefoot.scores import TraceRule, aggregate, complete_scores
from surefoot.segment import segment_trace
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
from surefoot.server.gateway.images import check_traces
from surefoot.server.gateway.plan import Plan, strategy_name
from surefoot.server.gateway.request_log import LogEntry, log_unavailable
from surefoot.server.gateway.responses import ChatWriter, Emit, ResponseWriter, held_response
from surefoot.server.gateway.schemas import ChatRequest, RequestModel
from surefoot.server.gateway.sessions import session_name
from surefoot.server.records import SessionTurn

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
    turn, name = None, session_name(request.headers, body.metadata)
    if name is not None:
        plan.logprobs, plan.session = gateway.settings.record_logprobs, name
        answers = sum(message.role == "assistant" for message in plan.messages)
        turn = SessionTurn(session=name, turn=answers, messages=plan.messages, tools=plan.tools)
    if plan.tools:
        plan.request = hashlib.sha256(request.state.body).hexdigest()
    entry = LogEntry.of(
        request,
        form.id_prefix,
        model=body.model,
        strategy=strategy_name(plan.strategy),
        problem=plan.problem,
        policy=gateway.planner.policy,
        scorer=gateway.planner.scorer if plan.strategy.needs_scorer else None,
        request=_parameters(body, plan),
        session=turn,
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


MAX_STEPS = 2000
"""Steps of one solution."""


class _Exact(RequestModel):
    """Fields are this route's own: one that it does not know would be another question."""

    model_config = ConfigDict(extra="forbid")


class SolutionInput(_Exact):
    """A problem with a solution: its ``steps``, its text in ``solution``, or an agent's run in ``trace``."""

    problem: str = Field(min_length=1)
    steps: list[Annotated[str, Field(min_length=1)]] | None = Field(
        default=None, min_length=1, max_length=MAX_STEPS
    )
    """Exact pieces of the solution, each with the white space that ends it."""
    solution: str | None = Field(default=None, min_length=1)
    """It is cut at blank lines, or at lines where it has none."""
    trace: Trace | None = None
    """A trace record; messages may be in OpenAI's format. Without steps it is segmented."""

    @model_validator(mode="after")
    def _has_one_solution(self) -> Self:
        if [self.steps, self.solution, self.trace].count(None) != 2:
            raise ValueError("give one of 'steps', 'solution' and 'trace'")
        return self

    def item(self) -> ProblemTrace:
        """The problem and its trace with steps. Raises :class:`ApiError`."""
        problem = Problem(text=self.problem)
        if self.steps is not None:
            spans, at = [], 0
            for text in self.steps:
                spans.append(Step(start=at, end=at + len(text)))
                at += len(text)
            trace = Trace(problem_id=problem.id, text="".join(self.steps), steps=tuple(spans))
            return ProblemTrace(problem=problem, trace=trace)
        field = "solution" if self.trace is None else "trace"
        trace = self.trace or Trace(problem_id=problem.id, text=self.solution or "")
        trace = trace if trace.steps else segment_trace(trace)
        if not 0 < len(trace.steps) <= MAX_STEPS:
            message = f"{field}: has {len(trace.steps)} steps, from 1 to {MAX_STEPS} here; cut it less finely"
            raise ApiError(400, message, param=field)
        return ProblemTrace(problem=problem, trace=trace.model_copy(update={"problem_id": problem.id}))


class ScoreRequest(_Exact):
    """Body of ``/v1/score``."""

    model: str | None = Field(default=None, max_length=300)
    """The reward model's name; ``null``: the server's."""
    items: list[SolutionInput] = Field(min_length=1)
    aggregation: TraceRule | None = None
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Steps below it are bad; ``null``: the server's threshold."""


async def score(gateway: Gateway, request: Request, body: ScoreRequest) -> Response:
    """Score each step of each solution, and accept the solution, or find its first bad step."""
    scorer = _required_scorer(gateway, body.model)
    if len(body.items) > gateway.limits.max_items:
        message = f"items: at most {gateway.limits.max_items} are allowed, not {len(body.items)}"
        raise ApiError(400, message, param="items")
    size, how = len(request.state.body), body.aggregation or gateway.aggregation
    threshold = gateway.settings.threshold if body.threshold is None else body.threshold

    traces = [item.trace for item in body.items if item.trace is not None]

    def read() -> list[ProblemTrace]:
        check_traces(traces)
        return [item.item() for item in body.items]

    def answer_of(items: Sequence[ProblemTrace], records: Sequence[StepScores]) -> dict[str, Any]:
        usage = sum((record.usage for record in records), Usage())
        return {
            "model": scorer,
            "aggregation": how,
            "threshold": threshold,
            "results": [_result(*pair, how, threshold) for pair in zip(items, records, strict=True)],
            "usage": {"verifier_tokens": usage.verifier_tokens, "calls": usage.calls},
        }

    async with gateway.admission.reserve(receive=request.receive):
        images = any(message.attachments for trace in traces for message in trace.messages)
        items = await gateway.compute(size, read, images=images)
        records = await gateway.score(items)
        answer = await gateway.compute(size, lambda: answer_of(items, records))
    for result in answer["results"]:
        gateway.metrics.count("unscored", None in result["scores"])
        gateway.metrics.verdicts.labels(result["decision"]).inc()
    return answered(answer)


def _required_scorer(gateway: Gateway, model: str | None) -> str:
    """Name of the reward model. Raises :class:`ApiError` if the server has another one, or none."""
    name = gateway.planner.scorer
    if name is None:
        raise ApiError(400, "this server lacks a reward model", code="no_scorer")
    if model is not None and model not in (name, "surefoot"):
        message = f"reward model {model[:100]!r} does not exist; this server has {name!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return name


def _result(item: ProblemTrace, record: StepScores, how: TraceRule, threshold: float) -> dict[str, Any]:
    """Texts and scores of the steps, and the verdict. Scores and ``value`` are ``None`` where a step was not
    scored."""
    bad = (step for step, score in enumerate(record.scores) if score is not None and score < threshold)
    first_bad = next(bad, None)
    decision = "reject"
    if first_bad is None:  # only a solution with a score for every step is accepted
        decision = "unscored" if complete_scores(record.scores) is None else "accept"
    try:
        value = aggregate(record.scores, how)
    except ScoreError:
        value = None
    return {
        "steps": [item.trace.step_text(step) for step in range(len(item.trace.steps))],
        "scores": record.scores,
        "value": value,
        "unscored_reason": record.unscored_reason,
        "decision": decision,
        "first_bad_step": first_bad,
    }
