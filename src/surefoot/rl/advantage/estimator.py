"""From rewards at tokens to advantages at tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from surefoot.rl.credit.rule import FloatArray, Stream


@dataclass(frozen=True, kw_only=True)
class Credited:
    """One rollout after a credit rule: ``tokens`` T, and the rewards."""

    tokens: int
    streams: tuple[Stream, ...]
    values: FloatArray | None = None
    """A critic's V [T], of the state in which each token was drawn."""


class Estimator(Protocol):
    """Takes a baseline off. Estimators are frozen pydantic models with a tag ``kind``."""

    needs_values: ClassVar[bool]
    """Reads :attr:`Credited.values`, so there must be a critic."""
    compares: ClassVar[bool]
    """Takes the other samples of a problem as baseline, so there must be two or more."""

    def advantages(self, batch: Sequence[Sequence[Credited]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group."""
