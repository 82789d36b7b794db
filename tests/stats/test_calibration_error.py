import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import LabelError, ScoreError
from surefoot.stats.calibration import reliability

STEPS = st.lists(
    st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.5, 1.0])), st.sampled_from([0, 1])),
    min_size=1,
    max_size=40,
)
BINNING = st.sampled_from(["equal-mass", "equal-width"])


def test_a_known_table():
    found = reliability([0.1, 0.1, 0.9, 0.9], [0, 1, 1, 1], bins=2, binning="equal-width")
    assert [(b.low, b.high, b.steps, b.good) for b in found.bins] == [(0.1, 0.1, 2, 0.5), (0.9, 0.9, 2, 1.0)]
    assert found.ece == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)
    assert found.bias == pytest.approx(0.5 - 0.75)
    assert found.brier == pytest.approx((0.01 + 0.81 + 0.01 + 0.01) / 4)
    assert found.brier_constant == pytest.approx(0.75 * 0.25)
    assert (found.steps, found.dropped) == (4, 0)


def test_bins_of_equal_width_meet_at_the_decimal_one_writes():
    scores = [k / 10 for k in range(11)]
    found = reliability(scores, [1] * 11, bins=10, binning="equal-width")
    assert [b.steps for b in found.bins] == [1] * 9 + [2]  # 1.0 belongs to the last bin
    assert [b.low for b in found.bins] == scores[:10]


def test_bins_of_equal_mass_hold_equally_many():
    scores = np.random.default_rng(0).permutation(np.linspace(0, 0.1, 100))
    found = reliability(scores, np.zeros(100), bins=10)
    assert [b.steps for b in found.bins] == [10] * 10
    assert all(a.high < b.low for a, b in zip(found.bins, found.bins[1:], strict=False))


def test_equal_scores_share_a_bin():
    found = reliability([0.0] * 7 + [0.5] * 2 + [1.0], [0] * 10, bins=10)
    assert [(b.low, b.high, b.steps) for b in found.bins] == [(0, 0, 7), (0.5, 0.5, 2), (1, 1, 1)]


def test_scores_that_are_true_chances_have_little_error_and_a_brier_score_of_their_variance():
    rng = np.random.default_rng(1)
    scores = rng.uniform(size=100_000)
    good = rng.uniform(size=100_000) < scores
    for binning in ("equal-mass", "equal-width"):
        found = reliability(scores, good, binning=binning)
        assert found.ece < 0.01  # chance: 0.4 / sqrt(10 000) = 0.004
        assert found.brier == pytest.approx(1 / 6, abs=0.005)  # mean of p (1 - p)
        assert abs(found.bias) < 0.005


@settings(deadline=None)
@given(STEPS, BINNING, st.integers(1, 12), st.randoms(use_true_random=False))
def test_bounds_and_order(steps, binning, bins, random):
    scores, good = zip(*steps, strict=True)
    found = reliability(scores, good, bins=bins, binning=binning)
    assert sum(b.steps for b in found.bins) == found.steps == len(steps)
    assert len(found.bins) <= bins
    assert abs(found.bias) - 1e-9 <= found.ece <= 1
    assert 0 <= found.brier <= 1
    # Jensen: grouping can only lose what the scores tell apart
    assert found.brier >= sum(b.steps * (b.good - b.mean_score) ** 2 for b in found.bins) / len(steps) - 1e-9
    shuffled = list(steps)
    random.shuffle(shuffled)
    again = reliability(*zip(*shuffled, strict=True), bins=bins, binning=binning)
    assert [b.steps for b in again.bins] == [b.steps for b in found.bins]
    assert again.ece == pytest.approx(found.ece, abs=1e-12)


@settings(deadline=None)
@given(STEPS, BINNING)
def test_one_bin_is_the_bias_alone(steps, binning):
    scores, good = zip(*steps, strict=True)
    found = reliability(scores, good, bins=1, binning=binning)
    assert found.ece == pytest.approx(abs(found.bias))


def test_unknown_steps_are_dropped_and_counted():
    found = reliability([0.5, None, 0.5, math.nan], [1, 1, None, 0])
    assert (found.steps, found.dropped) == (1, 3)
    assert found.ece == 0.5


def test_nothing_known_is_undefined():
    found = reliability([], [])
    assert (found.steps, found.bins) == (0, ())
    assert all(math.isnan(x) for x in (found.ece, found.bias, found.brier, found.brier_constant))


def test_what_cannot_be_calibrated_is_refused():
    with pytest.raises(ScoreError, match=r"scores\[1\] is 1.5; .*sigmoid"):
        reliability([0.5, 1.5], [1, 1])
    with pytest.raises(LabelError, match=r"good\[0\] is -1"):
        reliability([0.5], [-1])
    with pytest.raises(LabelError, match="equally long"):
        reliability([0.5], [1, 0])
    with pytest.raises(ValueError, match="'bins' must be at least 1"):
        reliability([0.5], [1], bins=0)
