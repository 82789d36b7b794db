import math

import pytest

from surefoot.stats import Interval, decide, units_needed


def interval(low, high):
    return Interval(value=(low + high) / 2, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.01, 0.05, "yes"),
        (-0.03, 0.01, "no"),  # an effect of 0.02 is excluded
        (-0.05, -0.01, "no"),
        (0.001, 0.015, "no"),  # real, but smaller than what matters
        (-0.01, 0.03, "not decided"),
        (0.0, 0.02, "not decided"),
        (math.nan, math.nan, "not decided"),
    ],
)
def test_an_interval_decides_against_the_null_and_the_smallest_effect(low, high, verdict):
    assert decide(interval(low, high), 100, smallest=0.02) == verdict
    assert decide(interval(0.5 + low, 0.5 + high), 100, null=0.5, smallest=0.02) == verdict


def test_the_same_difference_is_undecided_on_few_problems_and_decided_on_many():
    few, many = interval(-0.08, 0.086), interval(-0.0134, 0.0194)
    assert decide(few, 20, smallest=0.02) == "not decided"
    assert decide(many, 512, smallest=0.02) == "no"


def test_too_few_units_decide_nothing_however_narrow_the_interval():
    assert decide(interval(0.4, 0.41), 9, smallest=0.02) == "not decided"
    assert decide(interval(0.4, 0.41), 10, smallest=0.02) == "yes"


def test_an_interval_without_width_is_widened_by_the_rule_of_three():
    assert decide(interval(0.0, 0.0), 100, smallest=0.05) == "no"
    assert decide(interval(0.0, 0.0), 20, smallest=0.05) == "not decided"
    assert units_needed(interval(0.0, 0.0), 20, smallest=0.05) == 120


@pytest.mark.parametrize("value", [-0.05, -0.01, 0.0, 0.003, 0.01, 0.019, 0.05])
def test_the_number_of_units_needed_always_decides(value):
    units, smallest, deviation = 80, 0.02, 0.3
    half = 1.96 * deviation / units**0.5
    needed = units_needed(interval(value - half, value + half), units, smallest=smallest)
    assert needed == math.ceil(units * (2 * half / smallest) ** 2)
    half = 1.96 * deviation / (needed + 1) ** 0.5
    assert decide(interval(value - half, value + half), needed + 1, smallest=smallest) != "not decided"


def test_an_undefined_interval_gives_no_number_of_units():
    assert units_needed(interval(math.nan, math.nan), 20, smallest=0.05) is None
