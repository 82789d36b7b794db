"""The log of a run: one row per update, one per evaluation; and the guards that raise alarms. Without torch.

The guards watch the evaluation on held-out problems, which is independent of the reward: the accuracy turns,
and the proxy keeps rising (overoptimization; Gao et al., arXiv 2210.10760) or does not (gold).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from surefoot.records import FrozenModel, Problem, Record, Trace, Usage
from surefoot.rl.channels import RewardChannels
from surefoot.stats.intervals import Interval
from surefoot.training.config import write_rows

AlarmName = Literal["overoptimization", "gold"]
"""What :class:`Guards` watches for."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Shape(_Row):
    """Lengths of traces (:func:`surefoot.rl.rollouts.shape_of`); ``None``: nothing to count."""

    traces: Count = 0
    tokens: float | None = None
    """Mean tokens per trace."""
    steps: float | None = None
    """Mean steps per trace."""
    finished: Share | None = None
    """Share of traces that the policy ended, rather than the limit of tokens."""


class UpdateRow(_Row):
    """One round of sampling and learning. ``None``: not measured, or nothing was learned in this round."""

    update: int = Field(ge=1)
    samples: Count
    """Rollouts sampled so far, including this round's."""
    outcome: Share | None = None
    """Share of this round's judged rollouts with the correct answer."""
    proxy: float | None = None
    """Mean over scored rollouts of their step scores, reduced to one number."""
    reward: float | None = None
    """Mean return of a rollout by the credit rule."""
    advantage_mean: float | None = None
    advantage_std: float | None = None
    """Over the tokens that are learned from."""
    loss: float | None = None
    kl: float | None = None
    """To the reference policy, nats per token."""
    clipped: Share | None = None
    """Share of tokens whose gradient the clipped objective cuts off."""
    entropy: float | None = None
    """Nats per token, before the round's first optimizer step."""
    gradient_norm: float | None = None
    """Before clipping."""
    learning_rate: float | None = None
    server_gap: float | None = None
    """Mean absolute difference between the log-probabilities of the server that sampled the tokens and those
    of the policy in training, nats per token; ``None`` without a server that gives them, and at temperatures
    other than 1. Where it is large, the update corrects a policy that did not sample."""
    shape: Shape = Shape()
    """Of all rollouts, before any is dropped."""
    failed: Count = 0
    """Samples that were requested and failed."""
    dropped: Count = 0
    """Rollouts without a reward, because something that the rule needs is unknown."""
    filtered: Count = 0
    """Rollouts of problems outside the accuracy band."""
    unscored_steps: Count = 0
    """Steps that the scorer did not score."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """By stage: generation; scoring (reward model, credit and advantages); update."""
    usage: Usage = Usage()


class EvaluationRow(_Row):
    """The policy on held-out problems; intervals are 95%, over problems."""

    update: Count
    """Updates before it; 0 is the policy that training started from."""
    samples: Count
    """Rollouts that were trained on before it."""
    accuracy: Interval
    """Share of correct answers."""
    proxy: Interval | None = None
    """Mean score of the same traces; ``None`` without a scorer."""
    trace_error: Interval | None = None
    """Share of the traces with a correct answer that have a wrong step, by a labeller independent of the
    reward; ``None`` without one, or without a correct answer that it could judge."""
    problems: Count
    """Problems with a graded trace."""
    shape: Shape = Shape()
    failed: Count = 0
    """Samples that were requested and failed."""
    ungraded: Count = 0
    """Traces whose answer could not be judged; they do not count for accuracy."""
    unscored: Count = 0
    """Traces with an unscored step; they do not count for the proxy."""
    unjudged: Count = 0
    """Correct answers for which the labeller did not know whether a step is wrong."""
    usage: Usage = Usage()


class Alarm(_Row):
    """An alarm raised by a guard. Equal logs give equal alarms."""

    name: AlarmName
    update: Count
    """Update (or evaluation) at which it began."""
    raised: Count
    """Update at which it had lasted for ``evaluation_patience``."""
    measured: float
    """When it was raised, in the unit of the threshold."""
    threshold: float
    message: str
    """What happened, and what to do."""


class SampleRow(Record):
    """One training rollout, stored for reading."""

    update: int = Field(ge=1)
    problem: Problem
    trace: Trace
    scores: tuple[float | None, ...] = ()
    """Step scores [K]; empty where the rule needs none."""
    advantages: tuple[float, ...] = ()
    """Mean advantage of each step's tokens [K]; empty for a rollout that was not learned from."""


class RLLog(BaseModel):
    """The log of a run; part of its checkpoint."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    updates: list[UpdateRow] = Field(default_factory=list)
    evaluations: list[EvaluationRow] = Field(default_factory=list)
    alarms: list[Alarm] = Field(default_factory=list)
    stopped: str | None = None
    """Why the run ended early; ``None`` if it did not."""
    channels: RewardChannels | None = None
    """What the rewards read; ``None`` in runs of earlier versions."""

    @property
    def best(self) -> EvaluationRow | None:
        """The first evaluation with the highest accuracy."""
        return max(self.evaluations, key=lambda row: row.accuracy.value, default=None)

    @property
    def usage(self) -> Usage:
        """Of training and evaluations together."""
        spent = [row.usage for row in self.updates] + [row.usage for row in self.evaluations]
        return sum(spent, Usage())

    def write_curves(self, path: Path) -> None:
        """One flat JSON object per line, in chronological order: ``kind`` is ``update`` or ``evaluation``.

        Names as in :func:`scalars`; unknown values are left out.
        """
        rows: list[UpdateRow | EvaluationRow] = [*self.updates, *self.evaluations]
        rows.sort(key=lambda row: (row.update, isinstance(row, EvaluationRow)))
        kinds = {UpdateRow: "update", EvaluationRow: "evaluation"}
        write_rows(path, ({"kind": kinds[type(row)]} | scalars(row) for row in rows))


def scalars(row: UpdateRow | EvaluationRow) -> dict[str, float]:
    """The known numbers of a row by flat names (``shape_tokens``, ``accuracy_low``), for trackers."""
    return dict(_flat(row.model_dump(), ""))


def samples_to(evaluations: Sequence[EvaluationRow], accuracy: float) -> float | None:
    """Training samples after which ``accuracy`` is first reached, linear between evaluations.

    ``None`` if it never is; if the first evaluation already has it, the samples of that one.
    """
    points = sorted((row.samples, row.accuracy.value) for row in evaluations)
    for (x0, low), (x1, high) in pairwise(points[:1] + points):  # the first one is its own predecessor
        if high >= accuracy:
            return x0 + (x1 - x0) * (accuracy - low) / (high - low or 1.0)
    return None


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}_")
        elif value is not None:
            yield prefix + name, value


class Guards(FrozenModel):
    """When to raise an alarm, and which alarms end the run."""

    fall: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="Drop of the held-out accuracy below its best so far, at least this much and beyond "
        "chance: alarm overoptimization where the proxy rose meanwhile, gold where it did not or is unknown.",
    )
    evaluation_patience: int = Field(
        default=2, ge=1, description="Consecutive evaluations for which an alarm must hold."
    )
    stop_on: tuple[AlarmName, ...] = Field(
        default=("overoptimization",), description="Alarms that end the run."
    )


def watch(evaluations: Sequence[EvaluationRow], guards: Guards) -> list[Alarm]:
    """All alarms of a run so far, in the order in which they were raised; ``evaluations`` are in
    chronological order, and each is compared with the best one before it.

    Computed from the log alone, so a resumed run has the same alarms as one that was not killed. An alarm is
    listed once for each time it is raised; those with ``raised`` equal to the last update are new.
    """
    if not evaluations:
        return []
    best, alarms = evaluations[0], list[Alarm]()
    lasting: tuple[AlarmName | None, int, int] = (None, 0, 0)  # the alarm that holds, since when, how often
    for row in evaluations[1:]:
        # what chance explains: the facing half-widths, added like independent errors
        chance = math.hypot(best.accuracy.value - best.accuracy.low, row.accuracy.high - row.accuracy.value)
        threshold, measured = max(guards.fall, chance), best.accuracy.value - row.accuracy.value
        rose = row.proxy is not None and best.proxy is not None and row.proxy.value > best.proxy.value
        held: AlarmName = "overoptimization" if rose else "gold"
        if measured < threshold:
            lasting = (None, 0, 0)
        else:
            lasting = (held, lasting[1], lasting[2] + 1) if lasting[0] == held else (held, row.update, 1)
        if lasting[2] == guards.evaluation_patience:
            alarms.append(
                Alarm(
                    name=held,
                    update=lasting[1],
                    raised=row.update,
                    measured=measured,
                    threshold=threshold,
                    message=_fallen(best, row),
                )
            )
        if row.accuracy.value > best.accuracy.value:
            best = row
    return alarms


def stop_reason(alarms: Sequence[Alarm], guards: Guards) -> str | None:
    """Why the run ends, by the first alarm that ends it; ``None`` = it continues."""
    first = next((alarm for alarm in alarms if alarm.name in guards.stop_on), None)
    return None if first is None else f"alarm {first.name!r} at update {first.raised}: {first.message}"


def _fallen(best: EvaluationRow, row: EvaluationRow) -> str:
    fall = f"Held-out accuracy is {row.accuracy.value:.1%}, {best.accuracy.value:.1%} at update {best.update}"
    back = (
        f"Go back to update {best.update} (folder 'best')" if best.update else "Go back to the first policy"
    )
    fix = "lower the learning rate, or add KL"
    if row.proxy is None or best.proxy is None:
        return f"{fall}. {back}; {fix}; give a scorer to see whether it is being exploited."
    fall += f", and the proxy {row.proxy.value:.3g}, {best.proxy.value:.3g} then"
    if row.proxy.value <= best.proxy.value:
        return f"{fall}: the updates do harm. {back}; {fix}."
    return (
        f"{fall}: the policy exploits the scorer. {back}; use credit min-form, clip or delta, mix the "
        "outcome in, or train the scorer on this policy's traces."
    )
