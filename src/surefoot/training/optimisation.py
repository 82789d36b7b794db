"""One step of the optimiser: microbatches, gradients over all processes, clipping, checks.

The step that the loop of reward models and language models (:mod:`surefoot.training.loop`) shares with
reinforcement learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from surefoot.errors import TrainingError
from surefoot.training.distributed import Distributed

M = TypeVar("M")


class OptimiserSettings(Protocol):
    """The part of a model's settings that its optimiser reads."""

    @property
    def learning_rate(self) -> float: ...

    @property
    def weight_decay(self) -> float: ...

    @property
    def max_grad_norm(self) -> float: ...


class ModelOptimiser:
    """AdamW over the parameters of ``model`` that require a gradient, over all processes together.

    ``parameters`` by name and ``optimiser`` are what a checkpoint holds. ``called`` is the module to call for
    a forward pass with gradient: ``reader``, a module around ``model`` that computes only what training
    reads, or ``model`` itself; wrapped (DDP, FSDP) where there are several processes. ``name`` is the model's
    name in errors. Raises ``TrainingError`` for weights in a 16-bit type.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: OptimiserSettings,
        *,
        name: str,
        betas: tuple[float, float],
        processes: Distributed | None = None,
        reader: nn.Module | None = None,
    ) -> None:
        _require_precision(model, name)
        self.model, self.processes, self._name = model, processes or Distributed(), name
        self._max_grad_norm = settings.max_grad_norm
        optimiser = partial(
            torch.optim.AdamW, lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=betas
        )
        self.called, self.optimiser = self.processes.prepare(reader or model, optimiser)
        self.parameters = {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }

    def set_rate(self, learning_rate: float) -> None:
        """Learning rate of the steps to come."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate

    def step(
        self,
        microbatches: Sequence[M],
        loss: Callable[[M], torch.Tensor],
        *,
        idle: M,
        describe: Callable[[list[M]], str] | None = None,
    ) -> tuple[float, float]:
        """One step; returns the loss before it, summed over microbatches and processes, and the norm of its
        gradient before clipping.

        ``loss`` gives a microbatch's share of the loss, with gradient. ``idle`` is what a process computes,
        weighted 0, while others have microbatches left. ``describe`` gets the microbatches whose loss is not
        finite, or all of them, and says in an error where they come from.

        Raises ``TrainingError`` for a loss or a gradient that is not finite.
        """
        count = int(self.processes.all_reduce(len(microbatches), "max"))
        self.optimiser.zero_grad()
        losses: list[float] = []
        with recomputing(self.model):
            for number in range(count):
                # gradients are exchanged once, after the last microbatch
                last = number == count - 1
                with nullcontext() if last else self.processes.no_sync(self.called):
                    share = loss(microbatches[number]) if number < len(microbatches) else 0 * loss(idle)
                    self.processes.backward(share)
                losses.append(share.item())
        total = self.processes.all_reduce(sum(losses))
        culprits = [
            microbatch
            for microbatch, share in zip(microbatches, losses, strict=False)
            if not math.isfinite(share)
        ]
        where = describe(culprits or list(microbatches)) if describe else ""
        self._require_finite(total, "loss", where)
        norm = self.processes.clip_grad_norm(self.parameters.values(), self._max_grad_norm)
        self._require_finite(norm, "norm of the gradient", where)
        self.optimiser.step()
        return total, norm

    def _require_finite(self, value: float, what: str, where: str) -> None:
        if not math.isfinite(value):
            raise TrainingError(
                f"the {what} of {self._name} is {value}{where}; lower 'learning_rate' or 'max_grad_norm'"
            )


def recompute_activations(model: PreTrainedModel) -> None:
    """Turn gradient checkpointing on, by its name since transformers 5.20 or so, or the one before."""
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable = next(getattr(model, name) for name in names if hasattr(model, name))
    enable({"use_reentrant": False})


@contextmanager
def recomputing(model: nn.Module) -> Iterator[None]:
    """Let a model in evaluation mode recompute activations if it was asked to, without dropout.

    Layers recompute in training mode only. Here they alone are put into it, not the modules in them: the
    policy that wrote the rollouts ran without dropout.
    """
    layers = [
        module
        for module in model.modules()
        if getattr(module, "gradient_checkpointing", False) and not module.training
    ]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _require_precision(model: nn.Module, name: str) -> None:
    """AdamW's steps have the size of the learning rate, and bfloat16 weights of 0.01 lie 6e-5 apart."""
    types = {
        str(parameter.dtype).removeprefix("torch.")
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16)
    }
    if types:
        raise TrainingError(
            f"the weights of {name} are {types.pop()}, in which small steps vanish: load it in float32 and "
            "set 'bf16' to compute in bfloat16, or train an adapter ('lora')"
        )
