"""``/v1/score`` and ``/v1/verify``: solutions that clients send.

``/v1/score`` gives their step scores; ``/v1/verify`` accepts a solution, rejects it with its first bad step,
or writes it anew from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field, model_validator

from surefoot.errors import ScoreError, SegmentError
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Problem, Step, StepScores, Trace, Usage
from surefoot.scores import Aggregator, aggregate, complete_scores
from surefoot.segment import segment_trace, segmenter
from surefoot.server.gateway.access import body_size, require_key_scope
from surefoot.server.gateway.admission import Slot
from surefoot.server.gateway.errors import ApiError, declared
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.generation import Generation
from surefoot.server.gateway.monitor import Observations
from surefoot.server.gateway.plan import DEFAULT, Plan, UsageMeter
from surefoot.server.gateway.records import Decision, GatewayCandidate
from surefoot.server.gateway.request_log import LogEntry, new_id
from surefoot.server.gateway.responses import extension
from surefoot.server.gateway.schemas import (
    Extension,
    RequestModel,
    ResponseModel,
    SamplingRequest,
    TokenUsage,
)

MAX_STEPS = 2000
"""Steps of one solution."""


class SolutionInput(RequestModel):
    """A problem with a solution: its ``steps``, or its text in ``solution``."""

    problem: str = Field(min_length=1)
    steps: list[Annotated[str, Field(min_length=1)]] | None = Field(
        default=None, min_length=1, max_length=MAX_STEPS
    )
    """Exact pieces of the solution, each including the white space that ends it."""
    solution: str | None = Field(default=None, min_length=1)
    segment: str | None = Field(default=None, max_length=20)
    """How ``solution`` is cut: blank-line, line, sentence, thoughts, turns, step-k, ki, python,
    python-blocks, python-functions, prose-and-code; by blank line or line if not given."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.refuse_contradictions()
        return self

    def refuse_contradictions(self) -> None:
        """Raise ``ValueError`` unless one solution is given."""
        if (self.steps is None) == (self.solution is None):
            raise ValueError("give either 'steps' or 'solution'")
        if self.segment is not None and self.steps is not None:
            raise ValueError("'segment' is for a 'solution'; 'steps' are cut already")


class ScoreItem(SolutionInput):
    """A problem with a solution, or with a ``trace``: an agent's run with its messages, tools and steps."""

    trace: Trace | None = None
    """A trace record; messages may be in OpenAI's shape. Without steps it is cut into its parts."""

    def refuse_contradictions(self) -> None:
        """Raise ``ValueError`` unless one solution or trace is given."""
        if self.trace is None:
            super().refuse_contradictions()
        elif self.steps is not None or self.solution is not None or self.segment is not None:
            raise ValueError("give one of 'steps', 'solution' and 'trace'")


def trace_of_item(item: ScoreItem) -> ProblemTrace:
    """The trace of an item. Raises :class:`ApiError`."""
    if item.trace is None:
        return trace_of_solution(item)
    problem = Problem(text=item.problem)
    trace = item.trace if item.trace.steps else segment_trace(item.trace)
    if not trace.steps:
        raise ApiError(400, "trace: has no steps", param="trace")
    _require_few_steps(trace, "trace")
    return ProblemTrace(problem=problem, trace=trace.model_copy(update={"problem_id": problem.id}))


def trace_of_solution(solution: SolutionInput) -> ProblemTrace:
    """The trace of a solution. Raises :class:`ApiError`."""
    problem = Problem(text=solution.problem)
    if solution.steps is None:
        return segmented_solution(problem, solution.solution or "", solution.segment)
    spans, at = [], 0
    for text in solution.steps:
        spans.append(Step(start=at, end=at + len(text)))
        at += len(text)
    trace = Trace(problem_id=problem.id, text="".join(solution.steps), steps=tuple(spans))
    return ProblemTrace(problem=problem, trace=trace)


def segmented_solution(problem: Problem, solution: str, segment: str | None = None) -> ProblemTrace:
    """A solution cut into steps. Raises :class:`ApiError` if there is none, or ``segment`` is unknown."""
    how = None
    if segment is not None:
        if segment.startswith("regex:"):  # a client's pattern could take forever
            raise ApiError(400, "segment: patterns are not accepted here; send 'steps'", param="segment")
        try:
            how = segmenter(segment)
        except SegmentError as error:
            raise ApiError(400, f"segment: {error}", param="segment") from error
    trace = segment_trace(Trace(problem_id=problem.id, text=solution), how)
    if not trace.steps:
        raise ApiError(400, "solution: is empty", param="solution")
    _require_few_steps(trace, "solution")
    return ProblemTrace(problem=problem, trace=trace)


def _require_few_steps(trace: Trace, field: str) -> None:
    """Raises :class:`ApiError` for more steps than a client may send as ``steps``."""
    if len(trace.steps) > MAX_STEPS:
        message = f"{field}: has {len(trace.steps)} steps, at most {MAX_STEPS} here; cut it less finely"
        raise ApiError(400, message, param=field)


SCORING_ERRORS = declared(400, 401, 403, 404, 413, 429, 500, 502, 503, 504)


class ScoreRequest(RequestModel):
    """Body of ``/v1/score``."""

    model: str | None = Field(default=None, max_length=300)
    """The reward model's name; ``null`` = the server's."""
    items: list[ScoreItem] = Field(min_length=1)
    aggregation: Aggregator | None = None


class ScoredSolution(ResponseModel):
    """Scores of one item."""

    steps: list[str]
    """The steps as text."""
    scores: list[float | None]
    """One a step; ``null`` = not scored."""
    value: float | None
    """The scores as one number; ``null`` where one is missing."""
    unscored_reason: str | None


class ScorerUsage(ResponseModel):
    """What scoring cost."""

    verifier_tokens: int
    calls: int


class ScoreResponse(ResponseModel):
    """Answer of ``/v1/score``: one result an item, in order."""

    model: str
    aggregation: Aggregator
    results: list[ScoredSolution]
    usage: ScorerUsage


class VerifyRequest(SolutionInput, SamplingRequest):
    """Body of ``/v1/verify``; what is sampled is the rest of a rejected solution."""

    model: str | None = Field(default=None, max_length=300)
    threshold: float | None = Field(default=None, ge=0, le=1)
    """A step below it is bad; ``null`` = the server's."""
    resample: bool = False
    """Write a rejected solution anew from its first bad step; ``surefoot.strategy`` says how."""


class Resampled(ResponseModel):
    """The solution that was written anew."""

    solution: str
    """All of it, including the steps that were kept."""
    kept_steps: int
    answer: str | None
    value: float | None
    finish_reason: str
    surefoot: Extension


class VerifyResponse(ResponseModel):
    """Answer of ``/v1/verify``."""

    id: str
    object: Literal["surefoot.verification"] = "surefoot.verification"
    created: int
    model: str
    decision: Decision
    """unscored: no step is known to be bad, but some have no score."""
    first_bad_step: int | None
    """Counted from 0."""
    threshold: float
    steps: list[str]
    scores: list[float | None]
    value: float | None
    unscored_reason: str | None
    resampled: Resampled | None
    usage: TokenUsage


def score_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The scoring and the verifying interface."""
    router = APIRouter(route_class=route_class, tags=["score"])

    @router.post("/v1/score", response_model=ScoreResponse, responses=SCORING_ERRORS)
    async def score(request: Request, body: ScoreRequest) -> Response:
        """Score each step of each solution."""
        require_scorer(gateway, body.model)
        if len(body.items) > gateway.limits.max_items:
            message = f"items: there are {len(body.items)}, at most {gateway.limits.max_items} here"
            raise ApiError(400, message, param="items")
        caller, size = request.state.caller, await body_size(request)

        def response(items: Sequence[ProblemTrace], records: Sequence[StepScores]) -> Response:
            how = body.aggregation or gateway.aggregation
            usage = sum((record.usage for record in records), Usage())
            answer = ScoreResponse(
                model=gateway.planner.scorer or "",
                aggregation=how,
                results=[
                    ScoredSolution(
                        steps=[item.trace.step_text(step) for step in range(len(item.trace.steps))],
                        scores=list(record.scores),
                        value=value_of(record, how),
                        unscored_reason=record.unscored_reason,
                    )
                    for item, record in zip(items, records, strict=True)
                ],
                usage=ScorerUsage(verifier_tokens=usage.verifier_tokens, calls=usage.calls),
            )
            return Response(answer.model_dump_json(), media_type="application/json")

        async def work(slot: Slot) -> Response:
            items = await gateway.compute(caller, size, lambda: [trace_of_item(item) for item in body.items])
            records = await gateway.run_in_slot(slot, lambda: gateway.score(items))
            return await gateway.compute(caller, size, lambda: response(items, records))

        return await gateway.serve(request, work)

    @router.post("/v1/verify", response_model=VerifyResponse, responses=SCORING_ERRORS)
    async def verify(request: Request, body: VerifyRequest) -> VerifyResponse:
        """Accept a solution or find its first bad step; with `resample`, write it anew from there."""
        if body.resample:  # it writes
            require_key_scope(request.state.key, "chat")
        scorer = require_scorer(gateway, body.model)
        problem = Problem(text=body.problem)
        threshold = gateway.settings.threshold if body.threshold is None else body.threshold
        resampling = _resampling(gateway, body, problem, threshold) if body.resample else None
        if resampling is not None:
            resampling = replace(resampling, caller=request.state.caller)
        texts: dict[str, Any] = {
            "problem": True,
            "steps": True,
            "solution": True,
            "model": True,
            "surefoot": {"problem"},
        }
        entry = LogEntry(
            id=new_id("verify"),
            endpoint=request.url.path,
            model=scorer,
            strategy=resampling.strategy.name if resampling else "",
            policy=gateway.policy.name,
            scorer=scorer,
            problem=problem,
            key=request.state.key,
            parameters=body.model_dump(mode="json", exclude_none=True, exclude=texts),
        )
        meter = resampling.meter if resampling else UsageMeter()
        caller, size = request.state.caller, await body_size(request)

        async def work(slot: Slot) -> VerifyResponse:
            item = await gateway.compute(caller, size, lambda: trace_of_solution(body))
            with gateway.failures_recorded(entry, meter):
                return await gateway.run_in_slot(
                    slot, lambda: _verify(gateway, body, item, threshold, resampling, meter, entry)
                )

        return await gateway.serve(request, work)

    return router


def require_scorer(gateway: Gateway, model: str | None) -> str:
    """Name of the reward model. Raises :class:`ApiError` if there is none, or not this one."""
    name = gateway.planner.scorer
    if name is None:
        raise ApiError(400, "this server has no reward model", code="no_scorer")
    if model is not None and model not in (name, "surefoot"):
        message = f"there is no reward model {model[:100]!r}; this server has {name!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return name


def value_of(record: StepScores, how: Aggregator) -> float | None:
    """The step scores as one number, ``None`` where one is missing."""
    try:
        return aggregate(record.scores, how)
    except ScoreError:
        return None


async def _verify(
    gateway: Gateway,
    body: VerifyRequest,
    item: ProblemTrace,
    threshold: float,
    resampling: Plan | None,
    meter: UsageMeter,
    entry: LogEntry,
) -> VerifyResponse:
    """The verdict, and perhaps a new solution, once their record is kept."""
    [record] = await gateway.score([item])
    meter.usage += record.usage
    bad = (step for step, score in enumerate(record.scores) if score is not None and score < threshold)
    first_bad = next(bad, None)
    complete = complete_scores(record.scores) is not None
    decision: Decision = "unscored"  # accepted is only what has a score for every step
    if first_bad is not None:
        decision = "reject"
    elif complete:
        decision = "accept"
    observations = Observations()
    observations.score(record.scores)
    observations.count("unscored", not complete)
    observations.count("accepted", decision == "accept")
    generation = None
    if resampling is not None and first_bad is not None:
        good = tuple(item.trace.step_text(step) for step in range(first_bad))
        # the steps that are kept do not count against the number of steps
        steps = replace(resampling.steps, max_steps=resampling.steps.max_steps + first_bad)
        resampling = replace(resampling, initial_steps=good, steps=steps)
        generation = await gateway.generator.generate(resampling)
        for choice in generation.choices:
            observations.add_choice(resampling, choice)
    usage = record.usage + (generation.usage if generation else Usage())
    value = value_of(record, gateway.aggregation)
    candidate = GatewayCandidate(trace=item.trace, chosen=False, choice=None, score=value, scores=record)
    answer = entry.success(
        usage=usage,
        generation=generation,
        client_candidate=candidate,
        observations=observations,
        decision=decision,
    )
    await gateway.record(answer)
    gateway.metrics.verdicts.labels(decision).inc()
    gateway.monitor.add(observations)
    return VerifyResponse(
        id=entry.id,
        created=int(entry.created.timestamp()),
        model=entry.model,
        decision=decision,
        first_bad_step=first_bad,
        threshold=threshold,
        steps=[item.trace.step_text(step) for step in range(len(item.trace.steps))],
        scores=list(record.scores),
        value=value,
        unscored_reason=record.unscored_reason,
        resampled=_resampled(gateway, body, generation, first_bad or 0) if generation else None,
        usage=TokenUsage.of(usage),
    )


def _resampled(gateway: Gateway, body: VerifyRequest, generation: Generation, kept_steps: int) -> Resampled:
    [choice] = generation.choices
    return Resampled(
        solution=choice.text,
        kept_steps=kept_steps,
        answer=choice.best.trace.answer if choice.best is not None else None,
        value=choice.value,
        finish_reason=choice.finish_reason,
        surefoot=extension(generation, body.options.candidates or gateway.settings.candidates),
    )


def _resampling(gateway: Gateway, body: VerifyRequest, problem: Problem, threshold: float) -> Plan:
    """How to continue from the first bad step; the steps before it are not yet in it. Raises
    :class:`ApiError`."""
    planner, options = gateway.planner, body.options
    options = options.model_copy(
        update={
            "strategy": options.strategy or "accept-reject",
            "threshold": threshold if options.threshold is None else options.threshold,
        }
    )
    strategy = planner.strategy(DEFAULT, options)
    if strategy.search is None:
        raise ApiError(400, "the plain strategy cannot continue from a step", param="strategy")
    if options.abstain_below is not None:
        message = "abstain_below: nothing is withheld here; 'resampled.value' says what it is worth"
        raise ApiError(400, message, param="abstain_below", code="unsupported")
    asked = options.problem or problem.text
    prompt = planner.prompt_of([Message(role="user", content=asked)], asked)
    return planner.plan(body, options, strategy, problem=problem, prompt=prompt)
