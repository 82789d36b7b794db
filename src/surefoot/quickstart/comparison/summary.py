"""What ``summary.json`` holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from surefoot.io import write_json
from surefoot.records import Usage
from surefoot.stats.intervals import Interval

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: None if math.isnan(value) else value, when_used="json"),
]
"""A number that may be undefined (a share of nothing): NaN in Python, ``null`` in JSON."""


Estimate = Annotated[Interval, PlainSerializer(lambda x: {"value": x.value, "low": x.low, "high": x.high})]
"""An accuracy or difference with its 95 % interval over problems (percentile bootstrap)."""

Curve = dict[int, Estimate]
"""Number of samples N → accuracy."""


def rounded(interval: Interval) -> Interval:
    """Rounded to what the number of problems supports."""
    value, low, high = (round(number, 5) for number in (interval.value, interval.low, interval.high))
    return Interval(value=value, low=low, high=high)


class StepQuality(BaseModel):
    """How well a scorer tells good prefixes from bad ones on the test traces."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    auc: Number
    """Pooled over all steps; position alone can lift it."""
    auc_within_position: Number
    auc_within_problem: Number
    probe_right: Number
    """Content probe: share of lines whose right digit scores highest of ten; chance is 0.1."""
    probe_contrast: Number


class Summary(BaseModel):
    """``summary.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pass_at: Curve
    majority: Curve
    orm: Curve
    """Read at the last step, as outcome models are."""
    orm_lowest_step: Curve
    """The same model read at its lowest step, as if it were a PRM."""
    prm: Curve
    prm_gold: Curve
    differences: dict[str, Estimate]
    """Paired by problem, e.g. ``prm - orm @ 64``."""
    selectors: dict[str, Curve]
    """Every scorer with every aggregation and the weighted vote."""
    policy: dict[str, Number]
    label_noise: dict[str, Number]
    steps: dict[str, StepQuality]
    tokens: dict[str, Usage]
    training: dict[str, Any]
    counts: dict[str, int]
    findings: list[str]
    seconds: dict[str, float] = {}

    def write(self, path: Path, *, seconds: Mapping[str, float]) -> Path:
        """Write as JSON, atomically; ``seconds`` is the only part that differs between equal runs."""
        rounded = {stage: round(value, 1) for stage, value in seconds.items()}
        data = self.model_dump(mode="json") | {
            "seconds": rounded | {"total": round(sum(rounded.values()), 1)}
        }
        write_json(path, data)
        return path
