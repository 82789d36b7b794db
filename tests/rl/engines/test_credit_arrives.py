"""Credit arrives: advantages and rewards of turns, followed through each trainer's own classes to its tokens.

Every trainer is looked up in the environment and its tests are skipped where it is missing. None of them
trains here: what is checked is the last structure before the loss.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.errors import ScoreError
from surefoot.rl.advantage import Group, LeaveOneOut, Reinforce
from surefoot.rl.credit import Mixed, Outcome, Summed, TurnDifference
from surefoot.rl.engines import (
    RecordedTurn,
    set_turn_rewards,
    skyrl_rows,
    skyrl_turn_rewards,
    turn_credit_algorithm,
    verifiers_trace,
    verl_rows,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def needs(name: str) -> pytest.MarkDecorator:
    found = find_spec(name)  # without origin: any folder of this name on the path
    missing = found is None or found.origin is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


def turn(prompt: list[int], drawn: list[int], reward: float) -> RecordedTurn:
    return RecordedTurn(
        prompt=[{"role": "user", "content": str(prompt)}],
        completion={
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        reward=reward,
        prompt_ids=prompt,
        completion_ids=drawn,
        logprobs=[-0.5] * len(drawn),
    )


TURNS = [turn([1, 2], [3, 4], 0.25), turn([1, 2, 3, 4, 9, 9], [5], 0.75)]
"""Tokens 1 2 | 3 4 | 9 9 | 5: prompt, turn, result, turn."""


# verifiers and prime-rl

prime_rl = [needs("verifiers"), needs("prime_rl")]


def trace_of(
    turns: list[RecordedTurn], rewards: dict[str, float | None], *, credited: bool = True, name: str = "agent"
) -> Any:
    import verifiers.v1 as vf

    trace = vf.Trace.model_validate(verifiers_trace(turns, name="t", task="p"))
    trace.agent.name = name
    trace.rewards = {
        key: None if score is None else vf.trace.Reward(score=score) for key, score in rewards.items()
    }
    if not credited:
        trace.info.clear()
    return trace


def score(rule: Any, estimator: Any, *traces: Any) -> list[list[float]]:
    """Advantages that prime-rl's trainer gets for each trace, token by token, after its own conversion."""
    import verifiers.v1 as vf
    from prime_rl.orchestrator.trajectories import trace_to_samples

    episodes = [vf.Episode(task=trace.task, traces=[trace], ok=True) for trace in traces]
    algorithm = turn_credit_algorithm(credit=rule, advantage=estimator)(SimpleNamespace(), SimpleNamespace())
    asyncio.run(algorithm.finalize_group(episodes))
    return [
        [value for sample in trace_to_samples(trace) for value in sample.advantages or ()] for trace in traces
    ]


@needs("verifiers")
def test_a_recorded_session_is_a_verifiers_trace() -> None:
    trace = trace_of(TURNS, {"turns": 1.0})
    [branch] = trace.branches
    assert (branch.token_ids, branch.sampled_mask) == (
        [1, 2, 3, 4, 9, 9, 5],
        [False, False, True, True, False, False, True],
    )
    assert (trace.num_turns, trace.has_error, branch.logprobs[2:4]) == (2, False, [-0.5, -0.5])
    assert trace.assistant_messages[0].tool_calls[0].name == "look"
    assert trace.info["turn_rewards"] == [0.25, 0.75]


@pytest.mark.parametrize("credited", [False, True])
@needs("verifiers")
@needs("prime_rl")
def test_prime_rl_every_token_of_a_turn_gets_the_turns_advantage(*, credited: bool) -> None:
    rule = TurnDifference(start=0.0)
    if not credited:
        with pytest.raises(ScoreError, match="has 0 turn rewards for 2 turns"):
            score(rule, Reinforce(), trace_of(TURNS, {"won": 1.0}, credited=False))
        return
    [advantages] = score(rule, Reinforce(), trace_of(TURNS, {"won": 1.0}))
    assert advantages == [0, 0, 0.25, 0.25, 0, 0, 0.75]


@needs("verifiers")
@needs("prime_rl")
def test_prime_rl_no_component_is_dropped_and_unknown_is_never_better_than_failed() -> None:
    """The outcome is the sum of all weighted components; one that was not scored makes it unknown."""
    won, lost, unknown = (
        trace_of(TURNS, rewards)
        for rewards in ({"a": 1.0, "b": 0.5}, {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": None})
    )
    rows = score(Outcome(), Group(scale=False), won, lost, unknown)
    assert [row[2] for row in rows] == pytest.approx([1.0, -0.5, -0.5])
    first, second = (trace_of(TURNS, {"won": 1.0}) for _ in range(2))
    set_turn_rewards(first, [None, 0.5])
    set_turn_rewards(second, [0.1, 0.5])
    rows = score(Summed(), Reinforce(), first, second)
    assert rows[0] == rows[1] == pytest.approx([0, 0, 0.6, 0.6, 0, 0, 0.5])
    process, outcome = 0.25 + 0.75, 2.0
    [mixed] = score(Mixed(of=Summed(), outcome=outcome), Reinforce(), trace_of(TURNS, {"won": 1.0}))
    assert mixed[2] == pytest.approx(process + outcome)


@needs("verifiers")
@needs("prime_rl")
def test_prime_rl_agents_are_compared_with_themselves() -> None:
    solver, other = trace_of(TURNS, {"won": 1.0}, name="solver"), trace_of(TURNS, {"won": 0.0}, name="solver")
    judge = trace_of(TURNS, {"won": 9.0}, name="judge")
    rows = score(Outcome(), LeaveOneOut(), solver, other, judge)
    assert [row[2] for row in rows] == [1.0, -1.0, 0.0]


@needs("verifiers")
@needs("prime_rl")
def test_prime_rl_equal_returns_in_one_and_two_turns_are_level() -> None:
    single = trace_of([turn([1, 2], [3], 1.0)], {"won": 1.0})
    rows = score(TurnDifference(lam=1.0), LeaveOneOut(), single, trace_of(TURNS, {"won": 1.0}))
    assert rows[0][2] == 0.0
    assert rows[1][2] == 0.0  # 1 - 1, the others' outcome before the first turn


# verl


@needs("verl")
def test_verl_the_agent_loops_output_has_each_turns_reward_at_its_last_token() -> None:
    from surefoot.rl.engines import dense_agent_loop

    verl = pytest.importorskip("verl.experimental.agent_loop.agent_loop", exc_type=ImportError)
    [row] = verl_rows(TURNS)

    class Recorded:
        async def run(self, _sampling_params: dict[str, Any], **_: Any) -> Any:
            return verl.AgentLoopOutput(**row, metrics={})

    loop = dense_agent_loop(Recorded)()
    output = asyncio.run(loop.run({})).as_dict()
    assert output["rm_scores"].tolist() == [0, 0.25, 0, 0, 0.75]
    assert output["response_mask"].tolist() == [1, 1, 0, 0, 1]


@needs("verl")
def test_verl_advantages_of_varying_numbers_of_turns() -> None:
    """Its GAE (γ = λ = 1, no critic) returns the sum of later turns at every token of the policy."""
    algorithms = pytest.importorskip("verl.trainer.ppo.core_algos", exc_type=ImportError)
    rewards, masks = np.zeros((2, 5)), np.zeros((2, 5))
    for index, turns in enumerate([TURNS, [turn([1, 2], [3], 1.0)]]):
        [row] = verl_rows(turns)
        width = len(row["response_mask"])
        masks[index, :width] = row["response_mask"]
        ends = np.flatnonzero(np.diff([*row["response_mask"], 0]) < 0)
        rewards[index, ends] = [of.reward for of in turns]
    mask = torch.tensor(masks)
    _, returns = algorithms.compute_gae_advantage_return(
        torch.tensor(rewards), torch.zeros(2, 5, dtype=torch.float64), mask, gamma=1.0, lam=1.0
    )
    assert (returns * mask).tolist() == [[1.0, 1.0, 0, 0, 0.75], [1.0, 0, 0, 0, 0]]


# SkyRL


@needs("skyrl")
def test_skyrl_accepts_the_output_and_its_batch_has_each_turns_reward() -> None:
    utils = pytest.importorskip("skyrl.train.utils.trainer_utils", exc_type=ImportError)
    preprocess = pytest.importorskip("skyrl.train.dataset.preprocess", exc_type=ImportError)
    rows = [skyrl_rows(TURNS), skyrl_rows([turn([1, 2], [3], 1.0)])]
    output = {key: [value for row in rows for value in row[key]] for key in rows[0] if rows[0][key]}
    utils.validate_generator_output(2, output)
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=0)
    batch = preprocess.convert_prompts_responses_to_batch_tensors(
        tokenizer,
        output["prompt_token_ids"],
        output["response_ids"],
        output["rewards"],
        output["loss_masks"],
        output["rollout_logprobs"],
    )
    rewards, masks = batch[3:5]
    for row, (mask, reward) in enumerate(zip(masks, rewards, strict=True)):
        paid = reward[reward != 0].tolist()
        assert paid == [[0.25, 0.75], [1.0]][row]
        assert bool((mask[reward != 0] == 1).all())  # no turn's reward is at a masked token
    with pytest.raises(ScoreError, match="1 values for the 2 turns"):
        skyrl_turn_rewards(rows[0], [[1.0]])


# Agent Lightning


@needs("agentlightning")
def test_agent_lightning_has_no_place_for_turn_rewards_in_training() -> None:
    """Its trainer pays every transition of a rollout with the rollout's final reward.

    The file is read and not imported: release 0.3.0 imports names that verl 0.9 no longer has.
    """
    package = find_spec("agentlightning")
    assert package is not None
    assert package.origin is not None
    source = (Path(package.origin).parent / "verl/daemon.py").read_text()
    batch = source[source.index("def get_train_data_batch") :]
    assert 'reward_list.append(sample_info["reward"])' in batch
    assert "triplet.reward" not in batch
