"""A model that is trained on rollouts: its optimiser, and one step of it in passes of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from surefoot.errors import TrainingError
from surefoot.rl.actor import passes
from surefoot.rl.rollouts import Rollout
from surefoot.training.workers import Workers


class Learner:
    """Trains the parameters of ``model`` that require a gradient, over all processes of ``team`` together.

    ``parameters`` by name and ``optimiser`` are what a checkpoint keeps; ``called`` is the model to call if a
    gradient is wanted, a wrapper where there are several processes. ``what`` names it in errors.
    """

    def __init__(
        self,
        model: nn.Module,
        team: Workers,
        *,
        learning_rate: float,
        weight_decay: float,
        clip: float,
        tokens_per_pass: int,
        what: str,
    ) -> None:
        self.model, self.team, self.clip, self.tokens_per_pass = model, team, clip, tokens_per_pass
        _require_precision(model, what)
        optimiser = partial(torch.optim.AdamW, lr=learning_rate, weight_decay=weight_decay, betas=(0.9, 0.99))
        self.called, self.optimiser = team.prepare(model, optimiser)
        self.parameters = {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        self._what = what

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
        parts = list(passes(rollouts, self.tokens_per_pass))
        count = self.team.largest(len(parts))
        self.optimiser.zero_grad()
        total = 0.0
        with recomputing(self.model):
            for place in range(count):
                last = place == count - 1
                with self.team.waiting(self.called, last=last):
                    # a process with fewer passes reads one again, of no weight, to stay in step with others
                    share = loss(parts[place]) if place < len(parts) else 0 * loss(parts[0])
                    self.team.backward(self.called, share, last=last)
                total += share.item()
        total = self.team.total(total)
        self._require_finite(total, "loss")
        norm = self.team.clip(self.parameters.values(), self.clip)
        self._require_finite(norm, "norm of the gradient")
        self.optimiser.step()
        return total, norm

    def _require_finite(self, value: float, of: str) -> None:
        if not math.isfinite(value):
            raise TrainingError(f"the {of} of {self._what} is {value}; lower its 'learning_rate' or 'clip'")


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
