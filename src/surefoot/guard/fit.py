"""Fit a guard's threshold on a user's own recorded runs, and measure how often it would block a good call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import GuardError
from surefoot.stats import Interval, bootstrap_totals
from surefoot.stats.bootstrap import group_folds, group_sums

Unit = Literal["run", "call"]
FOLDS: Final = 10


@dataclass(frozen=True, kw_only=True)
class RunScores:
    """Scores of the calls of one recorded run; ``None`` for a call that the scorer did not score."""

    problem: str
    """Runs of one problem are kept together in cross-validation and in intervals."""
    good: tuple[float | None, ...]
    """Of calls that the guard should release."""
    bad: tuple[float | None, ...] = ()
    """Of calls that it should block."""


@dataclass(frozen=True, kw_only=True)
class ThresholdFit:
    """A threshold, and rates that are cross-validated by problem: each run is judged by a threshold that was
    fitted without the runs of its problem. Intervals are 95 %, bootstrapped over problems.

    With ``fail=closed`` a call without a score is blocked, so it counts as blocked here.
    """

    threshold: float
    """Fitted on all runs."""
    unit: Unit
    max_false_blocks: float
    problems: int
    runs: int
    good_calls: int
    bad_calls: int
    unscored_calls: int
    blocked_good_calls: Interval
    """Share of good calls that are blocked."""
    blocked_good_runs: Interval
    """Share of runs in which at least one good call is blocked."""
    blocked_bad_calls: Interval | None
    """Share of bad calls that are blocked; ``None`` without bad calls."""


def calibrated_threshold(good_scores: Sequence[float], max_false_blocks: float) -> float:
    """The highest threshold below which a good call scores with probability at most ``max_false_blocks``.

    ``good_scores`` are scores of calls known to be good, exchangeable with those to come; none of the calls
    may have been used to train or choose the scorer. The threshold is the one of rank
    floor(``max_false_blocks`` (n + 1)) of the n in order (split conformal prediction; Vovk, Gammerman and
    Shafer 2005).

    Raises ``GuardError`` for too few scores, one that is not finite, or a share outside (0, 1).
    """
    if not 0 < max_false_blocks < 1:
        raise GuardError(f"'max_false_blocks' must lie in (0, 1), not {max_false_blocks}")
    if not all(math.isfinite(score) for score in good_scores):
        raise GuardError("'good_scores' has a score that is not finite; leave out calls without a score")
    rank = math.floor(max_false_blocks * (len(good_scores) + 1) + 1e-9)  # 0.1 * 30 must count as 3
    if rank < 1:
        needed = math.ceil(1 / max_false_blocks) - 1
        raise GuardError(
            f"'good_scores' has {len(good_scores)} scores, and a share of {max_false_blocks:g} needs {needed}"
        )
    return sorted(good_scores)[rank - 1]


def fit_threshold(
    runs: Sequence[RunScores],
    max_false_blocks: float,
    *,
    unit: Unit = "run",
    draws: int = 2000,
    seed: int = 0,
) -> ThresholdFit:
    """The threshold that blocks at most a share ``max_false_blocks`` of good runs, or of good calls.

    With ``unit="run"`` the lowest score of each run's good calls is calibrated, so the bound is on runs in
    which anything is blocked by mistake. Calls of one run depend on each other; runs of different problems
    are closer to the exchangeability that :func:`calibrated_threshold` assumes.

    Raises ``GuardError`` for too few runs or calls, or fewer than two problems.
    """
    scored = [run for run in runs if _scores(run.good)]
    folds = _folds([run.problem for run in scored])
    blocked = np.zeros((len(scored), 6))
    for fold in range(folds.max(initial=-1) + 1):
        inside = folds == fold
        training = [run for run, held in zip(scored, inside, strict=True) if not held]
        threshold = calibrated_threshold(_units(training, unit), max_false_blocks)
        for number in np.flatnonzero(inside):
            blocked[number] = _counts(scored[number], threshold)
    totals = group_sums(blocked, [run.problem for run in scored])
    rates = bootstrap_totals([totals], _rates, draws=draws, rng=np.random.default_rng(seed))
    good = [score for run in scored for score in run.good]
    bad = [score for run in scored for score in run.bad]
    return ThresholdFit(
        threshold=calibrated_threshold(_units(scored, unit), max_false_blocks),
        unit=unit,
        max_false_blocks=max_false_blocks,
        problems=len(totals),
        runs=len(scored),
        good_calls=len(good),
        bad_calls=len(bad),
        unscored_calls=(good + bad).count(None),
        blocked_good_calls=rates[0],
        blocked_good_runs=rates[1],
        blocked_bad_calls=rates[2] if bad else None,
    )


def _scores(scores: Sequence[float | None]) -> list[float]:
    return [score for score in scores if score is not None]


def _units(runs: Sequence[RunScores], unit: Unit) -> list[float]:
    scores = [_scores(run.good) for run in runs]
    return [min(values) for values in scores] if unit == "run" else list(chain.from_iterable(scores))


def _folds(problems: Sequence[str]) -> NDArray[np.intp]:
    """The fold of each run; the runs of a problem are in one fold."""
    names = list(dict.fromkeys(problems))
    if len(names) < 2:
        raise GuardError(
            f"{len(names)} problems have runs with scored calls; cross-validation needs 2 or more"
        )
    return group_folds(problems, FOLDS)


def _counts(run: RunScores, threshold: float) -> tuple[float, ...]:
    """Blocked and all: good calls, runs, bad calls."""
    good, bad = ([score is None or score < threshold for score in calls] for calls in (run.good, run.bad))
    return sum(good), len(good), any(good), 1, sum(bad), len(bad)


def _rates(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares [n, 3] of totals [n, 1, 6]."""
    with np.errstate(invalid="ignore"):
        return totals[:, 0, 0::2] / totals[:, 0, 1::2]
