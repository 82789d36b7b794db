"""Stopping rules against exact enumeration."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.labelling.monte_carlo import RolloutRule


def played(rule, p):
    """Exact chance that ``rule`` calls a prefix of value ``p`` good, and its expected number of rollouts."""
    open_states, good, expected = {(0, 0): 1.0}, 0.0, 0.0
    while open_states:
        after: dict[tuple[int, int], float] = {}
        for (successes, trials), chance in open_states.items():
            count = rule.more(successes, trials)
            if not count:
                good += chance * (successes > 0)
                continue
            expected += chance * count
            for hits in range(count + 1):
                weight = chance * comb(count, hits) * p**hits * (1 - p) ** (count - hits)
                state = (successes + hits, trials + count)
                after[state] = after.get(state, 0.0) + weight
        open_states = after
    return good, expected


@given(first=st.integers(1, 10), rollouts=st.integers(1, 40))
def test_batches_of_a_hard_estimate_double(first, rollouts):
    rule, drawn, batches = RolloutRule(estimate="hard", rollouts=rollouts, first=first), 0, []
    while count := rule.more(0, drawn):
        batches.append(count)
        drawn += count
    assert drawn == rollouts
    expected = [first, *(first * 2**number for number in range(10))]
    assert batches[:-1] == expected[: len(batches) - 1]
    assert batches[-1] <= expected[len(batches) - 1]
    assert all(rule.more(1, n) == 0 for n in range(1, rollouts + 1))


@pytest.mark.parametrize("rollouts", [1, 4, 8, 13])
@pytest.mark.parametrize("first", [1, 3, 8])
def test_the_chance_of_a_hard_one(rollouts, first):
    for p in (0.0, 0.05, 0.3, 1.0):
        good, expected = played(RolloutRule(estimate="hard", rollouts=rollouts, first=first), p)
        assert good == pytest.approx(1 - (1 - p) ** rollouts)
        assert expected <= rollouts + 1e-9
    if first == 1 and rollouts > 1:
        assert played(RolloutRule(estimate="hard", rollouts=rollouts, first=1), 0.5)[1] < rollouts


def test_soft_estimates_draw_all_and_count_what_cannot_be_judged():
    rule = RolloutRule(rollouts=8)
    assert [rule.more(0, drawn) for drawn in (0, 3, 8, 9)] == [8, 5, 0, 0]
    assert rule.more(2, 8) == 0
    assert (rule.value(2, 3), rule.value(0, 8)) == (2 / 3, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts": 0}, "rollouts\n.*greater than or equal to 1"),
        ({"first": 0}, "first\n.*greater than or equal to 1"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        RolloutRule(**settings)
