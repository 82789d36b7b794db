"""What a search gives: the solutions it found, which one it hands out, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from surefoot.answers import group_equal
from surefoot.protocols import Candidate
from surefoot.records import Record, StepScores, Trace, Usage
from surefoot.search.selection import SELECTORS
from surefoot.search.space import Counts, Prefix, Space

FIRST = "first"
"""Rule by which the search itself chose, and put its choice first."""

RULES: tuple[str, ...] = (*SELECTORS, FIRST)
"""How one of the solutions that a search found is chosen."""


def require_rule(rule: str) -> None:
    """Raise ``ValueError`` for a rule that there is not."""
    if rule not in RULES:
        raise ValueError(f"'rule' is {rule!r}; choose from {', '.join(RULES)}")


class SearchCounts(BaseModel):
    """What a search met on its way; see :class:`surefoot.search.space.Counts`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = 0
    """Distinct prefixes in the tree, without the root."""
    drawn: int = 0
    merged: int = 0
    capped: int = 0
    unscored: int = 0
    failed: int = 0


class SearchResult(Record):
    """One problem searched."""

    problem_id: str
    method: str
    seed: int
    candidates: tuple[Trace, ...]
    """Solutions found, in the order found; equal ones once."""
    scores: tuple[StepScores, ...]
    """Step scores of each; empty without a scorer."""
    values: tuple[float | None, ...]
    """Aggregated score of each candidate; ``None`` = not scored."""
    weights: tuple[int, ...]
    """How often each candidate was found; a vote counts it as often."""
    rule: str
    """How the candidate was chosen, see ``RULES``."""
    chosen: int | None
    """Index of the chosen candidate; ``None`` = no solution was found."""
    usage: Usage
    counts: SearchCounts
    error: str | None = None
    """What went wrong, if anything did."""

    @property
    def answer(self) -> str | None:
        """Final answer of the chosen candidate."""
        return None if self.chosen is None else self.candidates[self.chosen].answer

    @property
    def outcome(self) -> bool | None:
        """Whether the chosen answer is right: ``None`` if that is unknown, false without a solution."""
        return False if self.chosen is None else self.candidates[self.chosen].outcome


def conclude(space: Space, method: str, leaves: Sequence[Prefix], rule: str) -> SearchResult:
    """Grade the solutions that a search ended with, and choose among them by ``rule``.

    ``leaves`` may name a node several times; what has no text is no solution.
    """
    weights: dict[str, int] = {}
    nodes: dict[str, Prefix] = {}
    for leaf in leaves:
        if leaf.prefix.strip():
            weights[leaf.prefix] = weights.get(leaf.prefix, 0) + 1
            if leaf.prefix not in nodes or nodes[leaf.prefix].data.finish is None:
                nodes[leaf.prefix] = leaf
    grades = space.grader.grade(list(nodes), [space.problem.answer] * len(nodes))
    traces = [
        space.trace(node).model_copy(update={"answer": grade.answer, "outcome": grade.outcome})
        for node, grade in zip(nodes.values(), grades, strict=True)
    ]
    values = [space.value(node) for node in nodes.values()]
    known = [None if value == -float("inf") else value for value in values]
    answers = group_equal([grade.answer for grade in grades], space.grader.checker)
    chosen = _choose(rule, answers, known, list(weights.values()))
    return SearchResult(
        problem_id=space.problem.id,
        method=method,
        seed=space.seed,
        candidates=tuple(traces),
        scores=tuple(space.record(node, trace) for node, trace in zip(nodes.values(), traces, strict=True))
        if space.has_scorer
        else (),
        values=tuple(known),
        weights=tuple(weights.values()),
        rule=rule,
        chosen=chosen,
        usage=space.usage,
        counts=_counts(space.counts, nodes=sum(bool(node.text) for node in space.tree)),
        error="; ".join(space.counts.errors) or None,
    )


def _choose(
    rule: str, answers: Sequence[str | None], values: Sequence[float | None], weights: Sequence[int]
) -> int | None:
    if not answers:
        return None
    if rule == FIRST:
        return 0
    places = [place for place, weight in enumerate(weights) for _ in range(weight)]
    candidates = [Candidate(answer=answers[k], score=values[k]) for k in places]
    return places[SELECTORS[rule].select(candidates)]


def _counts(counts: Counts, *, nodes: int) -> SearchCounts:
    return SearchCounts(
        nodes=nodes,
        drawn=counts.drawn,
        merged=counts.merged,
        capped=counts.capped,
        unscored=counts.unscored,
        failed=counts.failed,
    )
