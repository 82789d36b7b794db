"""The models of a run: the policy, its reference, the online reward model and the critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.errors import TrainingError
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.protocols import StepScorer
from surefoot.records import Usage
from surefoot.rl.actor import Actor, LearnerSettings, ReferencePolicy
from surefoot.rl.advantage import Gae
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import FloatArray, RewardStream, ScoredRollout
from surefoot.rl.critic import Critic
from surefoot.rl.loss import sampler_weights
from surefoot.rl.online_prm import OnlinePRM
from surefoot.rl.rollouts import Rollout, TrainingSample, score_steps
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
        execution = LearnerSettings(
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

    def _judges(self, task: Task, execution: LearnerSettings) -> Judges:
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


T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, kw_only=True)
class Judges:
    """Models that say what rollouts are worth; a rule that needs one that is absent is refused."""

    scorer: StepScorer | None = None
    online_prm: OnlinePRM | None = None
    critic: Critic | None = None


def training_samples(
    groups: Sequence[Sequence[Rollout]],
    judges: Judges,
    config: RLConfig,
    *,
    token_rewards: Sequence[FloatArray] | None = None,
) -> list[list[TrainingSample]]:
    """Score the rollouts, give credit, subtract the baseline; ``groups`` are the samples of one problem each.

    ``token_rewards`` [T] of every rollout, one group after the other, are added to the rule's rewards: a KL
    penalty. Raises ``TrainingError`` for a judge that is missing.
    """
    flat = [rollout for group in groups for rollout in group]
    needs = config.credit.needs
    scores: Sequence[tuple[float | None, ...]] = [()] * len(flat)
    usages = [Usage()] * len(flat)
    if "scores" in needs:
        items = [rollout.item for rollout in flat]
        records = score_steps(_require(judges.scorer, "a step scorer"), items)
        scores = [(None,) if record is None else record.scores for record in records]
        usages = [Usage() if record is None else record.usage for record in records]
    ratios: Sequence[FloatArray | None] = [None] * len(flat)
    if "log_ratios" in needs:
        ratios = _require(judges.online_prm, "an implicit reward model (online_prm)").log_ratios(flat)
    values: Sequence[FloatArray | None] = [None] * len(flat)
    if config.advantage.needs_values:
        values = _require(judges.critic, "a critic").values(flat)
    scored = [
        ScoredRollout(
            tokens=len(rollout.ids),
            ends=rollout.ends,
            scores=of_steps,
            outcome=_outcome(rollout, config),
            log_ratios=ratio,
            values=value,
            states=rollout.states,
        )
        for rollout, of_steps, ratio, value in zip(flat, scores, ratios, values, strict=True)
    ]
    rewards = [rollout for group in config.credit.credit(_regroup(scored, groups)) for rollout in group]
    if token_rewards is not None:
        rewards = [
            (*streams, RewardStream(at=tuple(range(len(extra))), values=tuple(extra.tolist())))
            for streams, extra in zip(rewards, token_rewards, strict=True)
        ]
    scored = [replace(item, rewards=streams) for item, streams in zip(scored, rewards, strict=True)]
    advantages = [array for group in config.advantage.advantages(_regroup(scored, groups)) for array in group]
    samples = [
        TrainingSample(rollout=rollout, scored=item, advantages=array, scorer_usage=usage)
        for rollout, item, array, usage in zip(flat, scored, advantages, usages, strict=True)
    ]
    return _regroup(samples, groups)


def within_band(
    groups: Sequence[Sequence[Rollout]], band: tuple[float, float] | None, *, mixed: bool = False
) -> list[list[Rollout]]:
    """Groups whose share of correct rollouts is in ``band`` or unknown; empty groups are dropped.

    PRIME keeps shares in [0.2, 0.8]: a group that is all correct or all wrong says nothing about outcomes.
    With ``mixed`` such a group is dropped whatever the band (DAPO, arXiv 2503.14476, equation 11).
    """
    within = []
    for group in groups:
        outcomes = [rollout.trace.outcome for rollout in group if rollout.trace.outcome is not None]
        share = float(np.mean(outcomes)) if outcomes else None
        in_band = band is None or share is None or band[0] <= share <= band[1]
        if group and in_band and not (mixed and share in (0.0, 1.0)):
            within.append(list(group))
    return within


def _outcome(rollout: Rollout, config: RLConfig) -> float | None:
    """Outcome reward, less what an overlong response loses."""
    if rollout.trace.outcome is None:
        return None
    cost = config.overlong.cost(len(rollout.ids), config.max_tokens) if config.overlong else 0.0
    return float(rollout.trace.outcome) - cost


def _require(judge: T | None, what: str) -> T:
    if judge is None:
        raise TrainingError(f"this credit rule or advantage estimator needs {what}, but there is none")
    return judge


def _regroup(flat: Sequence[U], groups: Sequence[Sequence[object]]) -> list[list[U]]:
    """``flat`` divided like ``groups``."""
    rollouts = iter(flat)
    return [[next(rollouts) for _ in group] for group in groups]
