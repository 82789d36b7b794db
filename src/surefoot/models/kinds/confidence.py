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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding, encode_traces
from surefoot.models.engine.causal import require_plain_head
from surefoot.models.engine.packing import read_states
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.pretrained import context_length
from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores

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
        confidences: dict[int, list[float]] = {}
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
                of_tokens = token_confidences(self.policy, states_nh, self.measure, top_k=self.top_k)
                confidences[read[at]] = of_tokens.tolist()
                cost[read[at]] = reading.new[at]
        records = []
        for number, (item, steps) in enumerate(zip(items, step_tokens, strict=True)):
            values = iter(confidences.get(number, ()))
            of_steps = [[next(values) for _ in step] for step in steps]
            record = self._record(
                item.trace,
                encoded[number],
                [lowest_group(step, self.window) if step else None for step in of_steps],
                cost[number],
            )
            if not all(steps) and record.unscored_reason is None:
                shared = "a step shares its only token with the step before it"
                record = record.model_copy(update={"unscored_reason": shared})
            records.append(record)
        return records


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


def _encoding(policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Encoding:
    length = max(8, min(_LONGEST, context_length(policy)))
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
