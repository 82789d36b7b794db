"""Best-of-N, weighted vote and self-consistency: whole solutions, and a choice among them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from surefoot.scores import TraceRule
from surefoot.search.method import SearchMethod
from surefoot.search.selection import Rule
from surefoot.search.space import Prefix, Space


class WholeSolutions(SearchMethod):
    """Base of the methods that draw ``n`` whole solutions.

    With ``batch``, solutions are sampled that many at a time, until no answer can overtake the one that leads
    (:func:`settled`): the answer chosen is then the one that all ``n`` would choose. For the rules that use
    scores, that holds for scores in [0, 1]; with sums of step scores, all ``n`` are sampled. A request that
    fails is not repeated.
    """

    by_steps: ClassVar[bool] = False
    n: int = Field(default=16, ge=1, description="Solutions per problem.")
    batch: int | None = Field(
        default=None,
        ge=1,
        description="Draw this many at a time, until no further solution can change the answer.",
    )

    @property
    def draws(self) -> int:
        """As :attr:`SearchMethod.draws`."""
        return self.n

    async def explore(self, space: Space) -> list[Prefix]:
        """The solutions in the order sampled."""
        solutions: list[Prefix] = []
        remaining = self.n
        while remaining:
            now = min(self.batch or remaining, remaining)
            [batch] = await space.extend([space.root], now, to_end=True)
            solutions += batch
            remaining -= now
            if self.needs_scorer:
                await space.score(batch)
            if remaining and solutions and self.batch:
                answers = await space.answers(solutions)
                values = [-math.inf if space.refuted(prefix) else space.value(prefix) for prefix in solutions]
                if self.stops(answers, values, remaining, space.aggregation):
                    break
        return solutions

    def stops(
        self, answers: Sequence[str | None], values: Sequence[float], left: int, aggregation: TraceRule
    ) -> bool:
        """Whether to sample no more, of solutions with these canonical answers and values."""
        bounded = not self.needs_scorer or aggregation != "sum"
        return bounded and settled(answers, values, left, self.rule)


class BestOfNSearch(WholeSolutions):
    """Draw ``n`` whole solutions and choose by ``rule``, which reads their scores.

    "best_of_n": the best-scored (Cobbe et al. 2021, arXiv 2110.14168); "weighted_vote": the answer with the
    largest sum of scores (Uesato et al. 2022, arXiv 2211.14275).

    With ``stop_at`` the rule "best_of_n" also stops once a solution with an answer scores that much: it draws
    less, and may miss a solution that would score higher. :func:`surefoot.search.false_accepts` measures how
    often a wrong solution scores that much.
    """

    method: ClassVar[str] = "best-of-n"
    rule: Rule = Field(default="best_of_n", description="How the solution that is returned is chosen.")
    stop_at: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="With `batch`: stop once a solution scores this much. The summary says how often a wrong "
        "solution does, as measured on held-out problems.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rule == "majority":
            raise ValueError("'rule' majority reads no scores: take the method majority")
        if self.stop_at is not None and (self.batch is None or self.rule != "best_of_n"):
            raise ValueError("'stop_at' needs 'batch' and the rule best_of_n")
        return self

    def stops(
        self, answers: Sequence[str | None], values: Sequence[float], left: int, aggregation: TraceRule
    ) -> bool:
        """Whether a solution scores enough, or none of those ``left`` can change the answer."""
        if self.stop_at is not None and any(
            answer is not None and value >= self.stop_at
            for answer, value in zip(answers, values, strict=True)
        ):
            return True
        return super().stops(answers, values, left, aggregation)


class MajoritySearch(WholeSolutions):
    """The most frequent of ``n`` answers: self-consistency (Wang et al. 2022, arXiv 2203.11171).

    Nothing is scored, and no scorer is needed.
    """

    method: ClassVar[str] = "majority"
    needs_scorer: ClassVar[bool] = False
    rule: Literal["majority"] = Field(default="majority", description="Each answer has one vote.")


def settled(answers: Sequence[str | None], values: Sequence[float], left: int, rule: str) -> bool:
    """Whether ``left`` more samples cannot change the answer that ``rule`` chooses.

    ``answers`` are canonical (``None`` = no answer), ``values`` minus infinity where there is none. Majority:
    every rival would need more votes than are left to draw, or as many, and loses a tie to the answer seen
    first. Weighted vote: a further sample adds 1 at most; best of n: an answered sample has the score 1. If
    a score outside [0, 1] was seen, a vote by scores is never settled.
    """
    if rule == "majority":
        return _majority_settled(answers, left)
    scored = [(answer, value) for answer, value in zip(answers, values, strict=True) if value > -math.inf]
    if not all(0 <= value <= 1 for _, value in scored):
        return False
    if rule == "best_of_n":
        return any(answer is not None and value == 1 for answer, value in scored)
    if rule == "weighted_vote":
        totals: dict[str, float] = {}
        for answer, value in scored:
            if answer is not None:
                totals[answer] = totals.get(answer, 0.0) + value
        best, rival, *_ = [*sorted(totals.values(), reverse=True), 0.0, 0.0]
        # clear of the tolerance within which a vote counts as tied
        return best > (rival + left) * (1 + _MARGIN)
    return False


_MARGIN = 1e-8


def _majority_settled(answers: Sequence[str | None], left: int) -> bool:
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return False
    (leader, lead), *rivals = votes.most_common()  # of equals the first seen comes first
    order = list(votes)
    earlier = order[: order.index(leader)]
    return lead >= left and all(count + left < lead + (answer not in earlier) for answer, count in rivals)
