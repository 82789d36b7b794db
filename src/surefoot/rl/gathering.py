"""What a round gathers for the policy to learn from, and who gathers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from surefoot.protocols import Policy
from surefoot.records import Problem, Record, Trace, Usage
from surefoot.training.cloning import Demonstration


class Gathered(Record):
    """What a round has of one problem."""

    problem_id: str
    drawn: tuple[Trace, ...]
    """All solutions that were written, kept for reading."""
    shown: tuple[Demonstration, ...]
    """What is learned from."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """What is not, by reason."""
    usage: Usage = Usage()
    """Of the policy, and as verifier tokens of those who chose or demonstrated."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A piece of a round's gathering."""

    policy: Policy
    """As the round before left it."""
    problems: Sequence[Problem]
    number: int
    """Of the rounds that gather, from 1."""
    seed: int
    """The round's own."""


class Gather(Protocol):
    """Lets the policy write, and chooses what is worth learning: one record a problem, in order."""

    async def __call__(self, turn: Turn) -> list[Gathered]: ...
