"""Selectors: which of several solutions to one problem to hand out.

Shared rules. Equal answer strings are equal answers, so canonicalise first (``surefoot.answers``). A score
that is ``None``, NaN or infinite means "not scored" and is never preferred. A candidate with a refuted step
takes part only if all have one. Ties go to what comes first, so that a selector is a function of its input
alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from surefoot.errors import ScoreError
from surefoot.protocols import Candidate, Selector

ScoreRule = Literal["best_of_n", "weighted_vote", "agreement"]
"""Selectors that read scores, of whatever scorer."""

COMMON_RULES: tuple[ScoreRule, ...] = ("best_of_n", "weighted_vote")
"""Those that evaluations compare unless others are asked for."""

SelectorName = Literal["majority", ScoreRule]

Rule = Literal[SelectorName, "first"]
"""How one of a search's solutions is chosen: a selector, or "first", which the search itself put first."""

FIRST: Final = "first"

TIE_TOLERANCE = 1e-9
"""Vote totals closer than this (relative) are tied: rounding errors of a sum must not decide."""


class _Selector:
    """Base of the selectors, whose ``_choose`` is given one candidate at least."""

    def select(self, candidates: Sequence[Candidate]) -> int:
        """Index of the chosen candidate; raises ``ScoreError`` without candidates."""
        if not candidates:
            raise ScoreError(
                "'candidates' is empty: there is nothing to choose from; count the problem as unanswered"
            )
        among = passing([not candidate.refuted for candidate in candidates])
        return among[self._choose([candidates[at] for at in among])]

    def _choose(self, candidates: Sequence[Candidate]) -> int:
        raise NotImplementedError


@dataclass(frozen=True)
class Majority(_Selector):
    """Most frequent answer (self-consistency, Wang et al. 2022, arXiv 2203.11171).

    Tie: the answer seen first. Candidates without an answer do not vote; if all lack one, index 0.
    """

    def _choose(self, candidates: Sequence[Candidate]) -> int:
        votes = Counter(candidate.answer for candidate in candidates if candidate.answer is not None)
        if not votes:
            return 0
        winner = votes.most_common(1)[0][0]  # the first of equals
        return next(i for i, candidate in enumerate(candidates) if candidate.answer == winner)


@dataclass(frozen=True)
class BestOfN(_Selector):
    """Highest score (Cobbe et al. 2021, arXiv 2110.14168). Tie: the first; nothing scored: index 0.

    A sample without a final answer is chosen only if no scored sample has one: right steps that lead
    nowhere do not answer the problem.
    """

    def _choose(self, candidates: Sequence[Candidate]) -> int:
        return _best(candidates, range(len(candidates)))


@dataclass(frozen=True)
class WeightedVote(_Selector):
    """argmax_a of the sum of scores of the samples with answer a, then the best-scored of these.

    Uesato et al. 2022 (arXiv 2211.14275), reward-model weighted decoding. Scores should be >= 0: with
    negative ones a further vote counts against its answer. Only answers with a scored candidate can win;
    their unscored candidates vote with the lowest score of all, at most 0. If there is none, the rule falls
    back to ``Majority``, and without any answer to ``BestOfN``.

    With ``power`` p an answer's total is the mean of its scores times its number of votes to the power of p.
    CodeT's dual execution agreement (Chen et al. 2022, arXiv 2207.10397) is p = 1/2: answers are the
    behaviour of programs, and the score is the number of tests passed.
    """

    power: float = 1.0

    def _choose(self, candidates: Sequence[Candidate]) -> int:
        scored = [candidate for candidate in candidates if _votes_by_score(candidate)]
        if not scored:
            answered = any(candidate.answer is not None for candidate in candidates)
            return Majority().select(candidates) if answered else BestOfN().select(candidates)
        lowest = min(0.0, *map(_value, scored))
        votes: dict[str, list[float]] = {str(candidate.answer): [] for candidate in scored}
        for candidate in candidates:
            if candidate.answer in votes:
                votes[candidate.answer].append(max(_value(candidate), lowest))
        totals = {
            answer: math.fsum(scores) * len(scores) ** (self.power - 1) for answer, scores in votes.items()
        }
        best = max(totals.values())
        floor = best - TIE_TOLERANCE * abs(best)
        winner = next(answer for answer, total in totals.items() if total >= floor)
        return _best(candidates, [i for i, c in enumerate(candidates) if c.answer == winner])


SELECTORS: Mapping[str, Selector] = MappingProxyType(
    {
        "majority": Majority(),
        "best_of_n": BestOfN(),
        "weighted_vote": WeightedVote(),
        "agreement": WeightedVote(power=0.5),
    }
)
"""Selectors by the name that the command line and the reports use."""


def select_among(
    selector: Selector, candidates: Sequence[Candidate], gate: Sequence[float | None] | None
) -> int:
    """What ``selector`` chooses among the candidates with the highest value in ``gate``, of the same length.

    Without a gate, or without finite values, all take part. This puts nearly certain evidence (visible
    tests of a program) before votes and learned scores, without weights to fit.
    """
    if gate is None:
        return selector.select(candidates)
    among = passing(gate)
    return among[selector.select([candidates[at] for at in among])]


def passing(gate: Sequence[float | None]) -> list[int]:
    """Indices of the highest value; all, if none is finite."""
    values = [value if value is not None and math.isfinite(value) else -math.inf for value in gate]
    best = max(values, default=-math.inf)
    return [at for at, value in enumerate(values) if value == best]


def preference(candidate: Candidate) -> tuple[bool, bool, float]:
    """Sort key of ``BestOfN``: scored before unscored, of these answered before unanswered, then by score."""
    value = _value(candidate)
    return value > -math.inf, candidate.answer is not None, value


def _votes_by_score(candidate: Candidate) -> bool:
    return candidate.answer is not None and _value(candidate) > -math.inf


def _value(candidate: Candidate) -> float:
    """Score, or minus infinity where there is none."""
    score = candidate.score
    return score if score is not None and math.isfinite(score) else -math.inf


def _best(candidates: Sequence[Candidate], among: Sequence[int]) -> int:
    return max(among, key=lambda index: preference(candidates[index]))
