"""AUC against counting of all pairs."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.stats import (
    Bootstrap,
    auc_by_problem,
    bootstrap_mean,
    bootstrap_statistic,
    roc_auc,
    roc_auc_within,
)

STEPS = st.lists(
    st.tuples(st.sampled_from([0.1, 0.3, 0.5, 0.9]), st.sampled_from([-1, 0, 1]), st.sampled_from("xyz")),
    min_size=1,
    max_size=25,
)


def pairwise(rows):
    """(concordant, pairs) by looking at every pair of steps in the same group."""
    concordant, pairs = 0.0, 0
    for (s, a, g), (t, b, h) in product(rows, rows):
        if g == h and a == 1 and b != 1:
            pairs += 1
            concordant += 1.0 if s > t else 0.5 if s == t else 0.0
    return concordant, pairs


@settings(deadline=None)
@given(STEPS)
def test_auc_within_counts_pairs_of_one_group(rows):
    scores, labels, groups = zip(*rows, strict=True)
    concordant, pairs = pairwise(rows)
    auc = roc_auc_within(scores, labels, groups)
    assert auc == pytest.approx(concordant / pairs) if pairs else math.isnan(auc)
    by_array = roc_auc_within(scores, labels, np.array(groups))
    assert by_array == pytest.approx(auc, nan_ok=True)


@settings(deadline=None)
@given(STEPS)
def test_step_auc_is_the_pooled_case_and_agrees_with_scikit_learn(rows):
    from sklearn.metrics import roc_auc_score

    scores, labels, _ = zip(*rows, strict=True)
    good = [label == 1 for label in labels]
    auc = roc_auc(scores, labels)
    if 0 < sum(good) < len(good):
        assert auc == pytest.approx(roc_auc_score(good, scores))
    else:
        assert math.isnan(auc)


def test_position_alone_predicts_nothing_inside_a_position():
    # later steps are worse and scored lower, whatever they say: pooled AUC is fooled, grouped AUC is not
    rng = np.random.default_rng(0)
    position = np.repeat(np.arange(5), 400)
    good = rng.random(2000) < np.array([0.95, 0.8, 0.6, 0.4, 0.2])[position]
    score = 1 - position / 5
    assert roc_auc(score, good) > 0.75
    assert roc_auc_within(score, good, position) == 0.5


def test_unknown_steps_are_dropped():
    assert roc_auc([0.9, None, 0.2, 0.4], [1, -1, None, -1]) == 1.0
    assert math.isnan(roc_auc([], []))


def test_auc_length_mismatch_raises():
    with pytest.raises(LabelError, match="lengths 2, 1, 2"):
        roc_auc_within([0.1, 0.2], [1], ["a", "b"])


def test_bootstrap_by_problem_tells_copies_apart():
    rng = np.random.default_rng(0)
    problem = np.repeat(np.arange(60), 6)
    difficulty = rng.random(60)[problem]
    good = rng.random(360) < difficulty
    score = difficulty + 0.2 * good + 0.5 * rng.random(360)

    def within(resample):
        return roc_auc_within(score[resample.items], good[resample.items], resample.clusters)

    interval = bootstrap_statistic(problem.tolist(), within, draws=300, rng=rng)
    assert interval.value == pytest.approx(roc_auc_within(score, good, problem))
    assert interval.low < interval.value < interval.high


def test_the_auc_is_a_mean_over_problems():
    rng = np.random.default_rng(0)
    score, good = rng.integers(8, size=300) / 8, rng.random(300) < 0.6
    problem = [f"p{number}" for number in rng.integers(30, size=300)]
    parts = auc_by_problem(score, good, problem)
    assert parts.shape == (len(set(problem)),)
    assert parts.mean() == pytest.approx(roc_auc(score, good))
    # its interval is that of the AUC with whole problems resampled
    fast = bootstrap_mean(parts, rng=rng)
    slow = Bootstrap(draws=2000).auc(score, good, problem)
    assert fast.bounds == pytest.approx(slow.bounds, abs=0.01)


def test_the_auc_of_one_class_or_an_unknown_score_is_undefined():
    assert np.isnan(auc_by_problem([0.1, 0.2], [1, 1], ["a", "b"])).all()
    assert np.isnan(auc_by_problem([0.1, np.nan], [1, 0], ["a", "b"])).all()
