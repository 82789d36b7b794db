"""One request's place at the common desk: it bounds the length, minds the stop texts, and watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os.path import commonprefix

from surefoot.gateway.strategies import Showing
from surefoot.protocols import (
    STOP_UNKNOWN,
    Completion,
    ProblemTrace,
    SampleRequest,
    SampleResult,
    StreamsText,
)
from surefoot.records import StepScores, Usage
from surefoot.search.desk import Desk


class Seat(Desk):
    """A :class:`surefoot.search.desk.Desk` for one search, whose questions go to ``desk``, which all share.

    **Length.** No solution gets longer than ``max_tokens`` tokens after ``start``, however many steps it
    has. **Stop texts.** A solution ends where one of ``stop`` begins, over the bounds of steps, too;
    :meth:`visible` is what of a solution lies before it. **Watching.** ``accepted`` is called with what is
    certain to be in the answer, as soon as it is; see :data:`Showing`.
    """

    def __init__(
        self,
        desk: Desk,
        *,
        separator: str,
        max_tokens: int,
        stop: Sequence[str] = (),
        shows: Showing = "end",
        accepted: Callable[[str], None] | None = None,
        start: str = "",
    ) -> None:
        super().__init__(policy=desk.policy, scorer=desk.scorer, overlap=True)
        self._desk, self._separator, self._max_tokens = desk, separator, max_tokens
        self._stop, self._shows, self._accepted, self._start = tuple(stop), shows, accepted, start
        self._lengths: dict[str, int] = {}
        """Tokens of each solution, finished or not, by its text."""
        self._stopped: dict[str, int] = {}
        """Where a stop text begins, in characters, by the text of the solution that it ends."""
        self._ends: list[str] = []
        """Solutions that may be the answer, though nobody goes on with them."""
        self.spent = Usage()
        """What the policy has spent here so far."""
        self.verified = Usage()
        """What the scorer has."""

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Completions, one result a request."""
        self._watch(requests)
        bounded = [self._bounded(request) for request in requests]
        asked = [request for request in bounded if request is not None]
        answers = iter(await self._desk.sample(asked) if asked else [])
        results = []
        for request, sent in zip(requests, bounded, strict=True):
            result = self._closed(request) if sent is None else self._taken(request, next(answers))
            self.spent += result.usage
            results.append(result)
        return results

    async def stream(self, request: SampleRequest, accepted: Callable[[int, str], None]) -> SampleResult:
        """Completions of one request. If the policy shows them while it writes, ``accepted`` is told, by a
        solution's number, what it is certain to begin with: nothing that may become a stop text.
        """
        sent = self._bounded(request)
        policy = self._desk.policy
        if sent is None or not isinstance(policy, StreamsText):
            [result] = await self.sample([request])
            return result
        after = max(len(request.prefix), len(self._start))
        begun = [_Begun(request.prefix, self._stop, after) for _ in range(request.n)]

        def show(number: int, new: str) -> None:
            accepted(number, begun[number].add(new))

        result = self._taken(request, await policy.stream(sent, show))
        self.spent += result.usage
        return result

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, one record an item."""
        records = await self._desk.score(items)
        self.verified = sum((record.usage for record in records), self.verified)
        return records

    def visible(self, solution: str, *, finished: bool = True) -> str:
        """A solution up to its stop text; of an unfinished one, up to what may become one."""
        if solution in self._stopped:
            return solution[: self._stopped[solution]]
        return solution if finished else solution[: len(solution) - _held(solution, self._stop)]

    def _bounded(self, request: SampleRequest) -> SampleRequest | None:
        left = self._max_tokens - self._lengths.get(request.prefix, 0)
        if left < 1 or request.prefix in self._stopped:
            return None
        how = request.sampling
        sampling = replace(how, max_tokens=min(how.max_tokens, left), stop=(*how.stop, *self._stop))
        return replace(request, sampling=sampling)

    def _closed(self, request: SampleRequest) -> SampleResult:
        """Nothing more can be written."""
        self._ends.append(request.prefix)
        reason = "stop" if request.prefix in self._stopped else "length"
        end = Completion(text="", finish_reason=reason, tokens=0)
        return SampleResult(completions=(end,) * request.n, usage=Usage())

    def _taken(self, request: SampleRequest, result: SampleResult) -> SampleResult:
        if result.error is not None:
            self._ends.append(request.prefix)
        completions = tuple(self._cut(request, drawn) for drawn in result.completions)
        return replace(result, completions=completions)

    def _cut(self, request: SampleRequest, drawn: Completion) -> Completion:
        step = self._separator in request.sampling.stop
        if drawn.finish_reason == STOP_UNKNOWN and not step:
            drawn = replace(drawn, finish_reason="stop")
        whole = request.prefix + drawn.text
        at = _first_stop(whole, self._stop, after=max(len(request.prefix), len(self._start)))
        if at is not None:
            text = whole[len(request.prefix) : max(at, len(request.prefix))]
            drawn = replace(drawn, text=text, finish_reason="stop")
            whole = request.prefix + text
            self._stopped.setdefault(whole, max(at, len(self._start)))
        self._lengths.setdefault(whole, self._lengths.get(request.prefix, 0) + drawn.tokens)
        if not step or at is not None or not drawn.text.endswith(self._separator):
            self._ends.append(whole)
        return drawn

    def _watch(self, requests: Sequence[SampleRequest]) -> None:
        if self._accepted is None or self._shows == "end" or not requests:
            return
        prefixes = [request.prefix for request in requests]
        if self._shows == "common":
            prefixes += self._ends
        shared = commonprefix(prefixes)  # noqa: RUF071 - of texts, not of paths
        if any(prefix != shared for prefix in prefixes):  # whole steps only
            shared = (
                shared[: shared.rfind(self._separator) + len(self._separator)]
                if self._separator in shared
                else ""
            )
        self._accepted(self.visible(shared, finished=False))


def _first_stop(text: str, stops: Sequence[str], *, after: int) -> int | None:
    """Where the stop text that is the first to end, and ends behind ``after``, begins."""
    found = [
        (at + len(mark), at) for mark in stops if (at := text.find(mark, max(0, after - len(mark) + 1))) >= 0
    ]
    return min(found)[1] if found else None


class _Begun:
    """A solution being written."""

    def __init__(self, text: str, stops: Sequence[str], after: int) -> None:
        self._text, self._stops, self._after = text, stops, after
        self._end: int | None = None

    def add(self, new: str) -> str:
        """What is certain of it, up to the first stop text that ends in it."""
        if self._end is None:
            after = max(self._after, len(self._text))
            self._text += new
            self._end = _first_stop(self._text, self._stops, after=after)
        certain = len(self._text) - _held(self._text, self._stops) if self._end is None else self._end
        return self._text[:certain]


def _held(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of an unfinished text may be the beginning of a stop text."""
    return max((_overlap(text, mark) for mark in stops), default=0)


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``mark``, and not all of it."""
    return next(
        (size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0
    )
