"""From rollouts to advantages: what credit rules need to know, the rule, the estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from surefoot.errors import TrainingError
from surefoot.protocols import StepScorer
from surefoot.records import Usage
from surefoot.rl.advantage.estimator import Credited
from surefoot.rl.config import RLConfig
from surefoot.rl.credit.rule import FloatArray, Scored, Stream
from surefoot.rl.critic import Critic
from surefoot.rl.online_prm import OnlinePRM
from surefoot.rl.rollouts import Rollout
from surefoot.scores import checked_scores

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True)
class Judges:
    """Who says what rollouts are worth; a rule that needs one that is absent is refused."""

    scorer: StepScorer | None = None
    online_prm: OnlinePRM | None = None
    critic: Critic | None = None


@dataclass(frozen=True, kw_only=True)
class Assessed:
    """A rollout with what its judges said and its tokens' advantages."""

    rollout: Rollout
    scored: Scored
    credited: Credited
    advantages: FloatArray
    """[T]"""


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The rollouts of a round that are learned from."""

    groups: list[list[Assessed]]
    unscored_steps: int
    """Steps to which the scorer gave no score; they have no reward."""
    usage: Usage
    """Of the scorer."""

    @property
    def flat(self) -> list[Assessed]:
        """One rollout after the other."""
        return [one for group in self.groups for one in group]


def assess(
    groups: Sequence[Sequence[Rollout]],
    judges: Judges,
    config: RLConfig,
    *,
    token_rewards: Sequence[FloatArray] | None = None,
) -> Assessment:
    """Score, give credit, take the baseline off.

    ``token_rewards`` [T] of every rollout, one group after the other, come on top of the rule's: a KL
    penalty. Raises ``TrainingError`` for a judge that is missing.
    """
    flat = [rollout for group in groups for rollout in group]
    needs = config.credit.needs
    scores: Sequence[tuple[float | None, ...]] = [()] * len(flat)
    usage = Usage()
    if "scores" in needs:
        scores, usage = _scores(flat, _present(judges.scorer, "a step scorer"))
    ratios: Sequence[FloatArray | None] = [None] * len(flat)
    if "log_ratios" in needs:
        ratios = _present(judges.online_prm, "an implicit reward model (online_prm)").log_ratios(flat)
    values: Sequence[FloatArray | None] = [None] * len(flat)
    if config.advantage.needs_values:
        values = _present(judges.critic, "a critic").values(flat)
    scored = [
        Scored(
            tokens=len(rollout.ids),
            ends=rollout.ends,
            scores=row,
            outcome=None if rollout.trace.outcome is None else float(rollout.trace.outcome),
            log_ratios=ratio,
        )
        for rollout, row, ratio in zip(flat, scores, ratios, strict=True)
    ]
    streams = [one for group in config.credit.credit(_regroup(scored, groups)) for one in group]
    if token_rewards is not None:
        streams = [
            (*mine, Stream(at=tuple(range(len(extra))), values=tuple(extra.tolist())))
            for mine, extra in zip(streams, token_rewards, strict=True)
        ]
    credited = [
        Credited(tokens=one.tokens, streams=mine, values=value)
        for one, mine, value in zip(scored, streams, values, strict=True)
    ]
    advantages = [
        array for group in config.advantage.advantages(_regroup(credited, groups)) for array in group
    ]
    assessed = [
        Assessed(rollout=rollout, scored=one, credited=given, advantages=array)
        for rollout, one, given, array in zip(flat, scored, credited, advantages, strict=True)
    ]
    return Assessment(
        groups=_regroup(assessed, groups),
        unscored_steps=sum(row.count(None) for row in scores),
        usage=usage,
    )


def within_band(groups: Sequence[Sequence[Rollout]], band: tuple[float, float] | None) -> list[list[Rollout]]:
    """Groups of which a share in ``band`` is right, and those of which nothing is known; none is empty.

    PRIME keeps shares in [0.2, 0.8]: a group that is all right or all wrong says nothing of outcomes.
    """
    kept = []
    for group in groups:
        outcomes = [rollout.trace.outcome for rollout in group if rollout.trace.outcome is not None]
        if group and (band is None or not outcomes or band[0] <= float(np.mean(outcomes)) <= band[1]):
            kept.append(list(group))
    return kept


def _scores(rollouts: Sequence[Rollout], scorer: StepScorer) -> tuple[list[tuple[float | None, ...]], Usage]:
    """Scores of every rollout's steps, and what they cost; a response without a visible step has ``None``."""
    readable = [rollout for rollout in rollouts if rollout.trace.steps]
    records = checked_scores(scorer, [rollout.item for rollout in readable])
    found = iter(records)
    scores = [next(found).scores if rollout.trace.steps else (None,) for rollout in rollouts]
    return scores, sum((record.usage for record in records), Usage())


def _present(judge: T | None, what: str) -> T:
    if judge is None:
        raise TrainingError(f"this credit rule or advantage needs {what}, and none was given")
    return judge


def _regroup(flat: Sequence[U], groups: Sequence[Sequence[object]]) -> list[list[U]]:
    """``flat`` cut like ``groups``."""
    rest = iter(flat)
    return [[next(rest) for _ in group] for group in groups]
