"""Leave-one-out: closed forms of RLOO, PRIME and PURE, and that the baseline leaves the gradient alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_rollouts import credited, dense, few, groups, later_sum, rewards

from surefoot.rl.advantage import LeaveOneOut
from surefoot.rl.credit import Implicit, Mixed
from surefoot.rl.sample import RewardStream, Sample

BASELINES = ("event", "token", "prime")


@pytest.mark.parametrize("baseline", BASELINES)
def test_prime_s_worked_example(baseline: str) -> None:
    found = LeaveOneOut(baseline=baseline).advantages([[dense(reward) for reward in (1.0, 0.0, 0.0, 1.0)]])[0]
    assert [array[0] for array in found] == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert sum(array[0] for array in found) == pytest.approx(0)


def _expected(group: list[Sample], baseline: str) -> list[list[float]]:
    """Later sums of the formulas in the class's docstring, token by token."""
    present = [one for one in group if one.rewards[0].at]
    if len(present) < 2:
        return [[0.0] * one.tokens for one in group]
    means = [float(np.mean(one.rewards[0].values)) for one in present]
    lengths = [np.diff((-1, *one.rewards[0].at)).tolist() for one in present]
    single = all(len(one.rewards[0].at) == 1 for one in present)
    shifted = []
    for index, one in enumerate(present):
        values = one.rewards[0].values
        others = [other for other in range(len(present)) if other != index]
        if baseline == "prime":
            count = len(present)
            shifted.append([value * count / (count - 1) - sum(means) / (count - 1) for value in values])
        elif baseline == "event" or single:
            shifted.append([value - np.mean([means[other] for other in others]) for value in values])
        else:
            rate = sum(sum(present[other].rewards[0].values) for other in others)
            rate /= sum(sum(lengths[other]) for other in others)
            shifted.append(
                [value - rate * tokens for value, tokens in zip(values, lengths[index], strict=True)]
            )
    found = iter(shifted)
    expected = []
    for one in group:
        stream = one.rewards[0]
        values = next(found) if stream.at else []
        expected.append([later_sum(stream.at, values, token) for token in range(one.tokens)])
    return expected


@pytest.mark.parametrize("baseline", BASELINES)
def test_it_is_the_definition(baseline: str) -> None:
    @few
    @given(groups())
    def check(group: list[Sample]) -> None:
        found = LeaveOneOut(baseline=baseline).advantages([group])[0]
        for array, expected in zip(found, _expected(group, baseline), strict=True):
            np.testing.assert_allclose(array, expected, atol=1e-9)

    check()


@given(st.lists(rewards, min_size=2, max_size=6))
def test_the_two_forms_of_the_outcome_baseline_are_one(outcomes: list[float]) -> None:
    """r K/(K-1) - Σr/(K-1) = r_i - mean of the others; group sum 0."""
    group = [dense(reward) for reward in outcomes]
    event, prime = (LeaveOneOut(baseline=kind).advantages([group])[0] for kind in ("event", "prime"))
    assert [array[0] for array in prime] == pytest.approx([array[0] for array in event], abs=1e-9)
    assert sum(array[0] for array in event) == pytest.approx(0, abs=1e-9)


@few
@given(groups(empty=False))
def test_with_several_events_the_forms_agree_at_the_first_token(group: list[Sample]) -> None:
    event, prime = (LeaveOneOut(baseline=kind).advantages([group])[0] for kind in ("event", "prime"))
    for one, other in zip(event, prime, strict=True):
        assert one[0] == pytest.approx(other[0], abs=1e-9)


def test_prime_s_form_scales_the_rollout_s_own_differences() -> None:
    group = [dense(1.0, 0.0), dense(0.0, 0.0)]
    event, prime = (LeaveOneOut(baseline=kind).advantages([group])[0] for kind in ("event", "prime"))
    assert event[0].tolist() == pytest.approx([1.0, 0.0])
    assert prime[0].tolist() == pytest.approx([1.0, -0.5])


@few
@given(groups(empty=False), st.sampled_from(["event", "token"]), st.data())
def test_the_baseline_of_a_rollout_does_not_know_its_rewards(
    group: list[Sample], baseline: str, data: st.DataObject
) -> None:
    """A change of a rollout's own rewards changes its return by just that."""
    stream = group[0].rewards[0]
    changes = data.draw(st.lists(rewards, min_size=len(stream.at), max_size=len(stream.at)))
    values = tuple(value + change for value, change in zip(stream.values, changes, strict=True))
    other = replace(group[0], rewards=(replace(stream, values=values),))
    before, after = LeaveOneOut(baseline=baseline).advantages([group, [other, *group[1:]]])
    expected = [later_sum(stream.at, changes, token) for token in range(group[0].tokens)]
    if len(group) > 1:
        np.testing.assert_allclose(after[0] - before[0], expected, atol=1e-9)


def test_the_gradient_is_that_of_the_mean_reward() -> None:
    """Exact, over all groups of three draws of a softmax over three answers."""
    chances, worth = np.array([0.5, 0.3, 0.2]), np.array([0.2, 1.0, -0.7])
    scores = np.eye(3) - chances  # gradient of log π of each answer
    truth = (chances * worth) @ scores
    found = np.zeros(3)
    for draws in product(range(3), repeat=3):
        advantages = LeaveOneOut().advantages([[dense(float(worth[draw])) for draw in draws]])[0]
        terms = [array[0] * scores[draw] for array, draw in zip(advantages, draws, strict=True)]
        found += chances[list(draws)].prod() * np.mean(terms, axis=0)
    np.testing.assert_allclose(found, truth, atol=1e-12)


@given(
    st.floats(-10, 10),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.sampled_from(["event", "prime"]),
)
def test_equal_rewards_give_exactly_0(reward: float, lengths: list[int], baseline: str) -> None:
    batch = [[dense(*[reward] * length) for length in lengths]]
    for whiten in (False, True):
        for array in LeaveOneOut(baseline=baseline, whiten=whiten).advantages(batch)[0]:
            assert not array.any()


@few
@given(groups(streams=2), st.sampled_from(BASELINES), st.randoms())
def test_the_order_of_a_group_does_not_matter(group: list[Sample], baseline: str, random: st.Random) -> None:
    order = random.sample(range(len(group)), len(group))
    found = LeaveOneOut(baseline=baseline).advantages([group, [group[index] for index in order]])
    for place, index in enumerate(order):
        np.testing.assert_allclose(found[1][place], found[0][index], atol=1e-9)


@pytest.mark.parametrize("baseline", BASELINES)
def test_one_rollout_alone_gets_0_and_stays_out_of_the_whitening(baseline: str) -> None:
    pair = [dense(1.0), dense(0.0)]
    found = LeaveOneOut(baseline=baseline, whiten=True).advantages([[dense(1.0, 0.0)], pair, []])
    assert found[0][0].tolist() == [0.0, 0.0]
    assert [array[0] for array in found[1]] == pytest.approx([1 / np.sqrt(2), -1 / np.sqrt(2)])


def test_rollouts_without_a_reward_are_not_counted() -> None:
    unjudged = credited(2, RewardStream(at=(), values=()))
    found = LeaveOneOut().advantages([[dense(1.0), unjudged, dense(0.0), dense(0.0)]])[0]
    assert [array[0] for array in found] == pytest.approx([1.0, 0.0, -0.5, -0.5])


def test_pure_s_token_baseline_is_in_proportion_to_the_step_s_length() -> None:
    """Others: 1.2 in 6 tokens, 0.2 a token; steps of 1 and 3 tokens lose 0.2 and 0.6."""
    group = [
        credited(4, RewardStream(at=(0, 3), values=(0.5, 0.5))),
        credited(2, RewardStream(at=(0, 1), values=(0.4, 0.4))),
        credited(4, RewardStream(at=(1, 3), values=(0.2, 0.2))),
    ]
    found = LeaveOneOut(baseline="token").advantages([group])[0]
    assert found[0].tolist() == pytest.approx([0.2, -0.1, -0.1, -0.1])


def test_prime_adds_two_returns_and_whitens_the_sum() -> None:
    """By hand, K = 2: log-ratios [1, 1] and [0, -1], outcomes 1 and 0; the largest return is 2."""
    group = [
        Sample(tokens=2, ends=(1,), outcome=1.0, log_ratios=np.array([1.0, 1.0])),
        Sample(tokens=2, ends=(1,), outcome=0.0, log_ratios=np.array([0.0, -1.0])),
    ]
    rolled = [credited(2, *streams) for streams in Mixed(of=Implicit()).credit([group])[0]]
    # process rewards 2 r - (0.5 - 0.25): [.75, .75] and [-.25, -1.25]; outcome advantages 1 and -1
    sums = np.array([[1.5 + 1, 0.75 + 1], [-1.5 - 1, -1.25 - 1]])
    plain = LeaveOneOut(baseline="prime").advantages([rolled])[0]
    np.testing.assert_allclose(plain, sums, atol=1e-5)
    white = LeaveOneOut(baseline="prime", whiten=True).advantages([rolled])[0]
    np.testing.assert_allclose(white, (sums - sums.mean()) / sums.std(ddof=1), atol=1e-5)
