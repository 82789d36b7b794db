"""How intervals print, and Wilson's interval against closed values."""

from __future__ import annotations

import math
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.stats import Interval, format_cell, wilson_interval


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("", "0.8304 [0.801, 0.8591]"),
        (".3f", "0.830 [0.801, 0.859]"),
        (".1%", "83.0% [80.1, 85.9]"),
        ("+.1p", "+83.0 points [+80.1, +85.9]"),
    ],
)
def test_an_interval_prints_itself(spec, text):
    interval = Interval(value=0.83041, low=0.80102, high=0.85908)
    assert format(interval, spec) == text
    assert format_cell(interval, spec or ".4g") == text


@pytest.mark.parametrize(("spec", "zero"), [(".2f", "0.00"), ("+.2f", "+0.00"), (".1%", "0.0%"), ("", "0")])
def test_zero_has_no_minus(spec, zero):
    value = -1e-5 if spec else -0.0
    assert format_cell(value, spec or ".4g") == zero
    assert "-" not in format(Interval(value=value, low=value, high=value), spec)


def test_what_is_undefined_prints_as_such():
    assert f"{Interval(value=math.nan, low=0.1, high=0.2):.1%}" == "n/a"
    assert f"{Interval(value=0.5, low=math.nan, high=math.nan):.1%}" == "50.0% [n/a, n/a]"


@pytest.mark.parametrize(
    ("cell", "spec", "text"),
    [
        (None, ".3f", "n/a"),
        (math.nan, ".3f", "n/a"),
        (0.12345, ".3f", "0.123"),
        (0.12345, ".1%", "12.3%"),
        (12345678, ".1%", "12345678"),
        (True, ".3f", "True"),
        ("as it is", ".3f", "as it is"),
    ],
)
def test_cells(cell, spec, text):
    assert format_cell(cell, spec) == text


def test_another_unit_keeps_the_order_of_the_bounds():
    interval = Interval(value=1.0, low=0.0, high=3.0, undefined=2)
    assert -2 * interval == Interval(value=-2.0, low=-6.0, high=0.0, undefined=2)
    assert interval.includes(0)
    assert not interval.includes(-0.1)


def test_closed_values_of_the_interval():
    assert wilson_interval(8, 10).bounds == pytest.approx((0.4902, 0.9433), abs=5e-5)
    assert wilson_interval(0, 10).bounds == (0.0, pytest.approx(0.2775, abs=5e-5))
    assert wilson_interval(10, 10).bounds == (pytest.approx(0.7225, abs=5e-5), 1.0)
    assert wilson_interval(0, 1).bounds == (0.0, pytest.approx(0.7935, abs=5e-5))
    assert wilson_interval(5, 10, level=0.5).bounds == pytest.approx((0.3957, 0.6043), abs=5e-5)


@given(trials=st.integers(1, 2000), data=st.data(), level=st.floats(0.01, 0.999))
def test_intervals_hold_the_share_and_mirror(trials, data, level):
    successes = data.draw(st.integers(0, trials))
    low, high = wilson_interval(successes, trials, level=level).bounds
    assert 0 <= low <= successes / trials <= high <= 1
    mirrored = wilson_interval(trials - successes, trials, level=level).bounds
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)
    if successes < trials:
        assert wilson_interval(successes + 1, trials, level=level).high >= high


@pytest.mark.parametrize("trials", [8, 16, 32])
def test_the_interval_covers_as_often_as_it_says(trials):
    bounds = [wilson_interval(hits, trials).bounds for hits in range(trials + 1)]
    grid = [number / 400 for number in range(4, 397)]
    cover = [
        sum(tail(trials, hits, p) for hits, (low, high) in enumerate(bounds) if low <= p <= high)
        for p in grid
    ]
    assert abs(sum(cover) / len(cover) - 0.95) < 0.01
    assert min(cover) > 0.82  # the known dips beside 0 and 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 0), "0 of 0"), ((3, 2), "3 of 2"), ((-1, 2), "-1 of 2")],
)
def test_impossible_counts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        wilson_interval(*arguments)
    with pytest.raises(ValueError, match="level"):
        wilson_interval(1, 2, level=1.0)


def tail(n, hits, p):
    return comb(n, hits) * p**hits * (1 - p) ** (n - hits)
