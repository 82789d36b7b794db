"""From tokens to steps, and from rewards to scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from surefoot.errors import ScoreError
from surefoot.models.encoding import EncodedTrace
from surefoot.models.reference import Response
from surefoot.records import LabelKind
from surefoot.scores import Aggregator

Read = Literal["step", "prefix"]
"""What a step's score is: the sigmoid of its own reward, or of the sum of the rewards up to it."""

MEANING: Mapping[Read, tuple[LabelKind, Aggregator]] = {
    "step": ("advantage", "min"),
    "prefix": ("value", "last"),
}
"""What such scores mean, and how a trace's score is made of them."""


@dataclass(frozen=True, kw_only=True)
class ImplicitRewards:
    """Rewards of one trace, in units of log odds (beta times nats); their sum is the response's reward."""

    steps: tuple[float | None, ...]
    """Of each step; ``None`` beyond the model's context."""
    tokens: int
    """Tokens read for them, by model and reference."""


def scores_of(rewards: Sequence[float | None], read: Read) -> tuple[float | None, ...]:
    """Rewards (log odds) → scores in [0, 1]; ``None`` stays ``None``.

    For what they mean see :class:`surefoot.models.implicit.ImplicitPRM`.
    """
    total = 0.0
    scores: list[float | None] = []
    for reward in rewards:
        if reward is None:
            scores.append(None)
            continue
        total = total + reward if read == "prefix" else reward
        scores.append((1 + math.tanh(total / 2)) / 2)  # the sigmoid, without overflow
    return tuple(scores)


def response_of(trace: EncodedTrace) -> Response | None:
    """Tokens up to the last visible token of the last step read, and where the response begins.

    ``None`` if no step lies within the context. Raises ``ScoreError`` where the family does not say at which
    token steps begin.
    """
    last = max((position for position in trace.positions if position is not None), default=None)
    if last is None:
        return None
    if not trace.starts:
        raise ScoreError("'starts' is empty: implicit rewards need to know where each step begins")
    return trace.ids[: last + 1], max(1, trace.starts[0])  # nothing comes before a first token to predict it


def counted_tokens(trace: EncodedTrace) -> list[range]:
    """Token indices that count to each step; empty for a step that is cut off."""
    return [
        range(0) if at is None else range(max(1, start), at + 1)
        for start, at in zip(trace.starts, trace.positions, strict=True)
    ]


def per_step(trace: EncodedTrace, ratio: torch.Tensor, first: int) -> tuple[float | None, ...]:
    """Rewards of the steps from those of the response's tokens, which begin at token ``first``."""
    return tuple(
        None if at is None else float(ratio[tokens.start - first : tokens.stop - first].sum())
        for tokens, at in zip(counted_tokens(trace), trace.positions, strict=True)
    )
