import statistics

import pytest
from fixed_scorer import FixedScorer, one_character_steps
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.ensemble import Ensemble
from surefoot.protocols import StepScorer

ITEMS = one_character_steps("ab")


def members(*scores) -> list[FixedScorer]:
    return [FixedScorer({"ab": row}, name=f"m{number}") for number, row in enumerate(scores)]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5))
def test_mean_minimum_and_spread(rows):
    mean = Ensemble(members(*rows))
    assert isinstance(mean, StepScorer)
    [found] = mean.score_with_spread(ITEMS)
    columns = list(zip(*rows, strict=True))
    assert found.scores.scores == pytest.approx([statistics.fmean(column) for column in columns])
    assert found.spread == pytest.approx([statistics.pstdev(column) for column in columns], abs=1e-7)
    [least] = Ensemble(members(*rows), "min", spread="range").score_with_spread(ITEMS)
    assert least.scores.scores == tuple(min(column) for column in columns)
    assert least.spread == tuple(max(column) - min(column) for column in columns)


def test_one_member_agrees_with_itself():
    [found] = Ensemble(members([0.3, 0.7])).score_with_spread(ITEMS)
    assert (found.scores.scores, found.spread) == ((0.3, 0.7), (0.0, 0.0))


def test_a_step_that_one_member_has_not_scored_is_unscored():
    [found] = Ensemble(members([0.3, None], [0.5, 0.9])).score_with_spread(ITEMS)
    assert found.scores.scores == (0.4, None)
    assert found.spread == (pytest.approx(0.1), None)
    assert found.scores.unscored_reason == "m0: too long"
    assert [record.scorer for record in found.members] == ["m0", "m1"]


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


@pytest.mark.parametrize("options", [{"how": "max"}, {"spread": "iqr"}])
def test_unknown_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Ensemble(members([0.1, 0.2]), **options)


def test_no_member_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Ensemble([])
