"""Recorded turns as samples: tokens as they were drawn, one reward for each turn, none twice."""

from __future__ import annotations

import json

import pytest

from surefoot.errors import ScoreError
from surefoot.rl.engines import RecordedTurn, skyrl_rows, verifiers_trace, verl_rows
from surefoot.rl.engines.turns import TOKEN_REWARDS


def turn(prompt: list[int], drawn: list[int], reward: float | None, **more: object) -> RecordedTurn:
    return RecordedTurn(
        prompt=[{"role": "user", "content": str(prompt)}],
        completion={"role": "assistant", "content": str(drawn)},
        reward=reward,
        prompt_ids=prompt,
        completion_ids=drawn,
        logprobs=[-0.5] * len(drawn),
        **more,
    )


TURNS = [turn([1, 2], [3, 4], 0.25), turn([1, 2, 3, 4, 9, 9], [5], 0.75)]


def test_a_prompt_that_goes_on_makes_one_sample() -> None:
    [row] = verl_rows(TURNS)
    assert (row["prompt_ids"], row["response_ids"]) == ([1, 2], [3, 4, 9, 9, 5])
    assert row["response_mask"] == [1, 1, 0, 0, 1]
    assert row["response_logprobs"] == [-0.5, -0.5, 0, 0, -0.5]
    assert skyrl_rows(TURNS)["rewards"] == [[0, 0.25, 0, 0, 0.75]]


@pytest.mark.parametrize("prompt", [[1, 2, 9, 9], [1, 2, 3, 4], [7]])
def test_a_prompt_that_does_not_begins_another(prompt: list[int]) -> None:
    """A template dropped what was drawn; nothing stands between two messages; another conversation."""
    rows = verl_rows([TURNS[0], turn(prompt, [5], 0.75)])
    assert [row["prompt_ids"] for row in rows] == [[1, 2], prompt]
    assert [row["reward_score"] for row in rows] == [0.25, 0.75]


def test_the_shapes_of_the_engines() -> None:
    [sample] = verl_rows(TURNS)
    assert sample["response_mask"] == [1, 1, 0, 0, 1]
    assert (sample["reward_score"], sample["num_turns"]) == (1.0, 2)
    rewards = json.loads(sample["extra_fields"]["reward_extra_info"][TOKEN_REWARDS])
    assert rewards == [0, 0.25, 0, 0, 0.75]
    output = skyrl_rows([*TURNS[:1], turn([8], [6], 0.5, truncated=True)])
    assert output["rewards"] == [[0, 0.25], [0.5]]
    assert output["loss_masks"] == [[1, 1], [1]]
    assert output["stop_reasons"] == ["stop", "length"]
    assert output["rollout_logprobs"] == [[-0.5, -0.5], [-0.5]]
    trace = verifiers_trace(TURNS, name="e", task="p")
    assert (trace["id"], trace["info"]["turn_rewards"]) == ("e", [0.25, 0.75])
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1]
    assert [node.get("token_ids") for node in trace["nodes"]] == [None, [1, 2, 3, 4], [9, 9, 5]]
    assert trace["nodes"][2]["mask"] == [False, False, True]
    assert trace["rewards"] == {"turns": {"score": 0.5}}  # a mean: more turns earn no more
    assert verifiers_trace(TURNS, name="e", task="p", outcome=True)["rewards"] == {"outcome": {"score": 1.0}}


def test_a_verifiers_trace_branches_where_a_prompt_does_not_go_on() -> None:
    trace = verifiers_trace([*TURNS, turn([7], [6], 0.5)], name="e", task="p")
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1, None, 3]
    user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    unknown = [
        RecordedTurn(prompt=[user], completion=answer, reward=0.0),
        RecordedTurn(prompt=[user, answer, user], completion=answer, reward=1.0),
        RecordedTurn(prompt=[user, user], completion=answer, reward=1.0),
    ]
    nodes = verifiers_trace(unknown, name="e", task="p")["nodes"]
    assert [node["parent"] for node in nodes] == [None, 0, 1, 2, None, 4, 5]
    assert [node["token_ids"] for node in nodes if node.get("sampled")] == [[], [], []]


def test_what_is_unknown_is_not_made_up() -> None:
    bare = RecordedTurn(prompt=[], completion={}, reward=1.0)
    with pytest.raises(ScoreError, match="without the token ids"):
        verl_rows([bare])
    assert verifiers_trace([bare], name="e", task="p")["nodes"][0]["token_ids"] == []
    odd = RecordedTurn(
        prompt=[], completion={}, reward=1.0, prompt_ids=[1], completion_ids=[2, 3], logprobs=[0]
    )
    with pytest.raises(ScoreError, match="1 log-probabilities for 2 tokens"):
        verl_rows([odd])
    unknown = [TURNS[0], turn([1, 2, 3, 4, 9, 9], [5], None)]
    for rows in (verl_rows, skyrl_rows):
        with pytest.raises(ScoreError, match="the reward of a turn is unknown"):
            rows(unknown)
    trace = verifiers_trace(unknown, name="e", task="p")
    assert (trace["info"]["turn_rewards"], trace["rewards"]) == ([0.25, None], {"turns": {"score": 0.125}})
    without = RecordedTurn(prompt=[], completion={}, reward=1.0, prompt_ids=[1], completion_ids=[2])
    assert skyrl_rows([TURNS[0], without])["rollout_logprobs"] is None
