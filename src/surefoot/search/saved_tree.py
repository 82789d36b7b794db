"""The tree of a search as a record: kept in a file, read back, drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.records import Record, Trace
from surefoot.search.method import SearchResult
from surefoot.search.space import Prefix, Space


class SavedNode(BaseModel):
    """One prefix of a problem's solutions: its parent's, and one more step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int = Field(ge=0)
    """Place in the tree's nodes; 0 is the root, and parents come before their children."""
    parent: int | None
    """``None`` at the root alone."""
    depth: int = Field(ge=0)
    """Steps up to here."""
    text: str
    """The step; empty at the root, and where the policy wrote no more though it could have."""
    score: float | None = Field(default=None, allow_inf_nan=False)
    """Score of this step alone; ``None`` = there is none."""
    value: float | None = Field(default=None, allow_inf_nan=False)
    """Scores of the steps up to here, aggregated; ``None`` = there is none."""
    reason: str | None = None
    """Why there is no score, if one was requested."""
    seen: int = Field(default=0, ge=0)
    """Times that this step was drawn; more than one = merged."""
    tokens: int = Field(default=0, ge=0)
    """Tokens that the policy wrote for it."""
    ahead: bool = False
    """Whether it is its parent's greedy next step, written to look ahead."""
    finish: str | None = None
    """Why the solution ends here; ``None`` = it continues."""


class SavedTree(Record):
    """Everything that one search of one problem wrote, and the solution that it chose."""

    problem_id: str
    problem: str
    """The problem's text."""
    method: str
    seed: int
    answer: str | None
    """Final answer of the chosen solution; ``None`` = none."""
    outcome: bool | None
    """Whether it is right; ``None`` = not known."""
    nodes: tuple[SavedNode, ...] = Field(min_length=1)
    """Parents before children, children in the order in which they were first drawn."""
    chosen: tuple[int, ...]
    """The chosen solution: ids of its nodes from the first step on; empty if no solution was found."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for place, node in enumerate(self.nodes):
            if node.id != place:
                raise ValueError(
                    f"nodes[{place}].id is {node.id}; ids count from 0 in the order of the nodes"
                )
            if (node.parent is None) != (place == 0):
                raise ValueError(f"nodes[{place}].parent: the first node, and no other, has none")
            if node.parent is not None and not 0 <= node.parent < place:
                raise ValueError(
                    f"nodes[{place}].parent is {node.parent}; parents come before their children"
                )
        above = 0
        for place in self.chosen:
            if not 0 < place < len(self.nodes) or self.nodes[place].parent != above:
                raise ValueError(f"chosen: node {place} is no child of node {above}")
            above = place
        return self

    @property
    def children(self) -> list[list[int]]:
        """Ids of each node's children."""
        below: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes[1:]:
            below[node.parent or 0].append(node.id)
        return below

    @property
    def size(self) -> int:
        """Distinct steps after equal prefixes: nodes that have a text."""
        return sum(bool(node.text) for node in self.nodes)


def save_tree(space: Space, result: SearchResult) -> SavedTree:
    """The tree of one search; made to be called by the ``watch`` of ``run_search``."""
    prefixes = list(space.tree)
    ids = {prefix: place for place, prefix in enumerate(prefixes)}
    solution = None if result.chosen is None else result.candidates[result.chosen]
    return SavedTree(
        problem_id=space.problem.id,
        problem=space.problem.text,
        method=result.method,
        seed=result.seed,
        answer=result.answer,
        outcome=result.outcome if solution else None,
        nodes=tuple(_node(space, prefix, ids) for prefix in prefixes),
        chosen=tuple(ids[prefix] for prefix in _end(space, prefixes, solution).path()) if solution else (),
    )


def _node(space: Space, prefix: Prefix, ids: dict[Prefix, int]) -> SavedNode:
    state = prefix.data
    return SavedNode(
        id=ids[prefix],
        parent=None if prefix.parent is None else ids[prefix.parent],
        depth=prefix.depth,
        text=prefix.text,
        score=_known(space.step_value(prefix)),
        value=_known(space.value(prefix)),
        reason=state.reason if state.scores is not None else None,
        seen=state.count,
        tokens=state.tokens,
        ahead=prefix.parent is not None and prefix.parent.data.greedy_child is prefix,
        finish=state.finish,
    )


def _end(space: Space, prefixes: Sequence[Prefix], solution: Trace) -> Prefix:
    """Where the chosen solution ends.

    Its text alone may fit several nodes: one that continues, its child that marks the end, and those
    of the same text cut otherwise.
    """
    return max(
        (prefix for prefix in prefixes if prefix.prefix == solution.text),
        key=lambda prefix: (
            space.trace(prefix).steps == solution.steps,
            prefix.data.finish == solution.finish_reason,
        ),
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
