"""One policy and one scorer for all clients: what is asked for at the same time goes out together."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from surefoot.errors import PolicyError
from surefoot.gateway.redacting import told_of_policy, told_of_scorer
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, SampleResult, StepScorer, StreamsText
from surefoot.records import StepScores

T = TypeVar("T")
_LOG = logging.getLogger("surefoot.gateway.http")


@runtime_checkable
class TakesExtraBody(Protocol):
    """A policy that passes fields of a request on, such as ``tools``; see ``OpenAIPolicy``."""

    def with_extra_body(self, extra_body: Mapping[str, Any]) -> Policy:
        """The same policy, which puts these fields into every request."""
        ...


@runtime_checkable
class StaysConnected(Protocol):
    """A policy that can keep its connections between calls; see ``OpenAIPolicy``."""

    def connected(self) -> AbstractAsyncContextManager[None]:
        """Keep them for the time of the block."""
        ...


class SharedPolicy:
    """A :class:`surefoot.protocols.Policy` that asks ``policy`` in batches, one after the other.

    All that waits when a batch has ended is the next one, at most ``max_samples`` samples (one question may
    be larger); the first question waits ``gather_s`` seconds for others. Where ``policy`` raises for a batch,
    it is asked question by question, so that only the one to blame fails. A batch that nobody waits for any
    more is cancelled. With ``overlap`` questions are passed on as they come. ``seen`` is told the samples of
    each batch. Errors of results tell the kind of the failure; the log of the process has all of it.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        overlap: bool,
        gather_s: float = 0.002,
        max_samples: int = 1024,
        seen: Callable[[int], None] | None = None,
    ) -> None:
        self.policy, self.overlap, self.gather_s, self.max_samples = policy, overlap, gather_s, max_samples
        self._seen = seen
        self._queue: list[_Question] = []
        self._pump: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Name of the policy."""
        return self.policy.name

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Answers in order. Raises ``PolicyError`` where the policy raises for these requests."""
        if self.overlap:
            if self._seen:
                self._seen(_samples(requests))
            return await self._checked(requests)
        question = _Question(requests=requests, answer=asyncio.get_running_loop().create_future())
        self._queue.append(question)
        if self._pump is None:
            self._pump = asyncio.create_task(self._work())
        try:
            return await question.answer
        except asyncio.CancelledError:
            if question in self._queue:
                self._queue.remove(question)
            if question.batch is not None:
                question.batch.leave()
            raise

    async def stream(self, request: SampleRequest, show: Callable[[int, str], None]) -> SampleResult:
        """One answer, shown while it is written if ``policy`` can do that and questions are passed on as
        they come: one that is asked in batches writes for all of them at once. Raises like :meth:`sample`.
        """
        policy = self.policy
        if not (self.overlap and isinstance(policy, StreamsText)):
            [result] = await self.sample([request])
            return result
        if self._seen:
            self._seen(request.n)
        result = await self._guarded(lambda: policy.stream(request, show))
        return self._told([result])[0]

    async def _work(self) -> None:
        try:
            await asyncio.sleep(self.gather_s)
            while self._queue:
                questions = self._take()
                batch = _Batch(task=asyncio.create_task(self._ask(questions)), waiting=len(questions))
                for question in questions:
                    question.batch = batch
                await asyncio.wait([batch.task])
        finally:
            self._pump = None

    def _take(self) -> list[_Question]:
        taken: list[_Question] = []
        samples = 0
        while self._queue:
            more = _samples(self._queue[0].requests)
            if taken and samples + more > self.max_samples:
                break
            taken.append(self._queue.pop(0))
            samples += more
        if self._seen:
            self._seen(samples)
        return taken

    async def _ask(self, questions: Sequence[_Question]) -> None:
        try:
            found = await self._checked([request for question in questions for request in question.requests])
        except Exception as error:
            if len(questions) > 1:
                for question in questions:
                    if not question.answer.done():
                        await self._ask([question])
            elif not questions[0].answer.done():
                questions[0].answer.set_exception(error)
            return
        answers = iter(found)
        for question in questions:
            own = [next(answers) for _ in question.requests]
            if not question.answer.done():
                question.answer.set_result(own)

    async def _checked(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        found = await self._guarded(lambda: self.policy.sample(requests))
        if len(found) != len(requests):
            raise PolicyError(f"it gave {len(found)} answers to {len(requests)} requests")
        return self._told(found)

    def _told(self, results: Sequence[SampleResult]) -> list[SampleResult]:
        """Results whose errors may be shown to clients."""
        told = {result.error: told_of_policy(result.error) for result in results if result.error}
        for error, shown in told.items():
            if shown != error:
                _LOG.warning("policy %s failed: %r", self.name, error)
        return [replace(one, error=told[one.error]) if one.error else one for one in results]

    async def _guarded(self, work: Callable[[], Awaitable[T]]) -> T:
        """Raises ``PolicyError``; what else the policy raises goes into the log of the process."""
        try:
            return await work()
        except PolicyError:
            raise
        except Exception as error:
            _LOG.exception("policy %s raised", self.name)
            raise PolicyError(f"it raised {type(error).__name__}") from error


@dataclass(kw_only=True)
class _Batch:
    task: asyncio.Task[None]
    waiting: int

    def leave(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self.task.cancel()


@dataclass(kw_only=True, eq=False)
class _Question:
    requests: Sequence[SampleRequest]
    answer: asyncio.Future[list[SampleResult]]
    batch: _Batch | None = None


def _samples(requests: Sequence[SampleRequest]) -> int:
    return sum(request.n for request in requests)


class SharedScorer:
    """A :class:`surefoot.protocols.StepScorer` that is asked by one thread at a time, and never raises.

    Where ``scorer`` raises for a batch, it is asked trace by trace; the one to blame has no scores, and the
    kind of what was raised as the reason. ``failed`` is told of each. Of a server's words only the kind of
    the failure is in the reasons; the log of the process has all of it.
    """

    def __init__(self, scorer: StepScorer, *, failed: Callable[[], None] | None = None) -> None:
        self.scorer, self._failed = scorer, failed
        self.lock = threading.Lock()
        self.name: str = getattr(scorer, "name", type(scorer).__name__)

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """One record an item."""
        with self.lock:
            return self._score(items)

    def _score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        try:
            records = self.scorer.score_traces(items)
            _require_fit(items, records)
            return self._told(records)
        except Exception as error:
            if len(items) > 1:
                return [record for item in items for record in self._score([item])]
            _LOG.warning("the reward model raised", exc_info=error)
            if self._failed:
                self._failed()
            return [
                StepScores(
                    trace_id=item.trace.id,
                    scorer=self.name,
                    scores=(None,) * len(item.trace.steps),
                    unscored_reason=f"scorer: {type(error).__name__}",
                )
                for item in items
            ]

    def _told(self, records: Sequence[StepScores]) -> list[StepScores]:
        """Records whose reasons may be shown to clients."""
        reasons = {record.unscored_reason for record in records if record.unscored_reason}
        told = {reason: shown for reason in reasons if (shown := told_of_scorer(reason)) != reason}
        for reason in sorted(told):
            _LOG.warning("reward model %s left steps unscored: %r", self.name, reason)
        return [
            record.model_copy(update={"unscored_reason": told[record.unscored_reason]})
            if record.unscored_reason in told
            else record
            for record in records
        ]


def _require_fit(items: Sequence[ProblemTrace], records: Sequence[StepScores]) -> None:
    if [record.trace_id for record in records] != [item.trace.id for item in items] or any(
        len(record.scores) != len(item.trace.steps) for item, record in zip(items, records, strict=True)
    ):
        raise RuntimeError("the scorer's records do not fit the traces in number, order or length")
