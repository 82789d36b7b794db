import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.solutions import best_flag_threshold, f1, f1_negative, prm_score

STEPS = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.8]), st.booleans()), min_size=1, max_size=12)


def score_at(rows, cut):
    """PRMScore by counting, with nothing shared with the package."""
    tp = sum(good and s > cut for s, good in rows)
    fn = sum(good and s <= cut for s, good in rows)
    fp = sum(not good and s > cut for s, good in rows)
    tn = sum(not good and s <= cut for s, good in rows)
    return (2 * tp / (2 * tp + fp + fn) + 2 * tn / (2 * tn + fp + fn)) / 2


def test_published_closed_form():
    counts = np.array([70.0, 8.0, 10.0, 12.0])  # TP, FP, FN, TN
    assert f1(counts) == pytest.approx(0.8861, abs=5e-5)
    assert f1_negative(counts) == pytest.approx(0.5714, abs=5e-5)
    assert prm_score(counts) == pytest.approx(0.7288, abs=5e-5)


def test_all_good_at_80_percent_valid():
    counts = np.array([80.0, 20.0, 0.0, 0.0])
    assert f1(counts) == pytest.approx(0.889, abs=5e-4)
    assert prm_score(counts) == pytest.approx(0.444, abs=5e-4)


def test_zero_over_zero_is_nan_and_never_a_sentinel():
    nothing_wrong = np.array([5.0, 0.0, 0.0, 0.0])
    assert f1(nothing_wrong) == 1.0
    assert math.isnan(f1_negative(nothing_wrong))
    assert math.isnan(prm_score(nothing_wrong))
    all_flagged = np.array([0.0, 0.0, 5.0, 0.0])
    assert (f1(all_flagged), f1_negative(all_flagged)) == (0.0, 0.0)


@settings(deadline=None)
@given(STEPS)
def test_best_threshold_is_the_best_of_all_cuts(rows):
    scores, good = zip(*rows, strict=True)
    if len(set(good)) < 2:
        with pytest.raises(LabelError, match="both valid and wrong"):
            best_flag_threshold(scores, good)
        return
    cut = best_flag_threshold(scores, good)
    best = max(score_at(rows, other) for other in (0.0, 0.15, 0.3, 0.6, 0.9))
    assert score_at(rows, cut) == pytest.approx(best)


def test_best_threshold_between_neighbouring_floats():
    low = 0.5
    high = math.nextafter(low, 1)
    assert low <= best_flag_threshold([low, high], [False, True]) < high


def test_lengths_must_agree():
    with pytest.raises(LabelError, match="'scores' has 1 steps and 'good' has 2"):
        best_flag_threshold([0.1], [True, False])
