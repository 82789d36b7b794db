"""The gateway itself: one policy, perhaps one scorer, and all that clients share of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from surefoot.annotation.database import GatewayLog, GatewayRecord
from surefoot.answers import AnswerChecker, Grader
from surefoot.batching import Batcher
from surefoot.gateway.admission import Admission, Ticket
from surefoot.gateway.attending import Jobs
from surefoot.gateway.chunks import Chunks
from surefoot.gateway.entries import Asked
from surefoot.gateway.generating import Generator
from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.http.settings import Limits
from surefoot.gateway.metrics import Metrics
from surefoot.gateway.monitor import Monitor, Observations
from surefoot.gateway.planning import DEFAULT, Planner
from surefoot.gateway.recording import Recorder
from surefoot.gateway.schemas import Options
from surefoot.gateway.settings import GatewaySettings
from surefoot.gateway.strategies import PLAIN
from surefoot.gateway.tasks import Account, Choice, Generation, Task
from surefoot.gateway.upstream import StaysConnected, TakesExtraBody, UpstreamPolicy, UpstreamScorer
from surefoot.protocols import Policy, ProblemTrace, StepScorer
from surefoot.records import StepScores, Usage
from surefoot.scores import Aggregator

T = TypeVar("T")
MAX_SAMPLES = 1024
"""Samples of a batch of the policy; one request may be larger."""
CLIENT_LEFT = 499
"""Status, in the metrics and the record, of a request whose client left; nobody receives it."""
_LOG = logging.getLogger("surefoot.gateway")


class Gateway:
    """Answers for many clients with one policy and one scorer, in common batches.

    Make one an application; it serves one event loop. ``log``, such as ``Database.gateway``, keeps what was
    answered and stays open; ``monitor`` says whether the model is still the one that was tested. Raises
    :class:`surefoot.gateway.http.errors.ApiError` if the default strategy makes no sense.
    """

    def __init__(
        self,
        policy: Policy,
        scorer: StepScorer | None = None,
        *,
        settings: GatewaySettings | None = None,
        limits: Limits | None = None,
        log: GatewayLog | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self.settings, self.limits = settings or GatewaySettings(), limits or Limits()
        self.monitor = monitor or Monitor()
        self.admission = Admission(running=self.limits.running, waiting=self.limits.waiting)
        self.metrics = Metrics(self.admission, self.monitor)
        self.recorder = Recorder(log, lost=self.metrics.log_failures.inc)
        self.jobs = Jobs()
        self._held = AsyncExitStack()
        self.policy = UpstreamPolicy(policy)
        self.scorer = UpstreamScorer(scorer, on_failure=self.metrics.scorer_failures.inc) if scorer else None
        self.batcher = Batcher(
            self.policy,
            self.scorer,
            overlap=self.settings.overlap,
            gather_s=self.settings.gather_s,
            max_samples=MAX_SAMPLES,
            isolate_errors=True,
            on_batch=self.metrics.batches.observe,
        )
        self._checker = AnswerChecker("math")
        self.grader = Grader(checker=self._checker, styles=self.settings.extract)
        self.generator = Generator(
            batcher=self.batcher, policy=self.policy, grader=self.grader, spent=self.metrics.spent
        )
        card = getattr(scorer, "card", None)
        named: Aggregator | None = getattr(card, "aggregation", None)
        self.aggregation: Aggregator = self.settings.aggregation or named or "min"
        self.planner = Planner(
            policy=policy.name,
            takes_tools=isinstance(policy, TakesExtraBody),
            scorer=self.scorer.name if self.scorer else None,
            settings=self.settings,
            limits=self.limits,
            aggregation=self.aggregation,
        )
        default = self.planner.strategy(DEFAULT, Options())  # refused now rather than with the first request
        if self.settings.abstain_below is not None and default is PLAIN:
            message = (
                "abstain_below: the plain strategy has no scores to go by; choose another as the default"
            )
            raise ApiError(400, message, param="abstain_below", code="unsupported")

    async def in_turn(self, ticket: Ticket, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``work`` gives, once there is a place. Raises :class:`ApiError` 504 if it takes too long."""
        try:
            async with asyncio.timeout(self.limits.timeout_s), ticket:
                return await work()
        except TimeoutError as error:
            message = f"no answer within {self.limits.timeout_s:g} s"
            raise ApiError(504, message, code="timeout") from error

    async def answer(
        self, ticket: Ticket, asked: Asked, task: Task, chunks: Chunks | None = None
    ) -> Generation:
        """Answers to a task, once their record is kept. Raises :class:`ApiError`."""
        shown = chunks.sent if chunks else {}
        with self.failures_recorded(asked, task.account, shown):
            return await self.in_turn(ticket, lambda: self._answer(asked, task, chunks))

    async def _answer(self, asked: Asked, task: Task, chunks: Chunks | None) -> Generation:
        generation = await self.generator.generate(task, chunks.accepted if chunks else None)
        seen = Observations()
        for choice in generation.choices:
            observe(seen, task, choice)
        await self.record(asked.answered(usage=generation.usage, generation=generation, seen=seen))
        self.metrics.generated.labels(task.strategy.family).inc(len(generation.choices))
        self.monitor.add(seen)
        return generation

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, in a batch with those of other clients. Raises :class:`ApiError` without a scorer."""
        if self.scorer is None:
            raise ApiError(400, "this server has no reward model", code="no_scorer")
        records = await self.batcher.score(items)
        self.metrics.spent(sum((record.usage for record in records), Usage()))
        return records

    async def record(self, record: GatewayRecord) -> None:
        """Return when a record is kept. Raises :class:`ApiError` 500 if that fails."""
        try:
            await self.recorder.write(record)
        except Exception as error:
            self.metrics.log_failures.inc()
            _LOG.exception("an answer could not be written down")
            raise ApiError(500, "the answer could not be written down", code="log_failed") from error

    @contextmanager
    def failures_recorded(
        self, asked: Asked, account: Account, shown: Mapping[int, str] = MappingProxyType({})
    ) -> Iterator[None]:
        """Around the work for a request: what ends it early is written down, too, with its cost and what the
        client has been ``shown``."""
        try:
            yield
        except ApiError as error:
            self.recorder.note(asked.failed(error.status, error.message, account.usage, shown))
            raise
        except asyncio.CancelledError:
            status, why = (503, "stopped") if self.admission.draining else (CLIENT_LEFT, "the client left")
            self.recorder.note(asked.failed(status, why, account.usage, shown))
            raise
        except Exception as error:
            self.recorder.note(asked.failed(500, type(error).__name__, account.usage, shown))
            raise

    async def open(self) -> None:
        """Connect to the policy's server, if there is one; before the first request, or not at all."""
        policy = self.policy.policy
        if isinstance(policy, StaysConnected):
            await self._held.enter_async_context(policy.connected())

    async def stop(self, grace_s: float | None = None) -> int:
        """Let nobody in, give what runs ``grace_s`` seconds, then hand it back; how much that was."""
        self.admission.draining = True
        until = time.monotonic() + (self.limits.grace_s if grace_s is None else grace_s)
        while (self.admission.running or self.admission.waiting) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return self.jobs.stop()

    async def close(self) -> None:
        """Free what is held. Call it once, at the end."""
        self.admission.draining = True
        await asyncio.to_thread(self._checker.close)
        await self.recorder.close()
        await self._held.aclose()


def observe(seen: Observations, task: Task, choice: Choice) -> None:
    """Note what the answer of a search says about policy and reward model."""
    if task.strategy.search is None:
        return
    result = choice.result
    seen.count("abstained", choice.abstained)
    if result.chosen is None:
        return
    seen.count("unparsed", result.answer is None)
    if not result.scores:
        return
    scores = result.scores[result.chosen].scores[len(task.kept) :]
    if not choice.abstained:
        seen.score(scores)
    seen.count("unscored", None in scores)
    threshold = task.strategy.threshold
    if threshold is not None:
        accepted = sum(score is None or score >= threshold for score in scores)
        seen.count("accepted", True, accepted)
        seen.count("accepted", False, len(scores) - accepted + len(choice.dropped))
