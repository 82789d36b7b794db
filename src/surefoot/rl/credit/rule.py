"""What a credit rule reads, the rewards it returns, and its one method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError

FloatArray: TypeAlias = NDArray[np.float64]

Need = Literal["scores", "outcome", "log_ratios"]
"""Field of :class:`ScoredRollout` that a rule reads: the trainer computes only what the rule needs."""


@dataclass(frozen=True, kw_only=True)
class RewardStream:
    """Rewards of one rollout from one source, at token positions; empty = no reward, which is not 0."""

    at: tuple[int, ...]
    """Positions, in non-decreasing order."""
    values: tuple[float, ...]
    weight: float = 1.0
    """Multiplies the advantages, after the baseline is subtracted."""
    reach: Literal["returns", "own"] = "returns"
    """returns: a reward is credited to every token up to it; own: to the tokens of its own step alone, that
    is those after the position before it."""
    centred: bool = False
    """The values are advantages already: no baseline is subtracted."""

    def __post_init__(self) -> None:
        if len(self.at) != len(self.values):
            raise ValueError(f"a stream has {len(self.values)} rewards at {len(self.at)} positions")


@dataclass(frozen=True, kw_only=True)
class ScoredRollout:
    """The numbers of one rollout that credit rules and advantage estimators read.

    Positions count the response's tokens from 0. Raises ``ScoreError`` if the numbers of steps, scores and
    log-ratios do not match.
    """

    tokens: int
    """Length T of the response, including its end-of-sequence token."""
    ends: tuple[int, ...] = ()
    """Last token of each of the K steps, in non-decreasing order (a step in which no token begins ends with
    the one before it); the last step ends with the response."""
    scores: tuple[float | None, ...] = ()
    """Step scores [K] of a reward model or checker; ``None`` = not scored. Empty without a scorer."""
    outcome: float | None = None
    """1 = correct answer, 0 = wrong; ``None`` = not judged."""
    log_ratios: FloatArray | None = None
    """log π_φ / π_ref [T] in nats, of an implicit reward model."""
    values: FloatArray | None = None
    """A critic's V [T], of the state in which each token was sampled."""
    rewards: tuple[RewardStream, ...] = ()
    """What the credit rule made of these; estimators read them."""

    def __post_init__(self) -> None:
        if self.scores and len(self.scores) != len(self.ends):
            raise ScoreError(
                f"'scores' has {len(self.scores)} values for {len(self.ends)} steps: give each one, or "
                "None where it is not scored"
            )
        if self.log_ratios is not None and self.log_ratios.shape != (self.tokens,):
            raise ScoreError(
                f"'log_ratios' has shape {self.log_ratios.shape} for {self.tokens} tokens: give one per token"
            )

    @property
    def last(self) -> int:
        """Position of the last token."""
        return self.tokens - 1

    def scored_steps(self) -> list[tuple[int, int, float]]:
        """Index, last token and score of each step that has a score, in order."""
        steps = enumerate(zip(self.ends, self.scores, strict=False))
        return [(index, end, score) for index, (end, score) in steps if score is not None]


class CreditRule(Protocol):
    """Turns scored rollouts into rewards at tokens. Rules are frozen pydantic models with a tag ``rule``."""

    @property
    def needs(self) -> frozenset[Need]:
        """What it reads; a class variable where that does not depend on its fields."""

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """Rewards of every rollout of every group (the samples of one problem).

        Every rollout has the same streams in the same order; one that has no reward to give is empty.
        """
