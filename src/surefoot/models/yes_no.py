"""The odds of yes against no as the next token of a model in this process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import ScoreError
from surefoot.models.reward_model import pad_batch
from surefoot.policies.prompts import encode_prompt
from surefoot.protocols import SampleRequest
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
        self._context = int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 30))
        self._by_rows = self._rows_agree()

    async def read(self, requests: Sequence[SampleRequest]) -> list[YesNo]:
        """Log odds after each request's prompt and prefix, in a thread."""
        return await asyncio.to_thread(self._read, list(requests))

    def _read(self, requests: list[SampleRequest]) -> list[YesNo]:
        encoded = [
            encode_prompt(self.tokenizer, request.prompt, request.prefix, error=ScoreError)
            for request in requests
        ]
        results: dict[int, YesNo] = {}
        for number, ids in enumerate(encoded):
            if len(ids) > self._context:
                reason = f"the question stands at token {len(ids)}, the model's context is {self._context}"
                results[number] = YesNo(log_odds=None, reason=reason)
        order = sorted((n for n in range(len(encoded)) if n not in results), key=lambda n: len(encoded[n]))
        while order:
            rows = max(1, self.batch_tokens // len(encoded[order[-1]]))
            group = [order.pop() for _ in range(min(rows, len(order)))]
            odds = self.log_odds(self._logits([encoded[number] for number in group]))
            for number, value in zip(group, odds.tolist(), strict=True):
                usage = Usage(verifier_tokens=len(encoded[number]), calls=1)
                results[number] = YesNo(log_odds=value, usage=usage)
        return [results[number] for number in range(len(requests))]

    def log_odds(self, logits_bk: torch.Tensor) -> torch.Tensor:
        """Log odds ``[B]`` from the logits ``[B, K]`` of the yes tokens and then the no tokens."""
        split = len(self.yes_ids)
        yes, no = logits_bk[:, :split].double(), logits_bk[:, split:].double()
        return yes.logsumexp(1) - no.logsumexp(1)

    @torch.inference_mode()
    def _logits(self, sequences: list[tuple[int, ...]]) -> torch.Tensor:
        """Logits ``[B, K]`` of the chosen rows after the last token of each sequence."""
        device = self.model.device
        ids, mask = (tensor.to(device) for tensor in pad_batch(sequences))
        last = torch.tensor([len(sequence) - 1 for sequence in sequences], device=device)
        each = torch.arange(len(sequences), device=device)
        if not self._by_rows:
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            return logits[each, last][:, self._rows.to(device)].float().cpu()
        hidden = self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return self._product(hidden[each, last]).float().cpu()

    def _product(self, hidden_bh: torch.Tensor) -> torch.Tensor:
        head = self.model.get_output_embeddings()
        rows = self._rows.to(head.weight.device)
        bias = getattr(head, "bias", None)
        product = hidden_bh.to(head.weight.device) @ head.weight[rows].T
        return product if bias is None else product + bias[rows]

    @torch.inference_mode()
    def _rows_agree(self) -> bool:
        head = self.model.get_output_embeddings()
        trunk = self.model.base_model
        if getattr(head, "weight", None) is None or trunk is self.model:
            return False
        ids = self._rows[None].to(self.model.device)
        whole = self.model(input_ids=ids, use_cache=False).logits[0, :, self._rows.to(self.model.device)]
        hidden = getattr(trunk(input_ids=ids, use_cache=False), "last_hidden_state", None)
        if hidden is None:  # a wrapper (an adapter's, say) whose base is a whole language model
            return False
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 0.05
        return torch.allclose(whole.float(), self._product(hidden[0]).float(), rtol=tolerance, atol=tolerance)


def _single_tokens(
    tokenizer: PreTrainedTokenizerBase, question: str, spellings: Sequence[str], name: str
) -> frozenset[int]:
    """First tokens of the spellings that are one token after the question."""
    before = tokenizer(question, add_special_tokens=False)["input_ids"]
    unknown = tokenizer.unk_token_id
    found = set()
    for spelling in spellings:
        ids = tokenizer(question + spelling, add_special_tokens=False)["input_ids"]
        if len(ids) == len(before) + 1 and ids[:-1] == before and ids[-1] != unknown:
            found.add(ids[-1])
    if not found:
        raise ScoreError(
            f"none of the spellings of {name} {list(spellings)} is a single token after {question!r}; "
            "give the verifier format spellings that this tokenizer has"
        )
    return frozenset(found)
