"""TRL's GRPO trainer with advantages at tokens; imported only where TRL is installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import trl
from accelerate.utils import gather_object
from trl import GRPOTrainer

from surefoot.errors import TrainingError
from surefoot.rl.advantage import Estimator, plain_samples, total_return
from surefoot.rl.credit import CreditRule, with_rewards
from surefoot.rl.engines.rewards import StepRewards
from surefoot.rl.engines.turns import turn_numbers
from surefoot.rl.sample import FloatArray, Sample

TurnReward: TypeAlias = Callable[..., Sequence[Sequence[float | None]]]
"""A TRL reward function that returns a list a completion: one number for each turn, ``None`` = unknown."""


class _TokenGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer whose advantages [B] are replaced by ``advantage``'s [B, T], 0 on padding and on what the
    environment wrote."""

    def __init__(
        self, model: Any, *, reward: Any, credit: CreditRule, advantage: Estimator, **others: Any
    ) -> None:
        _check(advantage, others)
        self._credit, self._advantage = credit, advantage
        self._own: list[FloatArray] = []
        self._of_all_processes: list[FloatArray] = []
        super().__init__(model=model, reward_funcs=[reward], **others)

    def _returns(self, samples: Sequence[Sample]) -> list[float | None]:
        """The returns for TRL's log; stores the advantages of the samples of all processes."""
        gathered = gather_object(samples)  # a group may be spread over several processes
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = [gathered[at : at + size] for at in range(0, len(gathered), size)]
        rewarded = with_rewards(groups, self._credit)
        self._of_all_processes = [array for group in self._advantage.advantages(rewarded) for array in group]
        begin = self.accelerator.process_index * len(samples)
        shard = slice(begin, begin + len(samples))
        self._own = self._of_all_processes[shard]
        return [total_return(item) for item in [item for group in rewarded for item in group][shard]]

    def _at_tokens(self, array: FloatArray, mask: FloatArray) -> FloatArray:
        """The advantages [T] of one completion, whose policy wrote the tokens of ``mask`` [T]."""
        return np.pad(array, (0, len(mask) - len(array)))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A generation batch, with advantages [B, T] instead of TRL's [B]."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mask_bt = output["completion_mask"] * output.get("tool_mask", 1)
        rows = zip(self._own, mask_bt.cpu().numpy(), strict=True)
        placed = np.stack([self._at_tokens(array, mask) for array, mask in rows])
        output["advantages"] = torch.from_numpy(placed).to(mask_bt.device, torch.float32)
        table = self._logs["advantages"]
        for _ in range(min(len(self._of_all_processes), len(table))):
            table.pop()
        table.extend(float(array.mean()) for array in self._of_all_processes)
        return output


class StepGRPOTrainer(_TokenGRPOTrainer):
    """TRL's ``GRPOTrainer`` whose every token has its own advantage, by a credit rule and an estimator.

    Generation, loss, KL, optimiser and checkpoints are TRL's. Its advantages [B] are replaced by
    ``advantage``'s [B, T], 0 on padding, which TRL's loss accepts for the sake of its subclasses; they are
    stored with the completions, so several iterations and gradient accumulation see the same ones. With
    several processes the groups are gathered first. TRL's ``scale_rewards``, ``reward_weights`` and
    ``multi_objective_aggregation`` are then ignored; "reward" in the log is the rule's return of the whole
    completion, and "advantages" in its table are means over the tokens.

    Args:
        model: as TRL takes it.
        rewards: scorer, segmenter, credit rule, and the columns that they read.
        advantage: estimator that subtracts the baseline (:mod:`surefoot.rl.advantage`).
        others: the other arguments of ``GRPOTrainer``, save ``reward_funcs``.

    Raises:
        TrainingError: the loss of this TRL version does not accept advantages per token, or an option is
        incompatible:
            ``use_liger_kernel``, tools, environments and rollout functions (whose completions hold text that
            the policy did not write: :class:`TurnGRPOTrainer` takes them), an estimator that needs a critic.
    """

    def __init__(self, model: Any, *, rewards: StepRewards, advantage: Estimator, **others: Any) -> None:
        for name in ("tools", "environment_factory", "rollout_func"):
            if others.get(name):
                raise TrainingError(
                    f"{name!r}: completions would hold text that the policy did not write; "
                    "use TurnGRPOTrainer"
                )
        self._rewards = rewards
        super().__init__(model, reward=self.step_reward, credit=rewards.credit, advantage=advantage, **others)

    def step_reward(
        self, prompts: Sequence[Any], completion_ids: Sequence[Sequence[int]], **columns: Any
    ) -> list[float | None]:
        """Called by TRL as its reward function: returns the returns for the log, and stores the
        advantages."""
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        responses = zip(self._rewards.problems(prompts, columns), completion_ids, strict=True)
        scored = self._rewards.score([self._rewards.decode(*pair, tokenizer) for pair in responses])
        if log_metric := columns.get("log_metric"):
            log_metric("unscored_steps", float(sum(item.scores.count(None) for item in scored)))
        return self._returns(scored)


class TurnGRPOTrainer(_TokenGRPOTrainer):
    """TRL's ``GRPOTrainer`` for episodes of several turns, with one reward for each turn.

    Tools, environments and rollout functions (which return ``env_mask``) are TRL's. A turn is a run of tokens
    that the policy wrote; all its tokens get the turn's advantage, those of the environment get 0. What
    :class:`StepGRPOTrainer` says about TRL's own settings holds here, too.

    Args:
        model: as TRL takes it.
        turn_rewards: called as TRL calls a reward function; returns a list a completion, one number for each
            turn (:func:`surefoot.rl.turn_rewards` makes them from labels or scores of steps). ``credit`` says
            what an unknown one counts as: the lowest of its group, for most rules.
        credit: what of these each turn is given (:mod:`surefoot.rl.credit`). Rules that need more read the
            columns ``outcome`` (1, 0 or ``None``) and ``states`` (one key before each turn) of the data set
            or of the rollout function.
        advantage: estimator that subtracts the baseline.
        others: the other arguments of ``GRPOTrainer``, save ``reward_funcs``.

    Raises:
        TrainingError: as :class:`StepGRPOTrainer`, save for tools and environments; in training, if the
        number of rewards of a completion is not its number of turns.
    """

    def __init__(
        self, model: Any, *, turn_rewards: TurnReward, credit: CreditRule, advantage: Estimator, **others: Any
    ) -> None:
        self._turn_rewards = turn_rewards
        super().__init__(model, reward=self.turn_reward, credit=credit, advantage=advantage, **others)

    def turn_reward(self, **columns: Any) -> list[float | None]:
        """Called by TRL as its reward function: returns the returns for the log, and stores the
        advantages."""
        rewards = self._turn_rewards(**columns)
        if len(rewards) != len(columns["completions"]) or not all(rewards):
            raise TrainingError(
                "'turn_rewards' must return one list for each completion, with one number a turn"
            )
        outcomes, states = columns.get("outcome") or (), columns.get("states") or ()
        return self._returns(plain_samples(scores=rewards, outcomes=outcomes, states=states))

    def _at_tokens(self, array: FloatArray, mask: FloatArray) -> FloatArray:
        if not mask.any():
            return np.zeros(len(mask))  # TRL masks what was cut off
        return np.append(array, 0.0)[turn_numbers(mask.tolist(), len(array))]


def _check(advantage: Estimator, others: dict[str, Any]) -> None:
    if "advantages.dim()" not in inspect.getsource(GRPOTrainer._compute_loss):
        raise TrainingError(
            f"the loss of TRL {trl.__version__} takes one advantage per completion, not one per token: "
            "install trl 1.13, or give StepRewards as reward_funcs"
        )
    if advantage.needs_values:
        raise TrainingError("this estimator needs a critic, which TRL's GRPO does not train: choose another")
    if "reward_funcs" in others:
        raise TrainingError("'reward_funcs' is ignored here: give the rewards of steps or turns")
    if getattr(others.get("args"), "use_liger_kernel", False):
        raise TrainingError("'use_liger_kernel': its loss takes one advantage per completion; turn it off")
