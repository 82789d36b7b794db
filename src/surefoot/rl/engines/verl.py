"""verl: step rewards as one number per response, and as rewards of single tokens.

Written against verl 0.9.1, which is not a dependency of this package. A :class:`StepRewardManager` is asked
for one number per response, which verl puts at the last token; an agent loop made by
:func:`dense_agent_loop` puts the manager's token rewards there.

Rewards at the ends of steps make a difference for estimators that discount or sum them token by token, verl's
``gae`` and ``reinforce_plus_plus``. Its ``grpo`` and ``rloo`` sum over each response first.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch

from surefoot.errors import TrainingError
from surefoot.records import Problem
from surefoot.rl.advantage import token_rewards, total_return
from surefoot.rl.engines.rewards import StepRewards
from surefoot.rl.sample import Sample

TOKEN_REWARDS: Final = "token_rewards"
"""Key of ``reward_extra_info`` under which a manager stores rewards [T], as JSON: verl averages numbers and
ignores text."""


class StepRewardManager(ABC):
    """A reward manager of verl: rewards at the ends of steps. Subclass it, and name the subclass in verl's
    configuration: ``reward.reward_manager.source=importlib``, with ``module.path`` and ``name``.

    verl constructs it with ``tokenizer`` and other arguments, which are ignored. Raises
    ``TrainingError`` where a response holds turns that the policy did not write, and for a problem or a
    reward that is missing.
    """

    problem: ClassVar[str] = "question"
    """Key of ``extra_info`` with the problem's text as the scorer reads it."""
    unknown: ClassVar[float | None] = None
    """Reward, at its last token, of a response without any; ``None`` = an error."""

    def __init__(self, tokenizer: Any, **_: object) -> None:
        self.tokenizer = tokenizer
        self._rewards = self.rewards()

    @abstractmethod
    def rewards(self) -> StepRewards:
        """Scorer, segmenter and credit rule; called once in each of verl's reward workers."""

    async def run_single(self, data: Any) -> dict[str, Any]:
        """``DataProto`` of one response to one number."""
        (rollout,) = await asyncio.to_thread(self._rewarded, data[-1:])
        score, rewards_t = total_return(rollout), token_rewards(rollout)
        extra: dict[str, Any] = {"score": score, "rewarded": float(score is not None)}
        if rewards_t is None:
            if self.unknown is None:
                raise TrainingError(
                    "a response is without a reward (none of its steps was scored): set its reward with "
                    "'unknown'"
                )
            extra["score"], rewards_t = self.unknown, np.zeros(rollout.tokens)
            rewards_t[-1] = self.unknown
        extra[TOKEN_REWARDS] = json.dumps(rewards_t.tolist())
        return {"reward_score": extra["score"], "reward_extra_info": extra}

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: list[float]) -> Any:
        """Where a reward model shares the policy's devices: numbers at the last tokens."""
        rewards_bt = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        last = torch.tensor(_lengths(data), device=rewards_bt.device) - 1
        rewards_bt[torch.arange(len(scores), device=rewards_bt.device), last] = rewards_bt.new_tensor(scores)
        return rewards_bt

    def _rewarded(self, data: Any) -> list[Sample]:
        turns = data.non_tensor_batch.get("__num_turns__")
        if turns is not None and max(turns) > 2:
            raise TrainingError(
                f"a conversation has {max(turns)} turns: its response contains text that the policy did not "
                "write"
            )
        extra = data.non_tensor_batch.get("extra_info", [None] * len(data))
        truths = data.non_tensor_batch["reward_model"]
        return self._rewards.reward(
            [
                self._rewards.decode(
                    _problem(extra[row], self.problem, truths[row].get("ground_truth")),
                    data.batch["responses"][row][:length].tolist(),
                    self.tokenizer,
                )
                for row, length in enumerate(_lengths(data))
            ]
        )


def dense_agent_loop(base: type) -> type:
    """``base``, an agent loop of verl 0.9, with a :class:`StepRewardManager`'s rewards at their tokens.

    verl writes the one number that the manager returned at the last token of the response; this writes the
    rewards [T] that the manager returned with it. Name the class in the file of
    ``actor_rollout_ref.rollout.agent.agent_loop_config_path``, and that name in
    ``actor_rollout_ref.rollout.agent.default_agent_loop``.
    """
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    class DenseOutput(AgentLoopOutput):  # type: ignore[misc]
        def as_dict(self) -> dict[str, Any]:
            output: dict[str, Any] = super().as_dict()
            written = self.extra_fields.get("reward_extra_info", {}).get(TOKEN_REWARDS)
            if written is not None:
                rewards_t = torch.tensor(json.loads(written), dtype=torch.float32)
                if rewards_t.shape != output["responses"].shape:
                    raise TrainingError(
                        f"{len(rewards_t)} token rewards for a response of {len(output['responses'])} tokens"
                    )
                output["rm_scores"] = rewards_t
            return output

    class DenseAgentLoop(base):  # type: ignore[misc]
        async def run(self, sampling_params: dict[str, Any], **others: Any) -> Any:
            output = await super().run(sampling_params, **others)
            return DenseOutput(**{name: getattr(output, name) for name in output.model_fields_set})

    return DenseAgentLoop


def _lengths(data: Any) -> list[int]:
    """Tokens of each response [B], without padding."""
    prompt = data.batch["prompts"].shape[1]
    return [int(length) for length in data.batch["attention_mask"][:, prompt:].sum(dim=1)]


def _problem(extra_info: Mapping[str, Any] | None, key: str, ground_truth: object) -> Problem:
    if not extra_info or key not in extra_info:
        raise TrainingError(f"'extra_info' has no {key!r}: put the problem's text there, or name its key")
    answer = None if ground_truth is None else str(ground_truth)
    return Problem(text=str(extra_info[key]), answer=answer)
