"""Rollouts as microbatches, and one step of a model that is trained on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from surefoot.errors import TrainingError
from surefoot.models.engine.packing import pad_batch
from surefoot.rl.rollouts import Rollout
from surefoot.training.batches import cut_by_tokens
from surefoot.training.distributed import Distributed, SingleProcess
from surefoot.training.optimisation import ModelOptimiser, OptimiserSettings


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How models that learn from rollouts are computed: memory, precision, processes."""

    microbatch_tokens: int = 16_384
    """Most tokens of one forward and backward pass, padding included."""
    bf16: bool = False
    """Compute in bfloat16."""
    gradient_checkpointing: bool = False
    processes: Distributed = field(default_factory=SingleProcess)


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
        execution: Execution,
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
