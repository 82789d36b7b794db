"""Generalised advantage estimation against its closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_rollouts import credited, few, groups

from surefoot.errors import ScoreError, TrainingError
from surefoot.rl.advantage import Gae
from surefoot.rl.sample import RewardStream, Sample

shares = st.floats(0, 1)


@st.composite
def _valued(draw: st.DrawFn, **options: object) -> list[Sample]:
    numbers = st.floats(-2, 2)
    return [
        replace(one, values=np.array(draw(st.lists(numbers, min_size=one.tokens, max_size=one.tokens))))
        for one in draw(groups(**options))
    ]


def _token_rewards(one: Sample) -> list[float]:
    return [
        sum(stream.weight * value for stream in one.rewards
            for place, value in zip(stream.at, stream.values, strict=True) if place == token)
        for token in range(one.tokens)
    ]  # fmt: skip


@few
@given(_valued(streams=2, empty=False), shares.filter(bool), shares)
def test_it_is_the_sum_of_discounted_errors(group: list[Sample], gamma: float, lam: float) -> None:
    estimator = Gae(gamma=gamma, lam=lam)
    found, targets = estimator.advantages([group])[0], estimator.targets([group])[0]
    for one, array, target in zip(group, found, targets, strict=True):
        values, rewards = [*one.values, 0.0], _token_rewards(one)
        errors = [rewards[token] + gamma * values[token + 1] - values[token] for token in range(one.tokens)]
        expected = [
            sum((gamma * lam) ** later * error for later, error in enumerate(errors[token:]))
            for token in range(one.tokens)
        ]
        np.testing.assert_allclose(array, expected, atol=1e-9)
        np.testing.assert_allclose(target, np.array(expected) + one.values, atol=1e-9)


@few
@given(_valued(empty=False), shares.filter(bool))
def test_lambda_1_is_the_return_less_the_value(group: list[Sample], gamma: float) -> None:
    for one, array in zip(group, Gae(gamma=gamma, lam=1.0).advantages([group])[0], strict=True):
        rewards = _token_rewards(one)
        returns = [
            sum(gamma**later * reward for later, reward in enumerate(rewards[token:]))
            for token in range(one.tokens)
        ]
        np.testing.assert_allclose(array, returns - one.values, atol=1e-9)


@few
@given(_valued(empty=False), shares.filter(bool))
def test_lambda_0_is_the_error_of_one_step(group: list[Sample], gamma: float) -> None:
    for one, array in zip(group, Gae(gamma=gamma, lam=0.0).advantages([group])[0], strict=True):
        following = np.append(one.values[1:], 0.0)
        np.testing.assert_allclose(array, _token_rewards(one) + gamma * following - one.values, atol=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), shares.filter(bool), shares)
def test_a_critic_that_knows_the_return_leaves_nothing(
    rewards: list[float], gamma: float, lam: float
) -> None:
    returns = [
        sum(gamma**later * reward for later, reward in enumerate(rewards[token:]))
        for token in range(len(rewards))
    ]
    stream = RewardStream(at=tuple(range(len(rewards))), values=tuple(rewards))
    one = credited(len(rewards), stream, values=returns)
    np.testing.assert_allclose(Gae(gamma=gamma, lam=lam).advantages([[one]])[0][0], 0, atol=1e-9)
    np.testing.assert_allclose(Gae(gamma=gamma, lam=lam).targets([[one]])[0][0], returns, atol=1e-9)


def test_weights_scale_the_rewards() -> None:
    one = credited(2, RewardStream(at=(1,), values=(1.0,), weight=3.0), values=[0.0, 0.0])
    assert Gae(lam=1.0).advantages([[one]])[0][0].tolist() == [3.0, 3.0]


def test_centred_streams_are_added_and_are_not_what_the_critic_learns() -> None:
    own = RewardStream(at=(0, 1), values=(1.0, -1.0), weight=2.0, centred=True)
    one = credited(2, RewardStream(at=(1,), values=(1.0,)), own, values=[0.5, 0.5])
    estimator = Gae(lam=1.0)
    assert estimator.advantages([[one]])[0][0].tolist() == [2.5, -1.5]
    assert estimator.targets([[one]])[0][0].tolist() == [1.0, 1.0]
    alone = credited(2, own, values=[0.5, 0.5])
    assert estimator.advantages([[alone]])[0][0].tolist() == [2.0, -2.0]
    assert estimator.targets([[alone]]) == [[None]]


def test_a_rollout_without_rewards_teaches_nobody() -> None:
    nothing = credited(2, RewardStream(at=(), values=()), values=[5.0, 5.0])
    rewarded = credited(1, RewardStream(at=(0,), values=(1.0,)), values=[0.0])
    found = Gae(whiten=True).advantages([[nothing, rewarded, rewarded], []])
    assert found[0][0].tolist() == [0.0, 0.0]
    assert Gae().targets([[nothing, rewarded]])[0][0] is None
    assert Gae().advantages([]) == []


def test_whitening_is_over_the_batch() -> None:
    batch = [[credited(1, RewardStream(at=(0,), values=(reward,)), values=[0.0])] for reward in (1.0, 3.0)]
    found = Gae(whiten=True).advantages(batch)
    assert [group[0][0] for group in found] == pytest.approx([-1 / np.sqrt(2), 1 / np.sqrt(2)])


def test_values_that_are_missing_or_too_few_are_refused() -> None:
    stream = RewardStream(at=(1,), values=(1.0,))
    with pytest.raises(TrainingError, match="critic"):
        Gae().advantages([[credited(2, stream)]])
    with pytest.raises(ScoreError, match="2 tokens"):
        credited(2, stream, values=[0.0])
