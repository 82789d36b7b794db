"""The odds of yes against no as the next token, of a model in this process or behind a server."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import ScoreError
from surefoot.models.engine.causal import has_plain_head
from surefoot.models.engine.packing import read_states
from surefoot.policies.pretrained import context_length
from surefoot.policies.prompts import encode_prompt
from surefoot.protocols import Policy, SampleRequest, SampleResult, Sampling
from surefoot.records import Usage


@dataclass(frozen=True, kw_only=True)
class YesNo:
    """Log odds of yes against no at one place; ``None`` with a reason where they are unknown."""

    log_odds: float | None
    """log P(yes) - log P(no): a constant added to both logits, or other tokens' mass, does not change it."""
    reason: str | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def score(self) -> float | None:
        """P(yes) / (P(yes) + P(no)), in [0, 1]."""
        if self.log_odds is None:
            return None
        small = math.exp(-abs(self.log_odds))
        return (1.0 if self.log_odds >= 0 else small) / (1.0 + small)


@runtime_checkable
class YesNoReader(Protocol):
    """Reads the token after ``prompt`` and ``prefix`` of each request; results in order, one each."""

    async def read(self, requests: Sequence[SampleRequest]) -> list[YesNo]: ...


class TransformersYesNo:
    """One forward pass a batch, in which only the head's rows of yes and no are multiplied.

    A spelling counts if, after ``question``, it is one token and the tokens before it stay as they were; the
    probabilities of all such tokens are added. A model whose logits are not a plain product with its
    head (soft capping, scaling) is found out by a trial and read through its whole head.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        question: str,
        yes: Sequence[str],
        no: Sequence[str],
        batch_tokens: int = 16_384,
    ) -> None:
        """``batch_tokens`` bounds the padded tokens of one forward pass.

        Raises ``ScoreError`` if no spelling of yes, or none of no, is a single token.
        """
        self.model, self.tokenizer, self.batch_tokens = model.eval(), tokenizer, batch_tokens
        self.yes_ids = _single_tokens(tokenizer, question, yes, "yes")
        self.no_ids = _single_tokens(tokenizer, question, no, "no")
        if self.yes_ids & self.no_ids:
            raise ScoreError("a spelling of yes and one of no are the same token for this tokenizer")
        self._rows = torch.tensor([*sorted(self.yes_ids), *sorted(self.no_ids)])
        self._context = context_length(model)
        self._by_rows = has_plain_head(model)

    async def read(self, requests: Sequence[SampleRequest]) -> list[YesNo]:
        """Log odds after each request's prompt and prefix, in a thread."""
        return await asyncio.to_thread(self._read, list(requests))

    @torch.inference_mode()
    def _read(self, requests: list[SampleRequest]) -> list[YesNo]:
        encoded = [
            encode_prompt(self.tokenizer, request.prompt, request.prefix, error=ScoreError)
            for request in requests
        ]
        results: dict[int, YesNo] = {}
        for number, ids in enumerate(encoded):
            if len(ids) > self._context:
                reason = f"the question begins at token {len(ids)}, the model's context is {self._context}"
                results[number] = YesNo(log_odds=None, reason=reason)
        read = [number for number in range(len(encoded)) if number not in results]
        sequences = [encoded[number] for number in read]
        last = [[len(ids) - 1] for ids in sequences]
        trunk: Any = self.model.base_model if self._by_rows else _WholeModel(self.model)
        for output in read_states(trunk, sequences, last, batch_tokens=self.batch_tokens, limit=0):
            states = torch.cat(list(output.states.values()))
            logits = self._product(states) if self._by_rows else states[:, self._rows.to(states.device)]
            odds = self.log_odds(logits.float().cpu())
            for at, value in zip(output.states, odds.tolist(), strict=True):
                usage = Usage(verifier_tokens=output.new[at], calls=1)
                results[read[at]] = YesNo(log_odds=value, usage=usage)
        return [results[number] for number in range(len(requests))]

    def log_odds(self, logits_bk: torch.Tensor) -> torch.Tensor:
        """Log odds ``[B]`` from the logits ``[B, K]`` of the yes tokens and then the no tokens."""
        split = len(self.yes_ids)
        yes, no = logits_bk[:, :split].double(), logits_bk[:, split:].double()
        return yes.logsumexp(1) - no.logsumexp(1)

    def _product(self, hidden_bh: torch.Tensor) -> torch.Tensor:
        head = self.model.get_output_embeddings()
        rows = self._rows.to(head.weight.device)
        bias = getattr(head, "bias", None)
        product = hidden_bh.to(head.weight.device) @ head.weight[rows].T
        return product if bias is None else product + bias[rows]


class _WholeModel:
    """A model whose logits take the place of its trunk's states."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.device = model, model.device

    def __call__(self, **inputs: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self.model(**inputs).logits)


class OpenAIYesNo:
    """The odds from the log probabilities of one more token, of a policy behind an OpenAI-compatible server.

    In chat mode a template that rewrites the assistant's words is the server's (DeepSeek's drops the
    reasoning). Only the ``top`` likeliest tokens come: if no spelling of yes, or none of no, is among them,
    the odds are unknown, not 0 or 1. A model that is very sure is therefore often unknown here;
    :class:`surefoot.models.kinds.yes_no.TransformersYesNo` does not have this limit.
    """

    def __init__(self, policy: Policy, *, yes: Sequence[str], no: Sequence[str], top: int = 20) -> None:
        self._policy, self._yes, self._no, self._top = policy, frozenset(yes), frozenset(no), top

    async def read(self, requests: Sequence[SampleRequest]) -> list[YesNo]:
        """Log odds after each request's prompt and prefix; a call that fails is unknown, with the reason."""
        once = Sampling(temperature=0.0, max_tokens=1)
        single_tokens = [replace(request, n=1, sampling=once, alternatives=self._top) for request in requests]
        return [self._odds(result) for result in await self._policy.sample(single_tokens)]

    def _odds(self, result: SampleResult) -> YesNo:
        spent = result.usage.by_verifier
        if not result.completions:
            return YesNo(log_odds=None, reason=result.error or "no answer", usage=spent)
        positions = result.completions[0].positions
        if not positions:
            return YesNo(log_odds=None, reason="server: the answer lacks log probabilities", usage=spent)
        top = positions[0].logprobs
        yes, no = (_log_sum(top[token] for token in words & top.keys()) for words in (self._yes, self._no))
        if yes is None or no is None:
            missing = " and ".join(name for name, value in (("yes", yes), ("no", no)) if value is None)
            reason = f"{missing} not among the {len(top)} likeliest tokens"
            return YesNo(log_odds=None, reason=reason, usage=spent)
        return YesNo(log_odds=yes - no, usage=spent)


def single_token(tokenizer: PreTrainedTokenizerBase, question: str, spelling: str) -> int | None:
    """The one known token that ``spelling`` is after ``question``, whose own tokens stay; else ``None``."""
    question_ids = tokenizer(question, add_special_tokens=False)["input_ids"]
    ids = tokenizer(question + spelling, add_special_tokens=False)["input_ids"]
    return int(ids[-1]) if ids[:-1] == question_ids and ids[-1] != tokenizer.unk_token_id else None


def _single_tokens(
    tokenizer: PreTrainedTokenizerBase, question: str, spellings: Sequence[str], name: str
) -> frozenset[int]:
    tokens = (single_token(tokenizer, question, spelling) for spelling in spellings)
    single = frozenset(token for token in tokens if token is not None)
    if not single:
        raise ScoreError(
            f"none of the spellings of {name} {list(spellings)} is a single token after {question!r}; "
            "give the verifier format spellings that this tokenizer has"
        )
    return single


def _log_sum(values: Iterable[float]) -> float | None:
    """Log of the sum of exponentials of the finite values; ``None`` if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.logaddexp.reduce(finite)) if finite else None
