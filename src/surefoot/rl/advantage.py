"""Advantage estimators: from rewards at tokens to advantages at tokens, less a baseline; chosen by the tag
``kind``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from surefoot.errors import ScoreError, TrainingError
from surefoot.records import FrozenModel
from surefoot.rl.credit import CreditRule, discounted_returns, with_rewards
from surefoot.rl.sample import FloatArray, RewardStream, Sample


class Estimator(FrozenModel):
    """Subtracts a baseline: frozen settings with a tag ``kind``."""

    needs_values: ClassVar[bool] = False
    """Reads :attr:`Sample.values`, so there must be a critic."""
    compares: ClassVar[bool] = True
    """Takes the other samples of a problem as baseline, so there must be two or more."""

    def advantages(self, batch: Sequence[Sequence[Sample]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group, from its ``rewards``."""
        advantages = [self._summed_sources(group) for group in batch]
        options = {name: getattr(self, name, False) for name in ("whiten", "mask_ends")}
        return complete_batch(batch, advantages, **options)

    def _centre(self, streams: Sequence[RewardStream]) -> list[FloatArray]:
        """A group's rewards of one source less the baseline; none of the streams is empty."""
        raise NotImplementedError

    def _summed_sources(self, group: Sequence[Sample]) -> list[FloatArray | None]:
        """Weighted sum over all sources, [T] of every rollout; ``None`` for a rollout without rewards.

        Empty streams are ignored. A source that too few rollouts have to compare is ignored too, unless it is
        centred.
        """
        totals: list[FloatArray | None] = [None] * len(group)
        for source in range(len(group[0].rewards) if group else 0):
            present = [index for index, rollout in enumerate(group) if rollout.rewards[source].at]
            streams = [group[index].rewards[source] for index in present]
            centred = bool(streams) and streams[0].centred
            if len(streams) < (2 if self.compares and not centred else 1):
                continue
            values = [np.array(stream.values) for stream in streams] if centred else self._centre(streams)
            for index, stream, credit_at_events in zip(present, streams, values, strict=True):
                credit = stream.weight * at_tokens(stream, credit_at_events, group[index].tokens)
                previous = totals[index]
                totals[index] = credit if previous is None else previous + credit
        return totals


def group_advantages(
    *,
    ends: Sequence[Sequence[int]] | None = None,
    scores: Sequence[Sequence[float | None]] = (),
    outcomes: Sequence[float | None] = (),
    states: Sequence[Sequence[str]] = (),
    credit: CreditRule,
    advantage: Estimator,
) -> list[FloatArray]:
    """Advantages [T] of the N samples of one problem, from plain lists of their scores and outcomes.

    ``scores`` are step scores [N, K], ``outcomes`` 1 or 0 [N], ``states`` those before each turn [N, K], and
    ``ends`` the last token of each step [N, K]; without ``ends`` each step counts as one token, and the
    result is [K]. The module :mod:`surefoot.rl.credit` has a worked example. Raises what the rule raises, and
    ``ScoreError`` if neither ends nor scores nor states are given, or if their numbers differ.
    """
    samples = plain_samples(ends=ends, scores=scores, outcomes=outcomes, states=states)
    return advantage.advantages(with_rewards([samples], credit))[0]


def plain_samples(
    *,
    ends: Sequence[Sequence[int]] | None = None,
    scores: Sequence[Sequence[float | None]] = (),
    outcomes: Sequence[float | None] = (),
    states: Sequence[Sequence[str]] = (),
) -> list[Sample]:
    """The samples of :func:`group_advantages`. Raises ``ScoreError`` as it does."""
    of_steps = scores or states
    if ends is None and not (of_steps and all(of_steps)):
        raise ScoreError("an episode needs 'scores' or 'states': one for each of its turns")
    rows = ends if ends is not None else [range(len(steps)) for steps in of_steps]
    nothing: list[Any] = [()] * len(rows)
    return [
        Sample(tokens=row[-1] + 1, ends=tuple(row), scores=tuple(of), outcome=outcome, states=tuple(keys))
        for row, of, outcome, keys in zip(
            rows, scores or nothing, outcomes or [None] * len(rows), states or nothing, strict=True
        )
    ]


_EPSILON = 1e-8


def at_tokens(stream: RewardStream, values: FloatArray, tokens: int) -> FloatArray:
    """``values`` of the stream's events as credit of every token [T]."""
    credit = np.zeros(tokens)
    if not stream.centred:
        np.add.at(credit, list(stream.at), values)  # two steps may end at one token: both count
        return np.asarray(credit[::-1].cumsum()[::-1])
    covered = np.repeat(values, event_lengths(stream))
    credit[: len(covered)] = covered
    return credit


def event_lengths(stream: RewardStream) -> NDArray[np.int64]:
    """Tokens of each event: those after the event before it, up to its own."""
    return np.diff(np.array((-1, *stream.at)))


def complete_batch(
    batch: Sequence[Sequence[Sample]],
    advantages: Sequence[Sequence[FloatArray | None]],
    *,
    whiten: bool,
    mask_ends: bool = False,
) -> list[list[FloatArray]]:
    """Advantages of a batch: 0 where they are unknown, the rest whitened if ``whiten``.

    Whitening subtracts the mean over all known response tokens and divides by their (sample) standard
    deviation. Rollouts without rewards are not part of it and stay 0; with ``mask_ends``, neither is the last
    token of any step.
    """
    flat = [
        pair
        for group, arrays in zip(batch, advantages, strict=True)
        for pair in zip(group, arrays, strict=True)
    ]
    masks = [np.full(rollout.tokens, array is not None) for rollout, array in flat]
    if mask_ends:
        for mask, (rollout, _) in zip(masks, flat, strict=True):
            mask[list(rollout.ends)] = False
    values = [np.zeros(rollout.tokens) if array is None else array for rollout, array in flat]
    learned = [value[mask] for value, mask in zip(values, masks, strict=True)]
    mean, scale = _moments(learned) if whiten and learned else (0.0, 1.0)
    complete = iter(
        np.where(mask, (value - mean) * scale, 0.0) for value, mask in zip(values, masks, strict=True)
    )
    return [[next(complete) for _ in group] for group in batch]


def _moments(known: Sequence[FloatArray]) -> tuple[float, float]:
    """Mean and inverse standard deviation; equal tokens, or none, have (that value, 0)."""
    flat = np.concatenate(known)
    if not len(flat):
        return 0.0, 0.0
    if flat.min() == flat.max():
        return float(flat[0]), 0.0
    return float(flat.mean()), float(1 / np.sqrt(flat.var(ddof=1) + _EPSILON))


def total_return(rollout: Sample) -> float | None:
    """Return of the response: the weighted sum of its rewards; centred streams do not count.

    ``None`` without any reward, which is different from 0.
    """
    rewards_t = token_rewards(rollout)
    return None if rewards_t is None else float(rewards_t.sum())


def token_rewards(rollout: Sample) -> FloatArray | None:
    """Weighted rewards at tokens [T], 0 where there are none; ``None`` without any. Centred streams do not
    count."""
    streams = [stream for stream in rollout.rewards if stream.at and not stream.centred]
    rewards_t = np.zeros(rollout.tokens)
    for stream in streams:
        np.add.at(rewards_t, list(stream.at), stream.weight * np.array(stream.values))
    return rewards_t if streams else None


class Reinforce(Estimator):
    """REINFORCE (Williams 1992): A_t = the return from token t, sum of the rewards at or after it.

    Unbiased, with the highest variance. If all rewards have one sign, all rollouts are pushed the same way;
    ``whiten`` (REINFORCE++, arXiv 2501.03262) centers and scales over the tokens of the batch.
    """

    kind: Literal["none"] = Field(default="none", description="No baseline (REINFORCE).")
    compares: ClassVar[bool] = False
    whiten: bool = Field(
        default=False, description="Center and scale over the tokens of the batch (REINFORCE++)."
    )

    def _centre(self, streams: Sequence[RewardStream]) -> list[FloatArray]:
        return [np.array(stream.values) for stream in streams]


class Group(Estimator):
    """Group-relative advantages (GRPO; DeepSeekMath, arXiv 2402.03300, sections 4.1.2 and 4.1.3).

    All rewards of one source in a group are pooled, and r~ = (r - mean) / (std + ``epsilon``) replaces
    r; the advantage of a token is the sum of r~ at or after it. With one outcome a rollout that is GRPO's
    outcome supervision, with step rewards its process supervision. Without ``scale``, r~ = r - mean (Dr.
    GRPO, arXiv 2503.20783), which does not favour problems that are nearly always correct or wrong.

    The paper writes std({r}) without saying which: ``population`` divides by n, ``sample`` by n - 1, as the
    code of TRL and verl does. Rewards that are all equal, and groups in which fewer than two rollouts have a
    reward, give exactly 0.
    """

    kind: Literal["group"] = Field(default="group", description="Group-relative advantages (GRPO).")
    scale: bool = Field(default=True, description="Divide by the standard deviation; not in Dr. GRPO.")
    std: Literal["population", "sample"] = Field(
        default="population",
        description="Standard deviation over n (population) or n - 1 (sample; TRL, verl).",
    )
    epsilon: float = Field(
        default=1e-6, ge=0, description="Added to the standard deviation, in units of reward; verl's value."
    )

    def _centre(self, streams: Sequence[RewardStream]) -> list[FloatArray]:
        pool = np.concatenate([stream.values for stream in streams])
        if pool.min() == pool.max():
            return [np.zeros(len(stream.values)) for stream in streams]
        centred = [np.array(stream.values) - pool.mean() for stream in streams]
        if not self.scale:
            return centred
        spread = pool.std(ddof=1 if self.std == "sample" else 0) + self.epsilon
        return [values / spread for values in centred]


Baseline = Literal["event", "token", "prime"]


class LeaveOneOut(Estimator):
    """Leave-one-out baseline (RLOO; Ahmadian et al., arXiv 2402.14740).

    With one reward a rollout, A_i = r_i - mean of r_j over j != i, for all tokens: unbiased, as the baseline
    knows nothing of rollout i. With several, r_i^t at each event t and m_i their mean, the reward is first
    replaced, and later sums are the advantage:

    - ``event``: r_i^t - mean of m_j over j != i. PURE's ``reward_baseline`` step.
    - ``token``: r_i^t - n_t · (all rewards of the others) / (all their tokens), n_t the tokens of the event:
      the one of PURE's scripts (arXiv 2504.15275). Where every rollout has one event, ``event`` is used, as
      in PURE for the outcome.
    - ``prime``: r_i^t · K / (K - 1) - sum of m_j over all j / (K - 1), the form of PRIME's code (arXiv
      2502.01456). It equals ``event`` plus (r_i^t - m_i) / (K - 1): the same for one event a
      rollout and at the first token, else not free of the rollout's own rewards.

    With several events the subtracted baseline grows with their number, so the objective is the reward
    less the group's average: writing more average steps does not pay.

    K counts the rollouts that have a reward of that source; one alone gets 0. ``whiten`` (PRIME, PURE) then
    centres and scales over all response tokens of the batch: a group of equal rewards is then no longer 0,
    which is why PRIME drops such groups (``accuracy_band``). With ``mask_ends`` (PURE) the last token of each
    step, its separator, is left out of advantages and whitening: the policy learns how to write a step,
    not where to end it.
    """

    kind: Literal["leave-one-out"] = Field(
        default="leave-one-out", description="The other samples of the problem as baseline (RLOO)."
    )
    baseline: Baseline = Field(
        default="event",
        description="Baseline of rollouts with several rewards: event, token (PURE) or prime.",
    )
    whiten: bool = Field(
        default=False, description="Center and scale over the tokens of the batch (PRIME, PURE)."
    )
    mask_ends: bool = Field(
        default=False, description="No advantage at the last token of each step, its separator (PURE)."
    )

    def _centre(self, streams: Sequence[RewardStream]) -> list[FloatArray]:
        if self.baseline == "token" and any(len(stream.values) > 1 for stream in streams):
            return _minus_token_baseline(streams)
        # subtracting one of them first makes equal rewards give exactly 0 despite rounding
        values = [np.array(stream.values) - streams[0].values[0] for stream in streams]
        means = np.array([value.mean() for value in values])
        n_others = len(streams) - 1
        if self.baseline == "prime":
            return [value * len(streams) / n_others - means.sum() / n_others for value in values]
        return [value - (means.sum() - mean) / n_others for value, mean in zip(values, means, strict=True)]


def _minus_token_baseline(streams: Sequence[RewardStream]) -> list[FloatArray]:
    lengths = [event_lengths(stream) for stream in streams]
    totals = np.array([float(np.sum(stream.values)) for stream in streams])
    counts = np.array([tokens.sum() for tokens in lengths])
    rates = (totals.sum() - totals) / (counts.sum() - counts)
    return [
        np.array(stream.values) - rate * tokens
        for stream, tokens, rate in zip(streams, lengths, rates, strict=True)
    ]


class Gae(Estimator):
    """Generalised advantage estimation (arXiv 1506.02438, equation 16), as PPO has it (arXiv 1707.06347).

        δ_t = r_t + γ V_{t+1} - V_t,    A_t = δ_t + γ λ A_{t+1},    V_T = A_T = 0

    with r_t all weighted rewards at token t, and V_t the critic's value of the state in which token t was
    sampled. λ = 1 is the return less V, λ = 0 the error of one step. The critic's targets are A + V
    (:meth:`targets`).

    Centred streams are added to the advantages unchanged and are not part of
    the targets. A rollout without rewards has advantage 0 and no target. ``whiten`` is usual in PPO code; the
    papers do not have it.
    """

    kind: Literal["gae"] = Field(default="gae", description="Generalized advantage estimation (PPO).")
    needs_values: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    gamma: float = Field(default=1.0, gt=0, le=1, description="Discount per token.")
    lam: float = Field(
        default=0.95, ge=0, le=1, description="1 = return less value, 0 = one-step error; between: a mixture."
    )
    whiten: bool = Field(default=False, description="Center and scale over the tokens of the batch.")

    def advantages(self, batch: Sequence[Sequence[Sample]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group.

        Raises ``TrainingError`` for missing values.
        """
        advantages = [[self._with_centred(rollout) for rollout in group] for group in batch]
        return complete_batch(batch, advantages, whiten=self.whiten)

    def targets(self, batch: Sequence[Sequence[Sample]]) -> list[list[FloatArray | None]]:
        """What the critic should say [T], the λ-return A + V; ``None`` for a rollout without rewards.

        Raises ``TrainingError`` for missing values.
        """
        return [
            [
                None if (estimate := self._estimate(rollout)) is None else estimate + _values(rollout)
                for rollout in group
            ]
            for group in batch
        ]

    def _estimate(self, rollout: Sample) -> FloatArray | None:
        """A [T]; ``None`` without rewards."""
        rewards_t = token_rewards(rollout)
        if rewards_t is None:
            return None
        values_t = _values(rollout)
        deltas_t = rewards_t + self.gamma * np.append(values_t[1:], 0.0) - values_t
        return discounted_returns(deltas_t, self.gamma * self.lam)

    def _with_centred(self, rollout: Sample) -> FloatArray | None:
        """A [T] and the streams that are advantages already; ``None`` without either."""
        total = self._estimate(rollout)
        for stream in rollout.rewards:
            if stream.centred and stream.at:
                more = at_tokens(stream, stream.weight * np.array(stream.values), rollout.tokens)
                total = more if total is None else total + more
        return total


def _values(rollout: Sample) -> FloatArray:
    if rollout.values is None:
        raise TrainingError(
            "advantage 'gae' needs a critic's 'values' for every rollout: give them, or choose another kind"
        )
    return rollout.values


Advantage: TypeAlias = Annotated[Group | LeaveOneOut | Gae | Reinforce, Field(discriminator="kind")]
"""Any estimator, as a field of the settings."""

ADVANTAGES: dict[str, type[BaseModel]] = {
    kind.model_fields["kind"].default: kind for kind in get_args(get_args(Advantage)[0])
}
"""The estimators of :data:`Advantage` by their tag."""
