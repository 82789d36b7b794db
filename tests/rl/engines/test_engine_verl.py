"""verl: its reward manager, and its agent loop's output.

Where verl is not installed, the manager is called with an object that has the fields of verl's ``DataProto``.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from step_rewards import Every, TextScorer, piece_starts, step_score

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.rl.credit import MinForm, Mixed, Summed
from surefoot.rl.engines.rewards import StepRewardManager, StepRewards
from surefoot.rl.engines.turns import TOKEN_REWARDS

EXACT = Grader(checker=AnswerChecker("exact"))
needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
WIDTH = 12
TEXTS = ["12 + 34\n", "7", "??", "0123456789"]
"""Two steps; one step; nothing that can be read; and one that was cut off, without an end of sequence."""


class Manager(StepRewardManager):
    unknown = -1.0

    def rewards(self) -> StepRewards:
        return StepRewards(credit=Summed(signed=True), segmenter=Every(4), scorer=TextScorer())


@dataclass
class StandIn:
    """The fields of ``DataProto`` that a reward manager reads (verl 0.9)."""

    batch: dict[str, torch.Tensor]
    non_tensor_batch: dict[str, Any]

    def __len__(self) -> int:
        return len(self.batch["responses"])

    def __getitem__(self, rows: slice) -> StandIn:
        return StandIn(
            {key: value[rows] for key, value in self.batch.items()},
            {key: value[rows] for key, value in self.non_tensor_batch.items()},
        )


def fields(texts: list[str] = TEXTS) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[list[str]]]:
    """Tensors and others as verl has them, prompts padded on the left, responses on the right; and each
    response's tokens as text."""
    tokenizer = build_tokenizer()
    responses, lengths, pieces = [], [], []
    for text in texts:
        ids = tokenizer(text)["input_ids"][1:]
        ids += [tokenizer.eos_token_id] if len(ids) < 10 else []
        pieces.append([tokenizer.decode([one], skip_special_tokens=True) for one in ids])
        lengths.append(len(ids))
        responses.append(ids + [tokenizer.pad_token_id] * (WIDTH - len(ids)))
    rows = len(texts)
    prompt_mask = torch.tensor([[0, 1, 1], [1, 1, 1]] * rows)[:rows]
    mask = (torch.arange(WIDTH)[None] < torch.tensor(lengths)[:, None]).long()
    tensors = {
        "prompts": torch.full((rows, 3), 5),
        "responses": torch.tensor(responses),
        "attention_mask": torch.cat([prompt_mask, mask], dim=1),
    }
    others = {
        "data_source": np.array(["lab"] * rows, dtype=object),
        "reward_model": np.array([{"ground_truth": "7"}] * rows, dtype=object),
        "extra_info": np.array([{"question": f"problem {row}"} for row in range(rows)], dtype=object),
    }
    return tensors, others, pieces


def expected(pieces: list[list[str]]) -> np.ndarray:
    """Rewards [B, WIDTH] of ``Manager``, by hand."""
    dense = np.zeros((len(pieces), WIDTH))
    for row, parts in enumerate(pieces):
        text = "".join(parts)
        if not text:  # no step, no reward
            dense[row, len(parts) - 1] = -1.0
            continue
        starts = np.array(piece_starts(parts))
        ends = [int((starts < at + 4).sum()) - 1 for at in range(0, len(text) - 4, 4)] + [len(parts) - 1]
        steps = [text[at : at + 4] for at in range(0, len(text), 4)]
        for end, step in zip(ends, steps, strict=True):
            dense[row, end] += 2 * step_score(step) - 1
    return dense


class Lowest(StepRewardManager):
    def rewards(self) -> StepRewards:
        credit = Mixed(of=MinForm(signed=False), outcome=2.0)
        return StepRewards(credit=credit, segmenter=Every(4), scorer=TextScorer(), grader=EXACT)


def score(manager: StepRewardManager, text: str, **others: Any) -> dict[str, float]:
    tensors, fixed, _ = fields([text])
    found = asyncio.run(manager.run_single(StandIn(tensors, fixed | others)))
    extra = found["reward_extra_info"]
    assert found["reward_score"] == extra["score"]
    return {"score": extra["score"], "rewarded": extra["rewarded"]}


def test_one_number_per_response():
    manager = Lowest(tokenizer=build_tokenizer())
    assert score(manager, "7") == {"score": pytest.approx(step_score("7") + 2), "rewarded": 1.0}
    truths = {"reward_model": np.array([{"ground_truth": 7}], dtype=object)}
    assert score(manager, "8", **truths)["score"] == pytest.approx(step_score("8"))
    with pytest.raises(TrainingError, match="no 'question'"):
        score(manager, "8", extra_info=np.array([{"index": 3}], dtype=object))


def test_what_is_not_scored_is_an_error_or_what_was_said():
    class Summing(StepRewardManager):
        def rewards(self) -> StepRewards:
            return StepRewards(credit=Summed(), segmenter=Every(4), scorer=TextScorer())

    class Lenient(Summing):
        unknown = -0.5

    with pytest.raises(TrainingError, match="is without a reward"):
        score(Summing(tokenizer=build_tokenizer()), "??")
    assert score(Lenient(tokenizer=build_tokenizer()), "??") == {"score": -0.5, "rewarded": 0.0}


def test_one_response_at_a_time():
    tensors, others, pieces = fields()
    manager = Manager(tokenizer=build_tokenizer(), config=None, compute_score=None)
    data = StandIn(tensors, others)
    for row in range(len(pieces)):
        found = asyncio.run(manager.run_single(data[row : row + 1]))
        dense = json.loads(found["reward_extra_info"][TOKEN_REWARDS])
        np.testing.assert_allclose(dense, expected(pieces)[row, : len(dense)], atol=1e-6)
        assert len(dense) == len(pieces[row])
        assert found["reward_score"] == pytest.approx(sum(dense))
        assert found["reward_extra_info"]["rewarded"] == float(row != 2)
    summed = Manager.assemble_rm_scores(data, [1.0, 2.0, 3.0, 4.0])
    last = [len(parts) - 1 for parts in pieces]
    assert summed.sum(1).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert summed[range(4), last].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_conversations_are_refused():
    tensors, others, _ = fields()
    data = StandIn(tensors, others | {"__num_turns__": np.array([2, 2, 4, 2])})
    with pytest.raises(TrainingError, match="4 turns"):
        asyncio.run(Manager(tokenizer=build_tokenizer()).run_single(data[2:3]))


# --- with verl


OF_A_USER = """
from step_rewards import Every, TextScorer
from surefoot.rl.credit import Summed
from surefoot.rl.engines.rewards import StepRewardManager, StepRewards

class Manager(StepRewardManager):
    unknown = -1.0

    def rewards(self):
        return StepRewards(credit=Summed(signed=True), segmenter=Every(4), scorer=TextScorer())
"""


@needs_verl
def test_verl_loads_the_manager_and_calls_it(lab_base, tmp_path):
    """verl's own reward worker, from a configuration that names this file's class."""
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl import DataProto
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    path = tmp_path / "my_rewards.py"
    path.write_text(OF_A_USER)
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"model": {"path": str(lab_base), "tokenizer_path": None}},
            "reward": {
                "custom_reward_function": {"path": None, "name": "compute_score"},
                "reward_manager": {
                    "source": "importlib",
                    "name": "Manager",
                    "module": {"path": str(path), "name": "my_rewards"},
                },
                "reward_model": {"enable": False},
            },
        }
    )
    tensors, others, pieces = fields()
    data = DataProto(batch=TensorDict(tensors, batch_size=4), non_tensor_batch=others)

    async def scored():
        return await RewardLoopWorker(config).compute_score_batch(data)

    found = asyncio.run(scored())
    for row, one in enumerate(found):
        dense = json.loads(one["reward_extra_info"][TOKEN_REWARDS])
        np.testing.assert_allclose(dense, expected(pieces)[row, : len(dense)], atol=1e-6)


@needs_verl
def test_token_rewards_reach_verls_advantages():
    """Through the agent loop's output, as verl's trainer takes it, into verl's estimators."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    from surefoot.rl.engines.rewards import dense_agent_loop

    tensors, others, pieces = fields()
    data = StandIn(tensors, others)
    lengths = [len(parts) for parts in pieces]

    class Replay:
        """An agent loop that repeats a response."""

        async def run(self, sampling_params, row):
            return AgentLoopOutput(
                prompt_ids=[5, 5],
                response_ids=tensors["responses"][row, : lengths[row]].tolist(),
                response_mask=[1] * lengths[row],
                num_turns=2,
                metrics=AgentLoopMetrics(),
                extra_fields={"turn_scores": []},
            )

    async def outputs(loop):
        found = []
        for row in range(len(lengths)):
            output = await loop.run({}, row=row)
            answer = await Manager(tokenizer=build_tokenizer()).run_single(data[row : row + 1])
            # what verl's worker does with the answer
            output.reward_score = answer["reward_score"]
            output.extra_fields["reward_extra_info"] = answer["reward_extra_info"]
            found.append(output.as_dict())
        return found

    plain, dense = (asyncio.run(outputs(loop())) for loop in (Replay, dense_agent_loop(Replay)))
    assert [list(one) for one in plain] == [list(one) for one in dense]
    rewards = torch.zeros(len(lengths), WIDTH)
    for row, (one, other) in enumerate(zip(dense, plain, strict=True)):
        assert one["rm_scores"].shape == one["responses"].shape
        assert float(one["rm_scores"].sum()) == pytest.approx(float(other["rm_scores"][-1]), abs=1e-6)
        rewards[row, : lengths[row]] = one["rm_scores"]
    np.testing.assert_allclose(rewards.numpy(), expected(pieces), atol=1e-6)
    mask = tensors["attention_mask"][:, 3:].float()
    _, returns = compute_gae_advantage_return(rewards, torch.zeros_like(rewards), mask, gamma=1.0, lam=1.0)
    later = np.cumsum(expected(pieces)[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_allclose((returns * mask).numpy(), later * mask.numpy(), atol=1e-5)


@needs_verl
def test_rewards_of_another_length_are_an_error():
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    from surefoot.rl.engines.rewards import dense_agent_loop

    class Replay:
        async def run(self, sampling_params):
            return AgentLoopOutput(
                prompt_ids=[5],
                response_ids=[6, 7],
                response_mask=[1, 1],
                metrics=AgentLoopMetrics(),
                extra_fields={"reward_extra_info": {TOKEN_REWARDS: "[0.5]"}},
            )

    output = asyncio.run(dense_agent_loop(Replay)().run({}))
    with pytest.raises(TrainingError, match="1 token rewards for a response of 2"):
        output.as_dict()
