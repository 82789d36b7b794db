import json

import numpy as np
import pytest
from fixed_scorer import FixedScorer, one_character_steps
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.kinds.calibrated import (
    CALIBRATION,
    CalibratedScorer,
    IsotonicMap,
    TemperatureMap,
    fit_calibration,
    load_calibration,
    require_other_split,
    save_calibration,
)
from surefoot.protocols import StepScorer
from surefoot.stats.calibration import expected_calibration_error, reliability

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


@given(st.lists(st.floats(0, 1), min_size=1))
def test_temperature_one_changes_nothing(scores):
    assert TemperatureMap(temperature=1).apply(scores) == pytest.approx(scores, abs=1e-12)


@given(st.lists(st.floats(0.001, 0.999), min_size=2), st.floats(0.2, 5))
def test_temperature_keeps_the_order(scores, temperature):
    mapped = TemperatureMap(temperature=temperature).apply(scores)
    assert (np.argsort(np.asarray(scores), kind="stable") == np.argsort(mapped, kind="stable")).all() or (
        np.diff(mapped[np.argsort(scores)]) >= -1e-15
    ).all()
    assert ((mapped > 0.5) == (np.asarray(scores) > 0.5)).all() or np.abs(mapped - 0.5).min() < 1e-12


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_known_temperature_is_recovered(temperature):
    scores, good = drawn(temperature)
    fitted = fit("temperature", scores, good)
    assert fitted.map.temperature == pytest.approx(temperature, rel=0.05)
    assert fitted.ece_after < 0.02
    assert temperature == 1.0 or fitted.ece_after < fitted.ece_before / 2


def test_the_fitted_temperature_has_the_least_cross_entropy():
    scores, good = drawn(2.0, 500)

    def loss(temperature):
        mapped = TemperatureMap(temperature=temperature).apply(scores)
        return -(good * np.log(mapped) + (1 - good) * np.log(1 - mapped)).mean()

    best = fit("temperature", scores, good).map.temperature
    assert loss(best) < min(loss(best * 1.01), loss(best / 1.01))


def test_isotonic_is_monotone_and_straightens_what_a_temperature_cannot():
    scores, good = drawn(1.0)
    bent = scores**4
    fitted = fit("isotonic", bent, good)
    grid = np.linspace(0, 1, 1001)
    assert (np.diff(fitted.map.apply(grid)) >= 0).all()
    fresh, facts = drawn(1.0, 5000)
    assert expected_calibration_error(fitted.map.apply(fresh**4), facts) < 0.03
    by_temperature = fit("temperature", bent, good).map
    assert expected_calibration_error(by_temperature.apply(fresh**4), facts) > 0.05


def test_isotonic_pools_what_falls():
    fitted = fit("isotonic", [0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    assert fitted.map.apply([0.0, 0.1, 0.2, 0.3, 0.4, 1.0]).tolist() == [0, 0, 0.5, 0.5, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=60))
def test_the_error_is_that_of_the_evaluation(pairs):
    scores, good = np.array([s / 8 for s, _ in pairs]), np.array([float(g) for _, g in pairs])
    assert expected_calibration_error(scores, good) == pytest.approx(reliability(scores, good).ece, abs=1e-9)


def test_unknown_steps_are_dropped_and_counted():
    fitted = fit("temperature", [0.9, 0.8, None, 0.7, 0.2], [1, 0, 1, None, 0])
    assert (fitted.steps, fitted.dropped) == (3, 2)


@pytest.mark.parametrize(
    ("scores", "good", "message"),
    [
        ([0.9, 0.1], [0, 1], "wrong|above good"),
        ([0.9, 0.1], [1, 0], "without error"),
        ([0.5, 0.5], [1, 0], "1/2"),
        ([0.9, 0.8], [1, 1], "nothing to fit"),
        ([], [], "nothing to fit"),
        ([1.5, 0.8], [1, 0], "scores"),
        ([0.5, 0.8], [-1, 1], "good"),
        ([0.5], [1, 0], "equally long"),
    ],
)
def test_what_cannot_be_fitted_is_refused(scores, good, message):
    with pytest.raises(ScoreError, match=message):
        fit("temperature", scores, good)


@pytest.mark.parametrize("kind", ["temperature", "isotonic"])
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


def test_the_fitting_split_is_not_reported_on():
    fitted = fit("temperature", *drawn(2.0, 100))
    require_other_split(fitted, split="test", trace_ids=["t3"])
    with pytest.raises(ScoreError, match="held-out"):
        require_other_split(fitted, split="held-out", trace_ids=["t3"])
    with pytest.raises(ScoreError, match="test"):
        require_other_split(fitted, split="test", trace_ids=reversed(IDS))


def test_a_calibrated_scorer_maps_scores_and_keeps_the_rest():
    fitted = fit("temperature", *drawn(2.0, 400))
    scorer = CalibratedScorer(FixedScorer({"abc": [0.9, None, 0.0]}), fitted)
    assert isinstance(scorer, StepScorer)
    [record] = scorer.score_traces(one_character_steps("abc"))
    assert record.scores == (pytest.approx(fitted.map.apply(0.9)), None, 0.0)
    assert (record.scorer, record.unscored_reason) == ("fixed+temperature", "too long")


def test_scores_that_are_no_probabilities_are_refused():
    scorer = CalibratedScorer(FixedScorer({"a": [1.2]}), fit("temperature", *drawn(2.0, 100)))
    with pytest.raises(ScoreError, match=r"\[0, 1\]"):
        scorer.score_traces(one_character_steps("a"))


def test_maps_refuse_impossible_parameters():
    with pytest.raises(ValueError, match="greater than 0"):
        TemperatureMap(temperature=0)
    with pytest.raises(ValueError, match="at least 1"):
        IsotonicMap(scores=(), values=())
