"""Stopping rules against exact enumeration."""

from __future__ import annotations

from itertools import accumulate, product
from math import comb, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.labelling.rollouts import RolloutRule


def played(rule, p):
    """Exact chance that ``rule`` calls a prefix of value ``p`` good, and its expected number of rollouts."""
    open_states, good, expected = {(0, 0): 1.0}, 0.0, 0.0
    while open_states:
        after: dict[tuple[int, int], float] = {}
        for (successes, trials), chance in open_states.items():
            count = rule.more(successes, trials, trials)
            if not count:
                good += chance * rule.good(successes, trials)
                continue
            expected += chance * count
            for hits in range(count + 1):
                weight = chance * comb(count, hits) * p**hits * (1 - p) ** (count - hits)
                state = (successes + hits, trials + count)
                after[state] = after.get(state, 0.0) + weight
        open_states = after
    return good, expected


def fixed_size(rule):
    """Fewest rollouts with which a test of fixed size keeps the error rates of ``rule``."""
    for n in range(1, 500):
        for needed in range(n + 1):
            false_good = sum(tail(n, hits, rule.p_bad) for hits in range(needed, n + 1))
            false_bad = sum(tail(n, hits, rule.p_good) for hits in range(needed))
            if max(false_good, false_bad) <= rule.error_rate:
                return n
    raise AssertionError("no such test")


def tail(n, hits, p):
    return comb(n, hits) * p**hits * (1 - p) ** (n - hits)


TESTS = [
    RolloutRule(estimate="sequential", rollouts=400),
    RolloutRule(estimate="sequential", p_bad=0.1, p_good=0.4, rollouts=400),
    RolloutRule(estimate="sequential", p_bad=0.2, p_good=0.8, error_rate=0.05, rollouts=400),
    RolloutRule(estimate="sequential", p_bad=0.3, p_good=0.5, error_rate=0.15, rollouts=400),
]


@pytest.mark.parametrize("rule", TESTS, ids=str)
def test_the_error_rates_keep_walds_bounds(rule):
    false_good, at_bad = played(rule, rule.p_bad)
    good, at_good = played(rule, rule.p_good)
    false_bad = 1 - good
    slack = 1e-9  # the few that are open after 400 rollouts
    odds = rule.error_rate / (1 - rule.error_rate)
    assert false_good / (1 - false_bad) <= odds + slack
    assert false_bad / (1 - false_good) <= odds + slack
    assert false_good + false_bad <= 2 * rule.error_rate + slack
    assert max(at_bad, at_good) < fixed_size(rule)


def test_the_default_keeps_its_rates_although_it_ends_after_16():
    rule = RolloutRule(estimate="sequential", rollouts=16)
    false_good, at_bad = played(rule, rule.p_bad)
    good, at_good = played(rule, rule.p_good)
    assert max(false_good, 1 - good) <= rule.error_rate
    # even where the value lies between the two, fewer than a test of fixed size with these rates needs
    assert at_good < at_bad < fixed_size(rule) <= 16
    assert max(played(rule, p / 20)[1] for p in range(21)) < fixed_size(rule)


def called_good(value, *, p_bad, p_good, error_rate, limit):
    """Wald's test played on every sequence of ``limit`` results, as his paper has it."""
    upper, lower = log((1 - error_rate) / error_rate), log(error_rate / (1 - error_rate))
    total = 0.0
    for results in product((True, False), repeat=limit):
        ratio = 0.0
        for hit in results:
            ratio += log(p_good / p_bad) if hit else log((1 - p_good) / (1 - p_bad))
            if not lower < ratio < upper:
                break
        if ratio > 0:
            total += value ** sum(results) * (1 - value) ** (limit - sum(results))
    return total


@pytest.mark.parametrize("limit", [1, 4, 8, 12])
def test_the_chances_of_a_test_cut_short_are_those_over_all_sequences(limit):
    for settings in (
        {"p_bad": 0.05, "p_good": 0.4, "error_rate": 0.05},
        {"p_bad": 0.3, "p_good": 0.6, "error_rate": 0.15},
    ):
        rule = RolloutRule(estimate="sequential", **settings, rollouts=limit)
        for value in (0.0, settings["p_bad"], 0.2, settings["p_good"], 1.0):
            assert rule.chance_of_good(value) == pytest.approx(called_good(value, **settings, limit=limit))


def test_cut_short_the_rates_aimed_at_are_exceeded():
    rule = RolloutRule(estimate="sequential", rollouts=4)
    # after at most four trials one right result makes good the likelier side
    assert rule.chance_of_good(0.05) == pytest.approx(1 - 0.95**4)
    assert 1 - rule.chance_of_good(0.4) == pytest.approx(0.6**4)
    eight = RolloutRule(estimate="sequential", rollouts=8)
    assert round(eight.chance_of_good(0.05), 3) == 0.057
    assert round(1 - eight.chance_of_good(0.4), 3) == 0.106


def test_the_boundaries():
    rule = RolloutRule(estimate="sequential", p_bad=0.1, p_good=0.5, error_rate=0.05, rollouts=50)
    # good once s ln 5 - f ln 1.8 >= ln 19, bad once it is <= -ln 19
    for successes in range(8):
        for failures in range(12):
            ratio = successes * log(5) - failures * log(1.8)
            trials = successes + failures
            decided = rule.more(successes, trials, trials) == 0
            assert decided == (abs(ratio) >= log(19))
            if decided:
                assert rule.good(successes, trials) == (ratio > 0)
                assert rule.value(successes, trials) == float(ratio > 0)
    # two right ones are enough, or six wrong ones
    assert [rule.more(*state) for state in ((0, 0, 0), (1, 1, 1), (0, 1, 1), (0, 4, 4))] == [2, 1, 3, 2]


def test_a_test_cut_short_goes_to_the_likelier_side():
    rule = RolloutRule(estimate="sequential", p_bad=0.2, p_good=0.6, error_rate=0.01, rollouts=5)
    # the likelihoods are equal where s ln 3 = f ln 2
    assert [rule.good(successes, 5) for successes in range(6)] == [False] * 2 + [True] * 4
    assert all(rule.more(successes, 5, 5) == 0 for successes in range(6))


RULES = st.builds(
    lambda p_bad, gap, error_rate, limit: RolloutRule(
        estimate="sequential",
        p_bad=p_bad,
        p_good=p_bad + gap,
        error_rate=error_rate,
        rollouts=limit,
    ),
    st.floats(0.02, 0.4),
    st.floats(0.1, 0.55),
    st.floats(0.01, 0.4),
    st.integers(1, 40),
)


def asked(rule, results, *, one_by_one):
    """Trials and successes where ``rule`` is content with the first of ``results``, in their order."""
    hits, trials = [0, *accumulate(results)], 0
    while count := rule.more(hits[trials], trials, trials):
        trials += 1 if one_by_one else count
    return trials, hits[trials]


@given(
    rule=st.one_of(
        RULES, st.builds(RolloutRule, estimate=st.just("sequential"), rollouts=st.integers(1, 40))
    ),
    results=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_a_batch_is_never_larger_than_what_decides(rule, results):
    assert asked(rule, results, one_by_one=False) == asked(rule, results, one_by_one=True)


@given(first=st.integers(1, 10), rollouts=st.integers(1, 40), unjudged=st.integers(0, 3))
def test_batches_of_a_hard_estimate_double(first, rollouts, unjudged):
    rule, drawn, batches = RolloutRule(estimate="hard", rollouts=rollouts, first=first), 0, []
    while count := rule.more(0, max(drawn - unjudged, 0), drawn):
        batches.append(count)
        drawn += count
    assert drawn == rollouts
    expected = [first, *(first * 2**number for number in range(10))]
    assert batches[:-1] == expected[: len(batches) - 1]
    assert batches[-1] <= expected[len(batches) - 1]
    assert all(rule.more(1, n, n) == 0 for n in range(1, rollouts + 1))


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
    assert [rule.more(0, drawn, drawn) for drawn in (0, 3, 8, 9)] == [8, 5, 0, 0]
    assert rule.more(2, 2, 8) == 0
    assert (rule.value(2, 3), rule.good(1, 8), rule.good(0, 8)) == (2 / 3, True, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts": 0}, "rollouts\n.*greater than or equal to 1"),
        ({"first": 0}, "first\n.*greater than or equal to 1"),
        ({"p_bad": 0.5, "p_good": 0.5}, "'p_bad' must be below 'p_good', not 0.5 and 0.5"),
        ({"p_bad": 0.0}, "p_bad\n.*greater than 0"),
        ({"p_good": 1.0}, "p_good\n.*less than 1"),
        ({"error_rate": 0.5}, "error_rate\n.*less than 0.5"),
        ({"error_rate": 0.0}, "error_rate\n.*greater than 0"),
    ],
)
def test_invalid_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        RolloutRule(**settings)
