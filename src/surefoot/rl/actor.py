"""The policy in training and its reference: log-probabilities of rollouts' tokens, and optimiser steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from surefoot.errors import TrainingError
from surefoot.models.engine.causal import read_logprobs
from surefoot.models.lora import has_adapter
from surefoot.rl.config import Mean, Objective, RLConfig
from surefoot.rl.sample import FloatArray, Sample
from surefoot.training.batches import Inputs, TokenReader, cut_by_tokens, lay_out
from surefoot.training.config import OptimiserSettings
from surefoot.training.examples import Example
from surefoot.training.optimisation import Distributed, ModelOptimiser, full_tensor, recompute_activations


@dataclass(frozen=True, kw_only=True)
class TokenReading:
    """Of the N response tokens of some rollouts, one rollout after the other; tensors [N] in nats."""

    logprobs: torch.Tensor
    entropies: torch.Tensor | None


class Actor:
    """Reads rollouts with a causal language model, at the temperature at which they were sampled."""

    def __init__(self, model: PreTrainedModel, *, temperature: float = 1.0, bf16: bool = False) -> None:
        self.model, self.temperature, self.bf16 = model, temperature, bf16
        self.reader = TokenReader(model, temperature=temperature)

    def read(
        self, rollouts: Sequence[Sample], *, entropy: bool = False, called: nn.Module | None = None
    ) -> TokenReading:
        """Log-probabilities with gradient, if gradients are on.

        ``called`` replaces ``reader`` where a wrapper (DDP) has to see the forward pass.
        """
        device = self.model.device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16):
            statistics = (called or self.reader)(pad_rollouts(rollouts, device), entropy)
        return TokenReading(logprobs=statistics[0], entropies=statistics[1] if entropy else None)

    @torch.no_grad()
    def logprobs(self, rollouts: Sequence[Sample], *, microbatch_tokens: int) -> list[FloatArray]:
        """log π [T] of every rollout's tokens, in nats. Prompts that rollouts share are read once."""
        if self.reader.plain:
            sequences = [rollout.prompt_ids + rollout.ids for rollout in rollouts]
            first = [len(rollout.prompt_ids) for rollout in rollouts]
            with torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                logprobs, _ = read_logprobs(
                    self.model, sequences, first, temperature=self.temperature, batch_tokens=microbatch_tokens
                )
            return [logprob.double().numpy() for logprob in logprobs]
        by_rollout: dict[int, FloatArray] = {}
        for part in microbatches(rollouts, microbatch_tokens):
            chosen = [rollouts[index] for index in part]
            read = self.read(chosen).logprobs.double().cpu().numpy()
            cuts = np.cumsum([len(rollout.ids) for rollout in chosen])[:-1]
            by_rollout |= dict(zip(part, np.split(read, cuts), strict=True))
        return [by_rollout[index] for index in range(len(rollouts))]


class ReferencePolicy(Actor):
    """The policy as it was before training: without its adapter, or a frozen copy where there is none.

    Create it before the first update and after adding the adapter.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, bf16: bool) -> None:
        self._adapted = has_adapter(model)
        frozen = model if self._adapted else copy.deepcopy(model).eval().requires_grad_(False)
        super().__init__(frozen, temperature=temperature, bf16=bf16)

    def logprobs(self, rollouts: Sequence[Sample], *, microbatch_tokens: int) -> list[FloatArray]:
        """log π_ref [T] of every rollout's tokens, in nats."""
        if self._adapted:
            self.model.disable_adapters()
        try:
            return super().logprobs(rollouts, microbatch_tokens=microbatch_tokens)
        finally:
            if self._adapted:
                self.model.enable_adapters()


class Learner(ModelOptimiser):
    """A model that is trained on rollouts, over all processes together.

    ``settings`` are its optimiser's; ``run`` says how it is computed (``bf16``, ``microbatch_tokens``,
    ``gradient_checkpointing``). ``parameters`` (by name) and ``optimiser`` are its state, which the loop's
    checkpoint holds. ``whole`` is the model, or where that is in shards a copy of it in each process, which
    follows it: what samples, reads without gradient and is saved.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: OptimiserSettings,
        run: RLConfig,
        processes: Distributed | None,
        *,
        name: str,
        reader: nn.Module | None = None,
    ) -> None:
        if run.gradient_checkpointing:
            recompute_activations(getattr(model, "trunk", model))
        self.whole: Any = copy.deepcopy(model) if processes and processes.sharded else model
        super().__init__(model, settings, name=name, betas=(0.9, 0.99), processes=processes, reader=reader)
        self.whole.to(next(iter(self.parameters.values())).device)
        self.run = run

    @torch.no_grad()
    def follow(self) -> None:
        """Bring ``whole`` up to date; every process has to call it."""
        if self.whole is not self.model:
            copied = dict(self.whole.named_parameters())
            for name, parameter in self.parameters.items():
                copied[name].copy_(full_tensor(parameter))

    def step_on(
        self, rollouts: Sequence[Sample], loss: Callable[[list[int]], torch.Tensor]
    ) -> tuple[float, float]:
        """One step (:meth:`ModelOptimiser.step`); ``loss`` takes the indices of a microbatch's rollouts.

        Raises ``TrainingError`` without rollouts, or for a loss or gradient that is not finite.
        """
        if not rollouts:
            raise TrainingError(f"{self.name} got no rollouts to learn from; skip the round")
        pieces = microbatches(rollouts, self.run.microbatch_tokens)
        measured = self.step(pieces, loss, idle=pieces[0])
        self.follow()
        return measured


def microbatches(rollouts: Sequence[Sample], most_tokens: int) -> list[list[int]]:
    """Indices of rollouts that are computed together: similar lengths, at most so many tokens with padding.

    A rollout that is longer has a microbatch to itself.
    """
    lengths = [len(rollout.prompt_ids) + len(rollout.ids) for rollout in rollouts]
    # longest first: if memory does not suffice, that shows in the first microbatch
    order = sorted(range(len(rollouts)), key=lengths.__getitem__, reverse=True)
    return cut_by_tokens(order, lambda index: [lengths[index]], most_tokens)


def pad_rollouts(rollouts: Sequence[Sample], device: torch.device) -> Inputs:
    """Some rollouts as one right-padded batch, at the N places *before* the response tokens."""
    rows = [
        Example(
            trace_id=rollout.trace.id,
            ids=rollout.prompt_ids + rollout.ids,
            positions=tuple(range(len(rollout.prompt_ids), len(rollout.prompt_ids) + len(rollout.ids))),
            targets=(),
        )
        for rollout in rollouts
    ]
    return lay_out(rows, "padded", device).predicting()


@dataclass(frozen=True, kw_only=True)
class UpdateStatistics:
    """Means over the steps of a round; shares and nats are means over tokens."""

    loss: float
    gradient_norm: float
    """Before clipping."""
    clipped: float
    """Share of tokens whose gradient the clipped objective holds back."""
    kl: float
    entropy: float
    """Before the round's first step."""
    server_gap: float | None = None
    """Mean absolute difference of the sampling server's log-probabilities from the policy's, where known."""


class Updater(Learner):
    """Trains the policy on advantages."""

    def __init__(self, model: PreTrainedModel, config: RLConfig, processes: Distributed) -> None:
        self.config = config
        self.actor = Actor(model, temperature=config.temperature, bf16=config.bf16)
        super().__init__(model, config, config, processes, name="the policy", reader=self.actor.reader)

    def update(self, samples: Sequence[Sample], number: int) -> UpdateStatistics | None:
        """All steps of round ``number`` (from 0); ``None`` where nothing has a gradient.

        Raises ``TrainingError`` for numbers that are not finite.
        """
        objective = self.config.objective
        always = objective.kl is not None and objective.kl.where == "loss"
        something = any(sample.learned().any() for sample in samples) or (always and bool(samples))
        fewest = int(self.processes.all_reduce(len(samples), "min"))
        if not self.processes.all_reduce(float(something), "max") or not fewest:
            return None
        self.set_rate(self.rate(number))
        steps = [
            self._update([samples[index] for index in minibatch])
            for minibatch in self._minibatches(len(samples), number, min(self.config.minibatches, fewest))
        ]
        gaps = [step.server_gap for step in steps if step.server_gap is not None]
        return UpdateStatistics(
            loss=float(np.mean([step.loss for step in steps])),
            gradient_norm=float(np.mean([step.gradient_norm for step in steps])),
            clipped=float(np.mean([step.clipped for step in steps])),
            kl=float(np.mean([step.kl for step in steps])),
            entropy=steps[0].entropy,
            server_gap=float(np.mean(gaps)) if gaps else None,
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

    def _update(self, samples: list[Sample]) -> UpdateStatistics:
        """One step of the optimiser."""
        weights = self._weights(samples)
        sums: dict[tuple[int, ...], FloatArray] = {}  # by microbatch: one computed twice counts once

        def share(part: list[int]) -> torch.Tensor:
            loss, sums[tuple(part)] = self._loss([samples[at] for at in part], [weights[at] for at in part])
            return loss

        loss, norm = self.step_on(samples, share)
        tokens, clipped, kl, entropy, compared, gap = (
            self.processes.all_reduce(float(item)) for item in np.sum(list(sums.values()), axis=0)
        )
        return UpdateStatistics(
            loss=loss,
            gradient_norm=norm,
            clipped=clipped / tokens,
            kl=kl / tokens,
            entropy=entropy / tokens,
            server_gap=gap / compared if compared else None,
        )

    def _weights(self, samples: Sequence[Sample]) -> list[float]:
        """Weight of each token of each sample; over all processes they add up to about 1."""
        mean = self.config.objective.mean
        lengths = [len(sample.ids) for sample in samples]
        mine = float(sum(lengths) if mean == "token" else len(lengths))
        everyone = self.processes.all_reduce(mine)
        if not lengths:
            return []
        weights = token_weights(lengths, mean, longest=self.config.max_tokens)
        return [weight * mine / everyone for weight in weights]

    def _loss(self, samples: Sequence[Sample], weights: Sequence[float]) -> tuple[torch.Tensor, FloatArray]:
        """Loss of one microbatch, and sums over its tokens: their number, those clipped, KL, entropy, those
        with a server's log-probability, its absolute difference."""
        objective = self.config.objective
        read = self.actor.read(samples, entropy=True, called=self.called)
        device = read.logprobs.device

        def flat(arrays: Sequence[FloatArray | None]) -> torch.Tensor | None:
            present = [array for array in arrays if array is not None]
            if len(present) < len(arrays):
                return None
            return torch.from_numpy(np.concatenate(present)).to(device, torch.float32)

        old = flat([sample.old_logprobs for sample in samples])
        spread = [weight for sample, weight in zip(samples, weights, strict=True) for _ in sample.ids]
        batch = TokenBatch(
            logprobs=read.logprobs,
            old_logprobs=read.logprobs.detach() if old is None else old,
            advantages=torch.from_numpy(np.concatenate([sample.learned() for sample in samples])).to(
                device, torch.float32
            ),
            weights=torch.tensor(spread, device=device),
            reference_logprobs=flat([sample.reference_logprobs for sample in samples]),
        )
        parts = policy_loss(batch, objective)
        entropy = 0.0 if read.entropies is None else float(read.entropies.detach().sum())
        differences = _server_differences(samples, batch.old_logprobs.double().cpu().numpy())
        compared = [len(differences), differences.sum()]
        return parts.loss, np.array([len(spread), parts.clipped, parts.kl, entropy, *compared])


def _server_differences(samples: Sequence[Sample], logprobs: FloatArray) -> FloatArray:
    """|log π of the server - log π| of the tokens whose server says; ``logprobs`` [N] are of all tokens."""
    ends = np.cumsum([len(sample.ids) for sample in samples])
    differences = [
        np.abs(sample.server_logprobs - mine)
        for sample, mine in zip(samples, np.split(logprobs, ends[:-1]), strict=True)
        if sample.server_logprobs is not None
    ]
    return np.concatenate(differences) if differences else np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class TokenBatch:
    """What the loss needs of N response tokens; all tensors have shape [N]."""

    logprobs: torch.Tensor
    """log π of the sampled tokens, in nats, with gradient."""
    old_logprobs: torch.Tensor
    """The same, of the policy that drew them."""
    advantages: torch.Tensor
    weights: torch.Tensor
    reference_logprobs: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LossParts:
    """The loss, a scalar with gradient, and sums over its tokens to watch, without weights."""

    loss: torch.Tensor
    clipped: float
    """Tokens whose ratio lies beyond a bound, which holds their gradient back."""
    kl: float
    """To the reference, in nats; 0 where there is none."""


def policy_loss(batch: TokenBatch, objective: Objective) -> LossParts:
    """The loss of some tokens, L = sum_n w_n [ -J_n + beta KL_n ]; parts of a minibatch add up to it.

    The gain J of a token with advantage A and ratio rho = π(token) / π_old(token) is, with the bounds
    clip(rho) in [1 - low, 1 + high], min(rho A, clip(rho) A) (PPO, arXiv 1707.06347, equation 7; separate
    bounds: DAPO, arXiv 2503.14476). Which mean over tokens it is lies in the weights (:func:`token_weights`).
    """
    ratio = (batch.logprobs - batch.old_logprobs).exp()
    bounded = ratio.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    unbounded_gains, bounded_gains = ratio * batch.advantages, bounded * batch.advantages
    held = bounded_gains < unbounded_gains
    terms = -torch.minimum(unbounded_gains, bounded_gains)
    kl_n = None
    if batch.reference_logprobs is not None and objective.kl is not None:
        kl_n = kl_estimate(batch.logprobs, batch.reference_logprobs, objective.kl.where)
        if objective.kl.where == "loss":
            terms = terms + objective.kl.coefficient * kl_n
    return LossParts(
        loss=(batch.weights * terms).sum(),
        clipped=float(held.sum()),
        kl=0.0 if kl_n is None else float(kl_n.detach().sum()),
    )


def kl_estimate(
    logprobs: torch.Tensor, reference: torch.Tensor, where: Literal["loss", "reward"]
) -> torch.Tensor:
    """KL(π || π_ref) of each token from the one sampled token, by an estimator of Schulman's note (2020).

    In the reward k1 = log(π/π_ref), unbiased, may be negative, and of no gradient on average; in the loss
    k3 = π_ref/π - 1 - log(π_ref/π), unbiased and never negative.
    """
    difference = logprobs - reference
    return difference if where == "reward" else torch.expm1(-difference) + difference


def token_weights(lengths: Sequence[int], mean: Mean, *, longest: int) -> list[float]:
    """Weight of every token of each of B responses; all tokens of a minibatch together weigh about 1.

    token: 1 / tokens of the minibatch (DAPO); sequence: 1 / (B T) (GRPO as published, which favours short
    right and long wrong answers); constant: 1 / (B ``longest``) (Dr. GRPO, arXiv 2503.20783).
    """
    match mean:
        case "token":
            return [1 / sum(lengths)] * len(lengths)
        case "sequence":
            return [1 / (len(lengths) * length) for length in lengths]
        case "constant":
            return [1 / (len(lengths) * longest)] * len(lengths)
