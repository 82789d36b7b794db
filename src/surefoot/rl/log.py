"""What a run says of itself: a row an update, a row an evaluation, alarms; plain data without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefoot.errors import RecordError
from surefoot.io import atomic_file
from surefoot.records import Problem, Trace, Usage
from surefoot.stats.intervals import Interval

AlarmName = Literal["length", "cut", "empty", "repeated", "one_step", "entropy", "parted", "gold"]
"""What :class:`surefoot.rl.guards.Guards` looks for."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Shape(_Row):
    """The looks of some traces (:func:`surefoot.rl.audit.shape_of`); ``None``: there is nothing to count."""

    traces: Count = 0
    tokens: float | None = None
    """Mean tokens a trace."""
    steps: float | None = None
    """Mean steps a trace."""
    finished: Share | None = None
    """Share of traces that the policy ended, rather than the limit of tokens."""
    empty: Share | None = None
    """Share of steps without a letter or digit."""
    repeated: Share | None = None
    """Share of steps that stand in their trace already, word for word; empty ones are not counted again."""


class Seconds(_Row):
    """Where the time of a round went."""

    generation: float = 0.0
    scoring: float = 0.0
    """Reward model, credit and advantages."""
    update: float = 0.0

    @property
    def total(self) -> float:
        """Of the three."""
        return self.generation + self.scoring + self.update


class UpdateRow(_Row):
    """One round of sampling and learning. ``None``: not measured, or nothing was learned from this round."""

    update: int = Field(ge=1)
    samples: Count
    """Rollouts drawn so far, this round's among them."""
    outcome: Share | None = None
    """Share of this round's judged rollouts with the right answer."""
    proxy: float | None = None
    """Mean over scored rollouts of their step scores, reduced to one number."""
    reward: float | None = None
    """Mean of what the credit rule gave a rollout, all tokens together."""
    advantage_mean: float | None = None
    advantage_std: float | None = None
    """Over the tokens that are learned from."""
    loss: float | None = None
    kl: float | None = None
    """To the reference policy, nats a token."""
    clipped: Share | None = None
    """Share of tokens whose gradient the clipped objective holds back."""
    entropy: float | None = None
    """Nats a token, before the round's first step of the optimiser."""
    gradient_norm: float | None = None
    """Before clipping."""
    learning_rate: float | None = None
    shape: Shape = Shape()
    """Of all rollouts, before any is dropped."""
    failed: Count = 0
    """Samples asked for that did not come."""
    dropped: Count = 0
    """Rollouts that have no reward, since something that the rule needs is unknown."""
    filtered: Count = 0
    """Rollouts of problems outside the accuracy band."""
    unscored_steps: Count = 0
    """Steps to which the scorer gave no score."""
    seconds: Seconds = Seconds()
    usage: Usage = Usage()


class EvaluationRow(_Row):
    """The policy on held-out problems; intervals are 95 %, over problems."""

    update: Count
    """Updates before it; 0 is the policy that training started from."""
    samples: Count
    """Rollouts that were trained on before it."""
    accuracy: Interval
    """Share of right answers."""
    proxy: Interval | None = None
    """Mean score of the same traces; ``None`` without a scorer."""
    trace_error: Interval | None = None
    """Of the traces with a right answer, those with a wrong step, by a labeller that the reward does not see;
    ``None`` without one, or without a right answer that it could judge."""
    problems: Count
    """Problems with a graded trace."""
    shape: Shape = Shape()
    failed: Count = 0
    """Samples asked for that did not come."""
    ungraded: Count = 0
    """Traces whose answer could not be judged; they do not count for accuracy."""
    unscored: Count = 0
    """Traces that the scorer gave no score, or not one for every step; they do not count for the proxy."""
    unjudged: Count = 0
    """Right answers of which the labeller did not know whether a step is wrong."""
    usage: Usage = Usage()


class Alarm(_Row):
    """A guard that went off. Equal logs give equal alarms."""

    name: AlarmName
    update: Count
    """Update (or evaluation) at which it began."""
    raised: Count
    """Update at which it had lasted as long as ``patience`` asks."""
    until: int | None = None
    """Last update at which it held; ``None`` = it still does."""
    measured: float
    """When it was raised, in the unit of the threshold."""
    threshold: float
    message: str
    """What happened, and the likely remedy."""


class SampleRow(_Row):
    """One training rollout, kept for reading."""

    update: int = Field(ge=1)
    problem: Problem
    trace: Trace
    scores: tuple[float | None, ...] = ()
    """Of the steps [K]; empty where the rule needs none."""
    advantages: tuple[float, ...] = ()
    """Mean advantage of each step's tokens [K]; empty for a rollout that was not learned from."""


class RLLog(BaseModel):
    """The log of a run, which its checkpoint holds."""

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
        return sum((row.usage for row in self._in_time()), Usage())

    def write_curves(self, path: Path) -> None:
        """One flat JSON object a line, in order of time: ``kind`` is ``update`` or ``evaluation``.

        Whole or not at all. Names are those of :func:`scalars`; what is unknown is left out.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            for row in self._in_time():
                kind = "update" if isinstance(row, UpdateRow) else "evaluation"
                stream.write(json.dumps({"kind": kind} | scalars(row)).encode() + b"\n")

    def _in_time(self) -> Iterator[UpdateRow | EvaluationRow]:
        rows: list[UpdateRow | EvaluationRow] = [*self.updates, *self.evaluations]
        yield from sorted(rows, key=lambda row: (row.update, isinstance(row, EvaluationRow)))


def scalars(row: UpdateRow | EvaluationRow) -> dict[str, float]:
    """The known numbers of a row under flat names (``shape_tokens``, ``accuracy_low``), for trackers."""
    return dict(_flat(row.model_dump(), ""))


def samples_to(evaluations: Sequence[EvaluationRow], accuracy: float) -> float | None:
    """Training samples after which ``accuracy`` is first reached, linear between evaluations.

    ``None`` if it never is; where the first evaluation is there already, its samples.
    """
    return curve_samples_to({row.samples: row.accuracy.value for row in evaluations}, accuracy)


def curve_samples_to(curve: Mapping[int, float], accuracy: float) -> float | None:
    """:func:`samples_to` of a curve from samples to accuracy."""
    points = sorted(curve.items())
    if points and points[0][1] >= accuracy:
        return float(points[0][0])
    for (before, low), (after, high) in pairwise(points):
        if high >= accuracy:
            return before + (after - before) * (accuracy - low) / (high - low)
    return None


def read_samples(path: Path) -> list[SampleRow]:
    """The rollouts kept of one round. Raises ``RecordError`` naming the line that is broken."""
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(SampleRow.model_validate_json(line))
        except ValidationError as error:
            raise RecordError(f"{path}, line {number}: no kept rollout: {error}") from error
    return rows


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}_")
        elif value is not None:
            yield prefix + name, value
