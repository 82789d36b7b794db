"""The control chart: run length without a change, power after one, and the point of change."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.stats.e_detector import EDetector


def test_the_recursion_by_hand():
    chart = EDetector([0.5], [0.5], run_length=100)
    bets = np.array([0.05, 0.2, 0.5, 0.9])
    up, down = 1 + bets, 1 - bets
    assert chart.add(np.array([1.0])) == pytest.approx((up.mean() + down.mean()) / 2)
    first = ((up + 1) * up, (down + 1) * down)
    assert chart.add(np.array([1.0])) == pytest.approx(np.mean(first))


def test_what_is_not_observed_is_no_evidence():
    chart = EDetector([0.5, 0.5], [0.5, 0.5], run_length=100)
    assert chart.add(np.array([np.nan, np.nan])) == pytest.approx(1)  # after one step, M is 1


def test_false_alarms_are_rarer_than_stated():
    """A run length of 200: at most one alarm in 200 steps on average, over 60,000 steps."""
    rng = np.random.default_rng(3)
    alarms, steps = 0, 60_000
    chart = EDetector([0.5, 0.1], [0.5, 0.1], run_length=200)
    for uniform, rare in zip(rng.random(steps), rng.random(steps) < 0.1, strict=True):
        if chart.add(np.array([uniform, float(rare)])) >= 200:
            alarms += 1
            chart = EDetector([0.5, 0.1], [0.5, 0.1], run_length=200)
    assert 0 < alarms <= steps / 200


@pytest.mark.parametrize("low", [True, False])
def test_a_change_is_seen_soon_and_dated(low):
    rng = np.random.default_rng(4)
    chart, rows = EDetector([0.5, 0.5], [0.5, 0.5], run_length=10_000), []
    for step in range(1000):
        values = rng.random(2)
        if step >= 300:
            values[1] = values[1] * 0.6 + (0 if low else 0.4)
        rows.append(values)
        if chart.add(values) >= 10_000:
            break
    assert 300 < step < 450
    assert abs(chart.change_point(np.array(rows)) - 300) < 40
