"""Regressions, against scikit-learn run to convergence."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from surefoot.stats.regression import isotonic_regression, logistic_regression, standardized


@pytest.mark.parametrize("count", [30, 2000])
@pytest.mark.parametrize("penalty", [1.0, 0.01])
def test_logistic_regression(count, penalty):
    random = np.random.default_rng(count)
    features = random.normal(size=(count, 4))
    good = random.random(count) < 1 / (1 + np.exp(1 - features @ [2.0, -1.0, 0.0, 0.5]))
    expected = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    expected.fit(features, good)
    found = logistic_regression(features, good, penalty=penalty)
    np.testing.assert_allclose(found, [*expected.intercept_, *expected.coef_[0]], rtol=1e-6, atol=1e-8)


def test_targets_between_0_and_1():
    """The share of good steps by group is all that one feature for two groups can fit."""
    intercept, slope = logistic_regression([[0.0], [0.0], [1.0], [1.0]], [0.1, 0.3, 0.5, 0.9])
    assert intercept == pytest.approx(np.log(0.2 / 0.8))
    assert intercept + slope == pytest.approx(np.log(0.7 / 0.3))


def test_standardized_features():
    random = np.random.default_rng(0)
    rows = np.column_stack([random.lognormal(3, 2, 50), np.full(50, 3.7), random.normal(size=50)])
    np.testing.assert_allclose(
        standardized(rows[:5], rows), StandardScaler().fit(rows).transform(rows[:5]), atol=1e-9
    )


@pytest.mark.parametrize("count", [2, 40, 3000])
def test_isotonic_regression(count):
    random = np.random.default_rng(count)
    x = np.round(random.random(count), 2)  # many ties
    y = np.clip(x + random.normal(0, 0.5, count), 0, 1)
    expected = IsotonicRegression(out_of_bounds="clip").fit(x, y)
    at, values = isotonic_regression(x, y)
    np.testing.assert_allclose(at, expected.X_thresholds_)
    np.testing.assert_allclose(values, expected.y_thresholds_)
    assert (np.diff(values) >= 0).all()
