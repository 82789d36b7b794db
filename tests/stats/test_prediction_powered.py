"""Prediction-powered means: closed forms, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from surefoot.errors import LabelError
from surefoot.stats import prediction_powered_mean
from surefoot.stats.prediction_powered import student_t


def known(n, total, values):
    gold = np.full(total, math.nan)
    gold[:n] = values
    return gold


def test_useless_predictions_give_the_classical_interval():
    y = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    mean = prediction_powered_mean(np.ones(50), known(8, 50, y), np.arange(50))
    half = student_t(7) * y.std(ddof=1) / math.sqrt(8)
    assert mean.tuning == 0
    assert mean.corrected == mean.gold_only
    assert mean.corrected.value == pytest.approx(3 / 8)
    assert mean.corrected.high - mean.corrected.value == pytest.approx(half)


def test_the_tuned_estimate_is_the_regression_estimator():
    rng = np.random.default_rng(0)
    f = rng.random(200)
    y = (rng.random(200) < f).astype(float)
    mean = prediction_powered_mean(f, known(40, 200, y[:40]), np.arange(200))
    slope = np.cov(y[:40], f[:40])[0, 1] / np.var(f[:40], ddof=1)
    assert mean.tuning == pytest.approx(slope)
    assert mean.corrected.value == pytest.approx(y[:40].mean() + slope * (f.mean() - f[:40].mean()))
    assert (mean.gold_items, mean.gold_problems) == (40, 40)


def test_perfect_predictions_still_allow_for_unseen_mistakes():
    f = np.r_[np.zeros(50), np.ones(50)]
    gold = np.where(np.arange(100) % 5 == 0, f, math.nan)
    mean = prediction_powered_mean(f, gold, np.arange(100))
    assert mean.tuning == pytest.approx(1)
    assert mean.corrected.value == pytest.approx(0.5)
    assert mean.corrected.low <= 0.5 - 3 / 20


def test_repeating_each_item_in_its_problem_changes_nothing():
    rng = np.random.default_rng(1)
    f = rng.random(60)
    gold = known(30, 60, (rng.random(30) < f[:30]).astype(float))
    once = prediction_powered_mean(f, gold, np.arange(60))
    thrice = prediction_powered_mean(np.repeat(f, 3), np.repeat(gold, 3), np.repeat(np.arange(60), 3))
    assert thrice.corrected.bounds == pytest.approx(once.corrected.bounds)


@pytest.mark.parametrize("case", ["biased judge", "weights", "clusters"])
def test_coverage_is_nominal(case):
    """95 % intervals contain the truth in 95 % of 600 simulations, up to three standard errors."""
    covered = narrower = 0
    for seed in range(600):
        rng = np.random.default_rng(seed)
        problems = np.repeat(np.arange(600), 3 if case == "clusters" else 1)
        hard = rng.beta(1, 3, 600)[problems]
        y = rng.random(len(problems)) < hard
        f = np.where(rng.random(len(y)) < 0.85, y, True).astype(float)  # false alarms only
        # doubtful ones are labelled more often
        chance = np.where(f == 1, 0.25, 0.1) if case == "weights" else np.full(len(y), 0.15)
        asked = rng.random(600)[problems] < chance
        mean = prediction_powered_mean(f, np.where(asked, y, math.nan), problems, weights=1 / chance)
        covered += mean.corrected.includes(0.25)
        narrower += np.ptp(mean.corrected.bounds) < np.ptp(mean.gold_only.bounds)
        assert not math.isnan(mean.corrected.low)
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 600) < covered / 600 < 0.985
    assert narrower > 500


@pytest.mark.parametrize("degrees", [(3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042)])
def test_students_quantile(degrees):
    nu, exact = degrees
    assert student_t(nu) == pytest.approx(exact, rel=0.012 if nu == 3 else 0.002)


@pytest.mark.parametrize(
    ("gold", "weights"),
    [([math.nan, math.nan], None), ([1.0, math.nan], None), ([1.0, 0.0], [1.0, 0.0])],
)
def test_too_little_is_refused(gold, weights):
    with pytest.raises(LabelError, match=r"needs gold labels|'weights' must be positive"):
        prediction_powered_mean([0.5, 0.5], gold, [0, 1], weights=weights)


@pytest.mark.parametrize(("base", "gold_problems"), [(0.02, 60), (0.05, 60), (0.1, 30), (0.25, 30)])
def test_a_rates_interval_holds_where_wrong_steps_are_rare_and_bunched(base, gold_problems):
    """Two fifths of the steps of few problems are wrong; a symmetric interval misses the rate more often."""
    covered = symmetric = 0
    for seed in range(500):
        rng = np.random.default_rng([seed, 7])
        wrong = (rng.random((400, 8)) < 0.4) & (rng.random((400, 1)) < base / 0.4)
        judged = np.where(rng.random((400, 8)) < 0.08, 1.0, wrong * (rng.random((400, 8)) < 0.7))
        gold = np.full((400, 8), math.nan)
        gold[:gold_problems] = wrong[:gold_problems]
        given = judged.ravel(), gold.ravel(), np.repeat(np.arange(400), 8)
        rate = prediction_powered_mean(*given, rate=True).corrected
        assert 0 <= rate.low <= rate.value <= rate.high <= 1
        covered += rate.includes(base)
        symmetric += prediction_powered_mean(*given).corrected.includes(base)
    assert covered / 500 > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 500)
    assert symmetric <= covered + 2
