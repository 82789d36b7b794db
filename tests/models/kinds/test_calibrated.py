import json
from typing import get_args

import numpy as np
import pytest
from fixed_scorer import FixedScorer, one_character_steps
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import _SigmoidCalibration
from sklearn.linear_model import LogisticRegression

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.kinds.derived import (
    CALIBRATION,
    CalibratedScorer,
    IsotonicMap,
    PlattMap,
    fit_calibration,
    load_calibration,
    save_calibration,
)
from surefoot.protocols import StepScorer
from surefoot.stats.calibration import Binning, expected_calibration_error, reliability

IDS = ["t1", "t2"]


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, dtype=float)))


def drawn(temperature: float, count: int = 20_000):
    """Scores whose log odds are ``temperature`` times too large for the labels that go with them."""
    rng = np.random.default_rng(0)
    odds = rng.normal(0.5, 1.5, count)
    return sigmoid(odds * temperature), (rng.random(count) < sigmoid(odds)).astype(float)


def fit(kind, scores, good):
    return fit_calibration(kind, scores, good, split="held-out", trace_ids=IDS)


def biased(count: int):
    """Scores all above 1/2, of steps most of which are bad: the AUC is about .69."""
    rng = np.random.default_rng(1)
    odds = rng.normal(0, 1.0, count)
    good = (rng.random(count) < sigmoid(odds - 1.5)).astype(float)
    return sigmoid(0.4 * odds + 2.0), good


@pytest.mark.parametrize("count", [12, 60, 3000])
def test_platt_scaling_is_that_of_scikit_learn(count):
    scores, good = biased(count)
    odds = np.log(scores / (1 - scores))
    reference = _SigmoidCalibration().fit(odds, good)
    fitted = fit("platt", scores, good).map
    assert (fitted.slope, fitted.intercept) == pytest.approx((-reference.a_, -reference.b_), rel=1e-4)
    assert fitted.apply(scores) == pytest.approx(reference.predict(odds), abs=1e-5)
    # with many steps, smoothing the targets changes little
    plain = LogisticRegression(C=np.inf, tol=1e-8).fit(odds[:, None], good)
    if count == 3000:
        assert (fitted.slope, fitted.intercept) == pytest.approx(
            (plain.coef_[0, 0], plain.intercept_[0]), rel=0.01
        )


def test_platt_takes_soft_labels_as_so_many_steps_of_each_kind():
    soft = fit("platt", [0.2, 0.6, 0.9], [0.25, 0.5, 1.0]).map
    scores, good = np.repeat([0.2, 0.6, 0.9], 4), [1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1]
    reference = LogisticRegression(C=np.inf, tol=1e-10)
    odds = np.log(scores / (1 - scores))
    # three steps, 1.75 of them good
    high, low = (1.75 + 1) / (1.75 + 2), 1 / (1.25 + 2)
    target = np.where(np.array(good) == 1, high, low)
    reference.fit(
        np.r_[odds, odds][:, None], np.r_[np.ones(12), np.zeros(12)], sample_weight=np.r_[target, 1 - target]
    )
    assert (soft.slope, soft.intercept) == pytest.approx(
        (reference.coef_[0, 0], reference.intercept_[0]), rel=1e-4
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_known_slope_is_recovered(temperature):
    scores, good = drawn(temperature)
    fitted = fit("platt", scores, good)
    assert fitted.map.slope == pytest.approx(1 / temperature, rel=0.05)
    assert fitted.map.intercept == pytest.approx(0.0, abs=0.05)
    assert fitted.ece_after < 0.02
    assert temperature == 1.0 or fitted.ece_after < fitted.ece_before / 2


def test_an_intercept_mends_scores_that_are_all_too_high():
    scores, good = biased(4000)
    fitted = fit("platt", scores, good)
    assert fitted.ece_before > 0.5
    assert fitted.ece_after < 0.02
    # the labels' log odds are x - 1.5, the scores' 0.4 x + 2
    assert fitted.map.slope == pytest.approx(1 / 0.4, rel=0.1)
    assert fitted.map.intercept == pytest.approx(-1.5 - 2 / 0.4, rel=0.1)


def test_platt_fits_few_steps_without_error_and_refuses_a_falling_slope():
    fitted = fit("platt", [0.9, 0.8, 0.3], [1, 1, 0]).map
    assert 0.5 < fitted.apply(0.9) < 0.9  # two good steps are no certainty
    with pytest.raises(ScoreError, match=r"slope is -[\d.]+ \(AUC 0.000\)"):
        fit("platt", [0.9, 0.8, 0.3], [0, 0, 1])
    with pytest.raises(ScoreError, match=r"all scores are 0\.7"):
        fit("platt", [0.7, 0.7], [0, 1])


@given(st.lists(st.floats(0, 1), min_size=1), st.floats(0.1, 5), st.floats(-5, 5))
def test_platt_keeps_the_order(scores, slope, intercept):
    mapped = PlattMap(slope=slope, intercept=intercept).apply(np.sort(scores))
    assert (np.diff(mapped) >= 0).all()
    assert ((mapped >= 0) & (mapped <= 1)).all()


def test_isotonic_is_monotone_and_straightens_what_a_slope_cannot():
    scores, good = drawn(1.0)
    bent = scores**4
    fitted = fit("isotonic", bent, good)
    grid = np.linspace(0, 1, 1001)
    assert (np.diff(fitted.map.apply(grid)) >= 0).all()
    fresh, facts = drawn(1.0, 5000)
    assert expected_calibration_error(fitted.map.apply(fresh**4), facts) < 0.03


def test_isotonic_pools_what_falls():
    fitted = fit("isotonic", [0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    assert fitted.map.apply([0.0, 0.1, 0.2, 0.3, 0.4, 1.0]).tolist() == [0, 0, 0.5, 0.5, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=60))
def test_the_error_is_that_of_the_evaluation(pairs):
    scores, good = np.array([s / 8 for s, _ in pairs]), np.array([float(g) for _, g in pairs])
    for binning in get_args(Binning):
        expected = reliability(scores, good, binning=binning).ece
        assert expected_calibration_error(scores, good, binning=binning) == pytest.approx(expected, abs=1e-9)


def test_unknown_steps_are_dropped_and_counted():
    fitted = fit("platt", [0.9, 0.8, None, 0.7, 0.2], [1, 0, 1, None, 0])
    assert (fitted.steps, fitted.dropped) == (3, 2)


@pytest.mark.parametrize(
    ("scores", "good", "message"),
    [
        ([0.9, 0.1], [0, 1], "slope is -"),
        ([0.5, 0.5], [1, 0], "all scores are 0.5"),
        ([0.9, 0.8], [1, 1], "nothing to fit"),
        ([], [], "nothing to fit"),
        ([1.5, 0.8], [1, 0], "scores"),
        ([0.5, 0.8], [-1, 1], "good"),
        ([0.5], [1, 0], "equally long"),
    ],
)
def test_what_cannot_be_fitted_is_refused(scores, good, message):
    with pytest.raises(ScoreError, match=message):
        fit("platt", scores, good)


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_round_trip_beside_the_checkpoint(tmp_path, kind):
    fitted = fit(kind, *drawn(2.0, 400))
    save_calibration(tmp_path, fitted)
    assert load_calibration(tmp_path) == fitted
    stored = json.loads((tmp_path / CALIBRATION).read_text())
    assert (stored["split"], stored["steps"], stored["map"]["kind"]) == ("held-out", 400, kind)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=CALIBRATION):
        load_calibration(tmp_path)
    (tmp_path / CALIBRATION).write_text("{}")
    with pytest.raises(CheckpointError, match=CALIBRATION):
        load_calibration(tmp_path)


def test_the_fitting_split_is_known_by_its_traces_in_any_order():
    scores, good = drawn(2.0, 100)
    hashes = {
        fit_calibration("platt", scores, good, split="x", trace_ids=ids).split_hash
        for ids in (IDS, IDS[::-1])
    }
    other = fit_calibration("platt", scores, good, split="x", trace_ids=["t3"]).split_hash
    assert len(hashes | {other}) == 2


def test_a_calibrated_scorer_maps_scores_and_keeps_the_rest():
    fitted = fit("platt", *drawn(2.0, 400))
    scorer = CalibratedScorer(FixedScorer({"abc": [0.9, None, 0.0]}), fitted)
    assert isinstance(scorer, StepScorer)
    [record] = scorer.score_traces(one_character_steps("abc"))
    mapped = fitted.map.apply([0.9, 0.0])
    assert record.scores == (pytest.approx(mapped[0]), None, pytest.approx(mapped[1]))
    assert (record.scorer, record.unscored_reason) == ("fixed+platt", "too long")


def test_scores_that_are_no_probabilities_are_refused():
    scorer = CalibratedScorer(FixedScorer({"a": [1.2]}), fit("platt", *drawn(2.0, 100)))
    with pytest.raises(ScoreError, match=r"\[0, 1\]"):
        scorer.score_traces(one_character_steps("a"))


def test_maps_refuse_impossible_parameters():
    with pytest.raises(ValueError, match="greater than 0"):
        PlattMap(slope=0, intercept=0)
    with pytest.raises(ValueError, match="at least 1"):
        IsotonicMap(scores=(), values=())
