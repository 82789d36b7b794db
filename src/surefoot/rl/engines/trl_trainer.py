"""TRL's GRPO trainer with advantages at tokens; imported only where TRL is installed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import trl
from accelerate.utils import gather_object
from trl import GRPOTrainer

from surefoot.errors import TrainingError
from surefoot.rl.advantage import Estimator, total_return
from surefoot.rl.credit import with_rewards
from surefoot.rl.engines.rewards import StepRewards, problems_of
from surefoot.rl.sample import FloatArray


class StepGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's ``GRPOTrainer`` whose every token has its own advantage, by a credit rule and an estimator.

    Generation, loss, KL, optimiser and checkpoints are TRL's. Its advantages [B] are replaced by
    ``advantage``'s [B, T], 0 on padding, which TRL's loss accepts for the sake of its subclasses; they are
    stored with the completions, so several iterations and gradient accumulation see the same ones. With
    several processes the groups are gathered first. TRL's ``scale_rewards``, ``reward_weights`` and
    ``multi_objective_aggregation`` are then ignored; "reward" in the log is the rule's return of the whole
    completion, and "advantages" in its table are means over the tokens.

    Args:
        model: as TRL takes it.
        rewards: scorer, segmenter and credit rule.
        advantage: estimator that subtracts the baseline (:mod:`surefoot.rl.advantage`).
        problem: column of the data set with the problem's text as the scorer reads it. ``None`` = the prompt,
            or its last user message.
        answer: column with the reference answer; needed by rules that read outcomes.
        others: the other arguments of ``GRPOTrainer``, save ``reward_funcs``.

    Raises:
        TrainingError: the loss of this TRL version does not accept advantages per token, or an option is
        incompatible:
            ``use_liger_kernel``, tools, environments and rollout functions (whose completions hold text that
            the policy did not write), an estimator that needs a critic.
    """

    def __init__(
        self,
        model: Any,
        *,
        rewards: StepRewards,
        advantage: Estimator,
        problem: str | None = None,
        answer: str = "answer",
        **others: Any,
    ) -> None:
        _check(advantage, others)
        self._rewards, self._advantage = rewards, advantage
        self._problem, self._answer = problem, answer
        self._token_advantages: list[FloatArray] = []
        self._all_token_advantages: list[FloatArray] = []
        super().__init__(model=model, reward_funcs=[self.step_reward], **others)

    def step_reward(
        self, prompts: Sequence[Any], completion_ids: Sequence[Sequence[int]], **columns: Any
    ) -> list[float | None]:
        """Called by TRL as its reward function: returns the returns for the log, and stores the
        advantages."""
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        problems = problems_of(prompts, columns, problem=self._problem, answer=self._answer)
        responses = zip(problems, completion_ids, strict=True)
        scored = self._rewards.score([self._rewards.decode(*pair, tokenizer) for pair in responses])
        gathered = gather_object(scored)  # a group may be spread over several processes
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = [gathered[at : at + size] for at in range(0, len(gathered), size)]
        rewarded = with_rewards(groups, self._rewards.credit)
        self._all_token_advantages = [
            array for group in self._advantage.advantages(rewarded) for array in group
        ]
        begin = self.accelerator.process_index * len(prompts)
        shard = slice(begin, begin + len(prompts))
        self._token_advantages = self._all_token_advantages[shard]
        if log_metric := columns.get("log_metric"):
            log_metric("unscored_steps", float(sum(item.scores.count(None) for item in scored)))
        return [total_return(item) for item in [item for group in rewarded for item in group][shard]]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A generation batch, with advantages [B, T] instead of TRL's [B]."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        ids_bt = output["completion_ids"]
        advantages_bt = torch.zeros(ids_bt.shape, dtype=torch.float32, device=ids_bt.device)
        for row, array in enumerate(self._token_advantages):
            advantages_bt[row, : len(array)] = torch.from_numpy(array)
        output["advantages"] = advantages_bt
        table = self._logs["advantages"]
        for _ in range(min(len(self._all_token_advantages), len(table))):
            table.pop()
        table.extend(float(array.mean()) for array in self._all_token_advantages)
        return output


def _check(advantage: Estimator, others: dict[str, Any]) -> None:
    if "advantages.dim()" not in inspect.getsource(GRPOTrainer._compute_loss):
        raise TrainingError(
            f"the loss of TRL {trl.__version__} takes one advantage per completion, not one per token: "
            "install trl 1.13, or use step_reward_function"
        )
    if advantage.needs_values:
        raise TrainingError("this estimator needs a critic, which TRL's GRPO does not train: choose another")
    if "reward_funcs" in others:
        raise TrainingError("'reward_funcs' is ignored here: give 'rewards'")
    for name in ("tools", "environment_factory", "rollout_func"):
        if others.get(name):
            raise TrainingError(f"{name!r}: completions would hold text that the policy did not write")
    if getattr(others.get("args"), "use_liger_kernel", False):
        raise TrainingError("'use_liger_kernel': its loss takes one advantage per completion; turn it off")
