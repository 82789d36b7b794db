"""Several reward models as one, and how far they disagree.

Agreement proves nothing (models of one base share its blind spots), but disagreement is a cheap sign that a
step lies outside the training distribution; the minimum is harder to exploit than any member (Coste et al.,
arXiv 2310.02743, for outcome reward models)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

from surefoot.models.card import SERVER, CheckpointCard
from surefoot.models.scorer import CheckpointScorer
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import StepScores
from surefoot.scores import checked_scores, complete_scores

Combine = Literal["mean", "min"]

Spread = Literal["std", "range"]
"""std: standard deviation over the members (divided by their number); range: highest less lowest."""


@dataclass(frozen=True, kw_only=True)
class SpreadScores:
    """What an ensemble says of one trace."""

    scores: StepScores
    """Combined."""
    spread: tuple[float | None, ...]
    """Disagreement at each step, in units of the scores; ``None`` if a member did not score it."""
    members: tuple[StepScores, ...]
    """Each member's scores, in order."""


class Ensemble(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` that combines others step by step.

    A step that any member has not scored is unscored, with the members' reasons: a mean over the others would
    not be comparable. Raises ``ValueError`` for no members, or members whose cards say that their scores mean
    different things (the mean of a value and a correctness is meaningless).
    """

    def __init__(
        self,
        scorers: Sequence[StepScorer],
        how: Combine = "mean",
        *,
        spread: Spread = "std",
        name: str | None = None,
    ) -> None:
        if not scorers:
            raise ValueError("'scorers' is empty: an ensemble needs a member")
        cards = [card for scorer in scorers if (card := getattr(scorer, "card", None))]
        # what a server's scores mean is not known here
        meanings = {card.score_means for card in cards if card.family != SERVER}
        if len(meanings) > 1:
            raise ValueError(f"the members' scores mean different things: {', '.join(sorted(meanings))}")
        if how not in ("mean", "min"):
            raise ValueError(f"'how' is 'mean' or 'min', not {how!r}")
        if spread not in ("std", "range"):
            raise ValueError(f"'spread' is 'std' or 'range', not {spread!r}")
        self.scorers, self.how, self.spread = tuple(scorers), how, spread
        names = [getattr(scorer, "name", type(scorer).__name__) for scorer in scorers]
        self.name = name or "+".join(names)
        rules = {card.aggregation for card in cards}
        self.card = CheckpointCard(
            family="ensemble",
            kind="prm",
            aggregation=rules.pop() if len(rules) == 1 else "min",
            score_means=meanings.pop() if meanings else "value",
            label_source=", ".join(sorted({card.label_source for card in cards})) or "unknown",
            base=", ".join(names),
        )

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Combined scores, one record per trace, in order; usage sums all members."""
        return [combined.scores for combined in self.score_with_spread(items)]

    def score_with_spread(self, items: Sequence[ProblemTrace]) -> list[SpreadScores]:
        """Combined scores with the members' disagreement at each step.

        Raises ``ScoreError`` if a member's scores do not fit the traces.
        """
        by_member = [checked_scores(scorer, items) for scorer in self.scorers]
        return [self._combine(members) for members in zip(*by_member, strict=True)]

    def _combine(self, members: tuple[StepScores, ...]) -> SpreadScores:
        steps = [complete_scores(step) for step in zip(*(member.scores for member in members), strict=True)]
        combined = tuple(None if values is None else self._one(values) for values in steps)
        reasons = [f"{m.scorer}: {m.unscored_reason}" for m in members if m.unscored_reason]
        return SpreadScores(
            scores=StepScores.of_model(
                trace_id=members[0].trace_id,
                scorer=self.name,
                scores=combined,
                unscored_reason="; ".join(reasons) or None,
                usage=reduce(add, (member.usage for member in members)),
            ),
            spread=tuple(None if values is None else self._spread(values) for values in steps),
            members=members,
        )

    def _one(self, known: list[float]) -> float:
        return min(known) if self.how == "min" else math.fsum(known) / len(known)

    def _spread(self, known: list[float]) -> float:
        if self.spread == "range":
            return max(known) - min(known)
        mean = math.fsum(known) / len(known)
        return math.sqrt(math.fsum((score - mean) ** 2 for score in known) / len(known))
