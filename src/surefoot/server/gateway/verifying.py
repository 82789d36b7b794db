"""``/v1/verify``: accept a solution, reject it with its first bad step, or write it anew from there."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import Field

from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Message, StepScores, Usage
from surefoot.server.errors import ApiError
from surefoot.server.gateway.admission import Ticket
from surefoot.server.gateway.answers import Extension, TokenUsage, Told, extension
from surefoot.server.gateway.attending import attend
from surefoot.server.gateway.entries import Asked, new_id
from surefoot.server.gateway.gateway import Gateway, observe
from surefoot.server.gateway.given import Given, item_of
from surefoot.server.gateway.monitor import Observations
from surefoot.server.gateway.schemas import Options
from surefoot.server.gateway.scoring import SCORING_ERRORS, require_scorer, value_of
from surefoot.server.gateway.tasks import Generation, Task
from surefoot.store.database import GatewayCandidate, GatewayRecord

Decision = Literal["accept", "reject", "unscored"]


class VerifyRequest(Given):
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
    surefoot: Options | None = None


class Resampled(Told):
    """The solution that was written anew."""

    solution: str
    """All of it, the steps that were kept among it."""
    kept_steps: int
    answer: str | None
    value: float | None
    finish_reason: str
    surefoot: Extension


class VerifyAnswer(Told):
    """Answer of ``/v1/verify``."""

    id: str
    object: Literal["surefoot.verification"] = "surefoot.verification"
    created: int
    model: str
    decision: Decision
    """unscored: no step is known to be bad, but not all have a score."""
    first_bad_step: int | None
    """Counted from 0."""
    threshold: float
    steps: list[str]
    scores: list[float | None]
    value: float | None
    unscored_reason: str | None
    resampled: Resampled | None
    usage: TokenUsage


def verifying_routes(gateway: Gateway, route_class: type[APIRoute]) -> APIRouter:
    """The verifying interface."""
    router = APIRouter(route_class=route_class, tags=["score"])

    @router.post("/v1/verify", response_model=VerifyAnswer, responses=SCORING_ERRORS)
    async def verify(request: Request, body: VerifyRequest) -> VerifyAnswer:
        """Accept a solution or find its first bad step; with `resample`, write it anew from there."""
        name = require_scorer(gateway, body.model)
        item = item_of(body)
        plan = _Plan.of(gateway, body, item)
        asked = Asked(
            id=new_id("verify"),
            endpoint=request.url.path,
            model=name,
            strategy=plan.task.strategy.name if plan.task else "",
            problem=item.problem,
            key=request.state.key,
            parameters=body.model_dump(
                mode="json", exclude_none=True, exclude={"problem", "steps", "solution", "model"}
            ),
        )
        ticket = gateway.admission.ticket()
        try:
            work = plan.work(gateway, ticket, asked)
            found = await attend(request.receive, gateway.jobs, work, gateway.metrics.left.inc)
        finally:
            ticket.close()
        return found.told(gateway, item, plan.threshold, asked)

    return router


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A verdict, and perhaps a new solution."""

    decision: Decision
    bad: int | None
    record: StepScores
    generation: Generation | None

    @property
    def usage(self) -> Usage:
        return self.record.usage + (self.generation.usage if self.generation else Usage())

    def entry(self, gateway: Gateway, item: ProblemTrace, asked: Asked, seen: Observations) -> GatewayRecord:
        given = GatewayCandidate(
            trace=item.trace,
            chosen=False,
            choice=None,
            score=value_of(self.record, gateway.aggregation),
            scores=self.record,
        )
        return asked.answered(
            policy=gateway.policy.name,
            scorer=self.record.scorer,
            usage=self.usage,
            generation=self.generation,
            given=given,
            seen=seen,
            decision=self.decision,
        )

    def told(self, gateway: Gateway, item: ProblemTrace, threshold: float, asked: Asked) -> VerifyAnswer:
        return VerifyAnswer(
            id=asked.id,
            created=int(asked.created.timestamp()),
            model=asked.model,
            decision=self.decision,
            first_bad_step=self.bad,
            threshold=threshold,
            steps=[item.trace.step_text(step) for step in range(len(item.trace.steps))],
            scores=list(self.record.scores),
            value=value_of(self.record, gateway.aggregation),
            unscored_reason=self.record.unscored_reason,
            resampled=_resampled(self.generation, self.bad or 0) if self.generation else None,
            usage=TokenUsage.of(self.usage),
        )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is to be done, understood before a place is taken."""

    item: ProblemTrace
    threshold: float
    task: Task | None
    """How to go on from the first bad step, the steps before it still to be put in."""

    @classmethod
    def of(cls, gateway: Gateway, body: VerifyRequest, item: ProblemTrace) -> _Plan:
        threshold = gateway.settings.threshold if body.threshold is None else body.threshold
        task = _task(gateway, body, item, threshold) if body.resample else None
        return cls(item=item, threshold=threshold, task=task)

    async def work(self, gateway: Gateway, ticket: Ticket, asked: Asked) -> _Found:
        """The verdict, once its record is kept."""
        with gateway.failures_recorded(asked):
            seen = Observations()
            found = await gateway.in_turn(ticket, lambda: self._judge(gateway, seen))
            gateway.monitor.add(seen)
            await gateway.record(found.entry(gateway, self.item, asked, seen))
            return found

    async def _judge(self, gateway: Gateway, seen: Observations) -> _Found:
        [record] = await gateway.score([self.item])
        bad = next((k for k, s in enumerate(record.scores) if s is not None and s < self.threshold), None)
        decision: Decision = "accept"
        if bad is not None:
            decision = "reject"
        elif None in record.scores:
            decision = "unscored"
        gateway.metrics.verdicts.labels(decision).inc()
        seen.score(record.scores)
        seen.count("unscored", None in record.scores)
        seen.count("accepted", decision == "accept")
        generation = None
        if self.task is not None and bad is not None:
            kept = tuple(self.item.trace.step_text(step) for step in range(bad))
            task = _kept(self.task, kept)
            generation = await gateway.generator.generate(task)
            for choice in generation.choices:
                observe(seen, task, choice.result, abstained=choice.abstained)
        return _Found(decision=decision, bad=bad, record=record, generation=generation)


def _task(gateway: Gateway, body: VerifyRequest, item: ProblemTrace, threshold: float) -> Task:
    options, planner, mine = body.surefoot or Options(), gateway.planner, gateway.settings
    options = options.model_copy(
        update={
            "strategy": options.strategy or "accept-reject",
            "threshold": threshold if options.threshold is None else options.threshold,
        }
    )
    strategy = planner.strategy("surefoot", options)
    if strategy.search is None:
        raise ApiError(400, "the plain strategy cannot go on from a step", param="strategy")
    most = planner.tokens(body.max_tokens, "max_tokens")
    planner.require_few(1, strategy)
    sampling = Sampling(
        temperature=mine.temperature if body.temperature is None else body.temperature,
        top_p=mine.top_p if body.top_p is None else body.top_p,
        max_tokens=most,
    )
    problem = options.problem or item.problem.text
    prompt = planner.prompt_of([Message(role="user", content=problem)], problem)
    return Task(
        problem=item.problem,
        strategy=strategy,
        steps=planner.steps(prompt, sampling, options),
        max_tokens=most,
        seed=secrets.randbelow(2**31) if body.seed is None else body.seed,
        aggregation=options.aggregation or gateway.aggregation,
    )


def _kept(task: Task, kept: tuple[str, ...]) -> Task:
    """The task with its first steps, which do not count against the number of steps."""
    steps = replace(task.steps, max_steps=task.steps.max_steps + len(kept))
    return replace(task, kept=kept, steps=steps)


def _resampled(generation: Generation, kept: int) -> Resampled:
    [choice] = generation.choices
    chosen = choice.result.chosen
    return Resampled(
        solution=choice.text,
        kept_steps=kept,
        answer=None if chosen is None else choice.result.answer,
        value=choice.value,
        finish_reason=choice.finish_reason,
        surefoot=extension(generation, "all"),
    )
