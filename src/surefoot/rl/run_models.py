"""The models of a run: the policy, its reference, and the judges that learn beside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.errors import TrainingError
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.rl.actor import Reference
from surefoot.rl.advantage import Gae
from surefoot.rl.assess import Assessment, Judges, assess
from surefoot.rl.config import RLConfig
from surefoot.rl.credit.rule import FloatArray
from surefoot.rl.critic import Critic
from surefoot.rl.learner import Execution
from surefoot.rl.online_prm import OnlinePRM
from surefoot.rl.rollouts import Rollout
from surefoot.rl.task import Task
from surefoot.rl.update import Lesson, Updater, UpdateStatistics
from surefoot.training.updates import recompute_activations
from surefoot.training.workers import Workers


class RunModels:
    """Makes the others of ``model``, the policy, and has all of them learn.

    Raises ``TrainingError`` for a policy that carries an adapter or weights in a short type.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        task: Task,
        config: RLConfig,
        team: Workers,
    ) -> None:
        self.model, self.tokenizer, self.config, self.team = model, tokenizer, config, team
        if has_adapter(model):
            raise TrainingError(
                "the policy carries an adapter: merge it into its base (peft: merge_and_unload), save that "
                "and start from it"
            )
        execution = Execution(
            microbatch_tokens=config.microbatch_tokens,
            bf16=config.bf16,
            gradient_checkpointing=config.gradient_checkpointing,
            team=team,
        )
        self.judges = self._judges(task, execution)  # copies of the policy, before it gets an adapter
        if config.lora:
            add_adapter(model, config.lora, seed=config.seed)
            for parameter in model.parameters():
                if parameter.requires_grad:  # small, and steps of 1e-6 vanish in a shorter type
                    parameter.data = parameter.data.float()
        if config.gradient_checkpointing:
            recompute_activations(model)
        model.eval()
        self.reference = None
        if config.objective.kl:
            self.reference = Reference(model, temperature=config.temperature, bf16=config.bf16)
        self._updater = Updater(model, config, execution)  # may move the policy to its process's device
        if self.reference:
            self.reference.to(model.device)

    @property
    def trained(self) -> tuple[dict[str, nn.Parameter], list[torch.optim.Optimizer]]:
        """All that a checkpoint holds."""
        parameters = {f"policy/{name}": one for name, one in self._updater.parameters.items()}
        optimisers = [self._updater.optimiser]
        for kind, judge in (("online_prm", self.judges.online_prm), ("critic", self.judges.critic)):
            if judge is not None:
                parameters |= {f"{kind}/{name}": one for name, one in judge.parameters.items()}
                optimisers.append(judge.optimiser)
        return parameters, optimisers

    def assess(self, groups: list[list[Rollout]]) -> tuple[list[Lesson], Assessment]:
        """What the policy is to learn of a round's rollouts, and what the judges said of them."""
        flat, most = [rollout for group in groups for rollout in group], self.config.microbatch_tokens
        several = self.config.epochs * self.config.minibatches > 1
        kl = self.config.objective.kl
        old: Sequence[FloatArray | None] = [None] * len(flat)
        if several or (kl and kl.where == "reward"):
            old = self._updater.actor.logprobs(flat, microbatch_tokens=most)
        reference: Sequence[FloatArray | None] = [None] * len(flat)
        if self.reference:
            reference = self.reference.logprobs(flat, microbatch_tokens=most)
        penalty = None
        if kl and kl.where == "reward":
            penalty = [
                -kl.coefficient * (mine - theirs)
                for mine, theirs in zip(old, reference, strict=True)
                if mine is not None and theirs is not None
            ]
        assessment = assess(groups, self.judges, self.config, token_rewards=penalty)
        lessons = [
            Lesson(
                rollout=one.rollout,
                advantages=one.advantages,
                old_logprobs=mine if several else None,
                reference_logprobs=theirs,
            )
            for one, mine, theirs in zip(assessment.flat, old, reference, strict=True)
        ]
        return lessons, assessment

    def learn(self, lessons: Sequence[Lesson], assessment: Assessment, number: int) -> UpdateStatistics:
        """The steps of round ``number`` (from 0): the policy's, then those of the judges.

        Judges that learn beside the policy do so after their word was used.
        """
        statistics = self._updater.update(lessons, number)
        self._teach_online_prm(assessment)
        self._teach_critic(assessment, number)
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

    def _teach_online_prm(self, assessment: Assessment) -> None:
        if self.judges.online_prm is None:
            return
        judged = [one for one in assessment.flat if one.rollout.trace.outcome is not None]
        if self._everyone_has(judged):
            self.judges.online_prm.learn(
                [one.rollout for one in judged], [float(one.rollout.trace.outcome or 0) for one in judged]
            )

    def _teach_critic(self, assessment: Assessment, number: int) -> None:
        advantage = self.config.advantage
        if self.judges.critic is None or not isinstance(advantage, Gae):
            return
        credited = [[one.credited for one in group] for group in assessment.groups]
        targets = [target for group in advantage.targets(credited) for target in group]
        taught = [
            (one.rollout, target, one.credited.values)
            for one, target in zip(assessment.flat, targets, strict=True)
            if target is not None and one.credited.values is not None
        ]
        if self._everyone_has(taught):
            self.judges.critic.learn(*map(list, zip(*taught, strict=True)), seed=number)

    def _everyone_has(self, some: Sequence[object]) -> bool:
        """Whether no process is without: a step of an optimiser takes all of them."""
        return -self.team.largest(-len(some)) > 0
