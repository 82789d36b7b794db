"""A policy whose answers come from a plain function, for tests and benchmarks."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from surefoot.policies.capabilities import IN_PROCESS, Capabilities
from surefoot.protocols import Completion, SampleRequest, SampleResult, Sampling
from surefoot.records import Usage


def count_words(text: str) -> int:
    """Number of words, split at white space: the default token count of :class:`ScriptedPolicy`."""
    return len(text.split())


@dataclass(frozen=True)
class ScriptedPolicy:
    """Calls ``answer(request, sample)`` for each of the ``n`` samples; equal requests, equal answers.

    ``answer`` returns new text only, as :class:`surefoot.protocols.Completion` asks. The text is then
    treated as a model's would be: cut right after the first stop text (kept), then to the longest beginning
    of at most ``max_tokens`` tokens (``finish_reason`` is ``length`` if that removed anything, else
    ``stop``). Temperature, ``top_p`` and seed are there for ``answer`` to read and change nothing here.

    ``tokens`` counts tokens; it must not fall when text is added. A prompt of messages counts the contents
    of the messages. ``latency_s`` is waited once a request, all requests at the same time. ``fail`` may
    return an error text for a request, which becomes ``SampleResult.error`` as it is, with no completions
    and no tokens spent.
    """

    answer: Callable[[SampleRequest, int], str]
    name: str = "scripted"
    tokens: Callable[[str], int] = count_words
    latency_s: float = 0.0
    fail: Callable[[SampleRequest], str | None] | None = None

    def capabilities(self) -> Capabilities:
        """All."""
        return IN_PROCESS

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Answer all requests, in their order. What ``answer`` raises is the caller's own and is raised."""
        return list(await asyncio.gather(*(self._one(request) for request in requests)))

    async def _one(self, request: SampleRequest) -> SampleResult:
        await asyncio.sleep(self.latency_s)
        error = self.fail(request) if self.fail else None
        if error is not None:
            return SampleResult(completions=(), usage=Usage(calls=1), error=error)
        texts = (self.answer(request, sample) for sample in range(request.first, request.first + request.n))
        completions = tuple(self._cut(text, request.sampling) for text in texts)
        usage = Usage(
            prompt_tokens=self._prompt_tokens(request),
            completion_tokens=sum(completion.tokens for completion in completions),
            calls=1,
        )
        return SampleResult(completions=completions, usage=usage)

    def _cut(self, text: str, sampling: Sampling) -> Completion:
        stops = [text.index(mark) + len(mark) for mark in sampling.stop if mark in text]
        text = text[: min(stops, default=None)]
        # The count never falls as text grows, so the longest beginning that fits is found by bisection.
        ends = range(len(text) + 1)
        fits = bisect_right(ends, sampling.max_tokens, key=lambda end: self.tokens(text[:end])) - 1
        reason = "stop" if fits == len(text) else "length"
        return Completion(text=text[:fits], finish_reason=reason, tokens=self.tokens(text[:fits]))

    def _prompt_tokens(self, request: SampleRequest) -> int:
        if isinstance(request.prompt, str):
            return self.tokens(request.prompt + request.prefix)
        texts = [*(message.content or "" for message in request.prompt), request.prefix]
        return sum(map(self.tokens, texts))
