"""Min-form credit (PURE): the closed forms of the paper's claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scored_rollouts import scored

from surefoot.rl.credit import MinForm, min_weights
from surefoot.rl.sample import RewardStream

signed_rewards = st.lists(st.floats(-1, 1), min_size=1, max_size=12)


def _stream(rule: MinForm, rewards: list[float | None]) -> RewardStream:
    """Of signed step rewards r = 2 p - 1."""
    scores = [None if reward is None else (reward + 1) / 2 for reward in rewards]
    return rule.credit([[scored(scores)]])[0][0][0]


@pytest.mark.parametrize("good", [2, 10])
def test_one_bad_step_sets_the_return_however_many_good_ones_there_are(good: int) -> None:
    rewards = [0.9] * good + [-0.5]
    assert sum(_stream(MinForm(), rewards).values) == pytest.approx(-0.5, abs=2e-5)
    assert sum(rewards) == pytest.approx({2: 1.3, 10: 8.5}[good])


def test_the_temperature_leads_from_the_minimum_to_the_mean() -> None:
    rewards = [0.9, 0.1, -0.5]
    assert sum(_stream(MinForm(temperature=1e-3), rewards).values) == pytest.approx(-0.5)
    assert sum(_stream(MinForm(temperature=1e6), rewards).values) == pytest.approx(np.mean(rewards), abs=1e-5)


@given(signed_rewards, st.floats(0.01, 10))
def test_the_soft_return_lies_between_minimum_and_mean(rewards: list[float], temperature: float) -> None:
    total = sum(_stream(MinForm(temperature=temperature), rewards).values)
    assert min(rewards) - 1e-9 <= total <= np.mean(rewards) + 1e-9


@given(signed_rewards, st.floats(0.01, 10))
def test_the_weights_are_the_softmax_of_the_negative_reward(rewards: list[float], temperature: float) -> None:
    powers = [np.exp(-(reward - min(rewards)) / temperature) for reward in rewards]
    np.testing.assert_allclose(
        min_weights(np.array(rewards), temperature), [power / sum(powers) for power in powers], atol=1e-12
    )


@given(signed_rewards, st.data())
def test_steps_without_a_score_weigh_as_the_worst(rewards: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(rewards)))
    with_gap = [*rewards[:place], None, *rewards[place:]]
    filled = [*rewards[:place], min(rewards), *rewards[place:]]
    assert _stream(MinForm(), with_gap).values == _stream(MinForm(), filled).values
    assert _stream(MinForm(), [None]).at == ()


def test_unsigned_rewards_are_the_scores() -> None:
    ((streams,),) = MinForm(signed=False, temperature=1e6).credit([[scored([0.2, 0.6])]])
    assert sum(streams[0].values) == pytest.approx(0.4, abs=1e-6)


def test_a_temperature_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="temperature"):
        MinForm(temperature=0)
