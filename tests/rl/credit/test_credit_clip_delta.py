"""Clip and Delta: totals that no length raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_rollouts import later_sum, scored

from surefoot.rl.credit import ClipDelta
from surefoot.rl.sample import RewardStream

DELTA = ClipDelta(eta=1.0)  # clips nothing
step_scores = st.lists(st.floats(0, 1), min_size=1, max_size=10)


def _stream(rule: ClipDelta, scores: list[float | None]) -> RewardStream:
    return rule.credit([[scored(scores)]])[0][0][0]


def _later(stream: RewardStream) -> list[float]:
    return [later_sum(stream.at, stream.values, end) for end in stream.at]


def test_delta_of_the_worked_example() -> None:
    stream = _stream(DELTA, [0.9, 0.8, 0.7, 0.95])
    assert stream.values == pytest.approx((0.1, 0.1, -0.3, 0.0))
    assert _later(stream) == pytest.approx([-0.1, -0.2, -0.3, 0.0])
    assert sum(stream.values) == pytest.approx(-0.1)


def test_the_clip_comes_first() -> None:
    stream = _stream(ClipDelta(eta=0.85), [0.9, 0.8, 0.7, 0.95])
    assert stream.values == pytest.approx((0.05, 0.1, -0.15, 0.0))
    assert _later(stream) == pytest.approx([0.0, -0.05, -0.15, 0.0])


@given(step_scores)
def test_the_return_from_a_step_is_its_own_reward_and_the_last_step_has_none(scores: list[float]) -> None:
    assert _later(_stream(DELTA, scores)) == pytest.approx(
        [*(score - 1 for score in scores[:-1]), 0.0], abs=1e-12
    )


@given(step_scores, st.floats(0, 1))
def test_no_total_is_above_zero(scores: list[float], eta: float) -> None:
    assert sum(_stream(ClipDelta(eta=eta), scores).values) <= 1e-12


@given(step_scores, st.integers(1, 20))
def test_repeating_a_good_step_brings_nothing(scores: list[float], times: int) -> None:
    """What hacked the raw sum: the total stays the first step's score, or 0."""
    padded = [scores[0]] * times + scores
    if len(scores) > 1:
        assert sum(_stream(DELTA, padded).values) == pytest.approx(sum(_stream(DELTA, scores).values))


def test_one_step_has_only_its_outcome() -> None:
    assert _stream(DELTA, [0.9]).values == (0.0,)


@pytest.mark.parametrize(
    ("scores", "values"),
    [
        ([0.9, None, 0.7, 0.95], (0.2, 0.0, -0.3, 0.0)),
        ([0.9, 0.8, None], (0.1, -0.2, 0.0)),  # the last step is the one without a score
        ([None, None], ()),
    ],
)
def test_steps_without_a_score_count_as_the_worst(
    scores: list[float | None], values: tuple[float, ...]
) -> None:
    assert _stream(DELTA, scores).values == pytest.approx(values)
