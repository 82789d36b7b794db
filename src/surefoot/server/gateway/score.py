"""``/v1/score`` and ``/v1/verify``: step scores and verdicts for solutions that clients send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from surefoot.errors import ScoreError, SegmentError
from surefoot.protocols import ProblemTrace, Segmenter
from surefoot.records import Problem, Step, StepScores, Trace, Usage
from surefoot.scores import TraceRule, aggregate, complete_scores
from surefoot.segment import segment_trace, segmenter
from surefoot.server.gateway.errors import ApiError, answered
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.request_log import LogEntry
from surefoot.server.gateway.responses import token_usage
from surefoot.server.gateway.schemas import RequestModel
from surefoot.server.records import Decision, GatewayCandidate

MAX_STEPS = 2000
"""Steps of one solution."""


class SolutionInput(RequestModel):
    """A problem with a solution: its ``steps``, its text in ``solution``, or an agent's run in ``trace``."""

    problem: str = Field(min_length=1)
    steps: list[Annotated[str, Field(min_length=1)]] | None = Field(
        default=None, min_length=1, max_length=MAX_STEPS
    )
    """Exact pieces of the solution, each with the white space that ends it."""
    solution: str | None = Field(default=None, min_length=1)
    segment: str | None = Field(default=None, max_length=20)
    """How to cut ``solution``: blank-line, line, sentence, thoughts, turns, step-k, ki, python,
    prose-and-code; by default blank lines or lines."""
    trace: Trace | None = None
    """A trace record; messages may be in OpenAI's format. Without steps it is segmented."""

    @model_validator(mode="after")
    def _has_one_solution(self) -> Self:
        if [self.steps, self.solution, self.trace].count(None) != 2:
            raise ValueError("give one of 'steps', 'solution' and 'trace'")
        if self.segment is not None and self.solution is None:
            raise ValueError("'segment' is for a 'solution'; 'steps' and traces are already cut")
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
        trace = trace if trace.steps else segment_trace(trace, self._segmenter())
        if not 0 < len(trace.steps) <= MAX_STEPS:
            message = f"{field}: has {len(trace.steps)} steps, from 1 to {MAX_STEPS} here; cut it less finely"
            raise ApiError(400, message, param=field)
        return ProblemTrace(problem=problem, trace=trace.model_copy(update={"problem_id": problem.id}))

    def _segmenter(self) -> Segmenter | None:
        if self.segment is None:
            return None
        if self.segment.startswith("regex:"):  # a client's pattern could take forever
            raise ApiError(400, "segment: patterns are not accepted here; send 'steps'", param="segment")
        try:
            return segmenter(self.segment)
        except SegmentError as error:
            raise ApiError(400, f"segment: {error}", param="segment") from error


class ScoreRequest(RequestModel):
    """Body of ``/v1/score``."""

    model: str | None = Field(default=None, max_length=300)
    """The reward model's name; ``null``: the server's."""
    items: list[SolutionInput] = Field(min_length=1)
    aggregation: TraceRule | None = None


class ScoredSolution(BaseModel):
    """Scores of one item."""

    steps: list[str]
    """Texts of the steps."""
    scores: list[float | None]
    """One per step; ``null`` = not scored."""
    value: float | None
    """Aggregated score; ``null`` if a step was not scored."""
    unscored_reason: str | None


class ScorerUsage(BaseModel):
    """Usage of the reward model."""

    verifier_tokens: int
    calls: int


class ScoreResponse(BaseModel):
    """Answer of ``/v1/score``: one result per item, in order."""

    model: str
    aggregation: TraceRule
    results: list[ScoredSolution]
    usage: ScorerUsage


class VerifyRequest(SolutionInput):
    """Body of ``/v1/verify``."""

    model: str | None = Field(default=None, max_length=300)
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Steps below it are bad; ``null``: the server's threshold."""


class VerifyResponse(BaseModel):
    """Answer of ``/v1/verify``."""

    id: str
    object: Literal["surefoot.verification"] = "surefoot.verification"
    created: int
    model: str
    decision: Decision
    """unscored: all scores reach the threshold, but some steps were not scored."""
    first_bad_step: int | None
    """Counted from 0."""
    threshold: float
    steps: list[str]
    scores: list[float | None]
    value: float | None
    unscored_reason: str | None
    usage: dict[str, int]


async def score(gateway: Gateway, request: Request, body: ScoreRequest) -> Response:
    """Score each step of each solution."""
    scorer = require_scorer(gateway, body.model)
    if len(body.items) > gateway.limits.max_items:
        message = f"items: at most {gateway.limits.max_items} are allowed, not {len(body.items)}"
        raise ApiError(400, message, param="items")
    size = len(request.state.body)

    def response(items: Sequence[ProblemTrace], records: Sequence[StepScores]) -> Response:
        how = body.aggregation or gateway.aggregation
        usage = sum((record.usage for record in records), Usage())
        answer = ScoreResponse(
            model=scorer,
            aggregation=how,
            results=[
                ScoredSolution(
                    steps=_texts(item),
                    scores=list(record.scores),
                    value=value_of(record.scores, how),
                    unscored_reason=record.unscored_reason,
                )
                for item, record in zip(items, records, strict=True)
            ],
            usage=ScorerUsage(verifier_tokens=usage.verifier_tokens, calls=usage.calls),
        )
        return answered(answer)

    async with gateway.admission.reserve(request.state.key, receive=request.receive):
        items = await gateway.compute(size, lambda: [item.item() for item in body.items])
        records = await gateway.score(items)
        return await gateway.compute(size, lambda: response(items, records))


async def verify(gateway: Gateway, request: Request, body: VerifyRequest) -> Response:
    """Accept a solution, or find its first bad step."""
    scorer = require_scorer(gateway, body.model)
    threshold = gateway.settings.threshold if body.threshold is None else body.threshold
    texts = {"problem", "steps", "solution", "trace", "model"}
    entry = LogEntry.of(
        request,
        "verify",
        model=scorer,
        strategy="",
        policy=gateway.planner.policy,
        scorer=scorer,
        problem=Problem(text=body.problem),
        request=body.model_dump(mode="json", exclude_none=True, exclude=texts),
    )
    size = len(request.state.body)
    item, usage = None, Usage()
    try:
        async with gateway.admission.reserve(request.state.key, receive=request.receive):
            item = await gateway.compute(size, body.item)
            [record] = await gateway.score([item])
            usage = record.usage
            return answered(await _verified(gateway, entry, item, record, threshold))
    except BaseException as error:
        if item is not None:
            gateway.record_failure(entry, error, usage, {})
        raise


def require_scorer(gateway: Gateway, model: str | None) -> str:
    """Name of the reward model. Raises :class:`ApiError` if the server has another one, or none."""
    name = gateway.planner.scorer
    if name is None:
        raise ApiError(400, "this server lacks a reward model", code="no_scorer")
    if model is not None and model not in (name, "surefoot"):
        message = f"reward model {model[:100]!r} does not exist; this server has {name!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return name


def value_of(scores: Sequence[float | None], how: TraceRule) -> float | None:
    """The aggregated score; ``None`` if the rule does not apply, such as where a step was not scored."""
    try:
        return aggregate(scores, how)
    except ScoreError:
        return None


def _texts(item: ProblemTrace) -> list[str]:
    return [item.trace.step_text(step) for step in range(len(item.trace.steps))]


async def _verified(
    gateway: Gateway, entry: LogEntry, item: ProblemTrace, record: StepScores, threshold: float
) -> VerifyResponse:
    """The verdict, once it is recorded."""
    bad = (step for step, score in enumerate(record.scores) if score is not None and score < threshold)
    first_bad = next(bad, None)
    complete = complete_scores(record.scores) is not None
    decision: Decision = "unscored"  # only a solution with a score for every step is accepted
    if first_bad is not None:
        decision = "reject"
    elif complete:
        decision = "accept"
    gateway.monitor.count("unscored", not complete)
    gateway.monitor.count("accepted", decision == "accept")
    value = value_of(record.scores, gateway.aggregation)
    candidate = GatewayCandidate(trace=item.trace, chosen=False, choice=None, score=value, scores=record)
    outcome = entry.success(usage=record.usage, candidates=(candidate,), decision=decision)
    await gateway.record(outcome)
    gateway.metrics.verdicts.labels(decision).inc()
    gateway.watch(outcome)
    return VerifyResponse(
        id=entry.record.request_id,
        created=int(entry.record.created.timestamp()),
        model=entry.record.model,
        decision=decision,
        first_bad_step=first_bad,
        threshold=threshold,
        steps=_texts(item),
        scores=list(record.scores),
        value=value,
        unscored_reason=record.unscored_reason,
        usage=token_usage(record.usage),
    )
