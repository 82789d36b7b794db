"""What is to be written, and what was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from surefoot.gateway.strategies import Strategy
from surefoot.records import Problem, ToolCall, Usage
from surefoot.scores import Aggregator
from surefoot.search.result import SearchResult
from surefoot.search.saved_tree import SavedTree
from surefoot.search.space import Steps


@dataclass(kw_only=True)
class Account:
    """What a request has cost so far, whatever comes of it."""

    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be written, and how."""

    problem: Problem
    """What the reward model is told that the problem is."""
    strategy: Strategy
    steps: Steps
    """``steps.prompt`` is the prompt, whatever the problem."""
    max_tokens: int
    n: int = 1
    seed: int = 0
    stop: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Steps that the solution begins with."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are passed on to the policy's server."""
    aggregation: Aggregator = "min"
    abstain_below: float | None = None
    account: Account = field(default_factory=Account)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer."""

    result: SearchResult
    text: str
    finish_reason: str
    tool_calls: tuple[ToolCall, ...] = ()
    withheld: str | None = None
    """Why the text is not to be shown."""
    tree: SavedTree | None = None
    """All steps that were drawn, if some were given up."""
    dropped: tuple[int, ...] = ()
    """Nodes of the tree that were given up: no candidate goes through them."""

    @property
    def value(self) -> float | None:
        """Aggregated score of the chosen candidate."""
        return None if self.result.chosen is None else self.result.values[self.result.chosen]

    @property
    def abstained(self) -> bool:
        """Whether there is no answer that is shown."""
        return self.withheld is not None or self.result.chosen is None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """All answers to one request."""

    policy: str
    scorer: str | None
    strategy: str
    seed: int
    choices: tuple[Choice, ...]

    @property
    def usage(self) -> Usage:
        """What they cost together."""
        return sum((choice.result.usage for choice in self.choices), Usage())


Accepted = Callable[[int, str], None]
"""Told what the text of a choice, by its number, is certain to begin with."""
