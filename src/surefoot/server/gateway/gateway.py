"""The gateway: one policy, perhaps one scorer, and the state that requests share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from surefoot.answers import AnswerChecker, Grader
from surefoot.concurrency import FairQueue
from surefoot.errors import StoreError, UnavailableError
from surefoot.guard import Guard, GuardDecision, Review
from surefoot.protocols import Policy, ProblemTrace, StepScorer, StepVerifier, TakesExtraBody
from surefoot.records import Message, StepScores, Usage
from surefoot.scores import trace_rule
from surefoot.server.gateway.admission import Admission, Jobs, Slot, cancel, wait_for_disconnect
from surefoot.server.gateway.errors import CLIENT_DISCONNECTED, ApiError, ClientDisconnectedError
from surefoot.server.gateway.flags import AnswerFlags
from surefoot.server.gateway.generation import SHORT_CHARACTERS, Choice, Generator, usage_of
from surefoot.server.gateway.gold import GoldStream
from surefoot.server.gateway.monitor import Metrics, Monitor, Observations
from surefoot.server.gateway.plan import DEFAULT, PLAIN, Plan, Planner, UsageMeter
from surefoot.server.gateway.request_log import LogEntry, Recorder, log_unavailable, redacted
from surefoot.server.gateway.responses import ResponseWriter
from surefoot.server.gateway.schemas import StrategyOptions
from surefoot.server.gateway.settings import GatewaySettings, ServerLimits, ToolGuard
from surefoot.server.gateway.upstream import FairBatcher, StaysConnected, UpstreamPolicy, UpstreamScorer
from surefoot.server.records import GatewayRecord, HeldCall

if TYPE_CHECKING:
    from surefoot.server.store.gold import GoldSamples
    from surefoot.server.store.requests import HeldCalls, RequestLog

T = TypeVar("T")
SMALL_BYTES = 32_000
"""A body up to this size is cut into steps within some milliseconds, whatever its text."""
GUARD_TURNS, TEXT_TURNS = 4, 2
_QUICK_CHECK_S = 0.1
"""Checks of a client that take longer on average leave half of the turns to others."""
_POLL_S = 0.25
"""Seconds between polls of the store of held calls, one poll for all waiting requests."""
_LOG = logging.getLogger("surefoot.server")


class Gateway:
    """Answers many clients with one policy and one scorer, in shared batches.

    Make one per application; it serves one event loop. ``log``, such as ``Database.gateway``, stores requests
    and stays open; ``monitor`` watches the scores for drift. ``verifiers`` are the guard's rules if
    ``settings.guard`` is enabled, and ``holds``, such as ``Database.held_calls``, stores calls that wait for
    people; without it they are rejected. ``gold``, such as ``Database.gold``, gets a random share of answers
    for people to label. ``continues`` says whether the policy can continue a
    text; otherwise strategies step by step are not offered, and asked for they write solutions in one piece.
    Raises :class:`surefoot.server.gateway.errors.ApiError` if the default strategy is impossible.
    """

    def __init__(
        self,
        policy: Policy,
        scorer: StepScorer | None = None,
        *,
        settings: GatewaySettings | None = None,
        limits: ServerLimits | None = None,
        log: RequestLog | None = None,
        monitor: Monitor | None = None,
        verifiers: Sequence[StepVerifier] = (),
        holds: HeldCalls | None = None,
        gold: GoldSamples | None = None,
        continues: bool = True,
    ) -> None:
        self.settings, self.limits = settings or GatewaySettings(), limits or ServerLimits()
        self.monitor = monitor or Monitor()
        self.admission = Admission(
            running=self.limits.running,
            waiting=self.limits.waiting,
            per_key=self.limits.running_per_key,
        )
        self.checker = AnswerChecker()
        self.flags = AnswerFlags(
            self.settings.flags,
            threshold=self.settings.threshold,
            rules=verifiers,
        )
        share = self.monitor.settings.gold_share
        self.gold = GoldStream(gold, self.monitor.settings, self.monitor.chart) if gold and share else None
        self.metrics = Metrics(self.admission, self.monitor, self.checker.failures)
        self.recorder = Recorder(log, on_loss=self.metrics.log_failures.inc)
        trust = getattr(getattr(scorer, "card", None), "trust", None)
        fitted_on = f"{trust.problems} held-out problems" if trust else "nothing"
        if trust is not None and trust.threshold != self.settings.threshold:
            fitted_on = f"nothing; {trust.threshold:.3g} was fitted on {fitted_on}"
        self.metrics.watch_itself(self.recorder, self.gold, self.settings.threshold, fitted_on)
        self.jobs = Jobs()
        self._texts = FairQueue(TEXT_TURNS, quick=TEXT_TURNS // 2)
        """Computations on clients' texts in threads, which slow the event loop down: two at a time, one of
        them only for small requests."""
        self._threads = ThreadPoolExecutor(TEXT_TURNS, thread_name_prefix="surefoot-compute")
        self._connections = AsyncExitStack()
        self.policy = UpstreamPolicy(policy)
        self.scorer = UpstreamScorer(scorer, on_failure=self.metrics.scorer_failures.inc) if scorer else None
        tool_guard = self.settings.guard
        if tool_guard.enabled and tool_guard.threshold is not None and self.scorer is None:
            message = "guard.threshold: this server lacks a reward model; leave it out, or give one"
            raise ApiError(400, message, param="guard", code="no_scorer")
        self.guard = (
            _FairGuard(tool_guard, verifiers=verifiers, scorer=self.scorer) if tool_guard.enabled else None
        )
        self.holds = (
            Holds(holds, tool_guard, self.metrics.count_review) if self.guard and holds is not None else None
        )
        self.batcher = FairBatcher(
            self.policy, self.scorer, self.settings, on_batch=self.metrics.batches.observe
        )
        self.generator = Generator(
            batcher=self.batcher,
            policy=self.policy,
            grader=Grader(checker=self.checker, styles=self.settings.extract),
            on_usage=self.metrics.add_usage,
            guard=self.guard,
            opened=self.settings.reasoning_opened,
        )
        self.aggregation = self.settings.aggregation or trace_rule(scorer)
        self.planner = Planner(
            policy=policy.name,
            takes_tools=isinstance(policy, TakesExtraBody),
            scorer=self.scorer.name if self.scorer else None,
            settings=self.settings,
            limits=self.limits,
            aggregation=self.aggregation,
            continues=continues,
        )
        # refuse impossible settings now, not at the first request
        self.planner.check_names()
        default = self.planner.strategy(DEFAULT, StrategyOptions())
        if self.settings.abstain_below is not None and default is PLAIN:
            message = "abstain_below: the plain strategy computes no scores; choose another as the default"
            raise ApiError(400, message, param="abstain_below", code="unsupported")

    async def serve(self, request: Request, work: Callable[[Slot], Coroutine[Any, Any, T]]) -> T:
        """Run ``work``, and cancel it if the client disconnects or the server stops.

        Raises :class:`ApiError`: 429 if there are too many requests, 503 while stopping; and
        :class:`ClientDisconnectedError`.
        """
        slot = self.admission.reserve(request.state.key)
        try:
            return await self.jobs.run(work(slot), wait_for_disconnect(request.receive))
        except ClientDisconnectedError:
            self.metrics.disconnects.inc()
            raise
        finally:
            slot.close()

    async def run_in_slot(self, slot: Slot, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` once there is a slot. Raises :class:`ApiError` 504 if it takes too long."""
        try:
            async with asyncio.timeout(self.limits.timeout_s), slot:
                return await work()
        except TimeoutError as error:
            raise self._too_late() from error

    async def compute(self, size: int, work: Callable[[], T]) -> T:
        """Run ``work`` on a body of ``size`` bytes in a thread. Raises :class:`ApiError` 504 if it takes too
        long."""
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                return await self._texts.run(self._threads, work, quick=size <= SMALL_BYTES)
        except TimeoutError as error:
            raise self._too_late() from error

    def _too_late(self) -> ApiError:
        return ApiError(504, f"no answer within {self.limits.timeout_s:g} s", code="timeout")

    async def generate(
        self, slot: Slot, entry: LogEntry, plan: Plan, writer: ResponseWriter | None = None
    ) -> list[Choice]:
        """Run a plan, and return its answers once their record is stored. Raises :class:`ApiError`."""

        async def generate_and_record() -> list[Choice]:
            choices = await self.generator.generate(
                plan,
                writer.on_text if writer and not self.flags.settings.withhold else None,
                partial(self.holds.review, entry.record) if self.holds is not None else None,
            )
            flagged = partial(self.flags.apply, plan.problem, choices)
            choices = flagged() if _is_short(choices) else await self.compute(0, flagged)
            observations = Observations()
            for choice in choices:
                self.metrics.add_decisions(choice.decisions)
                observations.add_choice(plan, choice)
            record = entry.success(choices, usage=usage_of(choices))
            await self.record(record)
            self.metrics.add_choices(plan.strategy.method, choices)
            self.watch(observations, record)
            return choices

        with self.failures_recorded(entry, plan.meter, writer.sent if writer else dict):
            return await self.run_in_slot(slot, generate_and_record)

    def _stored(self, record: GatewayRecord) -> GatewayRecord:
        names, patterns = self.settings.redact, self.settings.redact_patterns
        return redacted(record, names, patterns) if names or patterns else record

    def watch(self, observations: Observations, record: GatewayRecord) -> None:
        """Add a request to the monitor, and offer it to people."""
        self.monitor.add(observations, record)
        if self.gold is not None:
            self.gold.offer(self._stored(record))

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, in a batch with other clients' items. Raises :class:`ApiError` without a scorer."""
        if self.scorer is None:
            raise ApiError(400, "this server lacks a reward model", code="no_scorer")
        records = await self.batcher.score(items)
        self.metrics.add_usage(sum((record.usage for record in records), Usage()))
        self.metrics.unscored_steps.inc(sum(record.scores.count(None) for record in records))
        return records

    async def record(self, record: GatewayRecord) -> None:
        """Return when the record of an answer is stored.

        Raises :class:`ApiError`: 503 if the log is unavailable, else 500.
        """
        try:
            await self.recorder.write(self._stored(record))
        except UnavailableError as error:
            self.metrics.log_failures.inc()
            _LOG.warning("an answer could not be recorded: %s", error)
            raise log_unavailable() from error
        except Exception as error:
            self.metrics.log_failures.inc()
            _LOG.exception("an answer could not be recorded")
            raise ApiError(500, "the answer could not be recorded", code="log_failed") from error

    @contextmanager
    def failures_recorded(
        self, entry: LogEntry, meter: UsageMeter, sent: Callable[[], Mapping[int, str]] = dict
    ) -> Iterator[None]:
        """Record a failure in the block, with its usage and the text that was ``sent`` by then, by number of
        the choice."""
        try:
            yield
        except BaseException as error:
            status, reason = 500, type(error).__name__
            if isinstance(error, ApiError):
                status, reason = error.status, error.message
            elif isinstance(error, asyncio.CancelledError):
                stopping = (503, "stopped")
                disconnected = (CLIENT_DISCONNECTED, "the client disconnected")
                status, reason = stopping if self.admission.draining else disconnected
            elif not isinstance(error, Exception):
                raise
            record = entry.failure(status, reason, meter.usage, sent())
            self.recorder.note(self._stored(record))
            self.watch(Observations(), record)
            raise

    async def open(self) -> None:
        """Connect to the policy's server, if it has one. Optional; call it before the first request."""
        policy = self.policy.policy
        if isinstance(policy, StaysConnected):
            await self._connections.enter_async_context(policy.connected())

    async def stop(self) -> int:
        """Refuse new requests, give running ones ``limits.grace_s`` seconds, then cancel the others; returns
        the number of cancelled requests."""
        self.admission.draining = True
        until = time.monotonic() + self.limits.grace_s
        while (self.admission.running or self.admission.waiting) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return self.jobs.stop()

    async def close(self) -> None:
        """Free all resources. Call it once, at the end."""
        self.admission.draining = True
        await asyncio.to_thread(self.checker.close)
        if self.holds is not None:
            await self.holds.close()
        if self.guard is not None:
            self.guard.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.batcher.close()
        await self.recorder.close()
        if self.gold is not None:
            await self.gold.close()
        await self._connections.aclose()


def _is_short(choices: Sequence[Choice]) -> bool:
    """Whether all texts of the answers are checked in less time than a thread takes to begin."""
    traces = [candidate.trace for choice in choices for candidate in choice.candidates]
    return all(not trace.messages for trace in traces) and (
        sum(len(trace.text or "") for trace in traces) <= SHORT_CHARACTERS
    )


class _FairGuard(Guard):
    """A guard whose checks take fair turns of the clients."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = FairQueue(GUARD_TURNS, quick=GUARD_TURNS // 2, quick_cost=_QUICK_CHECK_S)

    async def check(self, *args: Any, **options: Any) -> GuardDecision:
        """See the base class."""
        async with self._turns.async_turn():
            return await super().check(*args, **options)


class Holds:
    """Puts held calls into ``store``, and waits for people's decisions; any process may decide there.

    ``on_review`` is called with each decision that came in time.
    """

    def __init__(self, store: HeldCalls, settings: ToolGuard, on_review: Callable[[Review], None]) -> None:
        self._store, self._settings, self._on_review = store, settings, on_review
        self._waiting: dict[int, asyncio.Future[Review]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._abandoning: asyncio.Future[None] | None = None

    async def review(
        self,
        record: GatewayRecord,
        choice: int,
        run: tuple[Message, ...],
        reply: Message,
        decision: GuardDecision,
    ) -> tuple[Review | None, str | None]:
        """A person's decision, ``None`` after ``hold_s`` seconds without one; and the number of the call.

        The call is denied at once if too many wait or the store fails.
        """
        held = HeldCall(
            request_id=record.request_id,
            choice=choice,
            created=datetime.now(UTC),
            key_id=record.key_id,
            run=run,
            reply=reply,
            decision=decision,
        )
        try:
            number = await asyncio.to_thread(self._store.hold, held, most=self._settings.most_held)
        except StoreError as error:
            _LOG.warning("a call could not be held: %s", error)
            number = None
        if number is None:
            return Review(approved=False, comment="too many calls wait for a decision"), None
        decided: asyncio.Future[Review] = asyncio.get_running_loop().create_future()
        self._waiting[number] = decided
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            async with asyncio.timeout(self._settings.hold_s):
                review = await decided
        except TimeoutError:
            return None, str(number)
        except asyncio.CancelledError:  # the client has disconnected, or the server stops
            self._abandoning = asyncio.ensure_future(self._try(self._store.abandon, number))
            raise
        finally:
            self._waiting.pop(number, None)
        self._on_review(review)
        if review.approved and not await self._try(self._store.deliver, number):
            review = Review(approved=False, comment="the approval was used before, or could not be read")
        return review, str(number)

    async def find(self, number: int, key_id: int | None) -> tuple[HeldCall, bool]:
        """A held call of a key, and whether this request gets it: it is approved, and none got it before.

        Raises ``NotFoundError``, also for another key's call.
        """
        call = await asyncio.to_thread(self._store.held, number, key_id=key_id)
        approved = call.review is not None and call.review.approved
        return call, approved and await asyncio.to_thread(self._store.deliver, number)

    async def _try(self, change: Callable[[int], T], number: int) -> T | None:
        """Change the stored call; ``None`` if the store fails."""
        try:
            return await asyncio.to_thread(change, number)
        except StoreError as error:
            _LOG.warning("the state of held call %d could not be stored: %s", number, error)
            return None

    async def close(self) -> None:
        """Stop polling."""
        if self._abandoning is not None:
            await self._abandoning
        if self._polling is not None:
            await cancel(self._polling)

    async def _poll(self) -> None:
        while self._waiting:
            await asyncio.sleep(_POLL_S)
            begin = time.monotonic()
            try:
                reviews = await asyncio.to_thread(self._store.reviews, list(self._waiting))
            except StoreError as error:
                _LOG.warning("decisions on held calls cannot be read: %s", error)
                await asyncio.sleep(1 + time.monotonic() - begin)
                continue
            for number, review in reviews.items():
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(review)
