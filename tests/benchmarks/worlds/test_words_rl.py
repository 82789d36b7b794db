"""The figure of exact step rewards against outcomes: how curves become a number of times."""

from __future__ import annotations

import math

import pytest

from benchmarks.worlds.words.rl import compare, over_seeds, smooth, times_fewer
from surefoot.rl.log import EvaluationRow
from surefoot.stats.intervals import Interval


def curve(*accuracies: float) -> list[EvaluationRow]:
    """An evaluation after every hundred samples."""
    return [
        EvaluationRow(
            update=at, samples=100 * at, problems=9, accuracy=Interval(value=value, low=value, high=value)
        )
        for at, value in enumerate(accuracies)
    ]


def test_points_are_means_of_the_last_three():
    values = [row.accuracy.value for row in smooth(curve(0.0, 0.3, 0.6, 0.9))]
    assert values == pytest.approx([0.0, 0.15, 0.3, 0.6])


def test_samples_are_counted_to_where_outcomes_end():
    outcome = curve(0.5, 0.55, 0.6, 0.65, 0.7)
    assert times_fewer(outcome, curve(0.5, 0.7, 0.8, 0.8, 0.8)) == pytest.approx(4)
    assert times_fewer(outcome, outcome) == pytest.approx(1)
    assert times_fewer(outcome, curve(0.5, 0.9, 0.9, 0.9, 0.9)) == pytest.approx(4)  # no finer than a step
    assert times_fewer(outcome, curve(0.5, 0.5, 0.5, 0.5, 0.6)) == pytest.approx(0.5)  # never


def test_intervals_are_over_seeds():
    found = over_seeds([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert math.isnan(over_seeds([1.0]).low)
    figures, by_seed = compare([curve(0.5, 0.6), curve(0.5, 0.6)], [curve(0.5, 0.7), curve(0.5, 0.8)])
    assert by_seed["ratios"] == pytest.approx([1, 1])
    assert figures[1]["value"] == pytest.approx(15)
