"""Turn credit by score differences: telescoping, both ends of λ, and what is missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_rollouts import scored

from surefoot.rl.credit import Effective, TurnDifference
from surefoot.rl.sample import RewardStream, Sample

potentials = st.lists(st.floats(-2, 2), min_size=1, max_size=6)


def _stream(rule: TurnDifference, *group: Sample) -> RewardStream:
    return rule.credit([group])[0][0][0]


@given(potentials, st.floats(-2, 2), st.sampled_from([0.0, 1.0]))
def test_the_turns_sum_to_the_outcome_less_the_start_whatever_the_scores(
    scores: list[float], start: float, outcome: float
) -> None:
    stream = _stream(TurnDifference(start=start), scored(scores, outcome=outcome))
    assert sum(stream.values) == pytest.approx(outcome - start, abs=1e-9)
    assert (len(stream.at), stream.centred) == (len(scores), True)


def test_lambda_1_has_scores_as_a_baseline_alone() -> None:
    stream = _stream(TurnDifference(lam=1.0, start=0.5), scored([0.7, 0.2, 0.9], outcome=1.0))
    assert stream.values == pytest.approx((0.5, 0.3, 0.8))


def test_between_is_the_lambda_sum_of_differences() -> None:
    stream = _stream(TurnDifference(lam=0.5, start=0.5), scored([0.7, 0.2, 0.9], outcome=1.0))
    assert stream.values == pytest.approx((0.2 + 0.5 * (-0.5 + 0.5 * 0.8), -0.5 + 0.5 * 0.8, 0.8))


def test_the_start_is_the_mean_outcome_of_the_others() -> None:
    group = [scored([0.6], outcome=1.0), scored([0.6], outcome=1.0), scored([0.6], outcome=0.0)]
    values = [streams[0].values for streams in TurnDifference().credit([group])[0]]
    assert values == [pytest.approx((0.5,)), pytest.approx((0.5,)), pytest.approx((-1.0,))]


def test_an_unscored_turn_shares_the_advantage_of_the_next() -> None:
    stream = _stream(TurnDifference(start=0.5), scored([None, 0.8, None], outcome=0.0))
    assert (stream.at, stream.values) == ((3, 5), pytest.approx((0.3, -0.8)))  # tokens 0 to 3 have 0.3


def test_without_a_start_or_without_any_potential_there_is_no_reward() -> None:
    assert _stream(TurnDifference(), scored([0.5], outcome=1.0)).at == ()
    assert _stream(TurnDifference(start=0.5), scored([None, None])).at == ()


def test_pav_over_turns_is_the_rule_effective_whose_steps_are_turns() -> None:
    """Without the outcome as the last potential, its advantages are the differences of the scores."""
    rollout = scored([0.7, 0.2, 0.9], outcome=None)
    effective = Effective(alpha=1.0, start=0.5).credit([[rollout]])[0][0][1]
    assert effective.values == pytest.approx(_stream(TurnDifference(start=0.5), rollout).values)
