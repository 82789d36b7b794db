import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.evaluation.label_truth import label_noise

TRACES = st.lists(st.lists(st.booleans(), max_size=5), max_size=6)


def test_counts_of_a_known_table():
    # errors: 2 found, 1 missed, 1 false alarm; good steps: 4 kept
    truth = [[True, True, False, False], [True, False], [True, True]]
    predicted = [[True, True, False, False], [True, True], [False, True]]
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
    predicted = [[True] * 70 + [False] * 10 + [False] * 12 + [True] * 8]
    truth = [[True] * 80 + [False] * 20]
    noise = label_noise(predicted, truth)
    assert round(noise.f1_good, 4) == 0.8861
    assert round(noise.f1_error, 4) == 0.5714
    assert round(0.5 * noise.f1_good + 0.5 * noise.f1_error, 4) == 0.7288


def test_all_good_looks_fine_on_the_good_class_alone():
    noise = label_noise([[True] * 10], [[True] * 8 + [False] * 2])
    assert noise.f1_good == pytest.approx(0.8889, abs=1e-4)
    assert noise.recall_error == noise.f1_error == 0.0
    assert math.isnan(noise.precision_error)


@settings(deadline=None)
@given(TRACES)
def test_the_truth_agrees_with_itself(truth):
    noise = label_noise(truth, truth)
    steps = [value for trace in truth for value in trace]
    assert noise.f1_error == 1.0 if False in steps else math.isnan(noise.f1_error)
    assert noise.f1_good == 1.0 if True in steps else math.isnan(noise.f1_good)
    assert noise.first_error_accuracy == 1.0 if truth else math.isnan(noise.first_error_accuracy)
    assert noise.steps == len(steps)


def test_unknown_steps_are_dropped_and_counted():
    noise = label_noise([[True, None, False]], [[True, False, None]])
    assert (noise.steps, noise.dropped) == (1, 2)
    # predicted: the unknown step 1 might be the first error, so the trace is left out
    assert (noise.traces, noise.dropped_traces) == (0, 1)
    assert math.isnan(noise.first_error_accuracy)


def test_nothing_after_the_first_error_is_needed_for_it():
    noise = label_noise([[True, False, True]], [[True, False, None]])
    assert (noise.first_error_accuracy, noise.traces, noise.dropped) == (1.0, 1, 1)


def test_ragged_input_names_the_trace():
    with pytest.raises(LabelError, match=r"predicted\[1\] has 1 steps"):
        label_noise([[True], [True]], [[True], [True, True]])
    with pytest.raises(LabelError, match="'predicted' has 1 traces"):
        label_noise([[True]], [])
