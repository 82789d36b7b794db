"""``/v1/verify``: accept a solution, reject it with its first bad step, or write it anew from there."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import Field

from surefoot.gateway.admission import Slot
from surefoot.gateway.errors import ApiError
from surefoot.gateway.gateway import Gateway, observe
from surefoot.gateway.monitor import Observations
from surefoot.gateway.plan import DEFAULT, Generation, Plan, UsageMeter
from surefoot.gateway.records import Decision, GatewayCandidate, GatewayRecord
from surefoot.gateway.request_log import LogEntry, new_id
from surefoot.gateway.requests import StrategyOptions
from surefoot.gateway.responses import Extension, ResponseModel, TokenUsage, extension
from surefoot.gateway.score import SCORING_ERRORS, SolutionInput, require_scorer, trace_of_solution, value_of
from surefoot.gateway.settings import Candidates
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Message, StepScores, Usage


class VerifyRequest(SolutionInput):
    """Body of ``/v1/verify``."""

    model: str | None = Field(default=None, max_length=300)
    threshold: float | None = Field(default=None, ge=0, le=1)
    """A step below it is bad; ``null`` = the server's."""
    resample: bool = False
    """Write a rejected solution anew from its first bad step; ``surefoot.strategy`` says how."""
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """Of what is written anew."""
    surefoot: StrategyOptions | None = None


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


def verify_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The verifying interface."""
    router = APIRouter(route_class=route_class, tags=["score"])

    @router.post("/v1/verify", response_model=VerifyResponse, responses=SCORING_ERRORS)
    async def verify(request: Request, body: VerifyRequest) -> VerifyResponse:
        """Accept a solution or find its first bad step; with `resample`, write it anew from there."""
        scorer = require_scorer(gateway, body.model)
        item = trace_of_solution(body)
        plan = _plan(gateway, body, item)
        entry = LogEntry(
            id=new_id("verify"),
            endpoint=request.url.path,
            model=scorer,
            strategy=plan.resampling.strategy.name if plan.resampling else "",
            policy=gateway.policy.name,
            scorer=scorer,
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
        verification = await gateway.serve(request, lambda slot: _run(gateway, plan, slot, entry))
        return _response(gateway, plan, verification, entry)

    return router


@dataclass(frozen=True, kw_only=True)
class VerifyPlan:
    """What to verify, and how to continue if it is rejected."""

    item: ProblemTrace
    threshold: float
    resampling: Plan | None
    """How to continue from the first bad step; the steps before it are not yet in it."""
    candidates: Candidates


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A verdict, and perhaps a new solution. ``first_bad`` is counted from 0."""

    decision: Decision
    first_bad: int | None
    record: StepScores
    generation: Generation | None

    @property
    def usage(self) -> Usage:
        """What both cost."""
        return self.record.usage + (self.generation.usage if self.generation else Usage())


async def _run(gateway: Gateway, plan: VerifyPlan, slot: Slot, entry: LogEntry) -> Verification:
    """The verdict, once its record is kept."""
    meter = plan.resampling.meter if plan.resampling else UsageMeter()

    async def verify_and_record() -> Verification:
        observations = Observations()
        verification = await _verify(gateway, plan, observations, meter)
        await gateway.record(_record(gateway, plan, verification, entry, observations))
        gateway.metrics.verdicts.labels(verification.decision).inc()
        gateway.monitor.add(observations)
        return verification

    with gateway.failures_recorded(entry, meter):
        return await gateway.run_in_slot(slot, verify_and_record)


async def _verify(
    gateway: Gateway, plan: VerifyPlan, observations: Observations, meter: UsageMeter
) -> Verification:
    [record] = await gateway.score([plan.item])
    meter.usage += record.usage
    first_bad = next(
        (step for step, score in enumerate(record.scores) if score is not None and score < plan.threshold),
        None,
    )
    decision: Decision = "accept"
    if first_bad is not None:
        decision = "reject"
    elif None in record.scores:
        decision = "unscored"
    observations.score(record.scores)
    observations.count("unscored", None in record.scores)
    observations.count("accepted", decision == "accept")
    generation = None
    if plan.resampling is not None and first_bad is not None:
        good = tuple(plan.item.trace.step_text(step) for step in range(first_bad))
        # the steps that are kept do not count against the number of steps
        steps = replace(plan.resampling.steps, max_steps=plan.resampling.steps.max_steps + first_bad)
        resampling = replace(plan.resampling, initial_steps=good, steps=steps)
        generation = await gateway.generator.generate(resampling)
        for choice in generation.choices:
            observe(observations, resampling, choice)
    return Verification(decision=decision, first_bad=first_bad, record=record, generation=generation)


def _record(
    gateway: Gateway,
    plan: VerifyPlan,
    verification: Verification,
    entry: LogEntry,
    observations: Observations,
) -> GatewayRecord:
    candidate = GatewayCandidate(
        trace=plan.item.trace,
        chosen=False,
        choice=None,
        score=value_of(verification.record, gateway.aggregation),
        scores=verification.record,
    )
    return entry.success(
        usage=verification.usage,
        generation=verification.generation,
        client_candidate=candidate,
        observations=observations,
        decision=verification.decision,
    )


def _plan(gateway: Gateway, body: VerifyRequest, item: ProblemTrace) -> VerifyPlan:
    """Raises :class:`ApiError`."""
    threshold = gateway.settings.threshold if body.threshold is None else body.threshold
    return VerifyPlan(
        item=item,
        threshold=threshold,
        resampling=_resampling(gateway, body, item, threshold) if body.resample else None,
        candidates=(body.surefoot or StrategyOptions()).candidates or gateway.settings.candidates,
    )


def _resampling(gateway: Gateway, body: VerifyRequest, item: ProblemTrace, threshold: float) -> Plan:
    planner, settings = gateway.planner, gateway.settings
    options = body.surefoot or StrategyOptions()
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
    max_tokens = planner.max_tokens(body.max_tokens, "max_tokens")
    planner.require_few(1, strategy)
    sampling = Sampling(
        temperature=settings.temperature if body.temperature is None else body.temperature,
        top_p=settings.top_p if body.top_p is None else body.top_p,
        max_tokens=max_tokens,
    )
    problem = options.problem or item.problem.text
    prompt = planner.prompt_of([Message(role="user", content=problem)], problem)
    return Plan(
        problem=item.problem,
        strategy=strategy,
        steps=planner.steps(prompt, sampling, options),
        max_tokens=max_tokens,
        seed=secrets.randbelow(2**31) if body.seed is None else body.seed,
        aggregation=options.aggregation or gateway.aggregation,
    )


def _response(
    gateway: Gateway, plan: VerifyPlan, verification: Verification, entry: LogEntry
) -> VerifyResponse:
    trace, generation = plan.item.trace, verification.generation
    resampled = None
    if generation is not None:
        [choice] = generation.choices
        resampled = Resampled(
            solution=choice.text,
            kept_steps=verification.first_bad or 0,
            answer=None if choice.result.chosen is None else choice.result.answer,
            value=choice.value,
            finish_reason=choice.finish_reason,
            surefoot=extension(generation, plan.candidates),
        )
    return VerifyResponse(
        id=entry.id,
        created=int(entry.created.timestamp()),
        model=entry.model,
        decision=verification.decision,
        first_bad_step=verification.first_bad,
        threshold=plan.threshold,
        steps=[trace.step_text(step) for step in range(len(trace.steps))],
        scores=list(verification.record.scores),
        value=value_of(verification.record, gateway.aggregation),
        unscored_reason=verification.record.unscored_reason,
        resampled=resampled,
        usage=TokenUsage.of(verification.usage),
    )
