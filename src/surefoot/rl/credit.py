"""Credit rules: which rewards each token's return is made of; chosen by the tag ``rule``.

An example, with two solutions of one problem, two steps of two tokens each. Their steps score 1, 0 and 1, 1.
``summed`` puts the scores at the last tokens of their steps, and ``leave-one-out`` subtracts from each the
mean score of the other solution, 1 from the first one's and ½ from the second one's. The advantage of a token
is the sum of the differences at or after it:

                          first solution        second solution
    token                  0    1    2    3      0    1    2    3
    rewards                     1         0           1         1
    less the baseline           0        -1           ½         ½
    advantage             -1   -1   -1   -1      1    1    ½    ½

>>> from surefoot.rl import LeaveOneOut, Summed, group_advantages
>>> group_advantages(ends=[[1, 3], [1, 3]], scores=[[1, 0], [1, 1]], credit=Summed(), advantage=LeaveOneOut())
[array([-1., -1., -1., -1.]), array([1. , 1. , 0.5, 0.5])]

In the rules for episodes of several turns the sample is a whole episode: its tokens are those that the
policy wrote, its steps are its turns, and what the environment answered is in no turn. Such a rule gives
every turn a reward or the sample none at all, never a silent 0. ``effective`` (PAV) works for
turns as it is: its step scores are then the values after turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self, TypeAlias, get_args

import numpy as np
from pydantic import Field, model_validator

from surefoot.errors import ScoreError
from surefoot.records import FrozenModel
from surefoot.rl.sample import FloatArray, RewardStream, Sample
from surefoot.scores import best_of_k

Need = Literal["scores", "outcome", "log_ratios", "states"]
"""Field of :class:`Sample` that a rule reads: the trainer computes only what the rule needs."""


class CreditRule(FrozenModel):
    """Turns scored rollouts into rewards at tokens: frozen settings with a tag ``rule``.

    A rule with a single stream per rollout makes it in :meth:`stream`, one that compares the rollouts of a
    group in :meth:`group_credit`.
    """

    needs: ClassVar[frozenset[Need]]
    """What it reads; a property where that depends on its fields."""

    def credit(self, batch: Sequence[Sequence[Sample]]) -> list[list[tuple[RewardStream, ...]]]:
        """Rewards of every rollout of every group (the samples of one problem).

        Every rollout has the same streams in the same order; one without rewards is empty. What is unknown of
        one rollout and known of others of its group counts as failed (:func:`unknown_as_failed`).
        """
        return self._credit([self._judged(group) for group in batch])

    def _judged(self, group: Sequence[Sample]) -> list[Sample]:
        return unknown_as_failed(group)

    def _credit(self, batch: Sequence[Sequence[Sample]]) -> list[list[tuple[RewardStream, ...]]]:
        return [self.group_credit(group) for group in batch]

    def group_credit(self, group: Sequence[Sample]) -> list[tuple[RewardStream, ...]]:
        """The rewards of one group."""
        return [(self.stream(rollout),) for rollout in group]

    def stream(self, rollout: Sample) -> RewardStream:
        """The rewards of a rollout."""
        raise NotImplementedError


def with_rewards(groups: Sequence[Sequence[Sample]], rule: CreditRule) -> list[list[Sample]]:
    """The rollouts of every group (the samples of one problem), with the rewards that ``rule`` gives
    them, followed by those that they have."""
    return [
        [
            replace(rollout, rewards=(*streams, *rollout.rewards))
            for rollout, streams in zip(group, rewards, strict=True)
        ]
        for group, rewards in zip(groups, rule.credit(groups), strict=True)
    ]


def unknown_as_failed(group: Sequence[Sample], *, scores: bool = True) -> list[Sample]:
    """The group with unknown outcomes counted as wrong if another outcome is known; with ``scores``, also
    with unscored steps counted as the group's worst step if another step is scored.

    Otherwise a response that its judge cannot read would beat one that fails. If nothing of a group is known,
    the judge has failed, and nothing is learned from the group.
    """
    outcomes = [rollout.outcome for rollout in group if rollout.outcome is not None]
    step_scores = [score for rollout in group for score in rollout.scores if score is not None]
    wrong = min(0.0, *outcomes) if outcomes else None
    worst = min(step_scores, default=None) if scores else None
    return [
        replace(
            rollout,
            outcome=wrong if rollout.outcome is None else rollout.outcome,
            scores=tuple(worst if score is None else score for score in rollout.scores),
        )
        for rollout in group
    ]


class Outcome(CreditRule):
    """Outcome reward: r = 1 for a correct answer, 0 for a wrong one, at the last token (T - 1).

    Every token has the same return, so nothing says which step was to blame. The reward of RLOO (Ahmadian et
    al., arXiv 2402.14740) and of outcome-supervised GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2).
    The streams of a group without a graded rollout are empty.
    """

    rule: Literal["outcome"] = Field(default="outcome", description="Credit by the final answer alone.")
    needs: ClassVar[frozenset[Need]] = frozenset({"outcome"})

    def stream(self, rollout: Sample) -> RewardStream:
        """The outcome, where it is judged."""
        return outcome_stream(rollout)


def outcome_stream(rollout: Sample, *, weight: float = 1.0) -> RewardStream:
    """The outcome at the last token; empty where it is not judged."""
    if rollout.outcome is None:
        return RewardStream(at=(), values=(), weight=weight)
    return RewardStream(at=(rollout.last,), values=(rollout.outcome,), weight=weight)


class Summed(CreditRule):
    """Step rewards summed: r_k = p_k at the last token of step k, return G_t = sum of r_k with end_k >= t.

    Step-by-step PPO of Math-Shepherd (Wang et al., arXiv 2312.08935) with the estimator ``gae``;
    process supervision of DeepSeekMath (arXiv 2402.03300, section 4.1.3) with ``group``. ``signed`` has
    r_k = 2 p_k - 1, so that a step more likely wrong than right costs.

    More steps bring more reward: this is the rule that policies game by writing empty or repeated steps.
    A group without a scored step gets no reward.
    """

    rule: Literal["summed"] = Field(default="summed", description="Credit by the sum of step scores.")
    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})
    signed: bool = Field(default=False, description="Reward 2 p - 1 rather than the score p.")

    def stream(self, rollout: Sample) -> RewardStream:
        """A reward for each scored step."""
        steps = rollout.scored_steps()
        return RewardStream(
            at=tuple(end for _, end, _ in steps),
            values=tuple(2 * score - 1 if self.signed else score for _, _, score in steps),
        )


class MinForm(CreditRule):
    """Min-form credit (PURE, Cheng et al., arXiv 2504.15275): the return is the worst reward to come.

    With r_k = 2 p_k - 1 = P(+) - P(-) over the scored steps of a rollout and w = softmax(-r / T), the reward
    is w_k r_k at the last token of step k. The sum goes to min_k r_k for T -> 0, to the mean for T ->
    infinity, and lies between them.

    Another good step cannot raise the return much, so length does not pay. ``temperature`` 0.1 comes from
    the paper's code. Without ``signed``, r_k = p_k, and no rollout is worth less than nothing.
    """

    rule: Literal["min-form"] = Field(default="min-form", description="Credit by the worst step.")
    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})
    temperature: float = Field(default=0.1, gt=0, description="Temperature of the softmax.")
    signed: bool = Field(default=True, description="Reward 2 p - 1 rather than the score p.")

    def stream(self, rollout: Sample) -> RewardStream:
        """A reward for each scored step, whose sum is the soft minimum."""
        steps = rollout.scored_steps()
        if not steps:
            return RewardStream(at=(), values=())
        scores_s = np.array([score for _, _, score in steps])
        rewards_s = 2 * scores_s - 1 if self.signed else scores_s
        values = (min_weights(rewards_s, self.temperature) * rewards_s).tolist()
        return RewardStream(at=tuple(end for _, end, _ in steps), values=tuple(values))


def min_weights(rewards_s: FloatArray, temperature: float) -> FloatArray:
    """softmax(-r / T) [S], positive and summing to 1."""
    powers = np.exp((rewards_s.min() - rewards_s) / temperature)
    return np.asarray(powers / powers.sum())


class ClipDelta(CreditRule):
    """Clip and Delta (Gao et al., arXiv 2410.15115), the clip first.

    - ``clip``: r_k <- min(r_k - eta, 0). No step earns, so more steps never do.
    - ``delta``: r_k <- r_k - r_{k+1} for k < K - 1, r_k for k = K - 1, and 0 for the last step K, which the
      outcome rewards. The return from step k < K is then r_k itself, and the whole return is r_1.

    The paper adds the outcome: use this within ``mixed``, whose ``process`` is the paper's α. It does not
    print η; by the default a step is bad if it is more likely wrong than correct. Choose one that most steps
    of the first policy exceed.
    """

    rule: Literal["clip-delta"] = Field(default="clip-delta", description="Credit of bounded sum.")
    needs: ClassVar[frozenset[Need]] = frozenset({"scores"})
    eta: float = Field(default=0.5, description="A step with this score or more costs nothing.")

    def stream(self, rollout: Sample) -> RewardStream:
        """A reward for each scored step."""
        steps = rollout.scored_steps()
        clipped = [min(score - self.eta, 0.0) for _, _, score in steps]
        final = bool(steps) and steps[-1][0] == len(rollout.ends) - 1
        body = clipped[:-1] if final else clipped
        rewards = [reward - following for reward, following in pairwise([*body, 0.0])] + [0.0] * final
        return RewardStream(at=tuple(end for _, end, _ in steps), values=tuple(rewards))


_EPSILON = 1e-6


class Implicit(CreditRule):
    """Implicit process reward (PRIME, Cui et al., arXiv 2502.01456): r_t = log π_φ(y_t) / π_ref(y_t).

    A reward at every token, from a model that learns from outcomes alone (implicit PRM, arXiv 2412.01981) and
    keeps learning with the policy. As in the paper's code, it is not scaled by β, but (``normalize``)
    divided by the largest ``|sum of r_s over s >= t|`` (return-to-go) of any token of the batch, plus 1e-6.
    PRIME is this within ``mixed``, with ``leave-one-out`` as estimator.
    """

    rule: Literal["implicit"] = Field(
        default="implicit", description="Credit by the log-ratios of an implicit reward model."
    )
    needs: ClassVar[frozenset[Need]] = frozenset({"log_ratios"})
    normalize: bool = Field(
        default=True, description="Divide by the largest absolute return-to-go of the batch."
    )

    def _credit(self, batch: Sequence[Sequence[Sample]]) -> list[list[tuple[RewardStream, ...]]]:
        """One stream per rollout; empty without log-ratios."""
        log_ratios = [
            rollout.log_ratios for group in batch for rollout in group if rollout.log_ratios is not None
        ]
        returns = [float(np.abs(ratios[::-1].cumsum()).max()) for ratios in log_ratios if ratios.size]
        scale = max(returns, default=0.0) + _EPSILON if self.normalize else 1.0

        def stream(rollout: Sample) -> RewardStream:
            values = () if rollout.log_ratios is None else tuple((rollout.log_ratios / scale).tolist())
            return RewardStream(at=tuple(range(len(values))), values=values)

        return [[(stream(rollout),) for rollout in group] for group in batch]


Process: TypeAlias = Annotated[Summed | MinForm | ClipDelta | Implicit, Field(discriminator="rule")]
"""Rules without an outcome of their own."""


class Mixed(CreditRule):
    """Process and verifiable reward: ``process`` · A_process + ``outcome`` · A_outcome.

    Each source has its own baseline, and is weighted after it. It is PURE's PRM + VR (arXiv
    2504.15275; 1 and 1), Clip and Delta's J = α Σ r_k + Correct (arXiv 2410.15115; ``process`` = α) and PRIME
    (arXiv 2502.01456; 1 and 1: the ``rm_coef`` 5 of its scripts does not reach the advantages).
    If no outcome of a group is known, the process part remains.
    """

    rule: Literal["mixed"] = Field(default="mixed", description="Step rewards plus the outcome.")
    of: Process = Field(default=MinForm(), description="Rule of the process reward; PURE uses min-form.")
    process: float = Field(default=1.0, gt=0, description="Weight of the process reward.")
    outcome: float = Field(default=1.0, gt=0, description="Weight of the outcome.")

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """What the inner rule reads, and the outcome."""
        return self.of.needs | {"outcome"}

    def _credit(self, batch: Sequence[Sequence[Sample]]) -> list[list[tuple[RewardStream, ...]]]:
        """The inner rule's streams, then the outcome's."""
        return [
            [
                (
                    *(replace(item, weight=item.weight * self.process) for item in streams),
                    outcome_stream(rollout, weight=self.outcome),
                )
                for rollout, streams in zip(group, rewards, strict=True)
            ]
            for group, rewards in zip(batch, self.of.credit(batch), strict=True)
        ]


class Effective(CreditRule):
    """Effective reward of process advantage verifiers (Setlur et al., arXiv 2410.08146).

    The policy gradient uses Q^π + α A^μ as return: the outcome, whose mean is Q^π, and for the tokens of step
    k alone

        A_k = q_k - q_{k-1},    q = 1 - (1 - v)^``best_of``,    v = the step's score,

    where v is the value (chance of success) after the step, of a prover μ, or of the policy itself with
    ``best_of`` K > 1, which makes the prover best-of-K of the policy. The policy as its own prover adds
    nothing to the gradient on average. q_0 comes from ``start``, else from the mean outcome of the *other*
    rollouts of the group, which is the policy's value: its own outcome would cancel part of its reward. With
    neither, the first scored step gets no advantage. Steps without a score share the advantage of the
    next scored one, so that all sum to q_K - q_0.

    With ``scores`` = advantages, a score s means A = 2 s - 1 and nothing is subtracted. The paper has
    ``alpha`` 3 for a 9B policy and 5 for a 2B one (useful: 0.5 to 6).
    """

    rule: Literal["effective"] = Field(
        default="effective", description="Credit by the outcome and by step advantages under a prover."
    )
    needs: ClassVar[frozenset[Need]] = frozenset({"scores", "outcome"})
    alpha: float = Field(default=3.0, ge=0, description="Weight of the step advantages; useful: 0.5 to 6.")
    scores: Literal["values", "advantages"] = Field(
        default="values", description="Whether scores are values (v) or advantages (A = 2 s - 1)."
    )
    best_of: int = Field(
        default=1, ge=1, description="Values are of the policy; the prover is its best-of-K."
    )
    start: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Value before the first step, for all problems; by default the other rollouts' mean "
        "outcome.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scores == "advantages" and (self.best_of != 1 or self.start is not None):
            raise ValueError(
                "'best_of' and 'start' are about values: leave them out with 'scores' = advantages"
            )
        return self

    def _judged(self, group: Sequence[Sample]) -> list[Sample]:
        return unknown_as_failed(group, scores=self.scores == "advantages")

    def group_credit(self, group: Sequence[Sample]) -> list[tuple[RewardStream, ...]]:
        """The outcome, and the advantages weighted by α.

        Raises ``ScoreError`` for a score outside [0, 1].
        """
        return [
            (outcome_stream(rollout), self._advantages(rollout, start and self._prover_value(start)))
            for rollout, start in zip(group, _starts(group, self.start), strict=True)
        ]

    def _advantages(self, rollout: Sample, previous: float | None) -> RewardStream:
        at, values = [], []
        for _, end, score in rollout.scored_steps():
            if not 0 <= score <= 1:
                raise ScoreError(
                    f"a step's score is {score:g}, but credit 'effective' needs values in [0, 1]"
                )
            at.append(end)
            if self.scores == "advantages":
                values.append(2 * score - 1)
                continue
            value = self._prover_value(score)
            values.append(0.0 if previous is None else value - previous)
            previous = value
        return RewardStream(at=tuple(at), values=tuple(values), weight=self.alpha, centred=True)

    def _prover_value(self, value: float) -> float:
        return best_of_k(value, self.best_of) if self.best_of > 1 else value


def _starts(group: Sequence[Sample], start: float | None) -> list[float | None]:
    """Value before the first step of each rollout: ``start``, else the mean outcome of the other rollouts,
    which is the policy's value of the problem, free of the rollout's own outcome; ``None`` if no other is
    judged."""
    starts = []
    for index in range(len(group)):
        others = (rollout.outcome for rollout in (*group[:index], *group[index + 1 :]))
        outcomes = [outcome for outcome in others if outcome is not None]
        starts.append(start if start is not None else sum(outcomes) / len(outcomes) if outcomes else None)
    return starts


# Rules for episodes of several turns


class AnchorState(CreditRule):
    """Anchor states (GiGPO, Feng et al., arXiv 2505.10978, equations 6 to 8): A = A_episode + ω A_step.

    A_episode compares the outcomes of a group's episodes: one stream, whose baseline the estimator subtracts
    (``group``, as published). Its mean and deviation are over episodes, as in equation 6; the authors' code
    takes them over turns by default. A_step compares turns taken in equal environment states of a group: with
    the discounted return R_k = γ^(K-k) · outcome of turn k of K,

        A_step = R_k - mean of R over the turns of the group in that state,

    divided by their standard deviation (n - 1) plus 1e-6 with ``scale``. It holds for the tokens of turn k
    alone. A state that was met once says nothing (A_step 0); its turn still has A_episode.
    """

    rule: Literal["anchor-state"] = Field(
        default="anchor-state", description="Credit by turns in equal environment states (GiGPO)."
    )
    needs: ClassVar[frozenset[Need]] = frozenset({"outcome", "states"})
    weight: float = Field(default=1.0, gt=0, description="ω, weight of the comparison within states.")
    gamma: float = Field(default=0.95, gt=0, le=1, description="Discount per turn within states.")
    scale: bool = Field(
        default=False, description="Divide by the standard deviation of the returns in a state."
    )

    def group_credit(self, group: Sequence[Sample]) -> list[tuple[RewardStream, ...]]:
        """The outcome at the last token, and the advantages within states.

        Raises ``ScoreError`` for an episode without states.
        """
        if any(not rollout.states for rollout in group):
            raise ScoreError(
                "credit 'anchor-state' compares turns in equal states, but an episode has no 'states': roll "
                "out in an environment whose state can be compared"
            )
        returns = [self._returns(rollout) for rollout in group]
        visits: dict[str, list[float]] = defaultdict(list)
        for rollout, returns_k in zip(group, returns, strict=True):
            for state, value in zip(rollout.states, returns_k, strict=False):
                visits[state].append(value)
        credit: list[tuple[RewardStream, ...]] = []
        for rollout, returns_k in zip(group, returns, strict=True):
            pairs = zip(rollout.states, returns_k, strict=False)
            values = tuple(self._relative(value, visits[state]) for state, value in pairs)
            within = RewardStream(
                at=rollout.ends if values else (), values=values, weight=self.weight, centred=True
            )
            credit.append((outcome_stream(rollout), within))
        return credit

    def _returns(self, rollout: Sample) -> list[float]:
        """R of each turn [K]; empty where the outcome was not judged."""
        turns = range(len(rollout.ends)) if rollout.outcome is not None else ()
        return [(rollout.outcome or 0.0) * self.gamma ** (len(rollout.ends) - 1 - turn) for turn in turns]

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


class TurnDifference(CreditRule):
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

    def _judged(self, group: Sequence[Sample]) -> list[Sample]:
        return unknown_as_failed(group, scores=False)

    def group_credit(self, group: Sequence[Sample]) -> list[tuple[RewardStream, ...]]:
        """The advantages, as one centred stream."""
        pairs = zip(group, _starts(group, self.start), strict=True)
        return [(self._advantages(rollout, start),) for rollout, start in pairs]

    def _advantages(self, rollout: Sample, start: float | None) -> RewardStream:
        turns = [(end, score) for _, end, score in rollout.scored_steps()]
        if rollout.outcome is not None:
            turns = [*(turn for turn in turns if turn[0] != rollout.last), (rollout.last, rollout.outcome)]
        if start is None or not turns:
            return RewardStream(at=(), values=(), centred=True)
        differences_k = np.diff([start, *(potential for _, potential in turns)])
        return RewardStream(
            at=tuple(end for end, _ in turns),
            values=tuple(discounted_returns(differences_k, self.lam).tolist()),
            centred=True,
        )


Credit: TypeAlias = Annotated[
    Outcome | Summed | MinForm | ClipDelta | Effective | Implicit | Mixed | AnchorState | TurnDifference,
    Field(discriminator="rule"),
]
"""Any rule, as a field of the settings: a new rule is added here."""

CREDITS: dict[str, type[CreditRule]] = {
    kind.model_fields["rule"].default: kind for kind in get_args(get_args(Credit)[0])
}
"""The rules of :data:`Credit` by their tag."""
