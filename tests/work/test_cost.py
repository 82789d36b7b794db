"""Hours from tokens and rates."""

from __future__ import annotations

import pytest

from surefoot.records import Usage
from surefoot.work.cost import Rates, predict_hours

USAGE = Usage(prompt_tokens=3_600_000, completion_tokens=1_800_000, calls=5)


def test_hours_in_closed_form():
    assert predict_hours(USAGE, Rates(read_rate=1000, write_rate=250)) == pytest.approx(1 + 2)


@pytest.mark.parametrize("rates", [{}, {"read_rate": 10.0}, {"write_rate": 5.0}])
def test_no_prediction_without_the_rates(rates):
    assert predict_hours(USAGE, Rates(**rates)) is None


def test_a_rate_is_needed_only_if_there_are_tokens():
    assert predict_hours(Usage(prompt_tokens=7_200), Rates(read_rate=2)) == pytest.approx(1.0)
