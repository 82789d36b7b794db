import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.solutions import best_threshold, first_error_below, processbench_f1

SCORES = Path(__file__).parents[3] / "../shared/data/calib/fover_processbench_scores.jsonl.gz"


def test_first_error_is_zero_based_and_strict():
    assert first_error_below([0.9, 0.4, 0.1], 0.5) == 1
    assert first_error_below([0.9, 0.5], 0.5) == -1
    assert first_error_below([None, math.nan, 0.1], 0.5) == 2
    assert first_error_below([], 0.5) is None


def test_published_mean_of_four_subsets():
    table = [68.2, 62.6, 50.7, 44.3]
    assert np.mean(table) == pytest.approx(56.45)


def test_processbench_result_from_traces():
    wrong = [[0.9, 0.1], [0.9, 0.9]]  # found at 1; missed
    right = [[0.9, 0.8]] * 9 + [[0.2]]
    result = processbench_f1([*wrong, *right], [1, 1] + [-1] * 10, 0.5)
    assert (result.acc_error, result.acc_correct) == (0.5, 0.9)
    assert round(100 * result.f1, 2) == 64.29
    assert (result.errors, result.corrects, result.unscored, result.partial) == (2, 10, 0, 0)


def test_always_no_error_scores_zero_and_zero_over_zero_is_guarded():
    assert processbench_f1([[0.9], [0.9]], [0, -1], 0.5).f1 == 0.0
    nothing_right = processbench_f1([[0.9], [0.1]], [0, -1], 0.5)
    assert (nothing_right.acc_error, nothing_right.acc_correct, nothing_right.f1) == (0.0, 0.0, 0.0)


def test_an_absent_class_is_undefined():
    result = processbench_f1([[0.9]], [-1], 0.5)
    assert (result.acc_correct, result.errors) == (1.0, 0)
    assert math.isnan(result.acc_error)
    assert math.isnan(result.f1)


def test_a_trace_without_scores_is_wrong_and_counted():
    result = processbench_f1([[], [None, None], [0.9, None], [0.1]], [-1, -1, -1, 0], 0.5)
    assert result.acc_correct == pytest.approx(1 / 3)
    assert (result.unscored, result.partial) == (2, 1)


def test_random_indices_are_far_below_fifty():
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 12, size=2000)
    labels = [int(rng.integers(n)) if rng.random() < 0.5 else -1 for n in lengths]
    guesses = [int(rng.integers(-1, n)) for n in lengths]
    scores = [
        [0.0 if step == guess else 1.0 for step in range(n)]
        for n, guess in zip(lengths, guesses, strict=True)
    ]
    assert processbench_f1(scores, labels, 0.5).f1 < 0.25


def test_bad_labels_name_the_trace():
    with pytest.raises(LabelError, match=r"labels\[1\] is -2"):
        processbench_f1([[0.1], [0.1]], [0, -2], 0.5)
    with pytest.raises(LabelError, match="2 traces"):
        processbench_f1([[0.1], [0.1]], [0], 0.5)


@st.composite
def labelled_scores(draw):
    traces = draw(
        st.lists(
            st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.7, 0.9, None]), max_size=5), min_size=2, max_size=10
        )
    )
    labels = [draw(st.integers(-1, max(0, len(trace)))) for trace in traces]
    labels[0], labels[1] = -1, max(0, labels[1])
    return traces, labels


@settings(deadline=None)
@given(labelled_scores())
def test_best_threshold_is_the_best_of_all_cuts(case):
    scores, labels = case
    best = best_threshold(scores, labels)
    cuts = [-1.0, 0.1, 0.2, 0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 2.0]
    f1 = [processbench_f1(scores, labels, cut).f1 for cut in cuts]
    assert best.f1 == pytest.approx(max(f1))
    assert processbench_f1(scores, labels, best.threshold).f1 == pytest.approx(best.f1)


@settings(deadline=None)
@given(labelled_scores())
def test_best_threshold_survives_monotone_transforms(case):
    scores, labels = case
    logits = [[None if s is None else math.log(s / (1 - s)) * 7 - 3 for s in trace] for trace in scores]
    plain, moved = best_threshold(scores, labels), best_threshold(logits, labels)
    assert plain.f1 == pytest.approx(moved.f1)
    for before, after in zip(scores, logits, strict=True):
        assert first_error_below(before, plain.threshold) == first_error_below(after, moved.threshold)


def test_best_threshold_between_neighbouring_floats():
    low, high = 0.5, math.nextafter(0.5, 1)
    best = best_threshold([[low], [high]], [0, -1])
    assert (best.f1, best.threshold) == (1.0, high)


def test_best_threshold_may_flag_everything():
    # every trace is right only if all scores are below the cut, but then correct traces fail: F1 stays 0
    assert best_threshold([[0.9], [0.9]], [0, -1]).f1 == 0.0
    best = best_threshold([[0.9], [0.9], [math.inf]], [0, 0, -1])
    assert best.f1 == 1.0
    assert first_error_below([0.9], best.threshold) == 0


def test_best_threshold_needs_both_classes():
    for labels in ([-1, -1], [0, 0]):
        with pytest.raises(LabelError, match="both"):
            best_threshold([[0.1], [0.2]], labels)


@pytest.mark.parametrize(
    ("model", "split", "f1"),
    [
        ("Qwen2.5-Math-PRM-7B", "gsm8k", 83.7),
        ("Qwen2.5-Math-PRM-7B", "math", 74.5),
        ("Qwen2.5-Math-7B-PRM800K", "gsm8k", 66.8),
        ("Qwen2.5-Math-7B-PRM800K", "math", 61.9),
    ],
)
def test_real_scores_give_the_known_f1(model, split, f1):
    if not SCORES.exists():
        pytest.skip(f"real scores not found at {SCORES}")
    with gzip.open(SCORES, "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["split"] == split]
    scores, labels = [row["scores"][model] for row in rows], [row["label"] for row in rows]
    result = processbench_f1(scores, labels, 0.5)
    assert round(100 * result.f1, 1) == f1
    assert result.errors + result.corrects == 250
    assert best_threshold(scores, labels).f1 >= result.f1
