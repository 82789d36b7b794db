"""``/v1/score``: step scores of solutions that are given."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import Field

from surefoot.errors import ScoreError
from surefoot.gateway.attending import attend
from surefoot.gateway.extension import Told
from surefoot.gateway.gateway import Gateway
from surefoot.gateway.given import Given, item_of
from surefoot.gateway.http.errors import ApiError, declared
from surefoot.gateway.schemas import Sent
from surefoot.records import StepScores, Usage
from surefoot.scores import Aggregator, aggregate

SCORING_ERRORS = declared(400, 401, 403, 404, 413, 429, 500, 502, 503, 504)


class ScoreRequest(Sent):
    """Body of ``/v1/score``."""

    model: str | None = Field(default=None, max_length=300)
    """The reward model's name; ``null`` = the server's."""
    items: list[Given] = Field(min_length=1)
    aggregation: Aggregator | None = None


class ToldScores(Told):
    """Scores of one item."""

    steps: list[str]
    """The steps as they were cut."""
    scores: list[float | None]
    """One a step; ``null`` = not scored."""
    value: float | None
    """The scores as one number; ``null`` where one is missing."""
    unscored_reason: str | None


class ScorerUsage(Told):
    """What scoring cost."""

    verifier_tokens: int
    calls: int


class ScoreAnswer(Told):
    """Answer of ``/v1/score``: one result an item, in order."""

    model: str
    aggregation: Aggregator
    results: list[ToldScores]
    usage: ScorerUsage


def scoring_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The scoring interface."""
    router = APIRouter(route_class=route_class, tags=["score"])

    @router.post("/v1/score", response_model=ScoreAnswer, responses=SCORING_ERRORS)
    async def score(request: Request, body: ScoreRequest) -> ScoreAnswer:
        """Score each step of each solution."""
        require_scorer(gateway, body.model)
        if len(body.items) > gateway.limits.max_items:
            message = f"items: {len(body.items)} came, at most {gateway.limits.max_items} are taken"
            raise ApiError(400, message, param="items")
        items = [item_of(given) for given in body.items]
        ticket = gateway.admission.ticket()
        try:
            work = gateway.in_turn(ticket, lambda: gateway.score(items))
            records = await attend(request.receive, gateway.jobs, work, gateway.metrics.left.inc)
        finally:
            ticket.close()
        how = body.aggregation or gateway.aggregation
        usage = sum((record.usage for record in records), Usage())
        return ScoreAnswer(
            model=gateway.planner.scorer or "",
            aggregation=how,
            results=[
                ToldScores(
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
