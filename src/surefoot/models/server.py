"""Reward models behind a server.

:class:`RemoteScorer` reads scores from vLLM's pooling and classification interfaces or from this package's
gateway. :func:`open_server` asks a server what it is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self
from urllib.parse import urlsplit

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, OpenAI

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.card import SERVER, CheckpointCard
from surefoot.models.kinds.generative import FAMILY as GENERATIVE
from surefoot.models.kinds.generative import GenerativeVerifier
from surefoot.models.kinds.verifier_format import VerifierFormat
from surefoot.models.kinds.yes_no import OpenAIYesNo
from surefoot.models.scorer import CheckpointScorer
from surefoot.models.wire_formats import GatewayScore, ItemScores, Wire, WireError
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Problem, Step, StepScores, Trace, Usage

_AGAIN = {408, 409, 429}
_SHOWN = 300
"""Characters of a server's own words that go into an error."""


class RemoteScorer(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` over HTTP.

    **Check.** When it is made, one small trace is scored and the answer checked against the format's
    documented shape: one result per item, one score per step, in [0, 1]. With ``reference``, a scorer
    of the same model in this process, the scores must also equal its scores within ``tolerance``. A server
    that answers otherwise (another pooling type, raw logits, an older version) is refused.

    **Failures.** Connection errors, timeouts and the statuses 408, 409, 429 and 5xx are retried
    ``max_retries`` times with growing waits, or after ``Retry-After``. A batch that the server refuses is
    sent again item by item, so that one bad item does not spoil the others. What still fails has no
    scores, with the reason; ``failures`` counts such traces by kind.

    At most ``concurrency`` requests of at most ``batch_size`` traces are under way. Use it in a ``with``
    block, or ``close`` it.
    """

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
        reference: StepScorer | None = None,
        tolerance: float = 0.01,
        card: CheckpointCard | None = None,
    ) -> None:
        """``base_url`` with or without ``/v1``; ``api_key`` defaults to ``OPENAI_API_KEY``.

        ``timeout_s`` (seconds) is for one try. Raises ``ScoreError`` if the check fails, naming what came, or
        for a limit out of range.
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
        root = _root(base_url)
        self._url = root + wire.path
        # The official client brings the retries; a server that is not OpenAI's takes any path.
        self._client = OpenAI(
            base_url=root,
            api_key=_key(api_key),
            max_retries=max_retries,
            timeout=timeout_s,
        )
        try:
            self.check(reference, tolerance)
        except BaseException:
            self.close()
            raise

    def check(self, reference: StepScorer | None = None, tolerance: float = 0.01) -> None:
        """Score one small trace and hold the answer to its shape. Raises ``ScoreError``."""
        item = _probe()
        try:
            [(scores, _, _)] = self._ask([item])
        except (_CallError, WireError) as error:
            raise ScoreError(f"{self._url} is not the scoring server asked for: {error}") from error
        if None in scores:
            raise ScoreError(f"{self._url} does not score all steps of a short trace: {scores}")
        if reference is None:
            return
        [expected] = reference.score_traces([item])
        pairs = list(zip(scores, expected.scores, strict=True))
        if any(a is None or b is None or abs(a - b) > tolerance for a, b in pairs):
            raise ScoreError(
                f"{self._url} gives {scores} where the reference in this process gives {expected.scores}; "
                "model, encoding, column or pooling differ"
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

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _batch(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        try:
            answers = self._ask(items)
        except (_CallError, WireError) as error:
            if isinstance(error, _RefusedError) and len(items) > 1:
                return [record for item in items for record in self._batch([item])]
            kind = "answer of another shape" if isinstance(error, WireError) else str(error).split(":")[0]
            self.failures[kind] += len(items)
            return [
                StepScores(
                    trace_id=item.trace.id,
                    scorer=self.name,
                    scores=(None,) * len(item.trace.steps),
                    unscored_reason=f"server: {error}",
                )
                for item in items
            ]
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=answer.scores,
                unscored_reason=answer.reason,
                usage=Usage(verifier_tokens=answer.tokens, calls=0 if number else 1),
            )
            for number, (item, answer) in enumerate(zip(items, answers, strict=True))
        ]

    def _ask(self, items: Sequence[ProblemTrace]) -> list[ItemScores]:
        """The answer for each item. Raises :class:`_CallError` or :class:`WireError`."""
        call = self.wire.call(items)
        return self.wire.read(call, self._post(call.body))

    def _post(self, body: dict[str, object]) -> str:
        """The answer's text. Raises :class:`_CallError` after all tries."""
        try:
            return self._client.post(self.wire.path, cast_to=str, body=body)
        except APIStatusError as error:
            status = error.status_code
            problem = f"status {status}: {error.response.text[:_SHOWN]}"
            kind = _CallError if status in _AGAIN or status >= 500 else _RefusedError
            raise kind(problem) from error
        except APITimeoutError as error:
            problem = "no answer in time: raise timeout_s, or lower concurrency or batch_size"
            raise _CallError(problem) from error
        except APIConnectionError as error:
            raise _CallError(f"connection failed: {error.__cause__ or error}") from error
        except APIError as error:
            raise _CallError(f"request failed: {error}") from error


def open_server(url: str, *, family: str | None = None, chains: int = 1) -> CheckpointScorer:
    """The reward model at ``url``, which has one model or is a gateway of this package.

    A gateway scores by itself. Of another OpenAI-compatible server a generative verifier is made if
    ``family`` is ``generative``: its model writes ``chains`` critiques per trace in the default format, and
    the odds of yes are read from its log probabilities. Raises ``CheckpointError`` if the server does not
    answer, or if it has no step scores.
    """
    if family not in (None, GENERATIVE):
        raise CheckpointError(f"family={family!r} is for a checkpoint; a server has {GENERATIVE!r} or none")
    root = _root(url)
    try:
        with OpenAI(base_url=f"{root}/v1", api_key=_key(None), timeout=30.0) as client:
            models = list(client.models.list())
    except APIError as error:
        raise CheckpointError(f"{url}: the server does not list its models: {error}") from error
    owners = {model.owned_by for model in models}
    if family is None and owners == {"surefoot"}:
        try:
            return RemoteScorer(GatewayScore(), base_url=root, name=urlsplit(root).netloc)
        except ScoreError as error:
            raise CheckpointError(str(error)) from error
    names = [model.id for model in models]
    if family is None:
        raise CheckpointError(
            f"{url} serves {', '.join(names) or 'no model'} and is no gateway of this package; "
            f"family={GENERATIVE!r} reads a model that writes critiques, and RemoteScorer vLLM's pooling"
        )
    if len(names) != 1:
        raise CheckpointError(f"{url} serves {len(names)} models ({', '.join(names)}); one is needed")
    form = VerifierFormat()
    policy = OpenAIPolicy(
        model=names[0], base_url=f"{root}/v1", dialect="vllm" if owners == {"vllm"} else "openai"
    )
    reader = OpenAIYesNo(model=names[0], base_url=f"{root}/v1", yes=form.yes, no=form.no)
    return GenerativeVerifier(policy, reader, form=form, chains=chains)


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _key(api_key: str | None) -> str:
    return api_key or os.environ.get("OPENAI_API_KEY") or "none"


class _CallError(Exception):
    """There was no answer; the message says why."""


class _RefusedError(_CallError):
    """The server answered that it will not take this request."""


def _probe() -> ProblemTrace:
    """A right solution of two steps, in the lab's words, which are plain English to any other model."""
    problem = Problem(text="Start with 7. Add 3.", answer="0")
    text = "7 + 3 = 0\nAnswer: 0\n"
    at = text.index("\n") + 1
    steps = (Step(start=0, end=at), Step(start=at, end=len(text)))
    return ProblemTrace(problem=problem, trace=Trace(problem_id=problem.id, text=text, steps=steps))
