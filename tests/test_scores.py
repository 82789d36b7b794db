import math

import pytest
from fixed_scorer import FixedScorer, one_character_steps
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import ScoreError
from surefoot.models import LabelScorer
from surefoot.scores import (
    AGGREGATORS,
    aggregate,
    checked_scores,
    is_scored,
    step_score,
    trace_rule,
    trace_score,
)

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("how", "value"),
    [("product", 0.684), ("min", 0.80), ("last", 0.80), ("mean", 0.8833333333333333), ("sum", 2.65)],
)
def test_known_values(how, value):
    assert aggregate([0.95, 0.90, 0.80], how) == pytest.approx(value, rel=1e-12)


@settings(deadline=None)
@given(PROBABILITIES)
def test_product_min_mean_are_ordered(scores):
    product, least, mean = (aggregate(scores, how) for how in ("product", "min", "mean"))
    assert product <= least
    assert least <= mean * (1 + 1e-12) + 1e-300


@settings(deadline=None)
@given(st.floats(0, 1))
def test_all_agree_on_one_step(score):
    assert {aggregate([score], how) for how in AGGREGATORS} == {score}


@settings(deadline=None)
@given(PROBABILITIES)
def test_a_certain_step_leaves_product_and_min_alone(scores):
    longer = [*scores, 1.0]
    assert aggregate(longer, "min") == aggregate(scores, "min")
    assert aggregate(longer, "product") == pytest.approx(aggregate(scores, "product"), rel=1e-12, abs=1e-300)
    assert aggregate(longer, "last") == 1.0


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=40))
def test_product_equals_the_plain_product(scores):
    assert aggregate(scores, "product") == pytest.approx(math.prod(scores), rel=1e-10)


def test_a_zero_makes_the_product_zero():
    assert aggregate([0.9, 0.0, 0.8], "product") == 0.0


def test_large_factors_survive_an_early_underflow():
    assert aggregate([1e-200, 1e-200, 1e200, 1e200], "product") == pytest.approx(1.0)


@pytest.mark.parametrize("how", AGGREGATORS)
def test_no_steps_raise(how):
    with pytest.raises(ScoreError, match="empty"):
        aggregate([], how)


@pytest.mark.parametrize("how", AGGREGATORS)
@pytest.mark.parametrize("missing", [None, math.nan])
def test_an_unscored_step_is_not_zero(how, missing):
    with pytest.raises(ScoreError, match=r"scores\[1\] is unscored"):
        aggregate([0.9, missing, 0.8], how)


def test_a_sum_is_exact_and_takes_logits():
    assert aggregate([0.1] * 10, "sum") == 1.0
    assert aggregate([-1.0, 0.5], "sum") == -0.5
    assert trace_score([0.25, None], "sum") is None


def test_product_of_logits_raises():
    with pytest.raises(ScoreError, match="logits"):
        aggregate([0.4, -1.2], "product")


def test_unknown_rule_raises():
    with pytest.raises(ScoreError, match="min, product, last, mean, sum"):
        aggregate([0.4], "median")  # type: ignore[arg-type]


@pytest.mark.parametrize("scores", [[], [None], [0.9, None], [0.9, math.nan], [math.inf]])
def test_a_trace_without_all_its_scores_has_none(scores):
    assert trace_score(scores, "last") is None


def test_the_score_of_a_whole_trace_is_the_aggregate():
    assert trace_score([0.9, 0.8], "mean") == aggregate([0.9, 0.8], "mean")
    with pytest.raises(ScoreError, match="logits"):
        trace_score([0.4, -1.2], "product")


class OtherRecords(FixedScorer):
    """Changes the records with ``change`` before they are returned."""

    change = staticmethod(lambda records: records)

    def score_traces(self, items):
        return type(self).change(super().score_traces(items))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: records[:1], "fixed gave 1 records for 2 traces"),
        (lambda records: records[::-1], "do not fit the 1 steps of trace"),
        (lambda records: [r.model_copy(update={"scores": (0.5, 0.5)}) for r in records], "2 scores of trace"),
    ],
)
def test_records_that_do_not_fit_the_traces_are_refused(change, message):
    items = one_character_steps("a", "b")
    scorer = OtherRecords({"a": [0.1], "b": [0.2]})
    assert [record.scores for record in checked_scores(scorer, items)] == [(0.1,), (0.2,)]
    assert checked_scores(scorer, []) == []
    changed = type("Changed", (OtherRecords,), {"change": staticmethod(change)})(scorer.scores)
    with pytest.raises(ScoreError, match=message):
        checked_scores(changed, items)


VERDICTS = st.lists(st.sampled_from([0.0, None, 0.5, 1.0]), min_size=1, max_size=12)


@given(VERDICTS, VERDICTS)
def test_verdicts_compare_by_refuted_and_then_by_confirmed_steps(one, other):
    values = [aggregate(scores, "verdicts") for scores in (one, other)]
    ranks = [(0.0 not in scores, 0.0 not in scores and scores.count(1.0)) for scores in (one, other)]
    assert (values[0] > values[1]) == (ranks[0] > ranks[1])
    assert (values[0] == values[1]) == (ranks[0] == ranks[1])
    assert all(0 <= value < 1 for value in values)


@given(VERDICTS, st.integers(0, 12))
def test_an_open_verdict_changes_nothing(scores, at):
    assert aggregate([*scores[:at], None, *scores[at:]], "verdicts") == aggregate(scores, "verdicts")


@given(st.integers(0, 10_000))
def test_the_odds_of_confirmed_steps_are_odd_numbers(confirmed):
    value = aggregate([None] + [1.0] * confirmed, "verdicts")
    assert value / (1 - value) == pytest.approx(2 * confirmed + 1)
    assert value < aggregate([1.0] * (confirmed + 1), "verdicts")


def test_verdicts_need_steps_and_are_scored_if_one_step_is():
    with pytest.raises(ScoreError, match="empty"):
        aggregate([], "verdicts")
    assert trace_score([], "verdicts") is None
    assert [is_scored(scores, "verdicts") for scores in ([], [None], [None, 0.0], [1.0])] == [0, 0, 1, 1]
    assert [is_scored(scores, "min") for scores in ([], [None], [None, 0.0], [1.0])] == [0, 0, 0, 1]
    assert [step_score(score, "verdicts") for score in (0.0, None, 1.0)] == [0.0, 0.5, 1.0]
    assert step_score(None, "min") is None


def test_a_labeller_of_correctness_gives_verdicts():
    assert trace_rule(LabelScorer(NoLabels(), name="checks")) == "verdicts"
    assert trace_rule(LabelScorer(NoLabels(), name="checks", unknown=1.0)) == "min"
    assert trace_rule(LabelScorer(NoLabels(), name="rollouts", kind="value")) == "min"
    assert trace_rule(object()) == "min"


class NoLabels:
    async def label(self, items):
        return [[] for _ in items]
