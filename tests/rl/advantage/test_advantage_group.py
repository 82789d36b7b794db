"""Group-relative advantages against closed forms and the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_rollouts import credited, dense, few, groups, later_sum

from surefoot.rl.advantage import Group
from surefoot.rl.credit import Outcome
from surefoot.rl.sample import RewardStream, Sample


def test_process_supervision_of_the_worked_example() -> None:
    """Group {[1, 0], [0, 1]}: normalised {[1, -1], [-1, 1]}, advantages {(0, -1), (0, 1)}."""
    first, second = Group().advantages([[dense(1.0, 0.0), dense(0.0, 1.0)]])[0]
    assert first.tolist() == pytest.approx([0, -1], abs=1e-5)
    assert second.tolist() == pytest.approx([0, 1], abs=1e-5)


def test_outcome_supervision_is_the_standard_score_at_every_token() -> None:
    group = [Sample(tokens=3, ends=(2,), outcome=outcome) for outcome in (1.0, 0.0, 0.0, 0.0)]
    rolled = [credited(3, *streams) for streams in Outcome().credit([group])[0]]
    population = Group(epsilon=0).advantages([rolled])[0]
    assert population[0].tolist() == pytest.approx([np.sqrt(3)] * 3)
    assert population[1].tolist() == pytest.approx([-1 / np.sqrt(3)] * 3)
    assert Group(epsilon=0, std="sample").advantages([rolled])[0][0].tolist() == pytest.approx([1.5] * 3)
    assert Group(scale=False).advantages([rolled])[0][0].tolist() == pytest.approx([0.75] * 3)


@few
@given(groups(streams=2), st.booleans())
def test_it_is_the_definition(group: list[Sample], scale: bool) -> None:
    group = [
        credited(one.tokens, one.rewards[0], RewardStream(at=two.at, values=two.values, weight=0.5))
        for one in group
        for two in [one.rewards[1]]
    ]
    found = Group(scale=scale).advantages([group])[0]
    expected = [np.zeros(one.tokens) for one in group]
    for source in (0, 1):
        pool = [value for one in group for value in one.rewards[source].values]
        if sum(bool(one.rewards[source].at) for one in group) < 2 or len(set(pool)) == 1:
            continue
        spread = np.std(pool) + 1e-6 if scale else 1.0
        for one, array in zip(group, expected, strict=True):
            stream = one.rewards[source]
            values = [(value - np.mean(pool)) / spread for value in stream.values]
            array += [stream.weight * later_sum(stream.at, values, token) for token in range(one.tokens)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@few
@given(groups(empty=False))
def test_the_normalised_rewards_of_a_group_sum_to_0(group: list[Sample]) -> None:
    total = sum(array[0] for array in Group().advantages([group])[0])
    assert total == pytest.approx(0, abs=1e-6)


@given(st.floats(-10, 10), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_equal_rewards_give_exactly_0(reward: float, lengths: list[int]) -> None:
    for array in Group(epsilon=0).advantages([[dense(*[reward] * length) for length in lengths]])[0]:
        assert not array.any()


@few
@given(groups(streams=2), st.randoms())
def test_the_order_of_a_group_does_not_matter(group: list[Sample], random: st.Random) -> None:
    order = random.sample(range(len(group)), len(group))
    found = Group().advantages([group, [group[index] for index in order]])
    for place, index in enumerate(order):
        np.testing.assert_allclose(found[1][place], found[0][index], atol=1e-9)


def test_centred_streams_have_no_baseline() -> None:
    group = [dense(1.0, -2.0, centred=True, weight=3.0), dense(1.0, centred=True)]
    assert [array.tolist() for array in Group().advantages([group])[0]] == [[3.0, -6.0], [1.0]]


def test_rollouts_without_a_reward_are_not_counted() -> None:
    unjudged = credited(2, RewardStream(at=(), values=()))
    found = Group(epsilon=0).advantages([[dense(1.0), unjudged, dense(0.0)]])[0]
    assert [array.tolist() for array in found] == [[1.0], [0.0, 0.0], [-1.0]]


def test_one_rollout_alone_has_nothing_to_compare_with() -> None:
    assert Group().advantages([[dense(1.0, 0.0)], []]) == [[pytest.approx(np.zeros(2))], []]


def test_longer_rollouts_of_better_steps_get_more() -> None:
    """The known incentive: above the mean, each further step adds to the return of the first."""
    long, short, bad = Group().advantages([[dense(*[1.0] * 6), dense(*[1.0] * 2), dense(0.0, 0.0)]])[0]
    assert long[0] == pytest.approx(3 * short[0])
    assert long[0] > short[0] > 0 > bad[0]
