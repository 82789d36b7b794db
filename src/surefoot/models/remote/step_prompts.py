"""Wire formats that send one prompt for each step, cut right after the token at which the step is read.

vLLM's ``/classify``, ``/score`` and ``/generative_scoring``, SGLang's ``/v1/score`` and ``/classify``. A
server with prefix caching reads what the prompts of one trace have in common once. Requests and answers are
those of vLLM 0.32 (``entrypoints/pooling/{classify,scoring}/protocol.py``,
``entrypoints/generate/generative_scoring``) and SGLang (``entrypoints/openai/protocol.py``,
``managers/io_struct.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pydantic import BaseModel, RootModel
from transformers import PreTrainedTokenizerBase

from surefoot.models.encoding import EncodedTrace
from surefoot.models.remote.wire_formats import (
    Encoder,
    Indexed,
    ItemScores,
    Rule,
    WireError,
    WireRequest,
    in_order,
    parse_answer,
    probability,
    reply,
)
from surefoot.protocols import ProblemTrace


@dataclass(frozen=True, kw_only=True)
class _StepPrompts:
    """What these formats share: the prompts, and rows of class probabilities as scores."""

    encoder: Encoder
    model: str
    column: int = -1
    rule: Rule | None = None
    """In place of ``column``."""

    def call(self, items: Sequence[ProblemTrace]) -> WireRequest:
        """All steps of all items in one body."""
        encoded = tuple(self.encoder.encode(items))
        return WireRequest(body=self._body(list(_prompts(encoded))), encoded=encoded)

    def _body(self, prompts: list[list[int]]) -> dict[str, Any]:
        raise NotImplementedError

    def _scored(self, call: WireRequest, rows: Sequence[list[float]]) -> list[ItemScores]:
        """The rows of all prompts, in order, as scores of the items."""
        if len(rows) != sum(1 for _ in _prompts(call.encoded)):
            raise WireError(f"{len(rows)} rows came for {sum(1 for _ in _prompts(call.encoded))} steps")
        left = iter(rows)
        scores = [
            tuple(
                None if at is None else probability(next(left), self.column, self.rule)
                for at in trace.positions
            )
            for trace in call.encoded
        ]
        tokens = [sum(at + 1 for at in trace.positions if at is not None) for trace in call.encoded]
        return reply(call, scores, tokens)


@dataclass(frozen=True, kw_only=True)
class VllmClassify(_StepPrompts):
    """``POST /classify`` of vLLM: a classifier of sequences reads each prompt at its last token.

    It answers with the probabilities of the classes (pooling type ``LAST``); ``column`` is the score.
    """

    path: str = "/classify"

    def _body(self, prompts: list[list[int]]) -> dict[str, Any]:
        return {"model": self.model, "input": prompts, "use_activation": True}

    def read(self, call: WireRequest, answer: str) -> list[ItemScores]:
        """One row for each prompt. Raises :class:`WireError`."""
        rows = in_order(parse_answer(_ClassifyAnswer, answer).data, len(call.body["input"]))
        return self._scored(call, [row.probs for row in rows])


@dataclass(frozen=True, kw_only=True)
class VllmScore(_StepPrompts):
    """``POST /score`` of vLLM: a classifier with one label, asked about a pair of texts, which it joins.

    This interface takes no token ids. The pair are the two halves of the prompt's text; a prompt whose text
    ``tokenizer`` would cut into other tokens is refused, for the score would be another prompt's.
    """

    tokenizer: PreTrainedTokenizerBase
    path: str = "/score"

    def _body(self, prompts: list[list[int]]) -> dict[str, Any]:
        texts = [self._text(prompt) for prompt in prompts]
        halves = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in texts]
        return {
            "model": self.model,
            "text_1": [first for first, _ in halves],
            "text_2": [second for _, second in halves],
            "use_activation": True,
        }

    def _text(self, prompt: list[int]) -> str:
        text = self.tokenizer.decode(prompt, skip_special_tokens=True)
        if list(self.tokenizer(text)["input_ids"]) != prompt:
            raise WireError("/score takes texts, and this family's tokens cannot be sent as a text")
        return text

    def read(self, call: WireRequest, answer: str) -> list[ItemScores]:
        """One number for each pair. Raises :class:`WireError`."""
        rows = in_order(parse_answer(_ScoreAnswer, answer).data, len(call.body["text_1"]))
        return self._scored(call, [[row.score] for row in rows])


@dataclass(frozen=True, kw_only=True)
class _NextToken(_StepPrompts):
    """A language model's probabilities of ``labels`` (tokens for good and bad) after each prompt."""

    labels: tuple[int, int]

    def _body(self, prompts: list[list[int]]) -> dict[str, Any]:
        # the query is what all prompts begin with, of which each keeps at least its last token
        heads = [prompt[:-1] for prompt in prompts]
        shared = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*heads, strict=False)))
        return {
            "model": self.model,
            "query": prompts[0][:shared] if prompts else [],
            "items": [prompt[shared:] for prompt in prompts],
            "label_token_ids": list(self.labels),
            "apply_softmax": True,
        }


@dataclass(frozen=True, kw_only=True)
class GenerativeScoring(_NextToken):
    """``POST /generative_scoring`` of vLLM: the probability of the first label among both, one a prompt."""

    path: str = "/generative_scoring"

    def read(self, call: WireRequest, answer: str) -> list[ItemScores]:
        """One number for each prompt. Raises :class:`WireError`."""
        rows = in_order(parse_answer(_ScoreAnswer, answer).data, len(call.body["items"]))
        return self._scored(call, [[row.score, 1 - row.score] for row in rows])


@dataclass(frozen=True, kw_only=True)
class SglangScoring(_NextToken):
    """``POST /v1/score`` of SGLang: the probabilities of both labels, a row a prompt."""

    path: str = "/v1/score"

    def read(self, call: WireRequest, answer: str) -> list[ItemScores]:
        """One row for each prompt. Raises :class:`WireError`."""
        return self._scored(call, parse_answer(_SglangScores, answer).scores)


@dataclass(frozen=True, kw_only=True)
class SglangReward(_StepPrompts):
    """``POST /classify`` of SGLang, started with ``--is-embedding``: the head's logits at the last token."""

    path: str = "/classify"

    def _body(self, prompts: list[list[int]]) -> dict[str, Any]:
        return {"input_ids": prompts}

    def read(self, call: WireRequest, answer: str) -> list[ItemScores]:
        """One row of logits for each prompt. Raises :class:`WireError`."""
        rows = parse_answer(_SglangRewards, answer).root
        return self._scored(call, [_softmax(row.embedding) for row in rows])


def _prompts(encoded: Sequence[EncodedTrace]) -> Iterator[list[int]]:
    for trace in encoded:
        for at in trace.positions:
            if at is not None:
                yield list(trace.ids[: at + 1])


def _softmax(logits: list[float]) -> list[float]:
    """Probabilities of classes; of a single logit, its sigmoid. Raises :class:`WireError` for no numbers."""
    if not logits or not all(map(math.isfinite, logits)):
        raise WireError(f"a row of logits is {logits[:5]}")
    values = logits if len(logits) > 1 else [logits[0], 0.0]
    most = max(values)
    weights = [math.exp(value - most) for value in values]
    return [weight / math.fsum(weights) for weight in weights][: len(logits)]


class _ClassifyRow(Indexed):
    probs: list[float]


class _ClassifyAnswer(BaseModel):
    data: list[_ClassifyRow]


class _ScoreRow(Indexed):
    score: float


class _ScoreAnswer(BaseModel):
    data: list[_ScoreRow]


class _SglangScores(BaseModel):
    scores: list[list[float]]


class _SglangRow(BaseModel):
    embedding: list[float]


class _SglangRewards(RootModel[list[_SglangRow]]):
    """A list of rows."""
