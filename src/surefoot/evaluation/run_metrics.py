"""Quality of step scores for monitoring a run: early warnings, false alarms, credit for recovery.

An alarm is a step that a monitor calls wrong: one scored below its threshold, or labelled −1. All measures
are ratios of counts with intervals over problems.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.stats.bootstrap import Bootstrap, group_sums
from surefoot.stats.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class MonitoredRun:
    """One run with its true labels; all lists have shape [steps]."""

    labels: Sequence[float | None]
    """-1 wrong, 0 neutral, +1 a step forward; ``None`` = not labelled."""
    scores: Sequence[float | None]
    """Higher is better; ``None`` = not scored."""
    alarms: Sequence[bool]
    failed: bool | None
    """Whether the task failed; ``None`` = unknown."""
    loopholes: Sequence[bool] = ()
    """Steps that exploit a loophole; empty if unknown."""


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """95 % intervals over problems; NaN if there is nothing to count."""

    false_alarms: Interval
    """Alarms at steps labelled 0 or +1, per run."""
    warned: Interval
    """Share of the failed runs with a wrong step in which a wrong step gives an alarm."""
    lead_time: Interval
    """Steps from the first such alarm to the end of the run, mean over the warned runs; 0 = at the end."""
    recovery_credit: Interval
    """Share of recoveries scored above the wrong step before them; a tie counts one half, a missing score
    none. A recovery is the first +1 after a -1."""
    loopholes_found: Interval
    """Share of the steps that exploit a loophole that give an alarm."""
    runs: int
    warnable: int
    """Failed runs with a wrong step."""
    recoveries: int
    loopholes: int


def run_metrics(
    runs: Sequence[MonitoredRun], problems: Sequence[Hashable], *, draws: int = 1000, seed: int = 0
) -> RunMetrics:
    """Metrics of ``runs``, of which run i is of ``problems[i]``.

    Raises ``LabelError`` without runs, and for lists of different lengths.
    """
    if not runs:
        raise LabelError("'runs' is empty; give at least one run")
    counts = np.array([_counts(number, run) for number, run in enumerate(runs)], dtype=float)
    false_alarms, warned, lead_time, recovery_credit, loopholes_found = Bootstrap(
        draws=draws, seed=seed
    ).totals([group_sums(counts, problems)], _rates)
    totals = counts.sum(axis=0)
    return RunMetrics(
        false_alarms=false_alarms,
        warned=warned,
        lead_time=lead_time,
        recovery_credit=recovery_credit,
        loopholes_found=loopholes_found,
        runs=len(runs),
        warnable=int(totals[3]),
        recoveries=int(totals[6]),
        loopholes=int(totals[8]),
    )


def _counts(number: int, run: MonitoredRun) -> list[float]:
    """False alarms, runs, warned runs, warnable runs, lead time, credit, recoveries, loopholes found,
    loopholes."""
    steps = len(run.labels)
    lengths = {steps, len(run.scores), len(run.alarms), len(run.loopholes) or steps}
    if lengths != {steps}:
        raise LabelError(f"runs[{number}] has lists of {sorted(lengths)} entries; give one for each step")
    labels = [math.nan if label is None else label for label in run.labels]
    wrong = [step for step, label in enumerate(labels) if label < 0]
    warnings = [step for step in wrong if run.alarms[step]]
    warnable = bool(run.failed and wrong)
    warned = bool(warnable and warnings)
    credits = _recovery_credits(run)
    return [
        sum(label >= 0 and alarm for label, alarm in zip(labels, run.alarms, strict=True)),
        1,
        warned,
        warnable,
        steps - 1 - warnings[0] if warned else 0,
        sum(credits),
        len(credits),
        sum(alarm for alarm, loophole in zip(run.alarms, run.loopholes, strict=False) if loophole),
        sum(run.loopholes),
    ]


def _recovery_credits(run: MonitoredRun) -> list[float]:
    """For each recovery 1, ½ or 0."""
    credits: list[float] = []
    error: int | None = None
    for step, label in enumerate(run.labels):
        if label is None:
            continue
        if label < 0:
            error = step
        elif label > 0 and error is not None:
            error_score, score = run.scores[error], run.scores[step]
            if error_score is None or score is None:
                credits.append(0.0)
            else:
                credits.append(0.5 * ((score > error_score) + (score >= error_score)))
            error = None
    return credits


def _rates(totals_ns9: NDArray[np.float64]) -> NDArray[np.float64]:
    """[draws, 5]"""
    false, runs, warned, warnable, lead, credit, recoveries, caught, loopholes = np.moveaxis(
        totals_ns9[:, 0], -1, 0
    )
    with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
        return np.stack(
            [false / runs, warned / warnable, lead / warned, credit / recoveries, caught / loopholes], axis=1
        )
