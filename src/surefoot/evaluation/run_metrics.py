"""What step scores are worth to who watches a run: warnings in time, false alarms, credit for recovery.

An alarm is a step that a monitor calls wrong: one scored below its threshold, or labelled −1. All are ratios
of counts, so that intervals come from resampled problems.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.stats.bootstrap import bootstrap_totals
from surefoot.stats.groups import group_numbers
from surefoot.stats.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class MonitoredRun:
    """One run with its truth; all lists have shape [steps]."""

    labels: Sequence[float | None]
    """-1 wrong, 0 neutral, +1 a step forward; ``None`` = not labelled."""
    scores: Sequence[float | None]
    """Higher is better; ``None`` = not scored."""
    alarms: Sequence[bool]
    failed: bool | None
    """Whether the task was not done; ``None`` = not known."""
    loopholes: Sequence[bool] = ()
    """Steps that exploit a loophole; empty where that is not known."""


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """95 % intervals over problems; NaN where there is nothing to count."""

    false_alarms: Interval
    """Alarms at steps labelled 0 or +1, per run."""
    warned: Interval
    """Share of the failed runs with a wrong step in which a wrong step gives an alarm."""
    lead_time: Interval
    """Steps from the first such alarm to the end of the run, mean over the runs warned of; 0 = at the end."""
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
    runs: Sequence[MonitoredRun],
    problems: Sequence[Hashable],
    *,
    draws: int = 1000,
    rng: np.random.Generator,
) -> RunMetrics:
    """Metrics of ``runs``, of which run i is of ``problems[i]``.

    Raises ``LabelError`` for no runs, and for lists that are not of one length.
    """
    if not runs:
        raise LabelError("'runs' is empty; give at least one run")
    counts = np.array([_counts(number, run) for number, run in enumerate(runs)], dtype=float)
    group = group_numbers(problems)
    by_problem = np.zeros((int(group.max()) + 1, counts.shape[1]))
    np.add.at(by_problem, group, counts)
    rates = bootstrap_totals([by_problem], _rates, draws=draws, rng=rng)
    totals = counts.sum(axis=0)
    return RunMetrics(
        false_alarms=rates[0],
        warned=rates[1],
        lead_time=rates[2],
        recovery_credit=rates[3],
        loopholes_found=rates[4],
        runs=len(runs),
        warnable=int(totals[3]),
        recoveries=int(totals[6]),
        loopholes=int(totals[8]),
    )


def _counts(number: int, run: MonitoredRun) -> list[float]:
    """False alarms, runs, runs warned of, runs to be warned of, lead, credit, recoveries, loopholes found,
    loopholes."""
    steps = len(run.labels)
    lengths = {steps, len(run.scores), len(run.alarms), len(run.loopholes) or steps}
    if lengths != {steps}:
        raise LabelError(f"runs[{number}] has lists of {sorted(lengths)} entries; give one for each step")
    wrong = [step for step, label in enumerate(run.labels) if label is not None and label < 0]
    warnings = [step for step in wrong if run.alarms[step]]
    to_warn_of = bool(run.failed and wrong)
    warned = bool(to_warn_of and warnings)
    credits = _recovery_credits(run)
    found = [alarm for alarm, loophole in zip(run.alarms, run.loopholes, strict=False) if loophole]
    false_alarms = [
        label is not None and label >= 0 and alarm
        for label, alarm in zip(run.labels, run.alarms, strict=True)
    ]
    return [
        sum(false_alarms),
        1,
        warned,
        to_warn_of,
        steps - 1 - warnings[0] if warned else 0,
        sum(credits),
        len(credits),
        sum(found),
        len(found),
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
            before, after = run.scores[error], run.scores[step]
            known = before is not None and after is not None
            credits.append(0.5 * ((after > before) + (after >= before)) if known else 0.0)  # type: ignore[operator]
            error = None
    return credits


def _rates(totals_ns9: NDArray[np.float64]) -> NDArray[np.float64]:
    """[draws, 5]"""
    false, runs, warned, warnable, lead, credit, recoveries, found, loopholes = np.moveaxis(
        totals_ns9[:, 0], -1, 0
    )
    with np.errstate(invalid="ignore"):  # 0/0 is NaN here, and means it
        return np.stack(
            [false / runs, warned / warnable, lead / warned, credit / recoveries, found / loopholes], axis=1
        )
