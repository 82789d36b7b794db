"""From rollouts to advantages: collect what the credit rule reads, apply the rule, then the estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from surefoot.errors import TrainingError
from surefoot.protocols import StepScorer
from surefoot.records import Usage
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import FloatArray, RewardStream, ScoredRollout
from surefoot.rl.critic import Critic
from surefoot.rl.online_prm import OnlinePRM
from surefoot.rl.rollouts import Rollout, TrainingSample, score_steps

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True)
class Judges:
    """Models that say what rollouts are worth; a rule that needs one that is absent is refused."""

    scorer: StepScorer | None = None
    online_prm: OnlinePRM | None = None
    critic: Critic | None = None


def training_samples(
    groups: Sequence[Sequence[Rollout]],
    judges: Judges,
    config: RLConfig,
    *,
    token_rewards: Sequence[FloatArray] | None = None,
) -> list[list[TrainingSample]]:
    """Score the rollouts, give credit, subtract the baseline; ``groups`` are the samples of one problem each.

    ``token_rewards`` [T] of every rollout, one group after the other, are added to the rule's rewards: a KL
    penalty. Raises ``TrainingError`` for a judge that is missing.
    """
    flat = [rollout for group in groups for rollout in group]
    needs = config.credit.needs
    scores: Sequence[tuple[float | None, ...]] = [()] * len(flat)
    usages = [Usage()] * len(flat)
    if "scores" in needs:
        items = [rollout.item for rollout in flat]
        records = score_steps(_require(judges.scorer, "a step scorer"), items)
        scores = [(None,) if record is None else record.scores for record in records]
        usages = [Usage() if record is None else record.usage for record in records]
    ratios: Sequence[FloatArray | None] = [None] * len(flat)
    if "log_ratios" in needs:
        ratios = _require(judges.online_prm, "an implicit reward model (online_prm)").log_ratios(flat)
    values: Sequence[FloatArray | None] = [None] * len(flat)
    if config.advantage.needs_values:
        values = _require(judges.critic, "a critic").values(flat)
    scored = [
        ScoredRollout(
            tokens=len(rollout.ids),
            ends=rollout.ends,
            scores=of_steps,
            outcome=_outcome(rollout, config),
            log_ratios=ratio,
            values=value,
            states=rollout.states,
        )
        for rollout, of_steps, ratio, value in zip(flat, scores, ratios, values, strict=True)
    ]
    rewards = [rollout for group in config.credit.credit(_regroup(scored, groups)) for rollout in group]
    if token_rewards is not None:
        rewards = [
            (*streams, RewardStream(at=tuple(range(len(extra))), values=tuple(extra.tolist())))
            for streams, extra in zip(rewards, token_rewards, strict=True)
        ]
    scored = [replace(item, rewards=streams) for item, streams in zip(scored, rewards, strict=True)]
    advantages = [array for group in config.advantage.advantages(_regroup(scored, groups)) for array in group]
    samples = [
        TrainingSample(rollout=rollout, scored=item, advantages=array, scorer_usage=usage)
        for rollout, item, array, usage in zip(flat, scored, advantages, usages, strict=True)
    ]
    return _regroup(samples, groups)


def within_band(
    groups: Sequence[Sequence[Rollout]], band: tuple[float, float] | None, *, mixed: bool = False
) -> list[list[Rollout]]:
    """Groups whose share of correct rollouts is in ``band`` or unknown; empty groups are dropped.

    PRIME keeps shares in [0.2, 0.8]: a group that is all correct or all wrong says nothing about outcomes.
    With ``mixed`` such a group is dropped whatever the band (DAPO, arXiv 2503.14476, equation 11).
    """
    within = []
    for group in groups:
        outcomes = [rollout.trace.outcome for rollout in group if rollout.trace.outcome is not None]
        share = float(np.mean(outcomes)) if outcomes else None
        in_band = band is None or share is None or band[0] <= share <= band[1]
        if group and in_band and not (mixed and share in (0.0, 1.0)):
            within.append(list(group))
    return within


def _outcome(rollout: Rollout, config: RLConfig) -> float | None:
    """Outcome reward, less what an overlong response loses."""
    if rollout.trace.outcome is None:
        return None
    cost = config.overlong.cost(len(rollout.ids), config.max_tokens) if config.overlong else 0.0
    return float(rollout.trace.outcome) - cost


def _require(judge: T | None, what: str) -> T:
    if judge is None:
        raise TrainingError(f"this credit rule or advantage estimator needs {what}, but there is none")
    return judge


def _regroup(flat: Sequence[U], groups: Sequence[Sequence[object]]) -> list[list[U]]:
    """``flat`` divided like ``groups``."""
    rollouts = iter(flat)
    return [[next(rollouts) for _ in group] for group in groups]
