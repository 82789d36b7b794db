"""The calls of one request to the shared batcher: bounds on length, stop texts, and what may be streamed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from os.path import commonprefix

from surefoot.batching import Batcher
from surefoot.protocols import STOP_UNKNOWN, Completion, ProblemTrace, SampleRequest, SampleResult
from surefoot.records import StepScores, Usage
from surefoot.segment import partial_end
from surefoot.server.gateway.plan import StreamMode


class RequestSession(Batcher):
    """A :class:`surefoot.batching.Batcher` for one request, which passes on to ``shared``.

    **Length.** No solution gets longer than ``max_tokens`` tokens, in any number of steps.
    **Stop texts.** A solution ends at the start of the first text of ``stop``, also across steps;
    :meth:`visible` is the part of a solution before it. **Streaming.** ``on_text`` receives new text as soon
    as it is certain to be in the answer; see :data:`StreamMode`.
    """

    def __init__(
        self,
        shared: Batcher,
        *,
        separator: str,
        max_tokens: int,
        stop: Sequence[str] = (),
        stream_mode: StreamMode = "end",
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(shared.policy, shared.scorer, overlap=True)
        self._shared, self._separator, self._max_tokens = shared, separator, max_tokens
        self._stream_mode, self._on_text = stream_mode, on_text
        # one that contains another never ends first
        self._stop = tuple(text for text in stop if not any(other in text[:-1] for other in stop))
        self._lengths: dict[str, int] = {}
        """Tokens of each solution, finished or not, by its text."""
        self._stopped: dict[str, int] = {}
        """Start of the stop text, in characters, by the text of the solution that it ends."""
        self._shown = 0
        """Characters that ``on_text`` has received."""
        self._ends: list[str] = []
        """Solutions that may be the answer although no request continues them."""
        self.policy_usage = Usage()
        self.scorer_usage = Usage()

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Completions, one result per request."""
        self._report_certain(requests)
        bounded = [self._bounded(request) for request in requests]
        open_requests = [request for request in bounded if request is not None]
        responses = iter(await self._shared.sample(open_requests) if open_requests else [])
        results = []
        for request, sent in zip(requests, bounded, strict=True):
            result = self._ended_result(request) if sent is None else self._cut(request, next(responses))
            self.policy_usage += result.usage
            results.append(result)
        return results

    async def stream(self, request: SampleRequest, on_text: Callable[[int, str], None]) -> SampleResult:
        """Completions of one request. If the policy streams, ``on_text`` receives the number of a sample and
        new text that is certain: nothing that may become a stop text.
        """
        sent = self._bounded(request)
        if sent is None:
            [result] = await self.sample([request])
            return result
        texts = [_CertainText(request.prefix, self._stop) for _ in range(request.n)]
        response = await self._shared.stream(
            sent, lambda number, new: on_text(number, texts[number].add(new))
        )
        result = self._cut(request, response)
        self.policy_usage += result.usage
        return result

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, one record per item."""
        records = await self._shared.score(items)
        self.scorer_usage = sum((record.usage for record in records), self.scorer_usage)
        return records

    def visible(self, solution: str, *, finished: bool = True) -> str:
        """A solution up to its stop text, or an unfinished one up to a possible beginning of a stop text."""
        if solution in self._stopped:
            return solution[: self._stopped[solution]]
        return solution if finished else solution[: len(solution) - _partial_stop(solution, self._stop)]

    def _bounded(self, request: SampleRequest) -> SampleRequest | None:
        remaining = self._max_tokens - self._lengths.get(request.prefix, 0)
        if remaining < 1 or request.prefix in self._stopped:
            return None
        sampling = request.sampling
        if sampling.max_tokens <= remaining and not self._stop:
            return request
        sampling = replace(
            sampling, max_tokens=min(sampling.max_tokens, remaining), stop=(*sampling.stop, *self._stop)
        )
        return replace(request, sampling=sampling)

    def _ended_result(self, request: SampleRequest) -> SampleResult:
        self._ends.append(request.prefix)
        reason = "stop" if request.prefix in self._stopped else "length"
        end = Completion(text="", finish_reason=reason, tokens=0)
        return SampleResult(completions=(end,) * request.n, usage=Usage())

    def _cut(self, request: SampleRequest, result: SampleResult) -> SampleResult:
        if result.error is not None:
            self._ends.append(request.prefix)
        completions = tuple(self._cut_completion(request, completion) for completion in result.completions)
        if all(map(operator.is_, completions, result.completions)):
            return result
        return replace(result, completions=completions)

    def _cut_completion(self, request: SampleRequest, completion: Completion) -> Completion:
        is_step = self._separator in request.sampling.stop
        if completion.finish_reason == STOP_UNKNOWN and not is_step:
            completion = replace(completion, finish_reason="stop")
        solution = request.prefix + completion.text
        at = _first_stop(solution, self._stop, after=len(request.prefix))
        if at is not None:
            text = solution[len(request.prefix) : max(at, len(request.prefix))]
            completion = replace(completion, text=text, finish_reason="stop", token_ids=(), logprobs=())
            solution = request.prefix + text
            self._stopped.setdefault(solution, at)
        self._lengths.setdefault(solution, self._lengths.get(request.prefix, 0) + completion.tokens)
        if not is_step or at is not None or not completion.text.endswith(self._separator):
            self._ends.append(solution)
        return completion

    def _report_certain(self, requests: Sequence[SampleRequest]) -> None:
        """Call ``on_text`` with the common beginning of all solutions that are still possible."""
        if self._on_text is None or self._stream_mode == "end" or not requests:
            return
        prefixes = [request.prefix for request in requests]
        if self._stream_mode == "common":
            prefixes += self._ends
        shared = commonprefix(prefixes)  # noqa: RUF071 - of texts, not of paths
        if any(prefix != shared for prefix in prefixes):  # whole steps only
            shared = (
                shared[: shared.rfind(self._separator) + len(self._separator)]
                if self._separator in shared
                else ""
            )
        visible = self.visible(shared, finished=False)
        self._on_text(visible[self._shown :])
        self._shown = max(self._shown, len(visible))


class _CertainText:
    """The certain part of a solution that is being written, in time linear in it."""

    def __init__(self, prefix: str, stops: Sequence[str]) -> None:
        self._stops, self._ended = stops, False
        self._most = max(map(len, stops), default=1) - 1
        self._tail = prefix[max(0, len(prefix) - self._most) :]
        """The end of the text, in which a stop text may have begun."""
        self._held = 0
        """Characters at its end that are not certain."""

    def add(self, new: str) -> str:
        """What ``new`` makes certain: all up to the first stop text that ends in it."""
        if self._ended:
            return ""
        text, begin = self._tail + new, len(self._tail) - self._held
        end = _first_stop(text, self._stops, after=len(self._tail))
        if end is not None:
            self._ended = True
            return text[begin:end]
        self._held = min(_partial_stop(text, self._stops), len(text) - begin)
        self._tail = text[max(0, len(text) - self._most) :]
        return text[begin : len(text) - self._held]


def _first_stop(text: str, stops: Sequence[str], *, after: int) -> int | None:
    """Start of the stop text that ends first, of those that end behind ``after``."""
    ends = [
        (at + len(stop), at) for stop in stops if (at := text.find(stop, max(0, after - len(stop) + 1))) >= 0
    ]
    return min(ends)[1] if ends else None


def _partial_stop(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of an unfinished text that may be the beginning of a stop text."""
    return max((partial_end(text, stop) for stop in stops), default=0)
