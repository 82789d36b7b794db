"""The optimiser steps of one round, on rollouts whose tokens have advantages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from surefoot.rl.actor import Actor, Learner, LearnerSettings
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import FloatArray
from surefoot.rl.loss import TokenBatch, policy_loss, token_weights
from surefoot.rl.rollouts import TrainingSample


@dataclass(frozen=True, kw_only=True)
class UpdateStatistics:
    """Means over the steps of a round; shares and nats are means over tokens."""

    loss: float = 0.0
    gradient_norm: float = 0.0
    """Before clipping."""
    clipped: float = 0.0
    """Share of tokens whose gradient the clipped objective holds back."""
    kl: float = 0.0
    entropy: float = 0.0
    """Before the round's first step; 0 without a step."""
    steps: int = 0
    """Steps of the optimiser; 0 where no token had an advantage and nothing else had a gradient."""


class Updater:
    """Trains the policy on advantages."""

    def __init__(self, model: PreTrainedModel, config: RLConfig, execution: LearnerSettings) -> None:
        self.config, self.processes = config, execution.processes
        self.actor = Actor(model, temperature=config.temperature, bf16=execution.bf16)
        self._learner = Learner(model, config, execution, name="the policy", reader=self.actor.reader)
        self.parameters, self.optimiser = self._learner.parameters, self._learner.optimiser

    def update(self, samples: Sequence[TrainingSample], number: int) -> UpdateStatistics:
        """All steps of round ``number`` (from 0), or none where nothing has a gradient.

        Raises ``TrainingError`` for numbers that are not finite.
        """
        objective = self.config.objective
        always = objective.entropy > 0 or (objective.kl is not None and objective.kl.where == "loss")
        something = any(sample.advantages.any() for sample in samples) or (always and bool(samples))
        fewest = int(self.processes.all_reduce(len(samples), "min"))
        if not self.processes.all_reduce(float(something), "max") or not fewest:
            return UpdateStatistics()
        self._learner.set_rate(self.rate(number))
        steps = [
            self._step([samples[index] for index in minibatch])
            for minibatch in self._minibatches(len(samples), number, min(self.config.minibatches, fewest))
        ]
        return UpdateStatistics(
            loss=float(np.mean([step.loss for step in steps])),
            gradient_norm=float(np.mean([step.gradient_norm for step in steps])),
            clipped=float(np.mean([step.clipped for step in steps])),
            kl=float(np.mean([step.kl for step in steps])),
            entropy=steps[0].entropy,
            steps=len(steps),
        )

    def rate(self, number: int) -> float:
        """Learning rate of round ``number`` (from 0)."""
        return self.config.learning_rate * min(1.0, (number + 1) / max(1, self.config.warmup))

    def _minibatches(self, count: int, number: int, parts: int) -> Iterator[list[int]]:
        """Every rollout once per epoch, in an order that depends on seed and round alone."""
        rng = np.random.default_rng([self.config.seed, number, self.processes.rank])
        for _ in range(self.config.epochs):
            order = rng.permutation(count)
            yield from (part.tolist() for part in np.array_split(order, parts))

    def _step(self, samples: list[TrainingSample]) -> UpdateStatistics:
        """One step of the optimiser."""
        weights = self._weights(samples)
        sums: dict[tuple[int, ...], FloatArray] = {}  # by microbatch: one computed twice counts once

        def share(part: list[int]) -> torch.Tensor:
            loss, sums[tuple(part)] = self._loss([samples[at] for at in part], [weights[at] for at in part])
            return loss

        loss, norm = self._learner.step([sample.rollout for sample in samples], share)
        tokens, clipped, kl, entropy = (
            self.processes.all_reduce(float(item)) for item in np.sum(list(sums.values()), axis=0)
        )
        return UpdateStatistics(
            loss=loss,
            gradient_norm=norm,
            clipped=clipped / tokens,
            kl=kl / tokens,
            entropy=entropy / tokens,
            steps=1,
        )

    def _weights(self, samples: Sequence[TrainingSample]) -> list[float]:
        """Weight of each token of each sample; over all processes they add up to about 1."""
        mean = self.config.objective.mean
        lengths = [len(sample.rollout.ids) for sample in samples]
        mine = float(sum(lengths) if mean == "token" else len(lengths))
        everyone = self.processes.all_reduce(mine)
        if not lengths:
            return []
        weights = token_weights(lengths, mean, longest=self.config.max_tokens)
        return [weight * mine / everyone for weight in weights]

    def _loss(
        self, samples: Sequence[TrainingSample], weights: Sequence[float]
    ) -> tuple[torch.Tensor, FloatArray]:
        """Loss of one microbatch, and sums over its tokens: their number, those clipped, KL, entropy."""
        objective = self.config.objective
        read = self.actor.read(
            [sample.rollout for sample in samples],
            entropy="gradient" if objective.entropy else "detached",
            called=self._learner.called,
        )
        device = read.logprobs.device

        def flat(arrays: Sequence[FloatArray | None]) -> torch.Tensor | None:
            present = [array for array in arrays if array is not None]
            if len(present) < len(arrays):
                return None
            return torch.from_numpy(np.concatenate(present)).to(device, torch.float32)

        old = flat([sample.old_logprobs for sample in samples])
        spread = [weight for sample, weight in zip(samples, weights, strict=True) for _ in sample.rollout.ids]
        batch = TokenBatch(
            logprobs=read.logprobs,
            old_logprobs=read.logprobs.detach() if old is None else old,
            advantages=torch.from_numpy(np.concatenate([sample.advantages for sample in samples])).to(
                device, torch.float32
            ),
            weights=torch.tensor(spread, device=device),
            reference_logprobs=flat([sample.reference_logprobs for sample in samples]),
            entropies=read.entropies,
            importance=flat([sample.importance for sample in samples]),
            lengths=tuple(len(sample.rollout.ids) for sample in samples),
        )
        parts = policy_loss(batch, objective)
        entropy = 0.0 if read.entropies is None else float(read.entropies.detach().sum())
        return parts.loss, np.array([len(spread), parts.clipped, parts.kl, entropy])
