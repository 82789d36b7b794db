"""``/v1/score``: step scores of solutions that clients send."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import Field, model_validator

from surefoot.errors import ScoreError, SegmentError
from surefoot.gateway.errors import ApiError, declared
from surefoot.gateway.gateway import Gateway
from surefoot.gateway.requests import RequestModel
from surefoot.gateway.responses import ResponseModel
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, StepScores, Trace, Usage
from surefoot.scores import Aggregator, aggregate
from surefoot.segment import segment_trace, segmenter


class SolutionInput(RequestModel):
    """A problem with a solution: its ``steps``, or its text in ``solution``."""

    problem: str = Field(min_length=1)
    steps: list[Annotated[str, Field(min_length=1)]] | None = Field(
        default=None, min_length=1, max_length=2000
    )
    """Exact pieces of the solution, each including the white space that ends it."""
    solution: str | None = Field(default=None, min_length=1)
    segment: str | None = Field(default=None, max_length=20)
    """How ``solution`` is cut: blank-line, line, sentence, step-k, ki; by blank line or line if not given."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.steps is None) == (self.solution is None):
            raise ValueError("give either 'steps' or 'solution'")
        if self.segment is not None and self.steps is not None:
            raise ValueError("'segment' is for a 'solution'; 'steps' are cut already")
        return self


def trace_of_solution(solution: SolutionInput) -> ProblemTrace:
    """The trace of a solution. Raises :class:`ApiError`."""
    problem = Problem(text=solution.problem)
    if solution.steps is not None:
        return trace_of_steps(problem, solution.steps)
    return segmented_solution(problem, solution.solution or "", solution.segment)


def trace_of_steps(problem: Problem, steps: list[str]) -> ProblemTrace:
    """A trace of which each of ``steps`` is a step."""
    spans, at = [], 0
    for text in steps:
        spans.append(Step(start=at, end=at + len(text)))
        at += len(text)
    trace = Trace(problem_id=problem.id, text="".join(steps), steps=tuple(spans))
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
    return ProblemTrace(problem=problem, trace=trace)


SCORING_ERRORS = declared(400, 401, 403, 404, 413, 429, 500, 502, 503, 504)


class ScoreRequest(RequestModel):
    """Body of ``/v1/score``."""

    model: str | None = Field(default=None, max_length=300)
    """The reward model's name; ``null`` = the server's."""
    items: list[SolutionInput] = Field(min_length=1)
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


def score_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The scoring interface."""
    router = APIRouter(route_class=route_class, tags=["score"])

    @router.post("/v1/score", response_model=ScoreResponse, responses=SCORING_ERRORS)
    async def score(request: Request, body: ScoreRequest) -> ScoreResponse:
        """Score each step of each solution."""
        require_scorer(gateway, body.model)
        if len(body.items) > gateway.limits.max_items:
            message = f"items: there are {len(body.items)}, at most {gateway.limits.max_items} here"
            raise ApiError(400, message, param="items")
        items = [trace_of_solution(item) for item in body.items]
        records = await gateway.serve(
            request, lambda slot: gateway.run_in_slot(slot, lambda: gateway.score(items))
        )
        how = body.aggregation or gateway.aggregation
        usage = sum((record.usage for record in records), Usage())
        return ScoreResponse(
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
