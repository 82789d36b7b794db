"""Returns without a baseline, against the definition; and what whitening does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_rollouts import credited, dense, few, groups, later_sum, own_value, rollouts

from surefoot.rl.advantage import Reinforce
from surefoot.rl.sample import RewardStream, Sample

batches = st.lists(groups(streams=2), min_size=1, max_size=3)


@few
@given(rollouts(streams=2), st.floats(-2, 2))
def test_the_advantage_is_the_weighted_sum_of_later_rewards(one: Sample, weight: float) -> None:
    heavy = replace(one, rewards=(one.rewards[0], replace(one.rewards[1], weight=weight)))
    expected = [
        later_sum(one.rewards[0].at, one.rewards[0].values, token)
        + weight * later_sum(one.rewards[1].at, one.rewards[1].values, token)
        for token in range(one.tokens)
    ]
    np.testing.assert_allclose(Reinforce().advantages([[heavy]])[0][0], expected, atol=1e-9)


@few
@given(rollouts(centred=True))
def test_centred_values_stay_with_their_step(one: Sample) -> None:
    stream = one.rewards[0]
    expected = [own_value(stream.at, stream.values, token) for token in range(one.tokens)]
    np.testing.assert_allclose(Reinforce().advantages([[one]])[0][0], expected, atol=1e-12)


@few
@given(batches)
def test_whitened_tokens_have_mean_0_and_deviation_1_and_the_unknown_stay_0(
    batch: list[list[Sample]],
) -> None:
    raw, white = Reinforce().advantages(batch), Reinforce(whiten=True).advantages(batch)
    before, after = [], []
    for group, plain, arrays in zip(batch, raw, white, strict=True):
        for one, was, array in zip(group, plain, arrays, strict=True):
            if any(stream.at for stream in one.rewards):
                before.append(was)
                after.append(array)
            else:
                assert not array.any()
    if before:
        flat, was = np.concatenate(after), np.concatenate(before)
        assert flat.mean() == pytest.approx(0, abs=1e-6)
        if was.std() > 0.01:
            assert flat.std(ddof=1) == pytest.approx(1, abs=1e-3)
            np.testing.assert_array_equal(np.argsort(flat, kind="stable"), np.argsort(was, kind="stable"))


def test_whitening_looks_over_all_groups() -> None:
    found = Reinforce(whiten=True).advantages([[dense(1.0)], [dense(3.0)]])
    assert [group[0][0] for group in found] == pytest.approx([-1 / np.sqrt(2), 1 / np.sqrt(2)])


def test_tokens_that_are_all_alike_whiten_to_0() -> None:
    assert Reinforce(whiten=True).advantages([[dense(0.0, 0.1)], [dense(0.1)]])[0][0].tolist() == [0.0, 0.0]


def test_nothing_known_is_nothing_learned() -> None:
    nothing = credited(3, RewardStream(at=(), values=()))
    assert Reinforce(whiten=True).advantages([[nothing], []])[0][0].tolist() == [0.0] * 3
    assert Reinforce().advantages([]) == []
