"""The policy in training and its reference: log-probabilities of the tokens of rollouts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from surefoot.errors import CheckpointError, TrainingError
from surefoot.models.engine.causal import Entropy, read_logprobs, require_plain_head, token_statistics
from surefoot.models.engine.packing import pad_batch
from surefoot.models.lora import has_adapter
from surefoot.rl.credit import FloatArray
from surefoot.rl.rollouts import Rollout
from surefoot.training.batches import cut_by_tokens
from surefoot.training.distributed import Distributed
from surefoot.training.optimisation import ModelOptimiser, OptimiserSettings


@dataclass(frozen=True, kw_only=True)
class TokenReading:
    """Of the N response tokens of some rollouts, one rollout after the other; tensors [N] in nats."""

    logprobs: torch.Tensor
    entropies: torch.Tensor | None


class TokenReader(nn.Module):
    """What training reads of a causal language model, as one forward pass that a wrapper (DDP) can see.

    The head is applied where a response token is predicted, and nowhere else.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature
        try:
            require_plain_head(model)
            self.plain = True
        except CheckpointError:
            self.plain = False  # scaled or capped: ask the model itself for all logits

    def forward(
        self,
        ids_bt: torch.Tensor,
        mask_bt: torch.Tensor,
        rows_n: torch.Tensor,
        before_n: torch.Tensor,
        entropy: Entropy,
    ) -> torch.Tensor:
        """Log-probabilities of the tokens after ``before_n`` and, if wanted, entropies: [1, N] or [2, N]."""
        inputs = {"input_ids": ids_bt, "attention_mask": mask_bt, "use_cache": False}
        targets_n = ids_bt[rows_n, before_n + 1]
        if self.plain:
            states_nh = self.model.base_model(**inputs).last_hidden_state[rows_n, before_n]
            return token_statistics(
                self.model, states_nh, targets_n, temperature=self.temperature, entropy=entropy
            )
        logits_nv = self.model(**inputs).logits[rows_n, before_n].float() / self.temperature
        logprobs_nv = logits_nv.log_softmax(-1)
        statistics = [logprobs_nv.gather(1, targets_n[:, None])[:, 0]]
        if entropy != "none":
            with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
                statistics.append(-(logprobs_nv.exp() * logprobs_nv).sum(-1))
        return torch.stack(statistics)


class Actor:
    """Reads rollouts with a causal language model, at the temperature at which they were sampled."""

    def __init__(self, model: PreTrainedModel, *, temperature: float = 1.0, bf16: bool = False) -> None:
        self.model, self.temperature, self.bf16 = model, temperature, bf16
        self.reader = TokenReader(model, temperature=temperature)

    def read(
        self, rollouts: Sequence[Rollout], *, entropy: Entropy = "none", called: nn.Module | None = None
    ) -> TokenReading:
        """Log-probabilities with gradient, if gradients are on.

        ``called`` replaces ``reader`` where a wrapper (DDP) has to see the forward pass.
        """
        device = self.model.device
        padded = pad_rollouts(rollouts, device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16):
            statistics = (called or self.reader)(
                padded.ids_bt, padded.mask_bt, padded.rows_n, padded.before_n, entropy
            )
        return TokenReading(logprobs=statistics[0], entropies=None if entropy == "none" else statistics[1])

    @torch.no_grad()
    def logprobs(self, rollouts: Sequence[Rollout], *, microbatch_tokens: int) -> list[FloatArray]:
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


class ReferencePolicy:
    """The policy as it was before training: without its adapter, or a frozen copy where there is none.

    Create it before the first update and after adding the adapter.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float, bf16: bool) -> None:
        self._adapted = has_adapter(model)
        frozen = model if self._adapted else copy.deepcopy(model).eval().requires_grad_(False)
        self._actor = Actor(frozen, temperature=temperature, bf16=bf16)

    def to(self, device: torch.device) -> None:
        """Follow the policy to its device."""
        self._actor.model.to(device)

    def logprobs(self, rollouts: Sequence[Rollout], *, microbatch_tokens: int) -> list[FloatArray]:
        """log π_ref [T] of every rollout's tokens, in nats."""
        if not self._adapted:
            return self._actor.logprobs(rollouts, microbatch_tokens=microbatch_tokens)
        self._actor.model.disable_adapters()
        try:
            return self._actor.logprobs(rollouts, microbatch_tokens=microbatch_tokens)
        finally:
            self._actor.model.enable_adapters()


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """How models that learn from rollouts are computed: memory, precision, processes."""

    microbatch_tokens: int = 16_384
    """Most tokens of one forward and backward pass, padding included."""
    bf16: bool = False
    """Compute in bfloat16."""
    gradient_checkpointing: bool = False
    processes: Distributed = field(default_factory=Distributed)


class Learner:
    """A model that is trained on rollouts, over all processes together.

    ``parameters`` (by name) and ``optimiser`` are its state, which the loop's checkpoint holds; ``called`` is
    the module to call for a forward pass with gradient. See
    :class:`surefoot.training.optimisation.ModelOptimiser`, also for ``name`` and ``reader``.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: OptimiserSettings,
        execution: LearnerSettings,
        *,
        name: str,
        reader: nn.Module | None = None,
    ) -> None:
        self._steps = ModelOptimiser(
            model, settings, name=name, betas=(0.9, 0.99), processes=execution.processes, reader=reader
        )
        self._name, self._most = name, execution.microbatch_tokens
        self.called, self.parameters = self._steps.called, self._steps.parameters
        self.optimiser, self.set_rate = self._steps.optimiser, self._steps.set_rate

    def step(
        self, rollouts: Sequence[Rollout], loss: Callable[[list[int]], torch.Tensor]
    ) -> tuple[float, float]:
        """One optimiser step; returns the loss before it, summed over microbatches and processes, and the
        norm of its gradient before clipping.

        ``loss`` takes the indices of a microbatch's rollouts and gives their share of the loss, with
        gradient. Raises ``TrainingError`` without rollouts, or for a loss or gradient that is not
        finite.
        """
        if not rollouts:
            raise TrainingError(f"{self._name} got no rollouts to learn from; skip the round")
        pieces = microbatches(rollouts, self._most)
        return self._steps.step(pieces, loss, idle=pieces[0])


def microbatches(rollouts: Sequence[Rollout], most_tokens: int) -> list[list[int]]:
    """Indices of rollouts that are computed together: similar lengths, at most so many tokens with padding.

    A rollout that is longer has a microbatch to itself.
    """
    lengths = [len(rollout.prompt_ids) + len(rollout.ids) for rollout in rollouts]
    # longest first: if memory does not suffice, that shows in the first microbatch
    order = sorted(range(len(rollouts)), key=lengths.__getitem__, reverse=True)
    return cut_by_tokens(order, lambda index: [lengths[index]], most_tokens)


@dataclass(frozen=True, kw_only=True)
class PaddedRollouts:
    """B rollouts as one right-padded batch, and the places at which their N response tokens are predicted."""

    ids_bt: torch.Tensor
    mask_bt: torch.Tensor
    rows_n: torch.Tensor
    before_n: torch.Tensor
    """Column of the token *before* each response token (:func:`response_places`)."""


def pad_rollouts(rollouts: Sequence[Rollout], device: torch.device) -> PaddedRollouts:
    """One batch of some rollouts, at least one."""
    ids_bt, mask_bt = pad_batch([rollout.prompt_ids + rollout.ids for rollout in rollouts])
    rows_n, before_n = response_places(rollouts)
    return PaddedRollouts(
        ids_bt=ids_bt.to(device),
        mask_bt=mask_bt.to(device),
        rows_n=rows_n.to(device),
        before_n=before_n.to(device),
    )


def response_places(rollouts: Sequence[Rollout]) -> tuple[torch.Tensor, torch.Tensor]:
    """Row [N] and column [N] of the token *before* each response token, in right-padded rows."""
    rows = [row for row, rollout in enumerate(rollouts) for _ in rollout.ids]
    columns = [
        len(rollout.prompt_ids) + offset - 1 for rollout in rollouts for offset in range(len(rollout.ids))
    ]
    return torch.tensor(rows), torch.tensor(columns)
