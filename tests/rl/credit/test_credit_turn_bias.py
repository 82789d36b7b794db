"""Which credit rules pay for the number of turns, on a game small enough to list.

The game: stop after the first turn with reward c, or take a second turn, with rewards c - μ and then μ. Both
are worth c, so a policy that stops with probability 1 - p must not be moved. The expected gradient by the
logit of going on is the sum over all groups of N episodes; the second turn has nothing to choose.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scored_rollouts import scored

from surefoot.rl.advantage import Advantage, Group, LeaveOneOut, Reinforce
from surefoot.rl.credit import AnchorState, Credit, Outcome, Summed, TurnDifference
from surefoot.rl.sample import Sample

GROUP, GOES_ON = 3, 0.3


def _play(*, goes_on: bool, c: float, mu: float, rule: Credit) -> Sample:
    """One token a turn; scores are rewards, or values after the turn for the rule of differences."""
    rewards = [c - mu, mu] if goes_on else [c]
    scores = [c] * len(rewards) if isinstance(rule, TurnDifference) else rewards
    states = ("start", "second")[: len(rewards)]
    return replace(scored(scores, outcome=c, width=1), states=states)


def expected_gradient(rule: Credit, estimator: Advantage, *, c: float, mu: float) -> float:
    """Of the mean over a group's episodes, by the logit of going on."""
    total = 0.0
    for choices in product([False, True], repeat=GROUP):
        group = [_play(goes_on=one, c=c, mu=mu, rule=rule) for one in choices]
        (streams,) = rule.credit([group])
        batch = [[replace(one, rewards=of) for one, of in zip(group, streams, strict=True)]]
        (advantages,) = estimator.advantages(batch)
        probability = np.prod([GOES_ON if one else 1 - GOES_ON for one in choices])
        slopes = [(1 - GOES_ON) if one else -GOES_ON for one in choices]
        total += probability * np.mean([a[0] * slope for a, slope in zip(advantages, slopes, strict=True)])
    return float(total)


UNBIASED: list[tuple[Credit, Advantage]] = [
    (Outcome(), LeaveOneOut()),
    (Outcome(), Group()),
    (Summed(), Reinforce()),
    (TurnDifference(), LeaveOneOut()),
    (TurnDifference(lam=1.0), LeaveOneOut()),
    (AnchorState(gamma=1.0), Group()),
    (AnchorState(gamma=1.0), Group(scale=False)),
]


@pytest.mark.parametrize("mu", [0.5, -0.5])
@pytest.mark.parametrize(("rule", "estimator"), UNBIASED, ids=lambda one: str(one))
def test_these_rules_are_indifferent_between_equal_returns(
    rule: Credit, estimator: Advantage, mu: float
) -> None:
    assert expected_gradient(rule, estimator, c=1.0, mu=mu) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("estimator", [Group(scale=False), LeaveOneOut()])
def test_summed_rewards_with_a_baseline_for_each_are_biased_too(estimator: Advantage) -> None:
    """Each reward loses an average reward, so the same return in more turns loses more."""
    assert expected_gradient(Summed(), estimator, c=1.0, mu=0.5) < -0.01


def test_a_discount_within_states_prefers_the_shorter_of_equal_returns() -> None:
    rule = AnchorState(gamma=0.95)
    assert expected_gradient(rule, Group(), c=1.0, mu=0.5) < 0
