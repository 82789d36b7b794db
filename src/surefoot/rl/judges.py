"""Judges that learn with the policy: an implicit reward model, and the value model of PPO.

PRIME (Cui et al., arXiv 2502.01456). Policy, reward model φ and reference start as one model. The process
reward of a token is log π_φ / π_ref; after it was used, φ takes a step on the outcomes of the same rollouts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import TrainingError
from surefoot.models.encoding import Encoding
from surefoot.models.engine.causal import read_logprobs
from surefoot.models.engine.packing import read_states
from surefoot.models.kinds.implicit import ImplicitPRM, ImplicitSettings
from surefoot.models.lora import add_adapter
from surefoot.policies.pretrained import context_length
from surefoot.policies.prompts import PromptFormat
from surefoot.rl.actor import Actor, Learner, pad_rollouts
from surefoot.rl.config import CriticConfig, OnlinePRMConfig, RLConfig
from surefoot.rl.sample import FloatArray, Sample
from surefoot.training.batches import Inputs
from surefoot.training.optimisation import Distributed

_Key = tuple[tuple[int, ...], tuple[int, ...]]


class OnlinePRM(Learner):
    """Log-ratios of tokens as rewards, and their learning from outcomes.

    ``prm`` is trained in place: :meth:`from_policy` makes one from the start policy, ``ImplicitPRM.load``
    opens one that was trained before, with the reference that it was trained against. Dropout is off, as in
    the policy that drew the rollouts. Raises ``TrainingError`` if ``prm`` has another ``beta`` than
    ``config``.
    """

    def __init__(
        self, prm: ImplicitPRM, config: OnlinePRMConfig, run: RLConfig, processes: Distributed | None = None
    ) -> None:
        if prm.settings.beta != config.beta:
            raise TrainingError(
                f"'beta' is {config.beta}, and the reward model was made with {prm.settings.beta}: give that"
            )
        prm.policy.eval().requires_grad_(True)
        self.prm, self.config = prm, config
        self._actor = Actor(prm.policy, bf16=run.bf16)
        name = "the online implicit reward model"
        super().__init__(prm.policy, config, run, processes, name=name, reader=self._actor.reader)
        prm.reference.to(prm.policy.device)
        self._reference: dict[_Key, torch.Tensor] = {}

    @classmethod
    def from_policy(
        cls,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: OnlinePRMConfig,
        run: RLConfig,
        processes: Distributed | None = None,
        *,
        prompt: PromptFormat,
        name: str,
    ) -> Self:
        """A copy of ``policy``, which is called ``name``, before it is trained or given an adapter.

        The reference is a second copy, which is frozen. ``prompt`` goes into the saved checkpoint, so that it
        reads problems as the policy does.

        Raises ``CheckpointError`` for a policy whose head is not plain.
        """
        prm = ImplicitPRM.assemble(
            copy.deepcopy(policy).float(),
            tokenizer,
            ImplicitSettings(beta=config.beta, reference=name),
            # in the same type: rounding would be a reward, which is scaled up to 1 where nothing was learned
            reference=copy.deepcopy(policy).float(),
            base=name,
            encoding=Encoding(**vars(prompt), max_length=context_length(policy)),
        )
        return cls(prm, config, run, processes)

    def log_ratios(self, rollouts: Sequence[Sample]) -> list[FloatArray]:
        """log π_φ - log π_ref [T] of every response token, in nats; not scaled by beta.

        Prompts that rollouts share are read once. The reference's values are kept for :meth:`learn`.
        """
        keys = [_key(rollout) for rollout in rollouts]
        self._reference = {key: self._reference[key] for key in keys if key in self._reference}
        reference = self._reference_logprobs(rollouts)
        with self._autocast():
            policy, _ = read_logprobs(self.whole, *_sequences(rollouts))
        both = zip(policy, reference, strict=True)
        return [(logprobs.double() - base.double()).numpy() for logprobs, base in both]

    def learn(self, rollouts: Sequence[Sample], outcomes: Sequence[float]) -> float:
        """Steps on -[l log σ(r) + (1 - l) log(1 - σ(r))], the mean over the rollouts, l their outcomes.

        r = beta Σ_t (log π_φ - log π_ref) of all tokens of the response, end of sequence included (the
        equation of :class:`surefoot.training.implicit.OutcomeLoss`). Returns the loss before the first step.
        Read a round's rewards before learning from it (PRIME's order "after").

        Raises ``TrainingError`` without rollouts, for outcomes outside [0, 1] or not one
        per rollout, or for numbers that are not finite.
        """
        if len(outcomes) != len(rollouts) or not all(0 <= outcome <= 1 for outcome in outcomes):
            raise TrainingError(
                f"'outcomes' must be {len(rollouts)} numbers in [0, 1], one per rollout; leave out rollouts "
                "that were not judged"
            )
        reference = [float(logprob.double().sum()) for logprob in self._reference_logprobs(rollouts)]
        everyone = self.processes.all_reduce(float(len(rollouts)))

        def share(part: list[int]) -> torch.Tensor:
            chosen = [rollouts[at] for at in part]
            rewards = self._rewards(chosen, [reference[at] for at in part])
            targets = torch.tensor([outcomes[at] for at in part]).to(rewards)
            return binary_cross_entropy_with_logits(rewards, targets, reduction="sum") / everyone

        losses = [self.step_on(rollouts, share)[0] for _ in range(self.config.epochs)]
        self._reference = {}
        return losses[0]

    def save(self, directory: Path) -> None:
        """Write a checkpoint with its reference, which ``ImplicitPRM.load`` and ``load_prm`` open.

        A step's reward there leaves out the end-of-sequence token, which belongs to no step.
        """
        self.prm.save(directory, state=self.whole.state_dict())

    def _rewards(self, rollouts: Sequence[Sample], reference: Sequence[float]) -> torch.Tensor:
        """r [B] of each rollout, with gradient."""
        logprobs_n = self._actor.read(rollouts, called=self.called).logprobs
        device = logprobs_n.device
        rows = [row for row, rollout in enumerate(rollouts) for _ in rollout.ids]
        sums = logprobs_n.new_zeros(len(rollouts)).index_add(0, torch.tensor(rows, device=device), logprobs_n)
        return self.config.beta * (sums - torch.tensor(reference, device=device))

    def _reference_logprobs(self, rollouts: Sequence[Sample]) -> list[torch.Tensor]:
        """log π_ref [T] of every rollout; each is read once between two calls of :meth:`learn`."""
        missing = list(
            {_key(rollout): rollout for rollout in rollouts if _key(rollout) not in self._reference}.values()
        )
        if missing:
            with self._autocast():
                computed, _ = read_logprobs(self.prm.reference, *_sequences(missing))
            self._reference |= {
                _key(item): logprobs for item, logprobs in zip(missing, computed, strict=True)
            }
        return [self._reference[_key(rollout)] for rollout in rollouts]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.prm.policy.device.type, dtype=torch.bfloat16, enabled=self.run.bf16)


def _key(rollout: Sample) -> _Key:
    return rollout.prompt_ids, rollout.ids


def _sequences(rollouts: Sequence[Sample]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Whole sequences, and where their responses begin."""
    return [rollout.prompt_ids + rollout.ids for rollout in rollouts], [
        len(rollout.prompt_ids) for rollout in rollouts
    ]


class Critic(Learner):
    """A copy of the policy's trunk with a linear head that starts at 0.

    ``policy`` is copied: pass it before an adapter is added. With ``lora`` an adapter of the copy is trained.
    """

    model: ValueModel

    def __init__(
        self,
        policy: PreTrainedModel,
        config: CriticConfig,
        run: RLConfig,
        processes: Distributed | None = None,
    ) -> None:
        trunk = copy.deepcopy(policy.base_model).eval().requires_grad_(True)
        if run.lora:
            add_adapter(trunk, run.lora, seed=run.seed)
        else:
            trunk.float()
        self.config = config
        super().__init__(ValueModel(trunk), config, run, processes, name="the critic")

    @torch.no_grad()
    def values(self, rollouts: Sequence[Sample]) -> list[FloatArray]:
        """V [T] of the state in which each response token was sampled, read at the token before it.

        Prompts that rollouts share are read once.
        """
        sequences = [rollout.prompt_ids + rollout.ids for rollout in rollouts]
        positions = [
            range(len(rollout.prompt_ids) - 1, len(ids) - 1)
            for rollout, ids in zip(rollouts, sequences, strict=True)
        ]
        values: dict[int, FloatArray] = {}
        trunk = self.whole.trunk
        with torch.autocast(trunk.device.type, dtype=torch.bfloat16, enabled=self.run.bf16):
            most = self.run.microbatch_tokens
            for reading in read_states(trunk, sequences, positions, batch_tokens=most):
                for number, states_th in reading.states.items():
                    values[number] = self.whole.read(states_th).double().cpu().numpy()
        return [values[number] for number in range(len(rollouts))]

    def learn(
        self,
        rollouts: Sequence[Sample],
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
        rng = np.random.default_rng([seed, self.processes.rank])
        fewest = int(self.processes.all_reduce(len(rollouts), "min"))  # every process takes as many steps
        count = max(1, min(self.config.minibatches, fewest))
        losses = []
        for _ in range(self.config.epochs):
            for piece in np.array_split(rng.permutation(len(rollouts)), count):
                chosen = piece.tolist()
                tokens = self.processes.all_reduce(float(sum(len(rollouts[at].ids) for at in chosen)))
                losses.append(self._step(chosen, rollouts, targets, old_values, tokens))
        return float(np.mean(losses[:count]))

    def _step(
        self,
        chosen: list[int],
        rollouts: Sequence[Sample],
        targets: Sequence[FloatArray],
        old_values: Sequence[FloatArray],
        tokens: float,
    ) -> float:
        device = self.whole.trunk.device

        def share(part: list[int]) -> torch.Tensor:
            numbers = [chosen[at] for at in part]
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.run.bf16):
                values_n = self.called(pad_rollouts([rollouts[at] for at in numbers], device))
            returns_n, old_n = (
                torch.from_numpy(np.concatenate([arrays[at] for at in numbers])).to(values_n)
                for arrays in (targets, old_values)
            )
            return value_losses(values_n, returns_n, old_n, self.config.value_clip).sum() / tokens

        return self.step_on([rollouts[at] for at in chosen], share)[0]


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

    def forward(self, batch: Inputs) -> torch.Tensor:
        """Values ``[S]`` at the positions of a batch."""
        output = self.trunk(input_ids=batch.ids_bt, attention_mask=batch.mask_bt, use_cache=False)
        return self.read(output.last_hidden_state[batch.rows_s, batch.at_s])


def value_losses(
    values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Loss of each value, all tensors ``[N]``; see :meth:`Critic.learn`."""
    squares = (values - returns) ** 2
    if clip is not None:
        bounded = old_values + (values - old_values).clamp(-clip, clip)
        squares = torch.maximum(squares, (bounded - returns) ** 2)
    return squares / 2


def _check_lengths(rollouts: Sequence[Sample], arrays: Sequence[FloatArray], name: str) -> None:
    expected, lengths = [len(rollout.ids) for rollout in rollouts], [len(array) for array in arrays]
    if expected != lengths:
        raise TrainingError(f"'{name}' has {lengths[:5]} numbers for responses of {expected[:5]} tokens")
