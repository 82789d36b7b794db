"""Thresholds fitted on recorded runs: closed forms, coverage, and cross-validated rates."""

import numpy as np
import pytest

from surefoot.errors import GuardError
from surefoot.guard.fit import RunScores, fit_threshold


def runs(*scores: tuple[float | None, ...], bad: tuple[float | None, ...] = ()) -> list[RunScores]:
    return [RunScores(problem=f"p{i}", good=good, bad=bad) for i, good in enumerate(scores)]


def test_the_threshold_has_the_conformal_rank_of_the_lowest_scores_of_runs() -> None:
    fit = fit_threshold(runs(*((0.9, i / 100) for i in range(1, 40))), 0.1)
    assert fit.threshold == 0.04  # rank 4 of 39
    assert (fit.problems, fit.runs, fit.good_calls) == (39, 39, 78)
    calls = fit_threshold(runs(*((0.9, i / 100) for i in range(1, 40))), 0.1, unit="call")
    assert calls.threshold == 0.07  # rank 7 of 78


def test_rates_are_those_of_runs_that_were_left_out() -> None:
    fit = fit_threshold(runs(*((i / 100,) for i in range(1, 101))), 0.05)
    assert fit.threshold == 0.05
    blocked = fit.blocked_good_runs.value
    assert blocked == fit.blocked_good_calls.value
    assert 0.04 <= blocked <= 0.06
    assert fit.blocked_good_runs.low < blocked < fit.blocked_good_runs.high


def test_the_share_of_new_runs_that_are_blocked_is_as_asked() -> None:
    rng = np.random.default_rng(1)
    rates = []
    for _ in range(40):
        known, new = (rng.uniform(size=(199, 3)) for _ in range(2))
        fit = fit_threshold(runs(*map(tuple, known)), 0.1, draws=10)
        rates.append((new.min(axis=1) < fit.threshold).mean())
    assert np.mean(rates) == pytest.approx(0.1, abs=0.01)


def test_bad_calls_and_calls_without_a_score() -> None:
    fit = fit_threshold(runs(*((0.5 + i / 1000,) for i in range(50)), bad=(0.1, 0.99, None)), 0.1)
    assert fit.blocked_bad_calls is not None
    assert fit.blocked_bad_calls.value == pytest.approx(2 / 3)
    assert fit.unscored_calls == 50
    unscored = fit_threshold(runs(*((0.5 + i / 1000, None) for i in range(50))), 0.1)
    assert unscored.blocked_good_runs.value == 1, "with fail=closed every one of these runs is interrupted"
    assert unscored.blocked_bad_calls is None


def test_runs_of_one_problem_are_never_on_both_sides() -> None:
    same = [RunScores(problem=f"p{i % 30}", good=(float(i % 30),)) for i in range(300)]
    fit = fit_threshold(same, 0.05)
    assert fit.problems == 30
    assert fit.blocked_good_runs.value > 0, "with its own copies in the fit, no run could fall below"


def test_too_little_data_is_refused() -> None:
    with pytest.raises(GuardError, match="1 problems have runs"):
        fit_threshold([RunScores(problem="p", good=(0.5,))] * 50, 0.1)
    with pytest.raises(GuardError, match="needs 19"):
        fit_threshold(runs(*((0.5,) for _ in range(10))), 0.05)
    with pytest.raises(GuardError, match="0 problems"):
        fit_threshold(runs((None,), (None,)), 0.05)
