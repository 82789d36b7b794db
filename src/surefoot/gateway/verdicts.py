"""A verdict on a solution, and what is written anew from its first bad step."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from surefoot.annotation.database import GatewayCandidate, GatewayRecord
from surefoot.annotation.database.gateway_record import Decision
from surefoot.gateway.admission import Ticket
from surefoot.gateway.entries import Asked
from surefoot.gateway.gateway import Gateway, observe
from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.monitor import Observations
from surefoot.gateway.schemas import Candidates, Options
from surefoot.gateway.scoring import value_of
from surefoot.gateway.tasks import Account, Generation, Task
from surefoot.gateway.verify_forms import VerifyRequest
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Message, StepScores, Usage


@dataclass(frozen=True, kw_only=True)
class Found:
    """A verdict, and perhaps a new solution. ``bad`` is the first bad step, counted from 0."""

    decision: Decision
    bad: int | None
    record: StepScores
    generation: Generation | None

    @property
    def usage(self) -> Usage:
        """What both cost."""
        return self.record.usage + (self.generation.usage if self.generation else Usage())

    def entry(self, gateway: Gateway, item: ProblemTrace, asked: Asked, seen: Observations) -> GatewayRecord:
        """What is written down."""
        given = GatewayCandidate(
            trace=item.trace,
            chosen=False,
            choice=None,
            score=value_of(self.record, gateway.aggregation),
            scores=self.record,
        )
        return asked.answered(
            usage=self.usage,
            generation=self.generation,
            given=given,
            seen=seen,
            decision=self.decision,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done, understood before a place is taken."""

    item: ProblemTrace
    threshold: float
    task: Task | None
    """How to go on from the first bad step, the steps before it still to be put in."""
    candidates: Candidates

    @classmethod
    def of(cls, gateway: Gateway, body: VerifyRequest, item: ProblemTrace) -> Plan:
        """Of a request. Raises :class:`ApiError`."""
        threshold = gateway.settings.threshold if body.threshold is None else body.threshold
        task = _task(gateway, body, item, threshold) if body.resample else None
        candidates = (body.surefoot or Options()).candidates or gateway.settings.candidates
        return cls(item=item, threshold=threshold, task=task, candidates=candidates)

    async def work(self, gateway: Gateway, ticket: Ticket, asked: Asked) -> Found:
        """The verdict, once its record is kept."""
        account = self.task.account if self.task else Account()
        with gateway.failures_recorded(asked, account):
            return await gateway.in_turn(ticket, lambda: self._kept(gateway, asked, account))

    async def _kept(self, gateway: Gateway, asked: Asked, account: Account) -> Found:
        seen = Observations()
        found = await self._judge(gateway, seen, account)
        await gateway.record(found.entry(gateway, self.item, asked, seen))
        gateway.metrics.verdicts.labels(found.decision).inc()
        gateway.monitor.add(seen)
        return found

    async def _judge(self, gateway: Gateway, seen: Observations, account: Account) -> Found:
        [record] = await gateway.score([self.item])
        account.usage += record.usage
        bad = next((k for k, s in enumerate(record.scores) if s is not None and s < self.threshold), None)
        decision: Decision = "accept"
        if bad is not None:
            decision = "reject"
        elif None in record.scores:
            decision = "unscored"
        seen.score(record.scores)
        seen.count("unscored", None in record.scores)
        seen.count("accepted", decision == "accept")
        generation = None
        if self.task is not None and bad is not None:
            kept = tuple(self.item.trace.step_text(step) for step in range(bad))
            task = _kept(self.task, kept)
            generation = await gateway.generator.generate(task)
            for choice in generation.choices:
                observe(seen, task, choice)
        return Found(decision=decision, bad=bad, record=record, generation=generation)


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
    if options.abstain_below is not None:
        message = "abstain_below: nothing is withheld here; 'resampled.value' says what it is worth"
        raise ApiError(400, message, param="abstain_below", code="unsupported")
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
