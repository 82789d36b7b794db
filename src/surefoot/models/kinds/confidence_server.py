"""DeepConf's confidence of a model behind a server: from the log-probabilities that it gives for a prompt.

vLLM's ``prompt_logprobs`` has the ``top_k`` likeliest tokens at each place of what it is sent. DeepConf needs
no more; self-certainty and entropy need the whole vocabulary, in this process
(:class:`surefoot.models.kinds.confidence.ConfidenceScorer`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

from pydantic import BaseModel, StrictFloat, ValidationError

from surefoot.errors import CheckpointError, PolicyError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.confidence import lowest_group
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.http_client import CallError, RemoteServer
from surefoot.policies.openai_requests import openai_message
from surefoot.policies.servers import list_models
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, StepScores, Usage

_SHOWN = 300
"""Characters of a server's own words that go into a reason."""


class ServerConfidence(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer`: ``load_prm("deepconf:http://host:8000")``.

    Each trace is one call that generates one token. With ``encoding.chat`` the server renders problem and
    solution by its chat template. A trace whose call fails, or whose tokens do not add up to its text, has no
    scores, and the reason says why. Text traces only.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        encoding: Encoding | None = None,
        window: int = 2048,
        top_k: int = 20,
        api_key: str | None = None,
        concurrency: int = 8,
        max_retries: int = 4,
        timeout_s: float = 120.0,
    ) -> None:
        """``base_url`` with or without ``/v1``; ``api_key`` defaults to ``OPENAI_API_KEY``."""
        self.model, self.window, self.top_k, self.concurrency = model, window, top_k, concurrency
        self.name = f"deepconf:{model}"
        self.card = CheckpointCard(
            family="deepconf",
            kind="prm",
            encoding=encoding or Encoding(),
            score_means="confidence",
            label_source="no labels",
            base=model,
        )
        url = base_url.rstrip("/").removesuffix("/v1") + "/v1"
        self._server = RemoteServer(
            base_url=url, api_key=api_key, timeout_s=timeout_s, max_retries=max_retries
        )

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores in nats, one record a trace, in order."""
        with ThreadPoolExecutor(self.concurrency) as threads:
            return list(threads.map(self._score, items))

    def _score(self, item: ProblemTrace) -> StepScores:
        usage, scores, reason = Usage(calls=1), None, "a conversation: only texts are scored"
        if item.trace.text is not None:
            try:
                answer = _Answer.model_validate_json(self._post(item))
                usage = Usage(verifier_tokens=answer.usage.prompt_tokens, calls=1)
                scores, reason = self._steps(item, answer)
            except CallError as error:
                reason = f"server: {error}"[:_SHOWN]
            except ValidationError as error:
                reason = f"server: malformed answer at {'.'.join(map(str, error.errors()[0]['loc']))}"
        missing = scores is None or None in scores
        return StepScores.of_model(
            trace_id=item.trace.id,
            scorer=self.name,
            scores=scores or (None,) * len(item.trace.steps),
            unscored_reason=reason if missing else None,
            usage=usage,
        )

    def _post(self, item: ProblemTrace) -> bytes:
        prompt = self.card.encoding.prompt(item.problem)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": self.top_k,
            "return_token_ids": True,
        }
        if isinstance(prompt, str):
            body["prompt"] = prompt + (item.trace.text or "")
            return self._server.request("/completions", body)
        solution = Message(role="assistant", content=item.trace.text)
        body["messages"] = [openai_message(message) for message in (*prompt, solution)]
        body |= {"continue_final_message": True, "add_generation_prompt": False}
        return self._server.request("/chat/completions", body)

    def _steps(self, item: ProblemTrace, answer: _Answer) -> tuple[tuple[float | None, ...] | None, str]:
        """Scores, or ``None``, and why some or all are missing."""
        positions, ids = answer.places(), answer.ids()
        if positions is None or ids is None:
            return None, "server: the answer has no 'prompt_logprobs' with token ids (vLLM has them)"
        texts, confidences = [""], [0.0]  # nothing predicts the first token
        for token, position in zip(ids[1:], positions[1:], strict=False):
            entry = (position or {}).get(str(token))
            if position is None or entry is None or entry.decoded_token is None:
                return None, "server: a token of the prompt has no log-probability"
            texts.append(entry.decoded_token)
            top = sorted((candidate.logprob for candidate in position.values()), reverse=True)[: self.top_k]
            confidences.append(-sum(top) / len(top))
        sent, text = "".join(texts), item.trace.text or ""
        if not sent.endswith(text):
            return None, "the server's tokens do not add up to the solution's text"
        begins = list(accumulate(map(len, texts[:-1]), initial=len(text) - len(sent)))
        scores: list[float | None] = []
        for step in item.trace.steps:
            first, end = bisect_left(begins, step.start), bisect_left(begins, step.end)
            values = confidences[max(1, first) : end]
            scores.append(lowest_group(values, self.window) if values else None)
        return tuple(scores), "a step shares its only token with the step before it"


def open_confidence_server(url: str) -> ServerConfidence:
    """The one language model at ``url``. Raises ``CheckpointError`` if it does not answer or has several."""
    root = url.rstrip("/").removesuffix("/v1")
    try:
        names = [model.id for model in list_models(f"{root}/v1")]
    except PolicyError as error:
        raise CheckpointError(f"{url}: the server does not list its models: {error}") from error
    if len(names) != 1:
        raise CheckpointError(f"{url} serves {len(names)} models ({', '.join(names)}); one is needed")
    return ServerConfidence(base_url=root, model=names[0])


class _Entry(BaseModel):
    logprob: StrictFloat
    decoded_token: str | None = None


_Places = list[dict[str, _Entry] | None]


class _Choice(BaseModel):
    prompt_logprobs: _Places | None = None
    prompt_token_ids: list[int] | None = None


class _Usage(BaseModel):
    prompt_tokens: int


class _Answer(BaseModel):
    """Of either endpoint: ``/completions`` has the prompt's numbers in the choice, chat beside it."""

    choices: list[_Choice]
    usage: _Usage
    prompt_logprobs: _Places | None = None
    prompt_token_ids: list[int] | None = None

    def places(self) -> _Places | None:
        return self.prompt_logprobs or next((choice.prompt_logprobs for choice in self.choices), None)

    def ids(self) -> list[int] | None:
        return self.prompt_token_ids or next((choice.prompt_token_ids for choice in self.choices), None)
