"""The policy and the reward model behind the gateway: failures are logged in full; clients see their kind.

Messages of servers behind the gateway may contain addresses, names or keys, so clients do not see them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from surefoot.batching import Batcher
from surefoot.concurrency import FairQueue
from surefoot.errors import PolicyError
from surefoot.policies.openai import OpenAIPolicy
from surefoot.printable import quoted
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, SampleResult, StepScorer, TakesExtraBody
from surefoot.records import StepScores, trusted_copy
from surefoot.scores import channels_read, checked_scores
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.images import IMAGES, shown

T = TypeVar("T")
_LOG = logging.getLogger("surefoot.server")


class UpstreamScorer:
    """``scorer`` with reasons that clients may see; it never raises. One thread at a time calls it unless
    it ``overlaps``.

    Where ``scorer`` raises for a batch, it is called trace by trace; the one at fault gets no scores, and the
    kind of the exception as the reason. ``on_failure`` is called for each. ``lock`` is held during a call.
    """

    def __init__(self, scorer: StepScorer, *, on_failure: Callable[[], None] | None = None) -> None:
        self.scorer, self._on_failure, self.reads = scorer, on_failure, channels_read(scorer)
        self.overlaps = bool(getattr(scorer, "overlaps", False))
        self.lock = nullcontext() if self.overlaps else threading.Lock()
        self.name: str = getattr(scorer, "name", type(scorer).__name__)

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """One record per item."""
        with self.lock:
            return self._score(items)

    def _score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        try:
            return self._redacted(checked_scores(self.scorer, items))
        except Exception as error:
            if len(items) > 1:
                return [record for item in items for record in self._score([item])]
            _LOG.warning("the reward model raised", exc_info=error)
            if self._on_failure:
                self._on_failure()
            reason = f"scorer: {type(error).__name__}"
            return [StepScores.unscored(item.trace, self.name, reason) for item in items]

    def _redacted(self, records: Sequence[StepScores]) -> list[StepScores]:
        reasons = {record.unscored_reason for record in records if record.unscored_reason}
        texts = {reason: redact_scorer_reason(reason) for reason in reasons}
        for reason in sorted(reason for reason, text in texts.items() if text != reason):
            _LOG.warning("reward model %s left steps unscored: %r", self.name, reason)
        return [
            record.model_copy(update={"unscored_reason": texts[reason]}) if reason else record
            for record, reason in ((record, record.unscored_reason) for record in records)
        ]


_MAX_SAMPLES = 1024
"""Samples of a batch of the policy; one request may be larger."""
_GATHER_S = 0.002
"""Seconds that a batch waits for more requests, at a policy in this process."""
_CHUNK_CHARACTERS = 4000
"""Most characters of a turn's solutions at the reward model; a single solution may be longer."""
_BATCH_TURNS = 4
"""Turns at a reward model in this process, which form one batch."""
SCORING_TURNS = 8
"""Turns at a reward model that takes several calls at once, half of them quick."""
_QUICK_S = 1.0


class Upstream(Batcher):
    """The policy and the reward model, in batches of many clients, with errors that clients may see.

    A request takes a turn at the scorer for each chunk of its solutions, so that long requests do not delay
    short ones. A chunk costs its characters, or its seconds where the scorer takes several calls at once.
    The policy's own turns bound the calls to its server.
    """

    def __init__(
        self,
        policy: Policy,
        scorer: UpstreamScorer | None,
        *,
        on_batch: Callable[[int], None],
    ) -> None:
        policy = policy.with_shared_calls() if isinstance(policy, OpenAIPolicy) else policy
        super().__init__(
            policy,
            scorer,
            gather_s=_GATHER_S,
            max_samples=_MAX_SAMPLES,
            isolate_errors=True,
            on_batch=on_batch,
        )
        self._overlaps = scorer is not None and scorer.overlaps
        self._scoring = FairQueue(_BATCH_TURNS)
        if self._overlaps:
            self._scoring = FairQueue(SCORING_TURNS, quick=SCORING_TURNS // 2, quick_cost=_QUICK_S)
        self._threads = ThreadPoolExecutor(SCORING_TURNS, thread_name_prefix="surefoot-score")

    def with_fields(self, fields: Mapping[str, Any]) -> Upstream:
        """The same turns for the policy with more ``fields`` of the request, such as tools; it is asked at
        once. Raises :class:`ApiError` if the policy takes none."""
        if not isinstance(self.policy, TakesExtraBody):
            raise ApiError(400, f"policy {self.policy.name!r} does not support tools", code="unsupported")
        batcher = copy(self)
        batcher.policy, batcher.overlap = self.policy.with_extra_body(fields), True
        return batcher

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """See the base class. Raises nothing but ``PolicyError``."""
        try:
            send = self._send_samples if self.overlap else super().sample
            results = await send(list(map(_with_images, requests)) if IMAGES.get() else requests)
        except Exception as error:
            raise self._failure(error) from error
        return [result if result.error is None else self._redacted(result) for result in results]

    async def stream(self, request: SampleRequest, on_text: Callable[[int, str], None]) -> SampleResult:
        """See the base class. Raises nothing but ``PolicyError``."""
        try:
            result = await super().stream(_with_images(request), on_text)
        except Exception as error:
            raise self._failure(error) from error
        return result if result.error is None else self._redacted(result)

    def _redacted(self, result: SampleResult) -> SampleResult:
        error = redact_policy_error(result.error or "")
        if error != result.error:
            _LOG.warning("policy %s failed: %r", self.policy.name, result.error)
        return replace(result, error=error)

    def _failure(self, error: Exception) -> PolicyError:
        if isinstance(error, PolicyError):
            return error
        _LOG.error("policy %s raised", self.policy.name, exc_info=error)
        return PolicyError(f"it raised {type(error).__name__}")

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """See the base class."""
        items = [_shown(item) for item in items] if IMAGES.get() else items
        chunks = _chunks(items, 0 if self._overlaps else _CHUNK_CHARACTERS)
        return [record for records in await gather_all(map(self._chunk, chunks)) for record in records]

    async def _chunk(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        scorer = self.scorer
        if self._overlaps and scorer is not None:
            return await self._scoring.run(self._threads, lambda: scorer.score_traces(items))
        async with self._scoring.async_turn(cost=sum(map(_characters, items))):
            return await super().score(items)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _with_images(request: SampleRequest) -> SampleRequest:
    prompt = request.prompt
    return request if isinstance(prompt, str) else replace(request, prompt=shown(prompt))


def _shown(item: ProblemTrace) -> ProblemTrace:
    return replace(item, trace=trusted_copy(item.trace, {"messages": shown(item.trace.messages)}))


def _characters(item: ProblemTrace) -> int:
    trace = item.trace
    if trace.text is not None:
        return len(item.problem.text) + len(trace.text)
    # an image is about a thousand tokens
    sizes = (len(message.content or "") + 4000 * len(message.attachments) for message in trace.messages)
    return sum(sizes) + 100 * len(trace.messages)


def _chunks(items: Sequence[ProblemTrace], characters: int) -> list[list[ProblemTrace]]:
    """The items in pieces of at most so many characters, or of a single item."""
    chunks: list[list[ProblemTrace]] = [[]]
    room = characters
    for item in items:
        size = _characters(item)
        if chunks[-1] and size > room:
            chunks.append([])
            room = characters
        chunks[-1].append(item)
        room -= size
    return chunks


async def gather_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order; the first error ends the others and is raised."""
    coroutines = list(work)
    if len(coroutines) == 1:
        return [await coroutines[0]]
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


MAX_CHARACTERS = 500
"""Longest error text that goes to a client."""


def policy_failure(error: str) -> ApiError:
    """The error of a client whose request to the policy failed with ``error``."""
    error = error[:MAX_CHARACTERS]
    status = re.match(r"server: status (4\d\d)", error)
    if error.startswith("policy: ") or (status and status[1] in ("400", "413", "422")):
        return ApiError(400, f"the policy refused the request: {error}", code="policy_refused")
    return ApiError(502, f"the policy failed: {error}", code="policy_failed")


_SERVER = re.compile(r"(?<!\w)server: ")
_STATUS = re.compile(r"(?:status|Error code:) (\d{3})(?!\d)")
_ABOUT_THE_REQUEST = ("400", "413", "422")
"""Statuses whose message is about what the client sent."""

_KINDS = re.compile(
    r"connection failed|Connection error|no answer in time|Request timed out|request failed"
    r"|the stream broke off|malformed answer"
)
_OWN_WORDS = re.compile(
    r"not sent: |the answer has (?:no|more) |the stream ended |no token_ids came |choice \d+ came, "
    r"|\d+ choices came, |\d+ of \d+ choices are missing|malformed answer: choice \d+ has no text"
)
"""Beginnings of this package's messages that quote nothing from a server."""

_MISSING = re.compile(r" \(\d+ of \d+ samples are missing\)\Z")


def redact_policy_error(error: str) -> str:
    """A ``SampleResult.error`` without the server's message, unless the message is about the request."""
    if error.startswith("policy: "):
        return error[:MAX_CHARACTERS]
    server = _SERVER.match(error)
    return server[0] + _kind(error[server.end() :]) if server else "the server's log has the reason"


def redact_scorer_reason(reason: str) -> str:
    """The same for a ``StepScores.unscored_reason``, which may quote several servers, anywhere."""
    text, *quotes = _SERVER.split(quoted(reason, 4 * MAX_CHARACTERS))
    return (text + "; ".join(f"server: {_kind(quote)}" for quote in quotes))[:MAX_CHARACTERS]


def _kind(message: str) -> str:
    """The part of a server's message that clients may see."""
    missing = _MISSING.search(message)
    end = missing[0] if missing else ""
    status = _STATUS.match(message)
    if _OWN_WORDS.match(message) or (status and status[1] in _ABOUT_THE_REQUEST):
        return message.removesuffix(end)[:MAX_CHARACTERS] + end
    if status:
        return f"status {status[1]}{end}"
    kind = _KINDS.match(message)
    return f"{kind[0] if kind else 'it failed'}{end}"
