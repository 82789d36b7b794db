"""Step rewards summed."""

from __future__ import annotations

import numpy as np
import pytest
from scored_rollouts import scored

from surefoot.errors import ScoreError
from surefoot.rl.credit import Summed
from surefoot.rl.sample import RewardStream, Sample


def test_each_score_is_the_reward_at_the_end_of_its_step() -> None:
    ((streams,),) = Summed().credit([[scored([0.9, 0.2, 0.7], width=3)]])
    assert streams == (RewardStream(at=(2, 5, 8), values=(0.9, 0.2, 0.7)),)


def test_signed_scores_cost_below_a_half() -> None:
    ((streams,),) = Summed(signed=True).credit([[scored([1.0, 0.5, 0.0])]])
    assert streams[0].values == (1.0, 0.0, -1.0)


def test_steps_without_a_score_have_the_worst_reward_of_their_group() -> None:
    (some, none), (alone,) = Summed().credit(
        [[scored([0.9, None, 0.7]), scored([None, None])], [scored([None])]]
    )
    assert (some[0].at, some[0].values) == ((1, 3, 5), (0.9, 0.7, 0.7))
    assert none[0].values == (0.7, 0.7)
    assert alone[0].at == ()


def test_more_steps_bring_more_reward() -> None:
    """The known failure: this is what a policy games."""
    short, long = Summed().credit([[scored([0.9] * 2), scored([0.9] * 10)]])[0]
    assert sum(long[0].values) == pytest.approx(5 * sum(short[0].values))


def test_numbers_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ScoreError, match="1 values for 2 steps"):
        Sample(tokens=4, ends=(1, 3), scores=(0.5,))
    with pytest.raises(ScoreError, match="for 4 tokens"):
        Sample(tokens=4, ends=(1, 3), log_ratios=np.zeros(3))
    with pytest.raises(ValueError, match="2 rewards at 1 positions"):
        RewardStream(at=(1,), values=(0.5, 0.5))
