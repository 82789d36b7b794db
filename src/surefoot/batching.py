"""Batches the requests of concurrent tasks to one policy and one scorer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from surefoot.errors import PolicyError, ScoreError
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, SampleResult, StepScorer, StreamsText
from surefoot.records import StepScores

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher:
    """Sends the requests of concurrent tasks in batches. It serves one event loop.

    A policy behind a server (``overlap``, by default the policy's own attribute, see
    :class:`surefoot.protocols.Policy`) gets every request at once. A policy in this process answers one batch
    at a time; the first request of a batch waits ``gather_s`` seconds for others, and a batch holds at most
    ``max_samples`` samples (a single request may be larger). Scores are always computed in a thread, one
    batch at a time.

    Tasks started by :meth:`run` without ``overlap`` move in lockstep: when each of them waits, all requests
    for scores, or if there are none all requests for samples, form one batch in the order of the tasks.
    Batches are large and, for equal input, always the same, so a seed always gives the same result.

    An error is raised to every request of its batch. With ``isolate_errors`` the requests of a failed batch
    are sent again one by one, so that only the faulty ones fail. A batch that no task is waiting for is
    cancelled. ``on_batch`` is called with the number of samples of each batch.
    """

    def __init__(
        self,
        policy: Policy,
        scorer: StepScorer | None = None,
        *,
        overlap: bool | None = None,
        gather_s: float = 0.0,
        max_samples: int | None = None,
        isolate_errors: bool = False,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self.policy, self.scorer = policy, scorer
        self.overlap = bool(getattr(policy, "overlaps", False)) if overlap is None else overlap
        self._gather_s, self._max_samples, self._isolate_errors = gather_s, max_samples, isolate_errors
        self._on_batch = on_batch
        self._samples: _Queue[SampleRequest, SampleResult] = _Queue(send=self._send_samples)
        self._scores: _Queue[ProblemTrace, StepScores] = _Queue(send=self._send_scores)
        self._running = 0
        """Number of tasks of :meth:`run` that are running or about to start."""
        self._order: dict[asyncio.Task[Any] | None, int] = {}
        """Position of each task of :meth:`run`; requests are sent in this order."""

    async def run(
        self, tasks: Sequence[Coroutine[Any, Any, T]], *, concurrency: int | None = None
    ) -> list[T]:
        """Results of all ``tasks``, in order; each may have one request at a time.

        ``concurrency`` bounds how many run at once (``None`` = all). The first error cancels the others and
        is raised.
        """
        if concurrency is not None and concurrency < 1:
            for task in tasks:
                task.close()
            raise ValueError(f"'concurrency' must be 1 or more, not {concurrency}")
        size = min(concurrency or len(tasks), len(tasks))
        self._running += size  # before any starts, so that the first batch waits for all of them
        remaining = iter(enumerate(tasks))
        results: dict[int, T] = {}

        async def work() -> None:
            for number, task in remaining:
                self._order[asyncio.current_task()] = number
                results[number] = await task

        workers = [asyncio.ensure_future(work()) for _ in range(size)]
        for worker in workers:
            worker.add_done_callback(self._ended)
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await asyncio.sleep(0)  # each has now been counted as ended
            senders = [queue.sender for queue in (self._samples, self._scores) if queue.sender]
            if not self._running:
                # requests of these tasks are cancelled by now, but a scorer's thread must end first
                await asyncio.gather(*senders, return_exceptions=True)
            for task in tasks:
                task.close()  # those that never started
        return [results[number] for number in range(len(tasks))]

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Completions, one result per request."""
        return await (self._send_samples(requests) if self.overlap else self._submit(self._samples, requests))

    async def stream(self, request: SampleRequest, on_text: Callable[[int, str], None]) -> SampleResult:
        """Completions of one request; ``on_text`` gets new text with the number of its sample.

        Only a streaming policy that gets its requests at once calls ``on_text``.
        """
        if not (self.overlap and isinstance(self.policy, StreamsText)):
            [result] = await self.sample([request])
            return result
        if self._on_batch:
            self._on_batch(request.n)
        return await self.policy.stream(request, on_text)

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, one record per item."""
        return await self._submit(self._scores, items)

    async def _submit(self, queue: _Queue[Item, Result], items: Sequence[Item]) -> list[Result]:
        loop = asyncio.get_running_loop()
        order = self._order.get(asyncio.current_task(), -1)
        request = _Request(items=items, order=order, response=loop.create_future())
        queue.waiting.append(request)
        self._wake()
        try:
            return await request.response
        except asyncio.CancelledError:
            if request in queue.waiting:
                queue.waiting.remove(request)
            elif queue.batch is not None and all(pending.response.done() for pending in queue.in_flight):
                queue.batch.cancel()
            raise

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self._running -= 1
        self._order.pop(worker, None)
        self._wake()

    def _wake(self) -> None:
        if self._scores.waiting and self._scores.sender is None:
            self._scores.sender = asyncio.create_task(self._send(self._scores, after_s=0))
        if self._samples.waiting and self._samples.sender is None:
            self._samples.sender = asyncio.create_task(self._send(self._samples, after_s=self._gather_s))

    async def _send(self, queue: _Queue[Any, Any], after_s: float) -> None:
        """Answer the requests of ``queue``, batch by batch, while it is time."""
        sent = False
        try:
            await asyncio.sleep(after_s)  # let others ask first
            while queue.waiting and self._is_time(queue):
                sent = True
                queue.in_flight = self._next_batch(queue)
                queue.batch = asyncio.create_task(self._answer(queue, queue.in_flight))
                await asyncio.wait([queue.batch])
                queue.batch, queue.in_flight = None, []
        finally:
            queue.sender = None
        if sent:  # the other queue may have waited for a batch to end
            self._wake()

    def _is_time(self, queue: _Queue[Any, Any]) -> bool:
        """Whether the next batch of ``queue`` may go out; in lockstep, once all tasks wait."""
        if self.overlap or not self._running:
            return True
        if self._samples.batch or self._scores.batch:
            return False
        # scores first: a task that gets one may then join those that wait for samples
        if queue is self._samples and self._scores.waiting:
            return False
        return len(self._samples.waiting) + len(self._scores.waiting) >= self._running

    def _next_batch(self, queue: _Queue[Item, Result]) -> list[_Request[Item, Result]]:
        waiting = sorted(queue.waiting, key=lambda request: request.order)
        size = len(waiting)
        if queue is self._samples and self._max_samples is not None:
            samples = size = 0
            for request in waiting:
                samples += _count(request.items)
                if size and samples > self._max_samples:
                    break
                size += 1
        queue.waiting = waiting[size:]
        return waiting[:size]

    async def _answer(self, queue: _Queue[Item, Result], batch: Sequence[_Request[Item, Result]]) -> None:
        try:
            results = iter(await queue.send([item for request in batch for item in request.items]))
        except Exception as error:
            if self._isolate_errors and len(batch) > 1:
                for request in batch:
                    if not request.response.done():
                        await self._answer(queue, [request])
                return
            for request in batch:
                if not request.response.done():
                    request.response.set_exception(error)
            return
        for request in batch:
            of_request = [next(results) for _ in request.items]
            if not request.response.done():
                request.response.set_result(of_request)

    async def _send_samples(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        if self._on_batch:
            self._on_batch(_count(requests))
        if not hasattr(self.policy, "capabilities") and any(request.prefix for request in requests):
            raise PolicyError(_UNPROBED.format(self.policy.name))
        results = await self.policy.sample(requests)
        if len(results) != len(requests):
            raise PolicyError(_MISCOUNT.format("policy", len(results), len(requests)))
        return results

    async def _send_scores(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        if self.scorer is None:
            raise ScoreError("this search needs a scorer; pass one, or vote by majority")
        thread = asyncio.ensure_future(asyncio.to_thread(self.scorer.score_traces, items))
        try:
            records = await asyncio.shield(thread)
        except asyncio.CancelledError:
            await asyncio.wait([thread])  # a thread cannot be stopped, and two must not score at once
            raise
        if len(records) != len(items):
            raise ScoreError(_MISCOUNT.format("scorer", len(records), len(items)))
        return records


_UNPROBED = (
    "policy {!r} does not say whether it can continue the beginning of an answer: give it a method "
    "'capabilities' that returns surefoot.policies.IN_PROCESS if it can"
)
_MISCOUNT = "the {} gave {} results for {} requests; it must give one for each, in order"


@dataclass(kw_only=True, eq=False)
class _Request(Generic[Item, Result]):
    items: Sequence[Item]
    order: int
    response: asyncio.Future[list[Result]]


@dataclass(kw_only=True, eq=False)
class _Queue(Generic[Item, Result]):
    """Requests of one kind: the waiting ones, and the batch in flight."""

    send: Callable[[Sequence[Item]], Awaitable[list[Result]]]
    waiting: list[_Request[Item, Result]] = field(default_factory=list)
    in_flight: list[_Request[Item, Result]] = field(default_factory=list)
    batch: asyncio.Task[None] | None = None
    sender: asyncio.Task[None] | None = None


def _count(requests: Sequence[Any]) -> int:
    return sum(request.n for request in requests)
