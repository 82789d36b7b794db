"""Credit rules for episodes of several turns, and the union of all rules.

The rollout is a whole episode: its tokens are those that the policy wrote, its steps are its turns, and what
the environment answered is in no turn. Every rule gives every turn a reward or the rollout none at all: a
turn whose reward is missing is an error, never a silent 0.

The rule ``effective`` (PAV) works for turns as it is: its step scores are then the values after turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, Field

from surefoot.errors import ScoreError
from surefoot.rl.credit import (
    ClipDelta,
    Effective,
    FloatArray,
    Implicit,
    MinForm,
    Mixed,
    Need,
    Outcome,
    RewardStream,
    Rule,
    ScoredRollout,
    Summed,
    mean_outcome_of_others,
)

_EPSILON = 1e-6

TurnRewards = Literal["outcome", "scores", "both"]
_NEEDS: dict[TurnRewards, frozenset[Need]] = {
    "outcome": frozenset({"outcome"}),
    "scores": frozenset({"scores"}),
    "both": frozenset({"outcome", "scores"}),
}


def turn_rewards(rollout: ScoredRollout, of: TurnRewards) -> FloatArray | None:
    """Reward of each turn [K]: its score, the outcome at the last turn, or both added.

    ``None`` where the outcome is read and was not judged. Raises ``ScoreError`` for an episode without turns
    and for a turn without a score where scores are read.
    """
    if not rollout.ends:
        raise ScoreError("an episode has no 'ends': give the last token of each of its turns")
    rewards_k = np.zeros(len(rollout.ends))
    if of != "outcome":
        if not rollout.scores or None in rollout.scores:
            turn = rollout.scores.index(None) + 1 if rollout.scores else 1
            raise ScoreError(
                f"turn {turn} is unscored, and a missing reward is not 0: give a scorer that scores every "
                "turn, or set 'rewards' to outcome"
            )
        rewards_k += np.array(rollout.scores, dtype=float)
    if of != "scores":
        if rollout.outcome is None:
            return None
        rewards_k[-1] += rollout.outcome
    return rewards_k


class _TurnRule(Rule):
    """Base of the rules that read rewards of turns."""

    rewards: TurnRewards = Field(
        default="outcome",
        description="Reward of a turn: its score, the outcome at the last turn (0 before it), or both.",
    )

    def _grouped(self, group: Sequence[ScoredRollout]) -> list[FloatArray | None]:
        return [turn_rewards(rollout, self.rewards) for rollout in group]


class AnchorState(_TurnRule):
    """Anchor states (GiGPO, Feng et al., arXiv 2505.10978, equations 6 to 8): A = A_episode + ω A_step.

    A_episode compares the total rewards of a group's episodes: one stream, whose baseline the estimator
    subtracts (``group``, as published). A_step compares turns taken in equal environment states of a group:
    with the discounted return R_k = sum over j >= k of γ^(j-k) r_j,

        A_step = R_k - mean of R over the turns of the group in that state,

    divided by their standard deviation (n - 1) plus 1e-6 with ``scale``. It holds for the tokens of turn k
    alone. A state that was met once says nothing (A_step 0); its turn still has A_episode.
    """

    rule: Literal["anchor-state"] = Field(
        default="anchor-state", description="Credit by turns in equal environment states (GiGPO)."
    )
    weight: float = Field(default=1.0, gt=0, description="ω, weight of the comparison within states.")
    gamma: float = Field(default=0.95, gt=0, le=1, description="Discount per turn within states.")
    scale: bool = Field(
        default=False, description="Divide by the standard deviation of the returns in a state."
    )

    @property
    def needs(self) -> frozenset[Need]:
        """The rewards, and the states."""
        return _NEEDS[self.rewards] | {"states"}

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """The total reward at the last token, and the advantages within states.

        Raises ``ScoreError`` for an episode without states.
        """
        return [self._of_group(group) for group in batch]

    def _of_group(self, group: Sequence[ScoredRollout]) -> list[tuple[RewardStream, ...]]:
        if any(not rollout.states for rollout in group):
            raise ScoreError(
                "credit 'anchor-state' compares turns in equal states, but an episode has no 'states': roll "
                "out in an environment whose state can be compared"
            )
        rewards = self._grouped(group)
        returns = [None if reward is None else discounted_returns(reward, self.gamma) for reward in rewards]
        visits: dict[str, list[float]] = defaultdict(list)
        for rollout, returns_k in zip(group, returns, strict=True):
            for state, value in zip(rollout.states, () if returns_k is None else returns_k, strict=False):
                visits[state].append(float(value))
        return [
            (self._episode(rollout, rewards_k), self._within(rollout, returns_k, visits))
            for rollout, rewards_k, returns_k in zip(group, rewards, returns, strict=True)
        ]

    def _episode(self, rollout: ScoredRollout, rewards_k: FloatArray | None) -> RewardStream:
        if rewards_k is None:
            return RewardStream(at=(), values=())
        return RewardStream(at=(rollout.last,), values=(float(rewards_k.sum()),))

    def _within(
        self, rollout: ScoredRollout, returns_k: FloatArray | None, visits: dict[str, list[float]]
    ) -> RewardStream:
        values = (
            ()
            if returns_k is None
            else tuple(
                self._relative(float(value), visits[state])
                for state, value in zip(rollout.states, returns_k, strict=True)
            )
        )
        return RewardStream(
            at=rollout.ends if values else (), values=values, weight=self.weight, reach="own", centred=True
        )

    def _relative(self, value: float, visits: Sequence[float]) -> float:
        if min(visits) == max(visits):
            return 0.0
        difference = value - float(np.mean(visits))
        return difference / (float(np.std(visits, ddof=1)) + _EPSILON) if self.scale else difference


def discounted_returns(rewards_k: FloatArray, gamma: float) -> FloatArray:
    """sum over j >= k of γ^(j-k) r_j, for every turn k [K]; also λ-sums of differences."""
    returns_k = np.array(rewards_k, dtype=float)
    for turn in range(len(returns_k) - 2, -1, -1):
        returns_k[turn] += gamma * returns_k[turn + 1]
    return returns_k


class TurnDifference(Rule):
    """Turn credit by score differences, a potential Φ = the score after each turn.

        δ_k = Φ_k - Φ_{k-1},    A_k = sum over j >= k of λ^(j-k) δ_j,

    for the tokens of turn k. Φ_K of the last turn is the outcome where it is judged, and Φ_0 is ``start``,
    else the mean outcome of the group's *other* episodes. All δ sum to Φ_K - Φ_0, whatever the scores are:
    a turn cannot earn what a later one does not lose (potential-based shaping, Ng et al. 1999).

    - λ = 1: A_k = outcome - Φ_{k-1}. Scores are a baseline; the gradient is unbiased however wrong they are.
    - λ = 0: A_k = Φ_k - Φ_{k-1}, the least variance, and as good as the scores are. Between lies
      generalised advantage estimation (arXiv 1506.02438) over turns, as in AgentPRM (arXiv 2511.08325).

    A turn without a score shares the advantage of the next one that has a Φ. An episode without a Φ_0 or
    without any Φ gets no reward.
    """

    rule: Literal["turn-difference"] = Field(
        default="turn-difference", description="Credit by differences of turn scores."
    )
    needs: ClassVar[frozenset[Need]] = frozenset({"scores", "outcome"})
    lam: float = Field(
        default=0.0, ge=0, le=1, description="λ: 0 = the turn's own difference, 1 = all later."
    )
    start: float | None = Field(
        default=None,
        description="Φ before the first turn, for all problems; by default the others' mean outcome.",
    )

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """The advantages, as one centred stream."""
        return [
            [(self._advantages(rollout, self._start(group, index)),) for index, rollout in enumerate(group)]
            for group in batch
        ]

    def _start(self, group: Sequence[ScoredRollout], index: int) -> float | None:
        return mean_outcome_of_others(group, index) if self.start is None else self.start

    def _advantages(self, rollout: ScoredRollout, start: float | None) -> RewardStream:
        turns = [(end, score) for _, end, score in rollout.scored_steps()]
        if rollout.outcome is not None:
            turns = [*(turn for turn in turns if turn[0] != rollout.last), (rollout.last, rollout.outcome)]
        if start is None or not turns:
            return RewardStream(at=(), values=(), reach="own", centred=True)
        differences_k = np.diff([start, *(potential for _, potential in turns)])
        return RewardStream(
            at=tuple(end for end, _ in turns),
            values=tuple(discounted_returns(differences_k, self.lam).tolist()),
            reach="own",
            centred=True,
        )


class TurnNormalized(_TurnRule):
    """Rewards less the group's mean at the same turn, then returns: A_k = sum over j >= k of (r_j - b_j).

    b_j is the mean reward of turn j over

    - ``ended`` zero: all episodes of the group, of which those that have ended have r_j = 0. They are charged
      b_j as well, so that every episode is compared by the same constants: ending or going on is paid by its
      reward alone.
    - ``ended`` absent: the episodes that got to turn j, and those that ended are charged nothing. **Biased**:
      the objective is the return minus the mean reward of each turn taken, so that another turn
      of a mean reward above 0 is not paid for, and one below 0 is free. It is here to be compared with.
    """

    rule: Literal["turn-normalized"] = Field(
        default="turn-normalized", description="Credit by rewards less the group's mean at that turn."
    )
    rewards: TurnRewards = Field(
        default="both",
        description="Reward of a turn: its score, the outcome at the last turn (0 before it), or both.",
    )
    ended: Literal["zero", "absent"] = Field(
        default="zero",
        description="Episodes that ended earlier: in the mean with 0 (unbiased), or not in it (biased).",
    )

    @property
    def needs(self) -> frozenset[Need]:
        """The rewards."""
        return _NEEDS[self.rewards]

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """One centred stream; empty where an outcome is read and was not judged."""
        return [self._of_group(group) for group in batch]

    def _of_group(self, group: Sequence[ScoredRollout]) -> list[tuple[RewardStream, ...]]:
        rewards = self._grouped(group)
        present = [reward for reward in rewards if reward is not None]
        if len(present) < 2:  # nothing to compare with
            return [(RewardStream(at=(), values=(), centred=True),) for _ in group]
        baseline_k = self._baseline(present)
        return [
            (self._stream(rollout, rewards_k, baseline_k),)
            for rollout, rewards_k in zip(group, rewards, strict=True)
        ]

    def _baseline(self, known: Sequence[FloatArray]) -> FloatArray:
        longest = max(map(len, known))
        sums, counts = np.zeros(longest), np.zeros(longest)
        for rewards_k in known:
            sums[: len(rewards_k)] += rewards_k
            counts[: len(rewards_k)] += 1
        return np.asarray(sums / (len(known) if self.ended == "zero" else counts))

    def _stream(
        self, rollout: ScoredRollout, rewards_k: FloatArray | None, baseline_k: FloatArray
    ) -> RewardStream:
        if rewards_k is None:
            return RewardStream(at=(), values=(), centred=True)
        turns = len(rewards_k)
        values_k = rewards_k - baseline_k[:turns]
        if self.ended == "zero":
            values_k[-1] -= baseline_k[turns:].sum()
        return RewardStream(at=rollout.ends, values=tuple(values_k.tolist()), centred=True)


Credit: TypeAlias = Annotated[
    Outcome
    | Summed
    | MinForm
    | ClipDelta
    | Effective
    | Implicit
    | Mixed
    | AnchorState
    | TurnDifference
    | TurnNormalized,
    Field(discriminator="rule"),
]
"""Any rule, as a field of the settings."""

CREDITS: dict[str, type[BaseModel]] = {
    kind.model_fields["rule"].default: kind
    for kind in (
        Outcome, Summed, MinForm, ClipDelta, Effective, Implicit, Mixed, AnchorState, TurnDifference,
        TurnNormalized,
    )
}  # fmt: skip
"""Rules by their tag."""
