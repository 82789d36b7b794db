"""Token rewards of an implicit reward model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.rl.credit import Implicit
from surefoot.rl.sample import Sample

ratios = st.lists(st.floats(-2, 2), min_size=1, max_size=8)


def _rollout(*values: float) -> Sample:
    return Sample(tokens=len(values), ends=(len(values) - 1,), log_ratios=np.array(values))


@given(st.lists(st.lists(ratios, min_size=1, max_size=3), min_size=1, max_size=3))
def test_the_largest_return_of_the_batch_is_one(batch: list[list[list[float]]]) -> None:
    given = Implicit().credit([[_rollout(*one) for one in group] for group in batch])
    largest = max(abs(sum(one[token:])) for group in batch for one in group for token in range(len(one)))
    for group, streams in zip(batch, given, strict=True):
        for one, (stream,) in zip(group, streams, strict=True):
            assert stream.at == tuple(range(len(one)))
            np.testing.assert_allclose(stream.values, np.array(one) / (largest + 1e-6), atol=1e-9)


def test_without_normalizing_the_ratios_are_the_rewards_and_beta_is_not_in_them() -> None:
    ((streams,),) = Implicit(normalize=False).credit([[_rollout(0.5, -1.5)]])
    assert streams[0].values == (0.5, -1.5)


def test_a_reward_model_that_is_its_reference_gives_nothing() -> None:
    ((streams,),) = Implicit().credit([[_rollout(0.0, 0.0)]])
    assert streams[0].values == (0.0, 0.0)


def test_rollouts_that_the_model_did_not_read_have_no_reward() -> None:
    read, unread = Implicit().credit([[_rollout(2.0, 2.0), Sample(tokens=3, ends=(2,))]])[0]
    assert read[0].values == pytest.approx((0.5, 0.5), abs=1e-6)
    assert unread[0].at == ()
    assert Implicit().credit([[]]) == [[]]
