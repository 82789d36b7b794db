"""Step scores without training: how sure a language model is of the tokens of a step.

Three measures of the distribution p over a vocabulary of V tokens from which a token comes; higher is surer:

- ``deepconf``: token confidence of DeepConf (Fu et al., arXiv 2508.15260), minus the mean log-probability of
  the ``top_k`` likeliest tokens. A peaked distribution leaves little to the others, so it is large there
  (but one spread over the whole vocabulary has log V, too: it is not monotone).
- ``self-certainty``: KL(uniform || p) = -log V - (1/V) sum_v log p_v (Kang et al., arXiv 2502.18581).
- ``entropy``: minus the entropy of p, sum_v p_v log p_v.

A step's score is its lowest group confidence: the lowest mean over ``window`` consecutive tokens inside the
step, and the mean of all of its tokens where it is shorter (DeepConf's lowest group confidence, as in
facebookresearch/deepconf). The scores are in nats and not probabilities: they rank steps, and a threshold has
to be fitted. The model that wrote a solution says how sure it was; another model says how sure it would be.

DeepConf also works with a model behind a server, because it needs only the ``top_k`` log-probabilities of
each prompt token, which vLLM returns (``prompt_logprobs``). The other measures need the whole vocabulary."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from pydantic import BaseModel, StrictFloat, ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, PolicyError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding, encode_traces
from surefoot.models.engine.causal import load_causal, require_plain_head
from surefoot.models.engine.packing import read_states
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.http_client import CallError, RemoteServer
from surefoot.policies.openai_requests import openai_message
from surefoot.policies.openai_responses import limited_prompt
from surefoot.policies.servers import list_models
from surefoot.protocols import ProblemTrace
from surefoot.records import Count, Message, StepScores, Usage

Measure = Literal["deepconf", "self-certainty", "entropy"]
MEASURES: tuple[Measure, ...] = get_args(Measure)

_LOGITS = 16_777_216
"""Logits (positions times vocabulary) held at a time: 64 MB in float32."""
_LONGEST = 32_768
"""Most tokens of a trace, where the model has a longer context or does not say."""


class ConfidenceScorer(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` that works without a reward model:
    ``load_prm("deepconf:MODEL")``.

    Without ``encoding`` the model is given the problem as it is, or through its chat template if it has one.
    Text that traces share from their beginning on is read once.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        measure: Measure = "deepconf",
        window: int = 2048,
        top_k: int = 20,
        encoding: Encoding | None = None,
        name: str | None = None,
        batch_tokens: int = 16_384,
    ) -> None:
        """``window`` and ``top_k`` are DeepConf's. Raises ``ValueError`` for a size below 1 and
        ``CheckpointError`` for an architecture that changes its logits after its output embedding."""
        if window < 1 or top_k < 1:
            raise ValueError(f"'window' and 'top_k' must be 1 or more, not {window} and {top_k}")
        require_plain_head(policy)
        self.policy, self.tokenizer = policy.eval(), tokenizer
        self.measure, self.window, self.top_k, self.batch_tokens = measure, window, top_k, batch_tokens
        base = policy.name_or_path
        self.name = name or f"{measure}:{Path(base).name}"
        self.card = CheckpointCard(
            family=measure,
            kind="prm",
            encoding=encoding or _encoding(policy, tokenizer),
            score_means="confidence",
            label_source="no labels",
            base=base,
        )

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores in nats, one record a trace, in order.

        Steps beyond the context get ``None`` and a reason. Raises ``ScoreError`` for a trace without steps.
        """
        encoded = encode_traces(self.tokenizer, self.card.encoding, items)
        step_tokens = [_step_tokens(trace) for trace in encoded]
        read = [number for number, steps in enumerate(step_tokens) if any(steps)]
        confidences = [torch.zeros(0)] * len(items)
        cost = [0] * len(items)
        # the state before a token has the distribution that it comes from
        positions = [[token - 1 for step in step_tokens[number] for token in step] for number in read]
        for reading in read_states(
            self.policy.base_model,
            [encoded[number].ids for number in read],
            positions,
            batch_tokens=self.batch_tokens,
        ):
            for at, states_nh in reading.states.items():
                confidences[read[at]] = token_confidences(
                    self.policy, states_nh, self.measure, top_k=self.top_k
                )
                cost[read[at]] = reading.new[at]
        return [
            StepScores.of_model(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=self._steps(steps, of_tokens.tolist()),
                unscored_reason=_unscored(trace, steps, self.card.encoding.max_length),
                usage=Usage(verifier_tokens=tokens, calls=1),
            )
            for item, trace, steps, of_tokens, tokens in zip(
                items, encoded, step_tokens, confidences, cost, strict=True
            )
        ]

    def _steps(self, steps: Sequence[range], confidences: list[float]) -> tuple[float | None, ...]:
        """Scores from the confidences of the tokens of all steps, in order."""
        values = iter(confidences)
        of_steps = [[next(values) for _ in step] for step in steps]
        return tuple(lowest_group(values, self.window) if values else None for values in of_steps)


@torch.no_grad()
def token_confidences(
    policy: PreTrainedModel,
    states_nh: torch.Tensor,
    measure: Measure,
    *,
    top_k: int = 20,
    limit: int = _LOGITS,
) -> torch.Tensor:
    """Confidence [N], float32 in nats on the CPU, of the distributions after hidden states ``[N, H]``.

    At temperature 1 and over the whole vocabulary; ``limit`` logits are held at a time.
    """
    head = policy.get_output_embeddings()
    states = states_nh.to(head.weight.device, head.weight.dtype)
    rows = max(1, limit // head.weight.shape[0])
    pieces = []
    for part_nh in states.split(rows):
        logprobs_nv = head(part_nh).float().log_softmax(1)
        size = logprobs_nv.shape[1]
        match measure:
            case "deepconf":
                values = -logprobs_nv.topk(min(top_k, size), dim=1).values.mean(1)
            case "self-certainty":
                values = -math.log(size) - logprobs_nv.mean(1)
            case "entropy":
                values = (logprobs_nv.exp() * logprobs_nv).sum(1)
        pieces.append(values.cpu())
    return torch.cat(pieces) if pieces else torch.zeros(0)


def lowest_group(confidences: Sequence[float], window: int) -> float:
    """Lowest mean over ``window`` consecutive tokens; the mean of all where there are fewer.

    Raises ``ValueError`` without a token.
    """
    if not confidences:
        raise ValueError("'confidences' is empty: a step needs at least one token")
    size = min(window, len(confidences))
    total = lowest = math.fsum(confidences[:size])
    for leaving, entering in zip(confidences, confidences[size:], strict=False):
        total += entering - leaving
        lowest = min(lowest, total)
    return lowest / size


def split_measure(name: str | Path) -> tuple[Measure, str] | None:
    """Measure and model of a name like ``deepconf:MODEL``; ``None`` for any other."""
    measure, colon, model = str(name).partition(":")
    return (measure, model) if colon and model and measure in MEASURES else None


def load_confidence(
    model: str | Path,
    measure: Measure,
    *,
    loading: Loading = LOADING,
    trust_remote_code: bool = False,
) -> ConfidenceScorer:
    """A scorer on the language model in a directory or of a hub name. Raises ``CheckpointError``."""
    policy, tokenizer = load_causal(model, loading, trust_remote_code=trust_remote_code)
    return ConfidenceScorer(
        policy,
        tokenizer,
        measure=measure,
        name=f"{measure}:{Path(model).name}",
        batch_tokens=loading.batch_tokens,
    )


def _encoding(policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Encoding:
    longest = getattr(policy.config.get_text_config(), "max_position_embeddings", None) or _LONGEST
    length = max(8, min(_LONGEST, int(longest)))
    if tokenizer.chat_template:
        return Encoding(template="{problem}", chat=True, max_length=length)
    return Encoding(max_length=length)


def _step_tokens(trace: EncodedTrace) -> list[range]:
    """Tokens of each step; none for a step that is cut off. Nothing predicts a first token."""
    if trace.refused:
        return [range(0)] * len(trace.positions)
    return [
        range(0) if at is None else range(max(1, first), min(end, len(trace.ids)))
        for (first, end), at in zip(trace.written, trace.positions, strict=True)
    ]


def _unscored(trace: EncodedTrace, steps: Sequence[range], limit: int) -> str | None:
    if (reason := trace.unscored_reason(limit)) is not None:
        return reason
    return None if all(steps) else "a step shares its only token with the step before it"


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
                path, body = self._call(item)
                answer = _Answer.model_validate_json(self._server.request(path, body))
                usage = Usage(verifier_tokens=limited_prompt(answer.usage.prompt_tokens, body), calls=1)
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

    def _call(self, item: ProblemTrace) -> tuple[str, dict[str, Any]]:
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
            return "/completions", body
        solution = Message(role="assistant", content=item.trace.text)
        body["messages"] = [openai_message(message) for message in (*prompt, solution)]
        body |= {"continue_final_message": True, "add_generation_prompt": False}
        return "/chat/completions", body

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
    prompt_tokens: Count


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
