"""The models of a run: the policy, its reference, the online reward model and the critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.errors import TrainingError
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.rl.actor import Actor, ReferencePolicy
from surefoot.rl.advantage import Gae
from surefoot.rl.advantages import Judges, training_samples
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import FloatArray
from surefoot.rl.critic import Critic
from surefoot.rl.learner import Execution
from surefoot.rl.loss import sampler_weights
from surefoot.rl.online_prm import OnlinePRM
from surefoot.rl.rollouts import Rollout, TrainingSample
from surefoot.rl.task import Task
from surefoot.rl.update import Updater, UpdateStatistics
from surefoot.training.distributed import Distributed
from surefoot.training.optimisation import recompute_activations


class RunModels:
    """Copies the other models from ``model``, the policy, and trains all of them.

    Raises ``TrainingError`` for a policy with an adapter or with 16-bit weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        task: Task,
        config: RLConfig,
        processes: Distributed,
    ) -> None:
        self.model, self.tokenizer, self.config, self.processes = model, tokenizer, config, processes
        if has_adapter(model):
            raise TrainingError(
                "the policy carries an adapter: merge it into its base (peft: merge_and_unload), save that "
                "and start from it"
            )
        execution = Execution(
            microbatch_tokens=config.microbatch_tokens,
            bf16=config.bf16,
            gradient_checkpointing=config.gradient_checkpointing,
            processes=processes,
        )
        self.judges = self._judges(task, execution)  # copies of the policy, before it gets an adapter
        if config.lora:
            add_adapter(model, config.lora, seed=config.seed)
            for parameter in model.parameters():
                if parameter.requires_grad:  # small, and steps of 1e-6 vanish in a 16-bit type
                    parameter.data = parameter.data.float()
        if config.gradient_checkpointing:
            recompute_activations(model)
        model.eval()
        self.reference = None
        if config.objective.kl:
            self.reference = ReferencePolicy(model, temperature=config.temperature, bf16=config.bf16)
        self._updater = Updater(model, config, execution)  # may move the policy to its process's device
        if self.reference:
            self.reference.to(model.device)

    @property
    def trained(self) -> tuple[dict[str, nn.Parameter], list[torch.optim.Optimizer]]:
        """All that a checkpoint holds."""
        parameters = {f"policy/{name}": parameter for name, parameter in self._updater.parameters.items()}
        optimisers = [self._updater.optimiser]
        for kind, judge in (("online_prm", self.judges.online_prm), ("critic", self.judges.critic)):
            if judge is not None:
                parameters |= {f"{kind}/{name}": parameter for name, parameter in judge.parameters.items()}
                optimisers.append(judge.optimiser)
        return parameters, optimisers

    def training_samples(self, groups: list[list[Rollout]]) -> list[list[TrainingSample]]:
        """What the policy is to learn from a round's rollouts."""
        flat, most = [rollout for group in groups for rollout in group], self.config.microbatch_tokens
        several = self.config.epochs * self.config.minibatches > 1
        kl, cap = self.config.objective.kl, self.config.objective.sampler_cap
        old: Sequence[FloatArray | None] = [None] * len(flat)
        if several or cap is not None or (kl and kl.where == "reward"):
            old = _logprobs(self._updater.actor, flat, most)
        reference: Sequence[FloatArray | None] = [None] * len(flat)
        if self.reference:
            reference = _logprobs(self.reference, flat, most)
        penalty = None
        if kl and kl.where == "reward":
            penalty = [
                -kl.coefficient * (item - theirs)
                for item, theirs in zip(old, reference, strict=True)
                if item is not None and theirs is not None
            ]
        samples = training_samples(groups, self.judges, self.config, token_rewards=penalty)
        importance: Sequence[FloatArray | None] = [None] * len(flat)
        if cap is not None:
            importance = [_importance(rollout, item, cap) for rollout, item in zip(flat, old, strict=True)]
        read = iter(zip(old, reference, importance, strict=True))
        return [
            [
                replace(
                    rollout,
                    old_logprobs=logprobs if several else None,
                    reference_logprobs=theirs,
                    importance=weights,
                )
                for rollout, (logprobs, theirs, weights) in zip(group, read, strict=False)
            ]
            for group in samples
        ]

    def learn(self, groups: Sequence[Sequence[TrainingSample]], number: int) -> UpdateStatistics:
        """The optimizer steps of round ``number`` (from 0): first the policy, then the judges.

        Judges that are trained with the policy learn after their rewards and values were used.
        """
        turns = [turn for group in groups for rollout in group for turn in rollout.turns()]
        statistics = self._updater.update(turns, number)
        self._train_online_prm(groups)
        self._train_critic(groups, number)
        return statistics

    def rate(self, number: int) -> float:
        """Learning rate of the policy in round ``number`` (from 0)."""
        return self._updater.rate(number)

    def _judges(self, task: Task, execution: Execution) -> Judges:
        online = critic = None
        if "log_ratios" in self.config.credit.needs:
            online = OnlinePRM.from_policy(
                self.model,
                self.tokenizer,
                self.config.online_prm,
                execution,
                prompt=task.prompt,
                name=self.model.name_or_path,
            )
        if self.config.advantage.needs_values:
            critic = Critic(self.model, self.config.critic, execution)
        return Judges(scorer=task.scorer, online_prm=online, critic=critic)

    def _train_online_prm(self, groups: Sequence[Sequence[TrainingSample]]) -> None:
        if self.judges.online_prm is None:
            return
        rollouts = [rollout.rollout for group in groups for rollout in group]
        judged = [rollout for rollout in rollouts if rollout.trace.outcome is not None]
        if self._everyone_has(judged):
            self.judges.online_prm.learn(judged, [float(item.trace.outcome or 0) for item in judged])

    def _train_critic(self, groups: Sequence[Sequence[TrainingSample]], number: int) -> None:
        advantage = self.config.advantage
        if self.judges.critic is None or not isinstance(advantage, Gae):
            return
        targets = advantage.targets([[rollout.scored for rollout in group] for group in groups])
        samples = [
            (rollout.rollout, target, rollout.scored.values)
            for group, of_group in zip(groups, targets, strict=True)
            for rollout, target in zip(group, of_group, strict=True)
            if target is not None and rollout.scored.values is not None
        ]
        if self._everyone_has(samples):
            self.judges.critic.learn(*map(list, zip(*samples, strict=True)), seed=number)

    def _everyone_has(self, some: Sequence[object]) -> bool:
        """Whether every process has some: all of them take part in an optimiser step."""
        return self.processes.all_reduce(len(some), "min") > 0


def _logprobs(
    reader: Actor | ReferencePolicy, rollouts: Sequence[Rollout], microbatch_tokens: int
) -> list[FloatArray]:
    """log π [T] of every rollout's tokens, each turn of an episode after its own context."""
    turns = [rollout.turns() for rollout in rollouts]
    read = iter(
        reader.logprobs([item for turn in turns for item in turn], microbatch_tokens=microbatch_tokens)
    )
    return [np.concatenate([next(read) for _ in turn]) for turn in turns]


def _importance(rollout: Rollout, old_logprobs: FloatArray | None, cap: float) -> FloatArray:
    if rollout.sampler_logprobs is None or old_logprobs is None:
        raise TrainingError(
            "'objective.sampler_cap' needs the log-probabilities of the server that samples, but it gave "
            "none: leave it out, or sample from a server that returns 'logprobs' with its tokens"
        )
    return sampler_weights(old_logprobs, rollout.sampler_logprobs, cap)
