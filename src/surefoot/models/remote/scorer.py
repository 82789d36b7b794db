"""A reward model behind a server: requests, retries, and a check of the responses before work starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

from surefoot.errors import ScoreError
from surefoot.models.card import SERVER, CheckpointCard
from surefoot.models.remote.wires import GatewayScore, ItemScores, Scores, ShapeError, Wire
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.http_client import CallError, RemoteServer
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Problem, Step, StepScores, Trace, Usage

_BAD_REQUEST = {400, 413, 422}
"""Statuses that refuse a batch: some of its items may be fine."""


class RemoteScorer(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` over HTTP.

    **Check.** The constructor scores two small traces with a common prefix and checks the response: one
    result per item, one score per step, in [0, 1]. Unless the server is a gateway, which may serve any
    scorer, their common steps must have equal scores, because a causal model does not see later steps. A
    server with any other response (another pooling type, raw logits, an older version) is refused.

    **Failures.** Connection errors, timeouts and the statuses 408, 409, 429 and 5xx are retried
    ``max_retries`` times with exponential backoff, or after ``Retry-After``. If the server refuses a batch,
    its items are sent one by one, so that one bad item does not spoil the others. Traces that still fail have
    no scores, with the reason; ``failures`` counts them by kind.

    At most ``concurrency`` requests of at most ``batch_size`` traces are in flight for a call; several
    threads may call it at once.
    """

    overlaps = True

    def __init__(
        self,
        wire: Wire,
        *,
        base_url: str,
        name: str,
        api_key: str | None = None,
        batch_size: int = 16,
        concurrency: int = 4,
        max_retries: int = 4,
        timeout_s: float = 120.0,
        card: CheckpointCard | None = None,
    ) -> None:
        """``base_url`` with or without ``/v1``; ``api_key`` defaults to ``OPENAI_API_KEY``.

        ``timeout_s`` (seconds) bounds one attempt. Raises ``ScoreError`` if the check fails or a limit is out
        of range.
        """
        if batch_size < 1 or concurrency < 1 or max_retries < 0 or timeout_s <= 0:
            raise ScoreError(
                "batch_size and concurrency must be at least 1, max_retries at least 0, timeout_s above 0"
            )
        self.wire, self.name, self.batch_size, self.concurrency = wire, name, batch_size, concurrency
        self.failures: Counter[str] = Counter()
        self.card = card or CheckpointCard(
            family=SERVER, kind="prm", label_source="not stated by the server", base=base_url
        )
        root = server_root(base_url)
        self._url = root + wire.path
        self._server = RemoteServer(
            base_url=root, api_key=api_key, timeout_s=timeout_s, max_retries=max_retries
        )
        self.check()

    def check(self, reference: StepScorer | None = None, tolerance: float = 0.01) -> None:
        """Score two small traces with a common prefix and check the response.

        With ``reference``, a scorer of the same weights in this process, the scores must equal its scores
        within ``tolerance``. Raises ``ScoreError``.
        """
        items = [_probe(_STEPS), _probe(_STEPS[:2])]
        try:
            answers = self._request(items)
        except (CallError, ShapeError) as error:
            raise ScoreError(f"{self._url} is not a scoring server of this kind: {error}") from error
        served = [answer.scores for answer in answers]
        if any(None in scores for scores in served):
            raise ScoreError(f"{self._url} does not score all steps of a short trace: {_shown(served[0])}")
        if not isinstance(self.wire, GatewayScore) and _differ(served[0][:2], served[1], tolerance):
            raise ScoreError(
                f"{self._url}: later steps change the scores of earlier ones: {_shown(served[1])} alone, "
                f"{_shown(served[0])} with one more step after them; the server does not read each step at "
                "its own token"
            )
        if reference is None:
            return
        for scores, record in zip(served, reference.score_traces(items), strict=True):
            if _differ(scores, record.scores, tolerance):
                raise ScoreError(
                    f"{self._url} gives {_shown(scores)} where the same weights in this process give "
                    f"{_shown(record.scores)}: model, encoding, column or pooling differ"
                )

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores in order, one record each. Raises ``ScoreError`` for a trace without steps."""
        batches = [items[at : at + self.batch_size] for at in range(0, len(items), self.batch_size)]
        with ThreadPoolExecutor(self.concurrency) as threads:
            try:
                return [record for batch in threads.map(self._batch, batches) for record in batch]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _batch(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        try:
            answers = self._request(items)
        except (CallError, ShapeError) as error:
            if isinstance(error, CallError) and error.status in _BAD_REQUEST and len(items) > 1:
                return [record for item in items for record in self._batch([item])]
            kind = "malformed response" if isinstance(error, ShapeError) else str(error).split(":")[0]
            self.failures[kind] += len(items)
            return [StepScores.unscored(item.trace, self.name, f"server: {error}") for item in items]
        return [
            StepScores.of_model(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=answer.scores,
                unscored_reason=answer.reason,
                usage=Usage(verifier_tokens=answer.tokens, calls=0 if number else 1),
            )
            for number, (item, answer) in enumerate(zip(items, answers, strict=True))
        ]

    def _request(self, items: Sequence[ProblemTrace]) -> list[ItemScores]:
        """Raises ``CallError`` or :class:`ShapeError`."""
        request = self.wire.request(items)
        if request.encoded and not any(trace.ids for trace in request.encoded):
            return [ItemScores(trace.positions, trace.refused, 0) for trace in request.encoded]
        response = self._server.request(self.wire.path, request.body)
        return self.wire.read(request, response.decode(errors="replace"))


def server_root(url: str) -> str:
    """A server's address without ``/v1``, because most scoring interfaces are not below it."""
    return url.rstrip("/").removesuffix("/v1")


def _differ(scores: Scores, expected: Scores, tolerance: float) -> bool:
    return any(
        a is None or b is None or abs(a - b) > tolerance for a, b in zip(scores, expected, strict=True)
    )


def _shown(scores: Scores) -> str:
    return ", ".join("none" if score is None else f"{score:.4f}" for score in scores)


_STEPS = ("3 + 4 = 7\n", "7 - 2 = 5\n", "5 = 5\n")


def _probe(steps: Sequence[str]) -> ProblemTrace:
    """A solution of digits and signs, which models of few words read, too."""
    problem = Problem(text="3 + 4 - 2", answer="5")
    bounds = pairwise(accumulate(map(len, steps), initial=0))
    spans = tuple(Step(start=start, end=end) for start, end in bounds)
    trace = Trace(problem_id=problem.id, text="".join(steps), steps=spans)
    return ProblemTrace(problem=problem, trace=trace)
