"""Hours and money from tokens, rates and prices."""

from __future__ import annotations

import pytest

from surefoot.records import Usage
from surefoot.scale.cost import Cost, Rates

USAGE = Usage(prompt_tokens=3_600_000, completion_tokens=1_800_000, calls=5)


def test_hours_and_prices_in_closed_form():
    rates = Rates(read_rate=1000, write_rate=250, price_hour=4.0, price_read=0.5, price_write=2.0)
    cost = Cost.of(USAGE, rates)
    assert cost.hours == pytest.approx(1 + 2)
    assert cost.rent == pytest.approx(12)
    assert cost.tokens_price == pytest.approx(1.8 + 3.6)
    assert str(cost) == "3.00 hours, 12.00 by the hour; 5.40 by the token"


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({}, ""),
        ({"read_rate": 10.0}, ""),
        ({"read_rate": 1000, "write_rate": 250}, "3.00 hours"),
        ({"price_read": 0.0, "price_write": 1.0}, "1.80 by the token"),
        ({"price_hour": 3.0, "write_rate": 5.0}, ""),
    ],
)
def test_what_was_not_given_is_not_computed(rates, expected):
    assert str(Cost.of(USAGE, Rates(**rates))) == expected


def test_a_rate_is_needed_only_for_tokens_that_there_are():
    assert str(Cost.of(Usage(prompt_tokens=7_200), Rates(read_rate=2))) == "1.00 hours"
