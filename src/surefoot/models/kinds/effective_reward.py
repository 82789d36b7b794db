"""The effective reward of a process advantage verifier (Setlur et al., arXiv 2410.08146): Q + alpha * A.

The base policy's value says how good the state after a step is, the advantage under a prover how much the
step itself did. The prover should not be the base: its advantage would add nothing to the policy gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from surefoot.errors import ScoreError
from surefoot.protocols import ALL_CHANNELS, ProblemTrace, StepScorer
from surefoot.records import StepScores
from surefoot.scores import best_of_k, checked_scores

Start: TypeAlias = "float | Mapping[str, float]"
"""A prover's success rate before the first step: one for all problems, or by problem id."""


class EffectiveReward:
    """A :class:`surefoot.protocols.StepScorer` of Q + ``alpha`` * A, in [-alpha, 1 + alpha].

    Q is ``base``'s score, a value in [0, 1]. The advantage A comes from one of

    - ``advantage``: a model trained on advantage labels. Its score s in [0, 1] means A = 2 s - 1.
    - ``prover``: a model of another policy's values; A = value after the step less value before it.
    - neither: the prover is best-of-``best_of`` of the base, whose values are 1 - (1 - Q)^K; the traces are
      read once. ``best_of`` may also be put on a ``prover``. With ``best_of=1`` and no prover, the prover is
      the base itself.

    The value of the problem before the first step is the score of no step, so ``start`` gives it (of the base
    or ``prover``, before ``best_of``); without it, or for a problem that is not in it, the first step is
    unscored, with the reason. It is the same for all candidates of a problem. The paper searches with
    ``alpha`` 0.5 (useful: 0.2 to 0.6), and trains policies with 3 to 5.

    Choose among finished traces by the last score of ``base``, as the paper does. Effective rewards may be
    negative, so a product is meaningless.
    """

    reads = ALL_CHANNELS

    def __init__(
        self,
        base: StepScorer,
        *,
        alpha: float = 0.5,
        prover: StepScorer | None = None,
        advantage: StepScorer | None = None,
        best_of: int = 1,
        start: Start | None = None,
        name: str = "effective-reward",
    ) -> None:
        if best_of < 1:
            raise ValueError(f"'best_of' must be at least 1, not {best_of}")
        if advantage is not None and (prover is not None or best_of != 1 or start is not None):
            raise ValueError("'advantage' already gives advantages; omit 'prover', 'best_of' and 'start'")
        self.base, self.alpha, self.prover, self.advantage = base, alpha, prover, advantage
        self.best_of, self.start, self.name = best_of, start, name

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Effective rewards, one record per trace, in order; usage sums all models.

        Raises ``ScoreError`` for a score outside [0, 1], or scores that do not fit the traces.
        """
        values = checked_scores(self.base, items)
        other = self.advantage or self.prover
        proofs = values if other is None else checked_scores(other, items)
        for record in (*values, *proofs):
            for step, score in enumerate(record.scores):
                if score is not None and not 0 <= score <= 1:
                    raise ScoreError(
                        f"scores[{step}] of {record.scorer} is {score:g}; effective rewards need values in "
                        "[0, 1]"
                    )
        return [
            self._record(item, value, proof, shared=other is None)
            for item, value, proof in zip(items, values, proofs, strict=True)
        ]

    def _record(
        self, item: ProblemTrace, values: StepScores, proofs: StepScores, *, shared: bool
    ) -> StepScores:
        advantages = self._advantages(item.problem.id, proofs.scores)
        scores = tuple(
            None if value is None or advantage is None else value + self.alpha * advantage
            for value, advantage in zip(values.scores, advantages, strict=True)
        )
        reasons = [values.unscored_reason, None if shared else proofs.unscored_reason]
        if advantages and advantages[0] is None and proofs.scores[0] is not None:
            reasons.append("the value before the first step is unknown ('start')")
        return StepScores.of_model(
            trace_id=item.trace.id,
            scorer=self.name,
            scores=scores,
            unscored_reason="; ".join(reason for reason in reasons if reason) or None,
            usage=values.usage if shared else values.usage + proofs.usage,
        )

    def _advantages(self, problem: str, scores: Sequence[float | None]) -> list[float | None]:
        if self.advantage is not None:
            return [None if score is None else 2 * score - 1 for score in scores]
        start = self.start.get(problem) if isinstance(self.start, Mapping) else self.start
        values = [None if value is None else best_of_k(value, self.best_of) for value in (start, *scores)]
        return [
            None if previous is None or value is None else value - previous
            for previous, value in pairwise(values)
        ]
