"""What labels mean, against the definitions written out case by case."""

from __future__ import annotations

from itertools import product

import pytest

from surefoot.labels import (
    FEW,
    NO_ERROR,
    Information,
    LabelRule,
    all_good,
    as_target,
    binary_labels,
    first_error,
    improves,
    is_neutral,
    target_is_good,
    up_to_first_error,
)
from surefoot.records import StepLabel


def label(kind, value, step=0):
    reason = "not sure" if value is None else None
    return StepLabel(trace_id="t", step=step, kind=kind, value=value, reason=reason, source="s")


@pytest.mark.parametrize(
    ("neutral", "meaning"), [("good", True), ("bad", False), ("drop", None)], ids=["good", "bad", "drop"]
)
def test_correctness_is_read_by_its_sign_and_neutral_by_the_rule(neutral, meaning):
    rule = LabelRule(neutral=neutral)
    assert [rule.good(label("correctness", value)) for value in (1, 0, -1, None)] == [
        True,
        meaning,
        False,
        None,
    ]
    assert [is_neutral(label(kind, 0)) for kind in ("correctness", "value", "advantage")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("cut", [0.0, 0.25, 0.5, 1.0])
def test_a_value_is_good_strictly_above_the_cut(cut):
    rule = LabelRule(neutral="drop", good_above=cut)
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        assert rule.good(label("value", value)) is (value > cut)


def test_without_a_cut_a_value_says_nothing_and_an_advantage_never_does():
    rule = LabelRule(neutral="good", good_above=None)
    assert rule.good(label("value", 1.0)) is None
    assert rule.why_unknown(label("value", 1.0)) == "label of kind 'value'"
    assert rule.good(label("advantage", 1.0)) is None
    assert rule.why_unknown(label("advantage", 1.0)) == "label of kind 'advantage'"
    assert rule.why_unknown(label("value", None)) == "label without a value"
    assert rule.why_unknown(label("correctness", 0)) == ""
    assert LabelRule(neutral="drop").why_unknown(label("correctness", 0)) == "neutral"


def test_an_advantage_above_zero_improves():
    assert [improves(label("advantage", value)) for value in (0.1, 0.0, -0.1, None)] == [
        True,
        False,
        False,
        None,
    ]
    assert improves(label("value", 1.0)) is None


def test_labels_of_one_step_must_agree_and_unreadable_ones_are_passed_over():
    rule = LabelRule(neutral="drop")
    labels = [
        *(label("correctness", value, 0) for value in (1, 0, None)),
        *(label("correctness", value, 1) for value in (1, -1)),
        label("correctness", 0, 2),
        label("correctness", 1, 9),
    ]
    read = binary_labels(labels, 4, rule)
    assert [one.good for one in read] == [True, None, None, None]
    assert [one.reason for one in read] == ["", "labels disagree", "neutral", "no label"]


@pytest.mark.parametrize(
    ("kind", "value", "hard", "target"),
    [
        ("correctness", 1, False, 1.0),
        ("correctness", -1, False, 0.0),
        ("correctness", 0, False, 0.5),
        ("correctness", None, False, None),
        ("value", 0.25, False, 0.25),
        ("value", 0.25, True, 1.0),
        ("value", 0.0, True, 0.0),
        ("value", None, True, None),
        ("advantage", -1.0, False, 0.0),
        ("advantage", 0.0, False, 0.5),
        ("advantage", 0.5, False, 0.75),
    ],
)
def test_targets(kind, value, hard, target):
    assert as_target(label(kind, value), neutral=0.5, hard=hard) == target


def test_a_dropped_neutral_has_no_target():
    assert as_target(label("correctness", 0), neutral=None) is None


def test_the_target_of_a_neutral_class_is_good_or_bad_by_the_rule():
    assert [target_is_good(t) for t in (0.49, 0.5, 0.51)] == [False, True, True]


def test_first_error_and_all_good_by_brute_force():
    for steps in range(5):
        for good in product((True, False, None), repeat=steps):
            bad = [at for at in range(steps) if good[at] is False]
            start = next((at for at in range(steps) if good[at] is not True), None)
            expected = NO_ERROR if start is None else start if start in bad else None
            assert first_error(good) == expected
            if bad:
                assert all_good(good) is False
            else:
                assert all_good(good) is (True if steps and None not in good else None)


def test_correctness_up_to_the_first_error_has_that_first_error():
    assert up_to_first_error(NO_ERROR, 3) == [1, 1, 1]
    assert up_to_first_error(1, 4) == [1, -1, None, None]
    for steps in range(1, 5):
        for error in range(NO_ERROR, steps):
            values = up_to_first_error(error, steps)
            assert len(values) == steps
            assert first_error([None if value is None else value > 0 for value in values]) == error


def test_values_that_are_all_equal_teach_nothing():
    flat, few, varied = Information(), Information(), Information()
    for _ in range(6):
        flat.add([1.0, None, 1.0])
    few.add([0.0] * (FEW - 1))
    varied.add([0.0] * FEW)
    varied.add([0.0, 1.0])
    assert (flat.is_flat, few.is_flat, varied.is_flat) == (True, False, False)
    assert str(flat) == "a value on 12 of 18 steps; values differ within 0 of 6 traces"
    assert (varied.zeros, varied.varied, varied.traces) == (11, 1, 2)
