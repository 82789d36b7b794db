"""One policy and one scorer for many searches: what they ask for together goes out together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from surefoot.errors import PolicyError, ScoreError
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, SampleResult, StepScorer
from surefoot.records import StepScores

R = TypeVar("R")


@dataclass(eq=False, kw_only=True)
class Desk:
    """Where searches that run at the same time ask for completions and scores.

    Without ``overlap`` (a policy in this process) nothing is asked of policy or scorer until every search
    waits, and then all that waits is one batch: batches are large and, for equal input, always the same, so
    that a seed gives the same result each time. With ``overlap`` (a server) completions are asked for at
    once, while the scorer, one batch at a time, scores what has come.

    What policy or scorer raises is raised to every search of the batch, and by :meth:`run`.
    """

    policy: Policy
    scorer: StepScorer | None = None
    overlap: bool = False
    _searches: int = 0
    """Searches under way, or about to start."""
    _waiting: int = 0
    """Searches that wait for an answer."""
    _samples: list[_Question] = field(default_factory=list)
    _traces: list[_Question] = field(default_factory=list)
    _turn: asyncio.Task[None] | None = None
    _places: dict[asyncio.Task[Any] | None, int] = field(default_factory=dict)
    """Number of the search that a task runs: questions are asked in this order, whoever came first."""

    async def run(self, searches: Sequence[Coroutine[Any, Any, R]], *, at_once: int | None = None) -> list[R]:
        """Results of all ``searches``, in order; each may ask for one thing at a time.

        ``at_once`` bounds how many are under way (``None`` = all): the next starts when one has ended. The
        first error ends all of them and is raised.
        """
        if at_once is not None and at_once < 1:
            for search in searches:
                search.close()
            raise ValueError(f"'at_once' must be 1 or more, not {at_once}")
        lanes = min(at_once or len(searches), len(searches))
        self._searches += lanes  # before any starts, so that the first batch waits for all of them
        waiting = iter(enumerate(searches))
        results: dict[int, R] = {}

        async def lane() -> None:
            for number, search in waiting:
                self._places[asyncio.current_task()] = number
                results[number] = await search

        tasks = [asyncio.ensure_future(lane()) for _ in range(lanes)]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # each has now been counted as ended
            if self._turn is not None and not self._searches:  # nobody waits for its answers any more
                self._turn.cancel()
                await asyncio.gather(self._turn, return_exceptions=True)
            for search in searches:
                search.close()  # those that never started
        return [results[number] for number in range(len(searches))]

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Completions, one result a request."""
        if self.overlap:
            return await self.policy.sample(requests)
        answers: list[SampleResult] = await self._ask(self._samples, requests)
        return answers

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, one record an item."""
        records: list[StepScores] = await self._ask(self._traces, items)
        return records

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._searches -= 1
        self._places.pop(task, None)
        self._start_turn()

    async def _ask(self, queue: list[_Question], items: Sequence[Any]) -> Any:
        place = self._places.get(asyncio.current_task(), -1)
        question = _Question(place=place, items=items, answer=asyncio.get_running_loop().create_future())
        queue.append(question)
        self._waiting += 1
        self._start_turn()
        try:
            return await question.answer
        except asyncio.CancelledError:
            if question in queue:
                queue.remove(question)
                self._waiting -= 1
            raise

    def _start_turn(self) -> None:
        if self._turn is None and (self._samples or self._traces):
            self._turn = asyncio.get_running_loop().create_task(self._take_turn())

    async def _take_turn(self) -> None:
        """Answer one kind of question, if it is time to."""
        try:
            await asyncio.sleep(0)  # let others ask first
            if not self.overlap and self._waiting < self._searches:
                return
            # scores first: a search that gets one may then join those that wait for completions
            if self._traces:
                await self._answer(self._traces, self._score)
            elif self._samples:
                await self._answer(self._samples, self.policy.sample)
        finally:
            self._turn = None
            if self.overlap or self._waiting >= self._searches:
                self._start_turn()

    async def _score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        if self.scorer is None:
            raise ScoreError(
                "this search asks for scores, and there is no scorer; give one, or vote by majority"
            )
        work = asyncio.ensure_future(asyncio.to_thread(self.scorer.score_traces, items))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # a thread cannot be stopped, and another must not score beside it
            raise

    async def _answer(
        self, queue: list[_Question], work: Callable[[Sequence[Any]], Awaitable[list[Any]]]
    ) -> None:
        questions = sorted(queue, key=lambda question: question.place)
        queue.clear()
        items = [item for question in questions for item in question.items]
        try:
            found = await work(items)
            if len(found) != len(items):
                raise self._miscounted(queue is self._traces, len(found), len(items))
            answers = iter(found)
            for question in questions:
                own = [next(answers) for _ in question.items]
                if not question.answer.cancelled():
                    question.answer.set_result(own)
        except Exception as error:
            for question in questions:
                if not question.answer.done():
                    question.answer.set_exception(error)
        finally:
            self._waiting -= len(questions)

    def _miscounted(self, scores: bool, found: int, asked: int) -> PolicyError | ScoreError:
        who, error = ("scorer", ScoreError) if scores else ("policy", PolicyError)
        return error(f"the {who} gave {found} answers to {asked} questions; it must give one each, in order")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Question:
    place: int
    items: Sequence[Any]
    answer: asyncio.Future[Any]
