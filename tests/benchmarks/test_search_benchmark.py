"""benchmarks/search/run.py: the best tree method against selection rules at equal tokens."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search import run as search


def point(cost, *right):
    return search.Point(right=[np.array(right, dtype=float)], tokens=[np.full(len(right), float(cost))])


def test_figures_compare_within_the_cost_of_best_of_16():
    points = {
        "best_of_n": {16: point(1000, 1, 0, 0, 0)},
        "weighted_vote": {16: point(1000, 1, 1, 0, 0)},
        "majority": {16: point(800, 0, 0, 1, 0)},
        "dvts": {8: point(500, 1, 1, 0, 0), 16: point(1100, 1, 1, 1, 1)},
    }
    found = {figure["name"]: figure["value"] for figure in search.figures(points, "dvts")}
    assert found == {
        "accuracy_vs_best_of_16": 25,
        "accuracy_vs_majority": 25,
        "tokens_at_equal_accuracy": 1000 / 500,
        "tokens_at_equal_accuracy_of_weighted_vote": 1000 / 500,
    }
    with pytest.raises(SystemExit, match="give smaller sizes"):
        search.figures(points | {"dvts": {16: points["dvts"][16]}}, "dvts")


def test_a_curve_is_straight_in_the_logarithm_of_tokens():
    curve = [(100.0, 0.2), (400.0, 0.6)]
    assert search.tokens_at(curve, 0.4) == pytest.approx(200)
    assert search.tokens_at(curve, 0.1) == 100
    assert search.tokens_at(curve, 0.9) == 400, "a lower bound where the curve never gets there"
