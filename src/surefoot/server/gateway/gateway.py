"""The gateway: one policy, perhaps one scorer, and the state that requests share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from surefoot.answers import AnswerChecker, Grader
from surefoot.concurrency import FairQueue
from surefoot.errors import PolicyError, ScoreError, UnavailableError
from surefoot.guard import Guard, GuardDecision
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, StepScorer, StepVerifier, TakesExtraBody
from surefoot.records import Message, StepScores, Usage
from surefoot.scores import trace_rule
from surefoot.search.best_of_n_search import MajoritySearch
from surefoot.server.gateway.admission import Admission, Slot
from surefoot.server.gateway.changes import ChangeChart
from surefoot.server.gateway.choice import SHORT_CHARACTERS, Choice, plain_choices
from surefoot.server.gateway.errors import CLIENT_DISCONNECTED, ApiError, ClientDisconnectedError
from surefoot.server.gateway.flags import AnswerFlags
from surefoot.server.gateway.images import Rows, checked_images, show, shown
from surefoot.server.gateway.monitor import Metrics
from surefoot.server.gateway.people import GoldStream, Holds
from surefoot.server.gateway.plan import DEFAULT, PLAIN, Plan, Planner
from surefoot.server.gateway.request_log import LogEntry, Recorder, log_unavailable
from surefoot.server.gateway.responses import ResponseWriter
from surefoot.server.gateway.schemas import StrategyOptions
from surefoot.server.gateway.search import search_choices
from surefoot.server.gateway.settings import GatewaySettings, ServerLimits
from surefoot.server.gateway.tools import tool_choices
from surefoot.server.gateway.upstream import Upstream, UpstreamScorer, policy_failure
from surefoot.server.records import GatewayRecord

if TYPE_CHECKING:
    from surefoot.server.store.requests import GoldSamples, HeldCalls, RequestLog

T = TypeVar("T")
SMALL_BYTES = 32_000
"""A body up to this size is cut into steps within some milliseconds, whatever its text."""
GUARD_TURNS, TEXT_TURNS = 4, 2
_QUICK_CHECK_S = 0.1
"""Checks of a client that take longer on average leave half of the turns to others."""
_LOG = logging.getLogger("surefoot.server")


class Gateway:
    """Answers many clients with one policy and one scorer, in shared batches.

    Make one per application; it serves one event loop. ``log``, such as ``Database.gateway``, stores requests
    and stays open; ``monitor`` watches the answers for changes. ``verifiers`` are the guard's rules if
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
        monitor: ChangeChart | None = None,
        verifiers: Sequence[StepVerifier] = (),
        holds: HeldCalls | None = None,
        gold: GoldSamples | None = None,
        continues: bool = True,
    ) -> None:
        self.settings, self.limits = settings or GatewaySettings(), limits or ServerLimits()
        self.monitor = monitor or ChangeChart()
        self.admission = Admission(
            running=self.limits.running,
            waiting=self.limits.waiting,
            timeout_s=self.limits.timeout_s,
        )
        self.checker = AnswerChecker()
        self.flags = AnswerFlags(self.settings.flags, threshold=self.settings.threshold, rules=verifiers)
        share = self.monitor.settings.gold_share
        self.gold = GoldStream(gold, self.monitor) if gold and share else None
        self.recorder = Recorder(log, on_loss=lambda: self.metrics.log_failures.inc())
        self.metrics = Metrics(self.admission, self.monitor, self.recorder, self.gold, self.checker.failures)
        self._texts = FairQueue(TEXT_TURNS, quick=TEXT_TURNS // 2)
        """Computations on clients' texts in threads, which slow down the event loop: two at a time, one of
        them only for small requests."""
        self._threads = ThreadPoolExecutor(TEXT_TURNS, thread_name_prefix="surefoot-compute")
        self._connections = AsyncExitStack()
        reward_model = UpstreamScorer(scorer, on_failure=self.metrics.scorer_failures.inc) if scorer else None
        self.upstream = Upstream(policy, reward_model, on_batch=self.metrics.batches.observe)
        tool_guard = self.settings.guard
        if tool_guard.enabled and tool_guard.threshold is not None and scorer is None:
            message = "guard.threshold: this server lacks a reward model; leave it out, or give one"
            raise ApiError(400, message, param="guard", code="no_scorer")
        if scorer is None and "first-bad-step" in self.settings.flags.withhold:
            message = (
                "gateway.flags.withhold: first-bad-step needs step scores, and this server lacks a reward "
                "model; leave it out, or give one"
            )
            raise ApiError(400, message, param="flags", code="no_scorer")
        self.guard = (
            _FairGuard(tool_guard, verifiers=verifiers, scorer=reward_model) if tool_guard.enabled else None
        )
        self.holds = (
            Holds(holds, tool_guard, self.metrics.count_review) if self.guard and holds is not None else None
        )
        self.grader = Grader(checker=self.checker, styles=self.settings.extract)
        self.aggregation = self.settings.aggregation or trace_rule(scorer)
        self.planner = Planner(
            policy=policy.name,
            takes_tools=isinstance(policy, TakesExtraBody),
            scorer=reward_model.name if reward_model else None,
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

    async def compute(self, size: int, work: Callable[[], T], *, images: bool = False) -> T:
        """Run ``work`` on a body of ``size`` bytes in a thread. Work on ``images`` may take long for few."""
        return await self._texts.run(self._threads, work, quick=size <= SMALL_BYTES and not images)

    async def admit_images(self, rows: Rows, plan: Plan, record: GatewayRecord | None = None) -> None:
        """Check a request's images, store them for ``record``, and let policy and reward model see them.

        Raises :class:`ApiError`.
        """
        if not plan.images:
            return
        images = await self.compute(0, lambda: checked_images(rows, plan.images), images=True)
        if record is not None:
            await self._stored(self.recorder.keep(record.project_id, images))
        show(images)

    async def generate(
        self, slot: Slot, entry: LogEntry, plan: Plan, writer: ResponseWriter | None = None
    ) -> list[Choice]:
        """Run a plan when its turn comes, and return its answers once their record is stored.

        Raises :class:`ApiError` and ``ClientDisconnectedError``, and records them.
        """
        try:
            async with slot:
                choices = await self._choices(plan, entry.record, writer)
                if _is_short(choices):
                    self.flags.apply(plan.problem, choices)
                else:
                    await self.compute(0, lambda: self.flags.apply(plan.problem, choices))
                record = entry.success(choices)
                await self._stored(self.recorder.write(record))
        except BaseException as error:
            self.record_failure(entry, error, plan.usage, writer.sent() if writer else {})
            raise
        finally:
            self.metrics.add_usage(plan.usage)
        self.metrics.add_choices(plan, choices)
        self.watch(record)
        return choices

    async def _choices(
        self, plan: Plan, record: GatewayRecord, writer: ResponseWriter | None
    ) -> list[Choice]:
        """The answers: whole ones, messages with tools, or the ends of a search."""
        upstream = self.upstream.with_fields(plan.extra_body) if plan.extra_body else self.upstream
        on_text = writer.on_text if writer and not self.flags.settings.withhold else None
        try:
            guarded = bool(plan.tools) and self.guard is not None
            if guarded or ((plan.tools or plan.images) and plan.strategy is not PLAIN):
                review = partial(self.holds.review, record) if self.holds is not None else None
                guard = self.guard if guarded else None
                return await tool_choices(plan, upstream, self.grader, guard, review)
            votes = isinstance(plan.strategy, MajoritySearch) and plan.strategy.batch is None
            if votes or plan.strategy is PLAIN:
                guarded = self.guard is not None
                return await plain_choices(plan, upstream, self.grader, on_text, guarded=guarded)
            return await search_choices(plan, upstream, self.grader, on_text)
        except PolicyError as error:
            raise policy_failure(str(error)) from error
        except ScoreError as error:
            raise ApiError(502, f"the reward model failed: {error}", code="scorer_failed") from error

    async def count_tokens(self, plan: Plan) -> int:
        """Tokens that the policy reads for a plan. Raises :class:`ApiError`, also if its server counts
        none."""
        upstream = self.upstream.with_fields(plan.extra_body) if plan.extra_body else self.upstream
        request = SampleRequest(prompt=plan.prompt, n=1, seed=plan.seed, sampling=plan.sampling)
        try:
            [result] = await upstream.sample([request])
        except PolicyError as error:
            raise policy_failure(str(error)) from error
        self.metrics.add_usage(result.usage)
        if result.error is not None or not result.usage.prompt_tokens:
            raise policy_failure(result.error or "its server counts no tokens")
        return result.usage.prompt_tokens

    def watch(self, record: GatewayRecord) -> None:
        """Add a request to the chart, and offer it to people."""
        self.monitor.add(record)
        if self.gold is not None:
            self.gold.offer(record)

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, in a batch with other clients' items. Raises :class:`ApiError` without a scorer."""
        if self.upstream.scorer is None:
            raise ApiError(400, "this server lacks a reward model", code="no_scorer")
        records = await self.upstream.score(items)
        self.metrics.add_usage(sum((record.usage for record in records), Usage()))
        self.metrics.unscored_steps.inc(sum(record.scores.count(None) for record in records))
        return records

    async def _stored(self, write: Awaitable[None]) -> None:
        """Wait for a write of the log. Raises :class:`ApiError`: 503 if it is unavailable, else 500."""
        try:
            await write
        except UnavailableError as error:
            self.metrics.log_failures.inc()
            _LOG.warning("an answer could not be recorded: %s", error)
            raise log_unavailable() from error
        except Exception as error:
            self.metrics.log_failures.inc()
            _LOG.exception("an answer could not be recorded")
            raise ApiError(500, "the answer could not be recorded", code="log_failed") from error

    def record_failure(
        self, entry: LogEntry, error: BaseException, usage: Usage, sent: Mapping[int, str]
    ) -> None:
        """Record a failure with its usage and the text that was ``sent`` by then, by number of the choice."""
        status, reason = 500, type(error).__name__
        if isinstance(error, ApiError):
            status, reason = error.status, error.message
        elif isinstance(error, ClientDisconnectedError | asyncio.CancelledError):
            status, reason = CLIENT_DISCONNECTED, "the client disconnected"
        elif not isinstance(error, Exception):
            return
        record = entry.failure(status, reason, usage, sent)
        self.recorder.note(record)
        self.watch(record)

    async def open(self) -> None:
        """Connect to the policy's server, if it has one. Optional; call it before the first request."""
        policy = self.upstream.policy
        if isinstance(policy, OpenAIPolicy):
            await self._connections.enter_async_context(policy.connected())

    async def stop(self) -> int:
        """Refuse new requests, give running ones ``limits.grace_s`` seconds, then cancel the others; returns
        the number of cancelled requests."""
        self.admission.draining = True
        until = time.monotonic() + self.limits.grace_s
        while (self.admission.running or self.admission.waiting) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return self.admission.stop()

    async def close(self) -> None:
        """Free all resources. Call it once, at the end."""
        self.admission.draining = True
        await asyncio.to_thread(self.checker.close)
        if self.holds is not None:
            await self.holds.close()
        if self.guard is not None:
            self.guard.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.upstream.close()
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

    async def check(self, messages: Sequence[Message], *args: Any, **options: Any) -> GuardDecision:
        """See the base class."""
        async with self._turns.async_turn():
            return await super().check(shown(messages), *args, **options)
