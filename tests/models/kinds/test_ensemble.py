import statistics

import pytest
from fixed_scorer import FixedScorer, one_character_steps
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.derived import Ensemble
from surefoot.protocols import StepScorer

ITEMS = one_character_steps("ab")


def members(*scores) -> list[FixedScorer]:
    return [FixedScorer({"ab": row}, name=f"m{number}") for number, row in enumerate(scores)]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5))
def test_mean_and_minimum(rows):
    mean = Ensemble(members(*rows))
    assert isinstance(mean, StepScorer)
    [record] = mean.score_traces(ITEMS)
    columns = list(zip(*rows, strict=True))
    assert record.scores == pytest.approx([statistics.fmean(column) for column in columns])
    [least] = Ensemble(members(*rows), "min").score_traces(ITEMS)
    assert least.scores == tuple(min(column) for column in columns)


def test_one_member_agrees_with_itself():
    [record] = Ensemble(members([0.3, 0.7])).score_traces(ITEMS)
    assert record.scores == (0.3, 0.7)


def test_a_step_that_one_member_has_not_scored_is_unscored():
    [record] = Ensemble(members([0.3, None], [0.5, 0.9])).score_traces(ITEMS)
    assert record.scores == (0.4, None)
    assert record.unscored_reason == "m0: too long"


def test_usage_is_that_of_all():
    [record] = Ensemble(members([0.3, 0.1], [0.5, 0.9])).score_traces(ITEMS)
    assert (record.usage.verifier_tokens, record.usage.calls) == (20, 2)


def test_members_of_different_lengths_are_refused():
    with pytest.raises(ScoreError, match="do not fit"):
        Ensemble(members([0.3, 0.1], [0.5])).score_traces(ITEMS)


def test_members_that_mean_different_things_are_refused():
    first, second = members([0.3, 0.1], [0.5, 0.9])
    card = CheckpointCard(kind="prm", score_means="value", label_source="test", base="tiny")
    first.card, second.card = card, card.model_copy(update={"score_means": "correctness"})
    with pytest.raises(ValueError, match="correctness, value"):
        Ensemble([first, second])


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="how"):
        Ensemble(members([0.1, 0.2]), how="max")


def test_no_member_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Ensemble([])
