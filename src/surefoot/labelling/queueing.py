"""Active learning: which solutions a person should label next, as priorities (highest first).

Three rules. ``convincing_wrong``: wrong final answer but a high solution score, like phase 2 of PRM800K
(Lightman et al., arXiv 2305.20050, section 2.4 and appendix D). ``uncertainty``: entropy of the position of
the first error. ``disagreement``: how much several scorers differ about that position (query by committee;
Houlsby et al., arXiv 1112.5745).

The last two use the position of the first error because a label of a whole solution determines it. If the
scores p_1 … p_T are the chances that step t is correct given that all earlier steps are, the first error is
at t with probability p_1 … p_(t-1) (1 - p_t), and there is none with probability p_1 … p_T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from surefoot.errors import LabelError

Scores = tuple[float | None, ...]

QueueRule = Literal["convincing-wrong", "uncertainty", "disagreement"]


@dataclass(frozen=True, kw_only=True)
class QueueCandidate:
    """One item to label: a solution, or alternatives of a step with a score each."""

    item_id: int
    outcomes: tuple[bool | None, ...]
    """Per trace: whether the final answer is correct; ``None`` = not graded."""
    scores: tuple[Mapping[str, Scores], ...]
    """Per trace: step scores in [0, 1] by the scorer's name; a scorer may be absent."""


@dataclass(frozen=True, kw_only=True)
class Priorities:
    """Priorities by item, and counts of the items that could not be ranked."""

    values: Mapping[int, float]
    left_out: Mapping[str, int]
    """Number of items without a priority, by reason; they come last, in the order they were added."""


def priorities(
    rule: QueueRule, candidates: Sequence[QueueCandidate], *, scorer: str | None = None
) -> Priorities:
    """Priorities of all candidates; an item of several traces has the highest of their priorities.

    ``scorer`` is the scorer for the first two rules; ``None`` = the mean over the scorers that scored every
    step. Raises ``LabelError`` for an unknown rule or a score outside [0, 1].
    """
    if rule not in _RULES:
        raise LabelError(f"unknown queue rule {rule!r}; use one of {', '.join(_RULES)}")
    values: dict[int, float] = {}
    left_out: dict[str, int] = {}
    for candidate in candidates:
        urgencies, reason = [], _NOT_SCORED
        for outcome, by_scorer in zip(candidate.outcomes, candidate.scores, strict=True):
            rows = _whole(by_scorer, None if rule == "disagreement" else scorer)
            if not rows:
                continue
            if rule == "disagreement" and len(rows) < 2:
                reason = "fewer than two scorers"
                continue
            urgencies.append(_RULES[rule](outcome, rows))
        if urgencies:
            values[candidate.item_id] = max(urgencies)
        else:
            left_out[reason] = left_out.get(reason, 0) + 1
    return Priorities(values=values, left_out=left_out)


def convincing_wrong(outcome: bool | None, scores: Sequence[Sequence[float]]) -> float:
    """Solution score, the product of step scores, plus 1 if the answer is wrong; mean over scorers.

    So all wrong answers come first, the most convincing at the top, and then the most convincing of the rest
    (arXiv 2305.20050, section 4.2, fills its last fifth like this).
    """
    score = math.fsum(math.prod(row) for row in scores) / len(scores)
    return score + 1 if outcome is False else score


def uncertainty(outcome: bool | None, scores: Sequence[Sequence[float]]) -> float:
    """Entropy in bits of the position of the first error, under the mean distribution over scorers."""
    del outcome
    return _entropy(_mean([first_error_chances(row) for row in scores]))


def disagreement(outcome: bool | None, scores: Sequence[Sequence[float]]) -> float:
    """Jensen-Shannon divergence in bits of the scorers' first errors: H(mean) - mean H, at least 0."""
    del outcome
    distributions = [first_error_chances(row) for row in scores]
    spread = math.fsum(_entropy(distribution) for distribution in distributions) / len(distributions)
    return max(0.0, _entropy(_mean(distributions)) - spread)


def first_error_chances(scores: Sequence[float]) -> list[float]:
    """Chances that the first error is at step 0 … T-1, and, last, that there is none; they sum to 1."""
    chances, alive = [], 1.0
    for score in scores:
        chances.append(alive * (1 - score))
        alive *= score
    return [*chances, alive]


_RULES: dict[QueueRule, Callable[[bool | None, Sequence[Sequence[float]]], float]] = {
    "convincing-wrong": convincing_wrong,
    "uncertainty": uncertainty,
    "disagreement": disagreement,
}
_NOT_SCORED = "no complete scores"


def _whole(by_scorer: Mapping[str, Scores], scorer: str | None) -> list[list[float]]:
    """Rows of the scorers that scored every step; a missing score is not zero."""
    rows = []
    for name, row in by_scorer.items():
        if scorer not in (None, name) or not row:
            continue
        scored = [score for score in row if score is not None and not math.isnan(score)]
        if any(not 0 <= score <= 1 for score in scored):
            raise LabelError(f"scorer {name!r} gave a score outside [0, 1]; calibrate it first")
        if len(scored) == len(row):
            rows.append(scored)
    return rows


def _mean(rows: Sequence[Sequence[float]]) -> list[float]:
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def _entropy(chances: Sequence[float]) -> float:
    return -math.fsum(chance * math.log2(chance) for chance in chances if chance > 0)
