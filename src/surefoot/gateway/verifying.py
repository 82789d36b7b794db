"""``/v1/verify``: accept a solution, reject it with its first bad step, or write it anew from there."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute

from surefoot.gateway.attending import attend
from surefoot.gateway.entries import Asked, new_id
from surefoot.gateway.extension import TokenUsage, extension
from surefoot.gateway.gateway import Gateway
from surefoot.gateway.given import item_of
from surefoot.gateway.schemas import Candidates
from surefoot.gateway.scoring import SCORING_ERRORS, require_scorer, value_of
from surefoot.gateway.tasks import Generation
from surefoot.gateway.verdicts import Found, Plan
from surefoot.gateway.verify_forms import Resampled, VerifyAnswer, VerifyRequest

_TEXTS: dict[str, Any] = {
    **dict.fromkeys(("problem", "steps", "solution", "model"), True),
    "surefoot": {"problem"},
}
"""What of a request is in its record already."""


def verifying_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The verifying interface."""
    router = APIRouter(route_class=route_class, tags=["score"])

    @router.post("/v1/verify", response_model=VerifyAnswer, responses=SCORING_ERRORS)
    async def verify(request: Request, body: VerifyRequest) -> VerifyAnswer:
        """Accept a solution or find its first bad step; with `resample`, write it anew from there."""
        name = require_scorer(gateway, body.model)
        item = item_of(body)
        plan = Plan.of(gateway, body, item)
        asked = Asked(
            id=new_id("verify"),
            endpoint=request.url.path,
            model=name,
            strategy=plan.task.strategy.name if plan.task else "",
            policy=gateway.policy.name,
            scorer=name,
            problem=item.problem,
            key=request.state.key,
            parameters=body.model_dump(
                mode="json",
                exclude_none=True,
                exclude={
                    "problem": True,
                    "steps": True,
                    "solution": True,
                    "model": True,
                    "surefoot": {"problem"},
                },
            ),
        )
        ticket = gateway.admission.ticket()
        try:
            work = plan.work(gateway, ticket, asked)
            found = await attend(request.receive, gateway.jobs, work, gateway.metrics.left.inc)
        finally:
            ticket.close()
        return _told(gateway, plan, found, asked)

    return router


def _told(gateway: Gateway, plan: Plan, found: Found, asked: Asked) -> VerifyAnswer:
    trace = plan.item.trace
    return VerifyAnswer(
        id=asked.id,
        created=int(asked.created.timestamp()),
        model=asked.model,
        decision=found.decision,
        first_bad_step=found.bad,
        threshold=plan.threshold,
        steps=[trace.step_text(step) for step in range(len(trace.steps))],
        scores=list(found.record.scores),
        value=value_of(found.record, gateway.aggregation),
        unscored_reason=found.record.unscored_reason,
        resampled=_resampled(found.generation, found.bad or 0, plan.candidates) if found.generation else None,
        usage=TokenUsage.of(found.usage),
    )


def _resampled(generation: Generation, kept: int, candidates: Candidates) -> Resampled:
    [choice] = generation.choices
    chosen = choice.result.chosen
    return Resampled(
        solution=choice.text,
        kept_steps=kept,
        answer=None if chosen is None else choice.result.answer,
        value=choice.value,
        finish_reason=choice.finish_reason,
        surefoot=extension(generation, candidates),
    )
