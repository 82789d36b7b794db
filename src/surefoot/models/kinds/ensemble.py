"""Several reward models combined into one.

The minimum over members is harder to exploit than any member (Coste et al., arXiv 2310.02743, for outcome
reward models). Agreement proves nothing: models of one base share its blind spots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Literal

from surefoot.models.card import SERVER, CheckpointCard
from surefoot.models.scorer import CheckpointScorer
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import StepScores
from surefoot.scores import channels_read, checked_scores, complete_scores

Combine = Literal["mean", "min"]


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
        self.scorers, self.how = tuple(scorers), how
        names = [getattr(scorer, "name", type(scorer).__name__) for scorer in scorers]
        self.name = name or "+".join(names)
        rules = {card.aggregation for card in cards}
        self.card = CheckpointCard(
            family="ensemble",
            kind="prm",
            aggregation=rules.pop() if len(rules) == 1 else "min",
            score_means=meanings.pop() if meanings else "value",
            label_source=", ".join(sorted({card.label_source for card in cards})) or "unknown",
            reads=tuple(sorted(frozenset().union(*map(channels_read, scorers)))),
            base=", ".join(names),
        )

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Combined scores, one record per trace, in order; usage sums all members.

        Raises ``ScoreError`` if a member's scores do not fit the traces.
        """
        by_member = [checked_scores(scorer, items) for scorer in self.scorers]
        return [self._combine(members) for members in zip(*by_member, strict=True)]

    def _combine(self, members: tuple[StepScores, ...]) -> StepScores:
        scores: list[float | None] = []
        for step in zip(*(member.scores for member in members), strict=True):
            values = complete_scores(step)
            mean = None if values is None else math.fsum(values) / len(values)
            scores.append(min(values) if values and self.how == "min" else mean)
        reasons = [f"{m.scorer}: {m.unscored_reason}" for m in members if m.unscored_reason]
        return StepScores.of_model(
            trace_id=members[0].trace_id,
            scorer=self.name,
            scores=tuple(scores),
            unscored_reason="; ".join(reasons) or None,
            usage=reduce(add, (member.usage for member in members)),
        )
