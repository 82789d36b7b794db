"""Outcome reward."""

from __future__ import annotations

from scored_rollouts import scored

from surefoot.rl.credit import Outcome


def test_a_right_answer_earns_one_at_the_last_token_and_a_wrong_one_zero() -> None:
    right, wrong = Outcome().credit([[scored([None, None], outcome=1.0), scored(outcome=0.0)]])[0]
    assert (right[0].at, right[0].values) == ((3,), (1.0,))
    assert (wrong[0].at, wrong[0].values) == ((1,), (0.0,))


def test_an_answer_that_nobody_judged_is_no_reward_rather_than_zero() -> None:
    ((unjudged,),) = Outcome().credit([[scored()]])
    assert unjudged[0].at == () == unjudged[0].values


def test_batches_keep_their_groups() -> None:
    batch = [[scored(outcome=1.0)] * 3, [], [scored(outcome=0.0)]]
    assert [len(group) for group in Outcome().credit(batch)] == [3, 0, 1]
