"""A round as a row of the curves: of all processes together, so that each of them sees the same run."""

from __future__ import annotations

import numpy as np

from surefoot.records import Usage
from surefoot.rl.advantage.tokens import total
from surefoot.rl.assess import Assessment
from surefoot.rl.audit import Reduction, reduce_scores, shape_of
from surefoot.rl.credit.rule import FloatArray
from surefoot.rl.log import Seconds, Shape, UpdateRow
from surefoot.rl.rollouts import Rollouts
from surefoot.rl.update import UpdateStatistics
from surefoot.training.workers import Workers


def make_row(
    rollouts: Rollouts,
    assessment: Assessment,
    statistics: UpdateStatistics,
    *,
    update: int,
    samples: int,
    learning_rate: float,
    kl: bool,
    aggregation: Reduction,
    seconds: Seconds,
    team: Workers,
) -> UpdateRow:
    """What round ``update`` (from 1) looked like; ``kl``: there is a reference. Every process has to ask.

    Counts and means are of all processes, ``seconds`` those of this one.
    """
    every = [rollout for group in rollouts.groups for rollout in group]
    learned = assessment.flat
    outcomes = [float(one.trace.outcome) for one in every if one.trace.outcome is not None]
    proxies = [reduce_scores(one.scored.scores, aggregation) for one in learned]
    rewards = [total(one.credited) for one in learned]
    worth = np.concatenate([one.advantages for one in learned]) if learned else np.zeros(0)
    centre = _mean(worth, team)
    spread = _mean((worth - (centre or 0.0)) ** 2, team)
    unrewarded = sum(not any(stream.at for stream in one.credited.streams) for one in learned)
    usage = sum((rollout.trace.usage for rollout in every), assessment.usage)
    stepped = bool(statistics.steps)
    return UpdateRow(
        update=update,
        samples=samples,
        outcome=_mean(np.array(outcomes), team),
        proxy=_mean(np.array([one for one in proxies if one is not None]), team),
        reward=_mean(np.array([one for one in rewards if one is not None]), team),
        advantage_mean=centre,
        advantage_std=None if spread is None else float(np.sqrt(spread)),
        loss=statistics.loss if stepped else None,
        kl=statistics.kl if stepped and kl else None,
        clipped=statistics.clipped if stepped else None,
        entropy=statistics.entropy if stepped else None,
        gradient_norm=statistics.gradient_norm if stepped else None,
        learning_rate=learning_rate,
        shape=_shape(shape_of([rollout.trace for rollout in every]), team),
        failed=_count(rollouts.failed, team),
        dropped=_count(unrewarded, team),
        filtered=_count(len(every) - len(learned), team),
        unscored_steps=_count(assessment.unscored_steps, team),
        seconds=seconds,
        usage=Usage(**{name: _count(spent, team) for name, spent in usage.model_dump().items()}),
    )


def _mean(values: FloatArray, team: Workers) -> float | None:
    """Over the values of all processes; ``None`` if there are none."""
    everyone, sum_ = team.total(float(len(values))), team.total(float(np.sum(values)))
    return sum_ / everyone if everyone else None


def _count(mine: int, team: Workers) -> int:
    return round(team.total(float(mine)))


def _shape(mine: Shape, team: Workers) -> Shape:
    """Of the traces of all processes."""
    if team.count == 1:
        return mine
    steps = (mine.steps or 0.0) * mine.traces
    weights = {
        "tokens": mine.traces,
        "steps": mine.traces,
        "finished": mine.traces,
        "empty": steps,
        "repeated": steps,
    }
    found: dict[str, float | None] = {}
    for name, weight in weights.items():
        everyone = team.total(float(weight))
        sum_ = team.total(weight * (getattr(mine, name) or 0.0))
        # a share is not to be above 1 by rounding
        found[name] = (
            min(sum_ / everyone, 1.0 if name not in ("tokens", "steps") else np.inf) if everyone else None
        )
    return Shape(traces=_count(mine.traces, team), **found)
