"""Anchor states (GiGPO): a small tree by hand, and the formula of the authors' code on random episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scored_rollouts import scored

from surefoot.errors import ScoreError
from surefoot.rl.advantage import Group
from surefoot.rl.config import PRESETS
from surefoot.rl.credit import AnchorState
from surefoot.rl.sample import Sample


def _episode(states: str, outcome: float | None = None) -> Sample:
    return replace(scored([None] * len(states), outcome=outcome), states=tuple(states), scores=())


def _advantages(rule: AnchorState, group: list[Sample], estimator: Group) -> list[list[float]]:
    (streams,) = rule.credit([group])
    batch = [[replace(one, rewards=of) for one, of in zip(group, streams, strict=True)]]
    (arrays,) = estimator.advantages(batch)
    return [array.tolist() for array in arrays]


def test_turns_in_equal_states_are_compared() -> None:
    """From a, one episode goes to b and succeeds, one to c, back to a, to c again, and fails."""
    group = [_episode("ab", outcome=1.0), _episode("aca", outcome=0.0)]
    arrays = _advantages(AnchorState(gamma=0.5), group, Group(scale=False))
    # a: returns 0.5, 0, 0, mean 1/6; b and c were met once; totals 1 and 0, mean 1/2; two tokens a turn
    assert arrays[0] == pytest.approx([0.5 + 1 / 3] * 2 + [0.5] * 2)
    assert arrays[1] == pytest.approx([-0.5 - 1 / 6] * 2 + [-0.5] * 2 + [-0.5 - 1 / 6] * 2)


def _published(
    group: list[list[float]], states: list[str], gamma: float, omega: float, *, scale: bool
) -> list[list[float]]:
    """One number per turn, by the formula of verl-agent without ``compute_mean_std_cross_all_data``."""
    totals = torch.tensor([sum(rewards) for rewards in group])
    episode = totals - totals.mean()
    if scale:
        episode = episode / (totals.std() + 1e-6)
    visits: dict[str, list[float]] = {}
    returns = [
        [sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))]
        for rewards in group
    ]
    for of_states, of_episode in zip(states, returns, strict=True):
        for state, value in zip(of_states, of_episode, strict=True):
            visits.setdefault(state, []).append(value)

    def step(state: str, value: float) -> float:
        rows = torch.tensor(visits[state])
        deviation = torch.tensor(1.0) if len(rows) == 1 else rows.std()
        difference = value - rows.mean()
        return float(difference / (deviation + 1e-6) if scale else difference)

    return [
        [float(total) + omega * step(state, value) for state, value in zip(of_states, values, strict=True)]
        for total, of_states, values in zip(episode, states, returns, strict=True)
    ]


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_same_numbers_as_the_papers_formula(seed: int, *, scale: bool) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, size=5)
    states = ["".join(rng.choice(list("abcd"), size=length)) for length in lengths]
    rewards = [[0.0] * (length - 1) + [round(float(rng.normal()), 2)] for length in lengths]
    rule = AnchorState(gamma=0.95, weight=0.7, scale=scale)
    group = [_episode(one, outcome=values[-1]) for one, values in zip(states, rewards, strict=True)]
    arrays = _advantages(rule, group, Group(scale=scale, std="sample"))
    expected = _published(rewards, states, 0.95, 0.7, scale=scale)
    for array, values in zip(arrays, expected, strict=True):
        assert array == pytest.approx(np.repeat(values, 2).tolist(), abs=1e-4)


def test_an_episode_that_was_not_judged_counts_as_wrong_beside_others() -> None:
    group = [_episode("a", outcome=1.0), _episode("a"), _episode("a", outcome=0.0)]
    arrays = _advantages(AnchorState(), group, Group(scale=False))
    assert arrays == [pytest.approx([v, v]) for v in (4 / 3, -2 / 3, -2 / 3)]
    assert _advantages(AnchorState(), [_episode("a")] * 2, Group(scale=False)) == [[0.0, 0.0]] * 2


def test_missing_states_are_errors() -> None:
    with pytest.raises(ScoreError, match="'states'"):
        AnchorState().credit([[scored([0.5], outcome=1.0)]])
    with pytest.raises(ScoreError, match="'states' has 1 keys for 2 turns"):
        replace(scored([0.5, 0.5]), states=("a",))


def test_what_it_reads_and_the_published_method() -> None:
    assert AnchorState().needs == {"outcome", "states"}
    assert PRESETS["gigpo"]["credit"] == AnchorState()
