"""Selectors: which of several solutions to one problem to hand out.

Shared rules. Equal answer strings are equal answers, so canonicalise first (``surefoot.answers``). A score
that is ``None``, NaN or infinite means "not scored" and is never preferred. Ties go to what comes first, so
that a selector is a function of its input alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from surefoot.errors import ScoreError
from surefoot.protocols import Candidate, Selector

Rule = Literal["majority", "best_of_n", "weighted_vote", "first"]
"""How one of a search's solutions is chosen: a selector, or "first", which the search itself put first."""

FIRST: Final = "first"

TIE_TOLERANCE = 1e-9
"""Vote totals closer than this (relative) are tied: the rounding of a sum is no evidence for an answer."""


@dataclass(frozen=True)
class Majority:
    """Most frequent answer (self-consistency, Wang et al. 2022, arXiv 2203.11171).

    Tie: the answer seen first. A candidate without an answer has no vote; if none has one, index 0.
    """

    def select(self, candidates: Sequence[Candidate]) -> int:
        """Index of the first candidate with the winning answer; ``ScoreError`` if there are no candidates."""
        _require(candidates)
        votes: dict[str, int] = {}
        for candidate in candidates:
            if candidate.answer is not None:
                votes[candidate.answer] = votes.get(candidate.answer, 0) + 1
        if not votes:
            return 0
        # max keeps the first of equals, and a dict keeps the order in which answers were seen
        winner = max(votes, key=votes.__getitem__)
        return next(i for i, candidate in enumerate(candidates) if candidate.answer == winner)


@dataclass(frozen=True)
class BestOfN:
    """Highest score (Cobbe et al. 2021, arXiv 2110.14168). Tie: the first; nothing scored: index 0.

    A sample without a final answer is chosen only if no scored sample has one: right steps that lead
    nowhere do not answer the problem.
    """

    def select(self, candidates: Sequence[Candidate]) -> int:
        """Index of the best-scored candidate; ``ScoreError`` if there are no candidates."""
        _require(candidates)
        return _best(candidates, range(len(candidates)))


@dataclass(frozen=True)
class WeightedVote:
    """argmax_a of the sum of scores of the samples with answer a, then the best-scored of these.

    Uesato et al. 2022 (arXiv 2211.14275), reward-model weighted decoding. Scores should be >= 0: with
    negative ones a further vote counts against its answer. Only candidates with an answer and a score vote.
    If there is none, the rule falls back to ``Majority``, and without any answer to ``BestOfN``.
    """

    def select(self, candidates: Sequence[Candidate]) -> int:
        """Index of the chosen candidate; ``ScoreError`` if there are no candidates."""
        _require(candidates)
        votes: dict[str, list[float]] = {}
        for candidate in candidates:
            if candidate.answer is not None and _value(candidate) > -math.inf:
                votes.setdefault(candidate.answer, []).append(_value(candidate))
        if not votes:
            answered = any(candidate.answer is not None for candidate in candidates)
            return Majority().select(candidates) if answered else BestOfN().select(candidates)
        totals = {answer: math.fsum(scores) for answer, scores in votes.items()}
        best = max(totals.values())
        floor = best - TIE_TOLERANCE * abs(best)
        winner = next(answer for answer, total in totals.items() if total >= floor)
        return _best(candidates, [i for i, c in enumerate(candidates) if c.answer == winner])


SELECTORS: Mapping[str, Selector] = MappingProxyType(
    {"majority": Majority(), "best_of_n": BestOfN(), "weighted_vote": WeightedVote()}
)
"""Selectors by the name that the command line and the reports use."""


def _require(candidates: Sequence[Candidate]) -> None:
    if not candidates:
        raise ScoreError(
            "'candidates' is empty: there is nothing to choose from; count the problem as unanswered"
        )


def preference(candidate: Candidate) -> tuple[bool, bool, float]:
    """Sort key of ``BestOfN``: scored before unscored, of these answered before unanswered, then by score."""
    value = _value(candidate)
    return value > -math.inf, candidate.answer is not None, value


def _value(candidate: Candidate) -> float:
    """Score, or minus infinity where there is none."""
    score = candidate.score
    return score if score is not None and math.isfinite(score) else -math.inf


def _best(candidates: Sequence[Candidate], among: Sequence[int]) -> int:
    return max(among, key=lambda index: preference(candidates[index]))
