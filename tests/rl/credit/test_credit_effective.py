"""Effective rewards (PAV): closed forms, and the gradient on a tree small enough to list."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scored_rollouts import credited, scored

from surefoot.errors import ScoreError
from surefoot.rl.advantage import Reinforce
from surefoot.rl.credit import Effective
from surefoot.rl.sample import RewardStream, Sample

values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def _advantages(rule: Effective, scores: list[float | None], outcome: float | None = None) -> RewardStream:
    return rule.credit([[scored(scores, outcome=outcome)]])[0][0][1]


@given(values, st.floats(0, 1), st.integers(1, 5))
def test_the_advantages_sum_to_the_last_value_less_the_first(
    scores: list[float], start: float, k: int
) -> None:
    stream = _advantages(Effective(start=start, best_of=k), scores)
    assert sum(stream.values) == pytest.approx((1 - start) ** k - (1 - scores[-1]) ** k, abs=1e-9)
    assert (stream.centred, stream.weight) == (True, 3.0)


@pytest.mark.parametrize(("k", "advantage"), [(1, 0.1), (4, 0.2465), (32, 0.0335)])
def test_the_best_of_k_prover_of_the_paper(k: int, advantage: float) -> None:
    assert _advantages(Effective(start=0.1, best_of=k), [0.2]).values == pytest.approx((advantage,), abs=5e-5)


def test_the_outcome_is_a_stream_of_its_own() -> None:
    ((streams,),) = Effective(alpha=5, start=0.5).credit([[scored([0.5, 1.0], outcome=1.0)]])
    assert streams[0] == RewardStream(at=(3,), values=(1.0,))
    assert (streams[1].weight, streams[1].values) == (5.0, (0.0, 0.5))


def test_the_value_before_is_the_mean_outcome_of_the_others() -> None:
    group = [
        scored([0.5], outcome=1.0),
        scored([0.5], outcome=1.0),
        scored([0.5], outcome=0.0),
        scored([0.5]),
    ]
    given = Effective(best_of=2).credit([group])[0]
    assert [streams[1].values[0] for streams in given] == pytest.approx(
        [
            0.75 - (1 - (2 / 3) ** 2),
            0.75 - (1 - (2 / 3) ** 2),
            0.75 - (1 - (1 / 3) ** 2),
            0.75 - (1 - (1 / 3) ** 2),
        ]
    )
    assert given[3][0] == given[2][0]  # not judged, which counts as wrong


def test_without_a_value_before_the_first_step_has_no_advantage() -> None:
    assert _advantages(Effective(), [0.4, 0.9], outcome=1.0).values == pytest.approx((0.0, 0.5))
    assert _advantages(Effective(), [None, 0.4, 0.9]).values == pytest.approx((0.0, 0.5))


def test_a_step_without_a_score_shares_the_advantage_of_the_stretch() -> None:
    stream = _advantages(Effective(start=0.5), [0.4, None, 0.9, None])
    assert (stream.at, stream.values) == ((1, 5), pytest.approx((-0.1, 0.5)))
    one = credited(8, stream)
    np.testing.assert_allclose(
        Reinforce().advantages([[one]])[0][0],
        3 * np.array([-0.1, -0.1, 0.5, 0.5, 0.5, 0.5, 0, 0]),
        atol=1e-12,
    )


def test_scores_that_are_advantages_are_taken_as_they_are() -> None:
    stream = _advantages(Effective(scores="advantages"), [0.5, None, 1.0, 0.0])
    assert (stream.at, stream.values) == ((1, 3, 5, 7), (0.0, -1.0, 1.0, -1.0))
    assert _advantages(Effective(scores="advantages"), [None, None]).at == ()
    with pytest.raises(ValidationError, match="best_of"):
        Effective(scores="advantages", best_of=4)


def test_a_score_that_is_no_value_is_refused() -> None:
    with pytest.raises(ScoreError, match=r"1\.5"):
        _advantages(Effective(start=0.5), [1.5])


LOGITS = np.array([0.3, -0.4, 0.8])
"""Of taking 1: at the start, after 0, after 1."""
SUCCESS = {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 1.0, (1, 1): 0.0}


def _node(path: tuple[int, ...]) -> int:
    return 0 if not path else 1 + path[0]


def _chance(path: tuple[int, ...]) -> float:
    ones = 1 / (1 + np.exp(-LOGITS))
    steps = [(path[:place], action) for place, action in enumerate(path)]
    return float(
        np.prod([ones[_node(before)] if action else 1 - ones[_node(before)] for before, action in steps])
    )


def _value(path: tuple[int, ...]) -> float:
    if len(path) == 2:
        return SUCCESS[path[0], path[1]]
    ends = [end for end in SUCCESS if end[: len(path)] == path]
    return sum(_chance(end) * SUCCESS[end] for end in ends) / _chance(path)


def _gradient(path: tuple[int, int], advantages: np.ndarray) -> np.ndarray:
    """Sum over the two tokens of A times the gradient of log π."""
    found = np.zeros(3)
    for place, action in enumerate(path):
        node = _node(path[:place])
        found[node] += advantages[place] * (action - 1 / (1 + np.exp(-LOGITS[node])))
    return found


def test_with_the_policy_as_prover_the_advantages_give_the_gradient_of_outcome_reward() -> None:
    """Exact, over all groups of three, with q_0 estimated from the other rollouts."""
    rule = Effective(alpha=1.0)
    found = np.zeros((2, 3))
    for paths in product(SUCCESS, repeat=3):
        group = [
            Sample(tokens=2, ends=(0, 1), scores=(_value(path[:1]), _value(path)), outcome=SUCCESS[path])
            for path in paths
        ]
        chance = float(np.prod([_chance(path) for path in paths]))
        for source in (0, 1):
            rolled = [credited(2, streams[source]) for streams in rule.credit([group])[0]]
            advantages = Reinforce().advantages([rolled])[0]
            terms = [_gradient(path, one) for path, one in zip(paths, advantages, strict=True)]
            found[source] += chance * np.mean(terms, axis=0)
    truth = sum(_chance(path) * SUCCESS[path] * _gradient(path, np.ones(2)) for path in SUCCESS)
    np.testing.assert_allclose(found, [truth, truth], atol=1e-12)


@given(values)
def test_of_one_prover_the_advantages_are_the_differences(scores: list[float]) -> None:
    differences = [after - before for before, after in pairwise([0.25, *scores])]
    assert _advantages(Effective(start=0.25), list(scores)).values == pytest.approx(differences)
