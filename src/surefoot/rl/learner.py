"""A model that is trained on rollouts: its optimiser, and one step of it in passes of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import nn

from surefoot.errors import TrainingError
from surefoot.rl.actor import passes
from surefoot.rl.rollouts import Rollout
from surefoot.training.workers import Alone, Workers


class Optimisation(Protocol):
    """The part of a model's settings that its optimiser reads."""

    @property
    def learning_rate(self) -> float: ...

    @property
    def weight_decay(self) -> float: ...

    @property
    def max_grad_norm(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How models that learn on rollouts are computed: memory, precision, processes."""

    microbatch_tokens: int = 16_384
    """Most tokens, padding counted, of one forward and backward pass."""
    bf16: bool = False
    """Compute in bfloat16."""
    gradient_checkpointing: bool = False
    team: Workers = field(default_factory=Alone)


class Learner:
    """Trains the parameters of ``model`` that require a gradient, over all processes together.

    ``parameters`` by name and ``optimiser`` are what a checkpoint keeps. ``called`` is the module to call if
    a gradient is wanted: ``reader``, a module around ``model`` that gives no more of it than training reads,
    or else ``model``; in a wrapper where there are several processes. ``what`` names the model in errors.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Optimisation,
        execution: Execution,
        *,
        what: str,
        reader: nn.Module | None = None,
    ) -> None:
        self.model, self.execution, self._max_grad_norm, self._what = (
            model,
            execution,
            config.max_grad_norm,
            what,
        )
        _require_precision(model, what)
        optimiser = partial(
            torch.optim.AdamW, lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.99)
        )
        self.called, self.optimiser = execution.team.prepare(reader or model, optimiser)
        self.parameters = {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }

    def step(
        self, rollouts: Sequence[Rollout], loss: Callable[[list[int]], torch.Tensor]
    ) -> tuple[float, float]:
        """One step of the optimiser; returns the loss before it, summed over passes and processes, and the
        norm of its gradient before clipping.

        ``loss`` takes indices of rollouts, those of a pass, and gives their share of the loss, with gradient.
        Raises ``TrainingError`` if there are no rollouts, or for a loss or gradient that is not finite.
        """
        if not rollouts:
            raise TrainingError(f"{self._what} has no rollouts to learn from; skip the round")
        team = self.execution.team
        parts = list(passes(rollouts, self.execution.microbatch_tokens))
        count = team.largest(len(parts))
        self.optimiser.zero_grad()
        total = 0.0
        with recomputing(self.model):
            for place in range(count):
                last = place == count - 1
                with team.waiting(self.called, last=last):
                    # a process with fewer passes reads one again, of no weight, to stay in step with others
                    share = loss(parts[place]) if place < len(parts) else 0 * loss(parts[0])
                    team.backward(self.called, share, last=last)
                total += share.item()
        total = team.total(total)
        self._require_finite(total, "loss")
        norm = team.clip(self.parameters.values(), self._max_grad_norm)
        self._require_finite(norm, "norm of the gradient")
        self.optimiser.step()
        return total, norm

    def _require_finite(self, value: float, of: str) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"the {of} of {self._what} is {value}; lower its 'learning_rate' or 'max_grad_norm'"
            )


def _require_precision(model: nn.Module, what: str) -> None:
    """AdamW's steps have the size of the learning rate, and bfloat16 weights of 0.01 lie 6e-5 apart."""
    short = {
        str(parameter.dtype).removeprefix("torch.")
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16)
    }
    if short:
        raise TrainingError(
            f"the weights of {what} are {short.pop()}, in which small steps vanish: load it in float32 and "
            "set 'bf16' to compute in bfloat16, or train an adapter ('lora')"
        )


@contextmanager
def recomputing(model: nn.Module) -> Iterator[None]:
    """Let ``model`` recompute activations if it was asked to (``recompute_activations``), without dropout.

    Layers do so in training mode only. Here they alone are put into it, and not the modules in them: the
    policy that drew the rollouts had no dropout.
    """
    asked = [
        module
        for module in model.modules()
        if getattr(module, "gradient_checkpointing", False) and not module.training
    ]
    for module in asked:
        module.training = True
    try:
        yield
    finally:
        for module in asked:
            module.training = False
