"""Turns in the shapes of other engines, whose types are written out here as they document them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from surefoot.errors import ScoreError
from surefoot.rl import credit
from surefoot.rl.advantage import Group, LeaveOneOut, Reinforce, group_advantages
from surefoot.rl.credit import AnchorState, Summed, TurnDifference
from surefoot.rl.engines.turns import (
    TOKEN_REWARDS,
    at_turn_ends,
    set_turn_rewards,
    skyrl_turn_rewards,
    verl_turn_rewards,
)

MASK = [1, 1, 0, 0, 1, 0, 1, 1, 0]
"""Three turns, the last one answered too."""


def test_values_stand_at_the_turns_own_tokens() -> None:
    assert at_turn_ends(MASK, [1, 2, 3]).tolist() == [0, 1, 0, 0, 2, 0, 0, 3, 0]
    assert at_turn_ends([0, 1], [5]).tolist() == [0, 5]


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
def test_no_turn_goes_without_its_number(values: list[float]) -> None:
    with pytest.raises(ScoreError, match="the 3 turns of the mask"):
        at_turn_ends(MASK, values)


def test_advantages_of_turns_by_a_rule() -> None:
    rule, estimator = AnchorState(gamma=0.5), Group(scale=False)
    won, lost = group_advantages(states=["ab", "ac"], outcomes=[1.0, 0.0], credit=rule, advantage=estimator)
    assert (won.tolist(), lost.tolist()) == ([0.75, 0.5], [-0.75, -0.5])
    (one,) = group_advantages(
        scores=[[0.5, 0.25]], outcomes=[1.0], credit=TurnDifference(start=0.0), advantage=Reinforce()
    )
    assert one.tolist() == [0.5, 0.5]
    with pytest.raises(ScoreError, match="'scores' or 'states'"):
        group_advantages(outcomes=[1.0], credit=rule, advantage=estimator)


def test_the_worked_example_of_the_rules() -> None:
    first, second = group_advantages(
        ends=[[1, 3], [1, 3]], scores=[[1, 0], [1, 1]], credit=Summed(), advantage=LeaveOneOut()
    )
    assert (first.tolist(), second.tolist()) == ([-1, -1, -1, -1], [1, 1, 0.5, 0.5])
    [line] = [line for line in str(credit.__doc__).splitlines() if line.startswith("    advantage ")]
    numbers = [0.5 if text == "½" else float(text) for text in line.split()[1:]]
    assert numbers == [*first, *second]


def test_verl_reads_them_from_the_extra_information() -> None:
    """In the form that ``dense_agent_loop`` reads: one number per response token."""
    assert json.loads(verl_turn_rewards(MASK, [1, 2, 3])[TOKEN_REWARDS]) == [0, 1, 0, 0, 2, 0, 0, 3, 0]


def test_skyrl_has_rewards_per_token() -> None:
    output: dict[str, Any] = {
        "prompt_token_ids": [[1], [1]],
        "response_ids": [[7] * 9, [7] * 2],
        "rewards": [1.0, 0.0],
        "loss_masks": [MASK, [1, 1]],
        "stop_reasons": None,
    }
    changed = skyrl_turn_rewards(output, [[0.1, 0.2, 0.7], [0.0]])
    assert changed["rewards"] == [[0, 0.1, 0, 0, 0.2, 0, 0, 0.7, 0], [0, 0]]
    assert [len(one) for one in changed["rewards"]] == [len(one) for one in changed["response_ids"]]
    assert output["rewards"] == [1.0, 0.0]
    with pytest.raises(ValueError, match="shorter"):
        skyrl_turn_rewards(output, [[0.1, 0.2, 0.7]])


def test_a_verifiers_trace_has_one_reward_for_each_turn() -> None:
    nodes = [SimpleNamespace(sampled=sampled) for sampled in (False, True, False, True)]
    trace = SimpleNamespace(id="t", nodes=nodes, info={})
    with pytest.raises(ScoreError, match="1 rewards for 2 turns of trace t"):
        set_turn_rewards(trace, [1.0])
    assert trace.info == {}
    set_turn_rewards(trace, [1, None])
    assert trace.info == {"turn_rewards": [1.0, None]}
