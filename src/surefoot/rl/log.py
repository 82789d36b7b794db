"""The log of a run: one row per update, one per evaluation, alarms; plain data without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from surefoot.io import atomic_file
from surefoot.records import Problem, Record, Trace, Usage
from surefoot.stats.intervals import Interval

AlarmName = Literal["length", "cut", "empty", "repeated", "one_step", "entropy", "overoptimization", "gold"]
"""What :class:`surefoot.rl.guards.Guards` watches for."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Shape(_Row):
    """Lengths and idle steps of traces (:func:`surefoot.rl.audit.shape_of`); ``None``: nothing to count."""

    traces: Count = 0
    tokens: float | None = None
    """Mean tokens per trace."""
    steps: float | None = None
    """Mean steps per trace."""
    finished: Share | None = None
    """Share of traces that the policy ended, rather than the limit of tokens."""
    empty: Share | None = None
    """Share of steps without a letter or digit."""
    repeated: Share | None = None
    """Share of steps that repeat an earlier one of their trace word for word; empty ones are not counted."""


class Seconds(_Row):
    """Time of a round by stage."""

    generation: float = 0.0
    scoring: float = 0.0
    """Reward model, credit and advantages."""
    update: float = 0.0

    @property
    def total(self) -> float:
        """Sum of the three."""
        return self.generation + self.scoring + self.update


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
    seconds: Seconds = Seconds()
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
    """Update at which it had lasted for ``patience``."""
    until: int | None = None
    """Last update at which it held; ``None`` = it still does."""
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

    @property
    def best(self) -> EvaluationRow | None:
        """The first evaluation with the highest accuracy."""
        return max(self.evaluations, key=lambda row: row.accuracy.value, default=None)

    @property
    def usage(self) -> Usage:
        """Of training and evaluations together."""
        return sum((row.usage for row in self._chronological()), Usage())

    def write_curves(self, path: Path) -> None:
        """One flat JSON object per line, in chronological order: ``kind`` is ``update`` or ``evaluation``.

        Names as in :func:`scalars`; unknown values are left out.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            for row in self._chronological():
                kind = "update" if isinstance(row, UpdateRow) else "evaluation"
                stream.write(json.dumps({"kind": kind} | scalars(row)).encode() + b"\n")

    def _chronological(self) -> Iterator[UpdateRow | EvaluationRow]:
        rows: list[UpdateRow | EvaluationRow] = [*self.updates, *self.evaluations]
        yield from sorted(rows, key=lambda row: (row.update, isinstance(row, EvaluationRow)))


def scalars(row: UpdateRow | EvaluationRow) -> dict[str, float]:
    """The known numbers of a row by flat names (``shape_tokens``, ``accuracy_low``), for trackers."""
    return dict(_flat(row.model_dump(), ""))


def samples_to(evaluations: Sequence[EvaluationRow], accuracy: float) -> float | None:
    """Training samples after which ``accuracy`` is first reached, linear between evaluations.

    ``None`` if it never is; if the first evaluation already has it, the samples of that one.
    """
    return curve_samples_to({row.samples: row.accuracy.value for row in evaluations}, accuracy)


def curve_samples_to(curve: Mapping[int, float], accuracy: float) -> float | None:
    """:func:`samples_to` of a curve from samples to accuracy."""
    points = sorted(curve.items())
    if points and points[0][1] >= accuracy:
        return float(points[0][0])
    for (x0, low), (x1, high) in pairwise(points):
        if high >= accuracy:
            return x0 + (x1 - x0) * (accuracy - low) / (high - low)
    return None


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}_")
        elif value is not None:
            yield prefix + name, value
