import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.evaluation.label_truth import label_noise

TRACES = st.lists(st.lists(st.sampled_from([-1.0, 1.0]), max_size=5), max_size=6)


def test_counts_of_a_known_table():
    # errors: 2 found, 1 missed, 1 false alarm; good steps: 4 kept
    truth = [[1, 1, -1, -1], [1, -1], [1, 1]]
    predicted = [[1, 1, -1, -1], [1, 1], [-1, 1]]
    noise = label_noise(predicted, truth)
    assert noise.precision_error == pytest.approx(2 / 3)
    assert noise.recall_error == pytest.approx(2 / 3)
    assert noise.f1_error == pytest.approx(2 / 3)
    assert noise.precision_good == noise.recall_good == noise.f1_good == pytest.approx(4 / 5)
    assert noise.accuracy == pytest.approx(6 / 8)
    assert noise.first_error_accuracy == pytest.approx(1 / 3)
    assert (noise.steps, noise.dropped, noise.traces, noise.dropped_traces) == (8, 0, 3, 0)


def test_prmbench_style_table():
    # TP 70, FN 10, TN 12, FP 8 (positive = good): F1 .8861, F1_neg .5714
    predicted = [[1] * 70 + [-1] * 10 + [-1] * 12 + [1] * 8]
    truth = [[1] * 80 + [-1] * 20]
    noise = label_noise(predicted, truth)
    assert round(noise.f1_good, 4) == 0.8861
    assert round(noise.f1_error, 4) == 0.5714
    assert round(0.5 * noise.f1_good + 0.5 * noise.f1_error, 4) == 0.7288


def test_all_good_looks_fine_on_the_good_class_alone():
    noise = label_noise([[1] * 10], [[1] * 8 + [-1] * 2])
    assert noise.f1_good == pytest.approx(0.8889, abs=1e-4)
    assert noise.recall_error == noise.f1_error == 0.0
    assert math.isnan(noise.precision_error)


@settings(deadline=None)
@given(TRACES)
def test_the_truth_agrees_with_itself(truth):
    noise = label_noise(truth, truth)
    steps = [value for trace in truth for value in trace]
    assert noise.f1_error == 1.0 if -1.0 in steps else math.isnan(noise.f1_error)
    assert noise.f1_good == 1.0 if 1.0 in steps else math.isnan(noise.f1_good)
    assert noise.first_error_accuracy == 1.0 if truth else math.isnan(noise.first_error_accuracy)
    assert noise.steps == len(steps)


def test_unknown_steps_are_dropped_and_counted():
    noise = label_noise([[1, None, -1]], [[1, -1, None]])
    assert (noise.steps, noise.dropped) == (1, 2)
    # predicted: the unknown step 1 might be the first error, so the trace is left out
    assert (noise.traces, noise.dropped_traces) == (0, 1)
    assert math.isnan(noise.first_error_accuracy)


def test_nothing_after_the_first_error_is_needed_for_it():
    noise = label_noise([[1, -1, 1]], [[1, -1, None]])
    assert (noise.first_error_accuracy, noise.traces, noise.dropped) == (1.0, 1, 1)


def test_monte_carlo_values_and_neutral_labels():
    # Math-Shepherd's hard estimate: good if any completion reached the answer
    assert label_noise([[0.75, 0.0]], [[1, -1]]).accuracy == 1.0
    assert label_noise([[0.75, 0.4]], [[1, -1]], predicted_good_above=0.5).accuracy == 1.0
    assert label_noise([[1.0]], [[0.0]]).accuracy == 0.0
    assert label_noise([[1.0]], [[0.0]], truth_good_above=-0.5).accuracy == 1.0


def test_ragged_input_names_the_trace():
    with pytest.raises(LabelError, match=r"predicted\[1\] has 1 steps"):
        label_noise([[1], [1]], [[1], [1, 1]])
    with pytest.raises(LabelError, match="'predicted' has 1 traces"):
        label_noise([[1]], [])
