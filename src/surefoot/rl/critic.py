"""The value model of PPO: how much reward is still to come, at every token (arXiv 1707.06347)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from surefoot.errors import TrainingError
from surefoot.models.engine.packing import read_states
from surefoot.models.lora import has_adapter
from surefoot.rl.actor import Learner, LearnerSettings, pad_rollouts
from surefoot.rl.config import CriticConfig
from surefoot.rl.credit import FloatArray
from surefoot.rl.rollouts import Rollout
from surefoot.training.optimisation import recompute_activations


class Critic:
    """A copy of the policy's trunk with a linear head that starts at 0.

    ``policy`` is copied: pass it before an adapter is added. ``parameters`` (by name) and ``optimiser``
    are its state, which the loop's checkpoint holds. Raises ``TrainingError`` for a policy with an adapter.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        config: CriticConfig,
        execution: LearnerSettings,
    ) -> None:
        if has_adapter(policy):
            raise TrainingError("the policy carries an adapter; make the critic before it is added")
        trunk = copy.deepcopy(policy.base_model).float().eval().requires_grad_(True)
        if execution.gradient_checkpointing:
            recompute_activations(trunk)
        self.model, self.config, self.execution = ValueModel(trunk), config, execution
        self._learner = Learner(self.model, config, execution, name="the critic")
        self.parameters, self.optimiser = self._learner.parameters, self._learner.optimiser

    @torch.no_grad()
    def values(self, rollouts: Sequence[Rollout]) -> list[FloatArray]:
        """V [T] of the state in which each response token was sampled, read at the token before it.

        Prompts that rollouts share are read once.
        """
        sequences = [rollout.prompt_ids + rollout.ids for rollout in rollouts]
        positions = [
            range(len(rollout.prompt_ids) - 1, len(ids) - 1)
            for rollout, ids in zip(rollouts, sequences, strict=True)
        ]
        values: dict[int, FloatArray] = {}
        trunk = self.model.trunk
        with torch.autocast(trunk.device.type, dtype=torch.bfloat16, enabled=self.execution.bf16):
            most = self.execution.microbatch_tokens
            for reading in read_states(trunk, sequences, positions, batch_tokens=most):
                for number, states_th in reading.states.items():
                    values[number] = self.model.read(states_th).double().cpu().numpy()
        return [values[number] for number in range(len(rollouts))]

    def learn(
        self,
        rollouts: Sequence[Rollout],
        targets: Sequence[FloatArray],
        old_values: Sequence[FloatArray],
        *,
        seed: int = 0,
    ) -> float:
        """Fit returns ``targets`` [T]; ``old_values`` [T] are :meth:`values` as of the rollout.

        The loss is the mean over the tokens of a minibatch of (PPO's own code; without ``value_clip`` the
        first term alone)

            ½ max((V - R)², (V_old + clip(V - V_old, ±value_clip) - R)²)

        ``seed`` (its round's) decides what goes into which minibatch. Returns the mean loss of the first
        epoch, each minibatch's before its step.

        Raises ``TrainingError`` without rollouts, for arrays that differ in length from the
        responses, or for numbers that are not finite.
        """
        _check_lengths(rollouts, targets, "targets")
        _check_lengths(rollouts, old_values, "old_values")
        processes = self.execution.processes
        rng = np.random.default_rng([seed, processes.rank])
        fewest = int(processes.all_reduce(len(rollouts), "min"))  # every process takes as many steps
        count = max(1, min(self.config.minibatches, fewest))
        losses = []
        for _ in range(self.config.epochs):
            for piece in np.array_split(rng.permutation(len(rollouts)), count):
                chosen = piece.tolist()
                tokens = processes.all_reduce(float(sum(len(rollouts[at].ids) for at in chosen)))
                losses.append(self._step(chosen, rollouts, targets, old_values, tokens))
        return float(np.mean(losses[:count]))

    def _step(
        self,
        chosen: list[int],
        rollouts: Sequence[Rollout],
        targets: Sequence[FloatArray],
        old_values: Sequence[FloatArray],
        tokens: float,
    ) -> float:
        device = self.model.trunk.device

        def share(part: list[int]) -> torch.Tensor:
            numbers = [chosen[at] for at in part]
            padded = pad_rollouts([rollouts[at] for at in numbers], device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.execution.bf16):
                values_n = self._learner.called(padded.ids_bt, padded.mask_bt, padded.rows_n, padded.before_n)
            returns_n, old_n = (
                torch.from_numpy(np.concatenate([arrays[at] for at in numbers])).to(values_n)
                for arrays in (targets, old_values)
            )
            return value_losses(values_n, returns_n, old_n, self.config.value_clip).sum() / tokens

        return self._learner.step([rollouts[at] for at in chosen], share)[0]


class ValueModel(nn.Module):
    """Trunk and head. The head stays in float32 whatever the trunk runs in."""

    def __init__(self, trunk: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(trunk.config.get_text_config().hidden_size, 1, device=trunk.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def read(self, states_nh: torch.Tensor) -> torch.Tensor:
        """Values ``[N]`` from hidden states ``[N, H]``."""
        with torch.autocast(states_nh.device.type, enabled=False):
            values_n1: torch.Tensor = self.head(states_nh.float())
        return values_n1[:, 0]

    def forward(
        self, ids_bt: torch.Tensor, mask_bt: torch.Tensor, rows_n: torch.Tensor, at_n: torch.Tensor
    ) -> torch.Tensor:
        """Values ``[N]`` at token ``at_n[n]`` of row ``rows_n[n]`` of right-padded ids ``[B, T]``."""
        hidden_bth = self.trunk(input_ids=ids_bt, attention_mask=mask_bt, use_cache=False).last_hidden_state
        return self.read(hidden_bth[rows_n, at_n])


def value_losses(
    values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Loss of each value, all tensors ``[N]``; see :meth:`Critic.learn`."""
    squares = (values - returns) ** 2
    if clip is not None:
        bounded = old_values + (values - old_values).clamp(-clip, clip)
        squares = torch.maximum(squares, (bounded - returns) ** 2)
    return squares / 2


def _check_lengths(rollouts: Sequence[Rollout], arrays: Sequence[FloatArray], name: str) -> None:
    expected, lengths = [len(rollout.ids) for rollout in rollouts], [len(array) for array in arrays]
    if expected != lengths:
        raise TrainingError(f"'{name}' has {lengths[:5]} numbers for responses of {expected[:5]} tokens")
