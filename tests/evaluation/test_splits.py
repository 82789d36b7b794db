import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import LabelError
from surefoot.evaluation.splits import half_of, parse_rules, thresholds

IDS = [f"problem-{n}" for n in range(40)]


def test_halves_are_balanced_and_do_not_depend_on_the_data():
    halves = [half_of(f"problem-{n}") for n in range(2000)]
    assert 900 < sum(halves) < 1100
    assert half_of("problem-7") == halves[7]


@given(st.lists(st.sampled_from(IDS), min_size=1, max_size=60))
def test_no_trace_is_judged_with_a_threshold_that_saw_its_problem(problems):
    asked: list[set[str]] = []

    def fit(members):
        asked.append({problems[t] for t in members})
        return float(len(asked))

    if len({half_of(p) for p in problems}) < 2:
        with pytest.raises(LabelError, match="no trace in the other half"):
            thresholds("split", problems, ["a"] * len(problems), fit)
        return
    found = thresholds("split", problems, ["a"] * len(problems), fit)
    for problem, value in zip(problems, found.of_trace, strict=True):
        assert problem not in asked[int(value) - 1]
    assert set(found.values) == {"half 0", "half 1"}


def test_a_subset_is_fitted_on_itself_and_applied_everywhere():
    subsets = ["gsm8k", "math", "gsm8k", "math"]
    found = thresholds("gsm8k", IDS[:4], subsets, lambda members: float(members == [0, 2]))
    assert found.of_trace == (1.0,) * 4
    assert (found.rule, found.fitted_on, found.values) == ("gsm8k", "subset gsm8k", {"all": 1.0})


def test_a_number_is_not_fitted():
    found = thresholds(0.5, IDS[:3], ["a"] * 3, lambda _: 1 / 0)
    assert (found.of_trace, found.rule, found.fitted_on) == ((0.5,) * 3, "0.5", "fixed beforehand")


def test_a_fit_that_fails_says_where():
    def fit(members):
        raise LabelError("both classes are needed")

    with pytest.raises(LabelError, match="subset math: both classes are needed"):
        thresholds("math", IDS[:2], ["gsm8k", "math"], fit)
    with pytest.raises(LabelError, match="no trace in subset omni"):
        thresholds("omni", IDS[:2], ["gsm8k", "math"], fit)


def test_rules_are_read_once_each():
    assert parse_rules(["split", "0.5", "gsm8k", "0.50"], ["gsm8k"]) == ["split", 0.5, "gsm8k"]
    with pytest.raises(LabelError, match="give a number or one of split, math"):
        parse_rules(["gsm8k"], ["math"])
    with pytest.raises(LabelError, match="'nan'"):
        parse_rules(["nan"], [])
