import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import HashScorer, ScriptedPolicy, Watched, full_tree, problems, searched

from surefoot.search import Rebase
from surefoot.search.rebase import share

[QUESTION] = problems(1)


def test_sequential_ceiling_as_in_the_code():
    assert share([0.4, 0.4, 0.4], 8) == [3, 3, 2]
    assert share([0.1, 0.9, 0.5], 8) == [0, 7, 1]


@pytest.mark.parametrize("budget", [1, 3, 9, 30])
def test_equal_shares_are_not_pushed_up_by_rounding_errors(budget):
    assert share([0.3] * 3, 3 * budget) == [budget] * 3


def test_temperature_goes_from_greedy_to_even():
    assert share([0.5, 0.51, 0.2], 12, temperature=1e-9) == [0, 12, 0]
    assert share([0.5, 0.51, 0.2], 12, temperature=1e9) == [4, 4, 4]
    assert share([0.5, 0.5], 5, temperature=1e-320) == [3, 2]
    assert share([0.5, 0.1], 5, temperature=1e-320) == [5, 0]


@given(
    values=st.lists(st.floats(-5, 5) | st.just(-math.inf), min_size=1, max_size=12),
    budget=st.integers(0, 64),
    temperature=st.floats(0.01, 10),
)
def test_widths_sum_to_the_budget_and_follow_the_values(values, budget, temperature):
    widths = share(values, budget, temperature=temperature)
    assert sum(widths) == budget
    assert min(widths) >= 0
    for value, width in zip(values, widths, strict=True):
        if value == -math.inf and max(values) > -math.inf:
            assert width == 0
        # the better never gets less
        assert all(width >= other or value <= rest for rest, other in zip(values, widths, strict=True))


def test_all_draws_of_a_round_are_the_budget_less_what_is_finished():
    policy = Watched(ScriptedPolicy(full_tree(3, 3)))
    [result] = searched(Rebase(n=9), [QUESTION], policy, HashScorer())
    assert [sum(request.n for request in requests) for requests in policy.rounds] == [9, 9, 9, 9]
    assert sum(result.weights) == 9


def test_finished_solutions_leave_the_budget():
    def answer(request, sample):
        if not request.prefix:
            return "The answer is 1" if sample < 3 else f"step {sample}\n"
        return "The answer is 2"

    policy = Watched(ScriptedPolicy(answer))
    [result] = searched(Rebase(n=8), [QUESTION], policy, HashScorer())
    assert [sum(request.n for request in requests) for requests in policy.rounds] == [8, 5]
    assert result.weights[0] == 3
    assert sum(result.weights) == 8


def test_good_prefixes_get_more():
    def rule(prefix):
        return 0.9 if prefix.startswith("step 0 is 0") else 0.1

    policy = Watched(ScriptedPolicy(full_tree(2, 2)))
    searched(Rebase(n=8), [QUESTION], policy, HashScorer(rule))
    second = {}
    for request in policy.rounds[1]:
        second[request.prefix] = second.get(request.prefix, 0) + request.n
    # four of each were drawn, and every one of the four takes part
    weight = math.exp(0.8 / 0.2)
    assert second["step 0 is 0\n"] == 8
    assert 8 * weight / (weight + 1) > 7.8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, r"\bn\b"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_impossible_numbers_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Rebase(**wrong)
    with pytest.raises(ValueError, match="at least one prefix"):
        share([], 3)
