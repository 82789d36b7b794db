"""The models that learn from rollouts: the policy, next to its reference, and judges that learn with it.

The judges are the value model of PPO and the implicit reward model of PRIME (Cui et al., arXiv 2502.01456).
There policy, reward model φ and reference start as one model. The process reward of a token is
log π_φ / π_ref; after it was used, φ takes a step on the outcomes of the same rollouts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

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
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.policies.pretrained import context_length
from surefoot.policies.prompts import PromptFormat
from surefoot.rl.config import Mean, Objective, RLConfig
from surefoot.rl.sample import FloatArray, Sample
from surefoot.training.batches import Inputs, TokenReader, cut_by_tokens, lay_out
from surefoot.training.config import OptimiserSettings
from surefoot.training.examples import Example
from surefoot.training.optimisation import Distributed, ModelOptimiser, full_tensor, recompute_activations


class Actor:
    """Reads rollouts with a causal language model, at the temperature at which they were sampled."""

    def __init__(self, model: PreTrainedModel, *, temperature: float = 1.0, bf16: bool = False) -> None:
        self.model, self.temperature, self.bf16 = model, temperature, bf16
        self.reader = TokenReader(model, temperature=temperature)

    def read(
        self, rollouts: Sequence[Sample], *, entropy: bool = False, called: nn.Module | None = None
    ) -> torch.Tensor:
        """Log-probabilities in nats and, if wanted, entropies of the N response tokens, one rollout after the
        other: [1, N] or [2, N], with gradient, if gradients are on.

        ``called`` replaces ``reader`` where a wrapper (DDP) has to see the forward pass.
        """
        device = self.model.device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16):
            statistics: torch.Tensor = (called or self.reader)(pad_rollouts(rollouts, device), entropy)
        return statistics

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
            read = self.read(chosen)[0].double().cpu().numpy()
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


def minibatches(
    rollouts: Sequence[Sample], rng: np.random.Generator, *, epochs: int, parts: int
) -> Iterator[list[Sample]]:
    """Every rollout once per epoch, in a new order, which is cut into ``parts``."""
    for _ in range(epochs):
        for part in np.array_split(rng.permutation(len(rollouts)), parts):
            yield [rollouts[at] for at in part.tolist()]


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


class Updater(Learner):
    """Trains the policy on advantages."""

    def __init__(self, model: PreTrainedModel, config: RLConfig, processes: Distributed) -> None:
        self.config = config
        self.actor = Actor(model, temperature=config.temperature, bf16=config.bf16)
        super().__init__(model, config, config, processes, name="the policy", reader=self.actor.reader)

    def update(self, samples: Sequence[Sample], number: int) -> dict[str, Any]:
        """All steps of round ``number`` (from 0): its part of an :class:`surefoot.rl.log.UpdateRow`, means
        over the steps, shares and nats over tokens; empty where nothing has a gradient.

        Raises ``TrainingError`` for numbers that are not finite.
        """
        objective = self.config.objective
        always = objective.kl is not None and objective.kl.where == "loss"
        something = any(sample.learned().any() for sample in samples) or (always and bool(samples))
        fewest = int(self.processes.all_reduce(len(samples), "min"))
        if not self.processes.all_reduce(float(something), "max") or not fewest:
            return {}
        self.set_rate(self.rate(number))
        rng = np.random.default_rng([self.config.seed, number, self.processes.rank])
        count = min(self.config.minibatches, fewest)
        parts = minibatches(samples, rng, epochs=self.config.epochs, parts=count)
        steps = [self._update(part) for part in parts]
        reported = {name: [step[name] for step in steps if step[name] is not None] for name in steps[0]}
        means = {name: float(np.mean(values)) if values else None for name, values in reported.items()}
        return {**means, "entropy": steps[0]["entropy"]}

    def rate(self, number: int) -> float:
        """Learning rate of round ``number`` (from 0)."""
        return self.config.learning_rate * min(1.0, (number + 1) / max(1, self.config.warmup))

    def _update(self, samples: list[Sample]) -> dict[str, Any]:
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
        means = {"clipped": clipped / tokens, "kl": kl / tokens, "entropy": entropy / tokens}
        server_gap = gap / compared if compared else None
        return {"loss": loss, "gradient_norm": norm, "server_gap": server_gap, **means}

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
        logprobs, entropies = self.actor.read(samples, entropy=True, called=self.called)
        device = logprobs.device

        def flat(arrays: Sequence[FloatArray | None]) -> torch.Tensor | None:
            present = [array for array in arrays if array is not None]
            return on_device(present) if len(present) == len(arrays) else None

        def on_device(arrays: Sequence[FloatArray]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(arrays)).to(device, torch.float32)

        old = flat([sample.old_logprobs for sample in samples])
        spread = [weight for sample, weight in zip(samples, weights, strict=True) for _ in sample.ids]
        batch = TokenBatch(
            logprobs=logprobs,
            old_logprobs=logprobs.detach() if old is None else old,
            advantages=on_device([sample.learned() for sample in samples]),
            weights=torch.tensor(spread, device=device),
            reference_logprobs=flat([sample.reference_logprobs for sample in samples]),
        )
        parts = policy_loss(batch, objective)
        differences = _server_differences(samples, batch.old_logprobs.double().cpu().numpy())
        sums = [parts.clipped, parts.kl, float(entropies.detach().sum()), len(differences), differences.sum()]
        return parts.loss, np.array([len(spread), *sums])


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


class OnlinePRM(Learner):
    """Log-ratios of tokens as rewards, and their learning from outcomes.

    ``prm`` is trained in place: :meth:`from_policy` makes one from the start policy, ``ImplicitPRM.load``
    opens one that was trained before, with the reference that it was trained against. Dropout is off, as in
    the policy that drew the rollouts. Raises ``TrainingError`` if ``prm`` has another ``beta`` than
    ``run.online_prm``.
    """

    def __init__(self, prm: ImplicitPRM, run: RLConfig, processes: Distributed | None = None) -> None:
        config = run.online_prm
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
        self._reference: dict[tuple[tuple[int, ...], tuple[int, ...]], torch.Tensor] = {}

    @classmethod
    def from_policy(
        cls,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        run: RLConfig,
        processes: Distributed | None = None,
        *,
        prompt: PromptFormat,
    ) -> Self:
        """A copy of ``policy`` before it is trained or given an adapter.

        The reference is a second copy, which is frozen. ``prompt`` goes into the saved checkpoint, so that it
        reads problems as the policy does.

        Raises ``CheckpointError`` for a policy whose head is not plain.
        """
        prm = ImplicitPRM.assemble(
            copy.deepcopy(policy).float(),
            tokenizer,
            ImplicitSettings(beta=run.online_prm.beta, reference=policy.name_or_path),
            # in the same type: rounding would be a reward, which is scaled up to 1 where nothing was learned
            reference=copy.deepcopy(policy).float(),
            base=policy.name_or_path,
            encoding=Encoding(**vars(prompt), max_length=context_length(policy)),
        )
        return cls(prm, run, processes)

    def log_ratios(self, rollouts: Sequence[Sample]) -> list[FloatArray]:
        """log π_φ - log π_ref [T] of every response token, in nats; not scaled by beta.

        Prompts that rollouts share are read once. The reference's values are kept for :meth:`learn`.
        """
        reference = self._reference_logprobs(rollouts)
        with self._autocast():
            policy, _ = read_logprobs(self.whole, *_sequences(rollouts))
        both = zip(policy, reference, strict=True)
        return [(logprobs.double() - base.double()).numpy() for logprobs, base in both]

    def learn(self, rollouts: Sequence[Sample]) -> float:
        """Steps on -[l log σ(r) + (1 - l) log(1 - σ(r))], the mean over the rollouts, l their ``outcome``.

        r = beta Σ_t (log π_φ - log π_ref) of all tokens of the response, end of sequence included (the
        equation of :class:`surefoot.training.implicit.OutcomeLoss`). Returns the loss before the first step.
        Read a round's rewards before learning from it (PRIME's order "after").

        Raises ``TrainingError`` without rollouts, for an outcome that is unknown or outside [0, 1], or for
        numbers that are not finite.
        """
        outcomes = [rollout.outcome for rollout in rollouts if rollout.outcome is not None]
        if len(outcomes) != len(rollouts) or not all(0 <= outcome <= 1 for outcome in outcomes):
            raise TrainingError("'outcome' must lie in [0, 1]: leave out rollouts that were not judged")
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
        logprobs_n = self._actor.read(rollouts, called=self.called)[0]
        device = logprobs_n.device
        rows = [row for row, rollout in enumerate(rollouts) for _ in rollout.ids]
        sums = logprobs_n.new_zeros(len(rollouts)).index_add(0, torch.tensor(rows, device=device), logprobs_n)
        return self.config.beta * (sums - torch.tensor(reference, device=device))

    def _reference_logprobs(self, rollouts: Sequence[Sample]) -> list[torch.Tensor]:
        """log π_ref [T] of every rollout, kept until :meth:`learn` is done."""
        keys = [(rollout.prompt_ids, rollout.ids) for rollout in rollouts]
        if not self._reference.keys() >= set(keys):
            with self._autocast():
                computed, _ = read_logprobs(self.prm.reference, *_sequences(rollouts))
            self._reference = dict(zip(keys, computed, strict=True))
        return [self._reference[key] for key in keys]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.prm.policy.device.type, dtype=torch.bfloat16, enabled=self.run.bf16)


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

    def __init__(self, policy: PreTrainedModel, run: RLConfig, processes: Distributed | None = None) -> None:
        trunk = copy.deepcopy(policy.base_model).eval().requires_grad_(True)
        if run.lora:
            add_adapter(trunk, run.lora, seed=run.seed)
        else:
            trunk.float()
        self.config = run.critic
        super().__init__(ValueModel(trunk), run.critic, run, processes, name="the critic")

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

    def learn(self, rollouts: Sequence[Sample], *, seed: int = 0) -> float:
        """Fit the ``returns`` R of rollouts, whose ``values`` are V_old.

        The loss is the mean over the tokens of a minibatch of (PPO's own code; without ``value_clip`` the
        first term alone)

            ½ max((V - R)², (V_old + clip(V - V_old, ±value_clip) - R)²)

        ``seed`` (its round's) decides what goes into which minibatch. Returns the mean loss of the first
        epoch, each minibatch's before its step.

        Raises ``TrainingError`` without rollouts, for one without returns or values, or for numbers that are
        not finite.
        """
        rng = np.random.default_rng([seed, self.processes.rank])
        fewest = int(self.processes.all_reduce(len(rollouts), "min"))  # every process takes as many steps
        count = max(1, min(self.config.minibatches, fewest))
        parts = minibatches(rollouts, rng, epochs=self.config.epochs, parts=count)
        return float(np.mean([self._step(part) for part in parts][:count]))

    def _step(self, rollouts: Sequence[Sample]) -> float:
        device = self.whole.trunk.device
        tokens = self.processes.all_reduce(float(sum(len(rollout.ids) for rollout in rollouts)))

        def share(part: list[int]) -> torch.Tensor:
            chosen = [rollouts[at] for at in part]
            pairs = [(c.returns, c.values) for c in chosen if c.returns is not None and c.values is not None]
            if len(pairs) < len(chosen):
                raise TrainingError("the critic needs the 'returns' and 'values' of every rollout")
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.run.bf16):
                values_n = self.called(pad_rollouts(chosen, device))
            returns_n, old_n = (
                torch.from_numpy(np.concatenate(arrays)).to(values_n) for arrays in zip(*pairs, strict=True)
            )
            return value_losses(values_n, returns_n, old_n, self.config.value_clip).sum() / tokens

        return self.step_on(rollouts, share)[0]


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
