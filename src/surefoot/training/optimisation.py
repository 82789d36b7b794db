"""One step of the optimiser: microbatches, gradients over all processes, clipping, checks.

The step that the loop of reward models and language models (:mod:`surefoot.training.loop`) shares with
reinforcement learning; and the processes that train together. Several are started by ``accelerate launch`` or
``torchrun``; accelerate's own configuration chooses DDP or FSDP. Communication uses gloo on CPUs, else the
accelerator's library.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from surefoot.concurrency import launched
from surefoot.errors import TrainingError
from surefoot.extras import need
from surefoot.training.config import OptimiserSettings

M = TypeVar("M")


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
        self.model, self.processes, self.name = model, processes or Distributed(), name
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
                f"the {what} of {self.name} is {value}{where}; lower 'learning_rate' or 'max_grad_norm'"
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


Reduction = Literal["sum", "min", "max"]
T = TypeVar("T")
MakeOptimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

# one process may evaluate or read a reference while the others wait for it; the launcher ends them if it dies
WAIT = timedelta(hours=6)


class Distributed:
    """One process's view of all that train together: here one process, without accelerate."""

    world_size = 1
    rank = 0
    sharded = False
    """Whether each process holds a shard of the weights alone (FSDP)."""

    def prepare(self, model: nn.Module, optimiser: MakeOptimiser) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The module to call and the optimiser of its trainable parameters, on this process's device."""
        return model, optimiser(parameter for parameter in model.parameters() if parameter.requires_grad)

    def backward(self, loss: torch.Tensor) -> None:
        """Add gradients, summed over all processes unless within :meth:`no_sync`."""
        loss.backward()

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Around the forward and backward pass of every microbatch but the last of a step."""
        return nullcontext()

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        """Scale the gradient to a norm of at most ``max_norm``; returns the norm before."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))

    def all_reduce(self, value: float, reduction: Reduction = "sum") -> float:  # noqa: ARG002
        """Sum, minimum or maximum over all processes."""
        return value

    def gather(self, items: list[T]) -> list[T]:
        """The items of all processes, in the order of the processes."""
        return items

    def barrier(self) -> None:
        """Wait until every process is here."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Send a row of the curves to the trackers."""

    def close(self) -> None:
        """Close the trackers."""


class Accelerated(Distributed):
    """Processes and trackers of ``accelerate.Accelerator``.

    Raises ``TrainingError`` if accelerate does not join all of the processes that were started.
    """

    def __init__(self, report_to: Sequence[str], settings: BaseModel, directory: Path) -> None:
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs

        _check_trackers(report_to)
        self._accelerator = Accelerator(
            # accelerate joins CPU processes only if ACCELERATE_USE_CPU is set, which torchrun does not do
            cpu=launched() > 1 and not torch.accelerator.is_available(),
            log_with=list(report_to) or None,
            project_dir=str(directory / "tracking"),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=WAIT)],
        )
        self.world_size = self._accelerator.num_processes
        self.rank = self._accelerator.process_index
        self.sharded = str(self._accelerator.distributed_type) == "DistributedType.FSDP"
        if self.world_size != launched():
            raise TrainingError(
                f"{launched()} processes were started, but accelerate joined {self.world_size}: set "
                "ACCELERATE_USE_CPU=true to train on CPUs, or start one process"
            )
        if report_to:
            self._accelerator.init_trackers("surefoot", config=_flat(settings))

    def prepare(self, model: nn.Module, optimiser: MakeOptimiser) -> tuple[nn.Module, torch.optim.Optimizer]:
        prepared = self._accelerator.prepare(*super().prepare(model, optimiser))
        return prepared[0], prepared[1]

    def backward(self, loss: torch.Tensor) -> None:
        # DDP and FSDP average gradients over the processes; losses here are shares of a sum
        self._accelerator.backward(loss * self.world_size)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._accelerator.no_sync(model)
        return context

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> float:
        norm = self._accelerator.clip_grad_norm_(list(parameters), max_norm)
        return float(full_tensor(norm)) if norm is not None else 0.0

    def all_reduce(self, value: float, reduction: Reduction = "sum") -> float:
        tensor = torch.tensor([value], dtype=torch.float64, device=self._accelerator.device)
        if reduction == "sum":
            return float(self._accelerator.reduce(tensor, reduction="sum"))
        values = self._accelerator.gather(tensor)
        return float(values.min() if reduction == "min" else values.max())

    def gather(self, items: list[T]) -> list[T]:
        from accelerate.utils import gather_object

        gathered: list[T] = gather_object(items)
        return gathered

    def barrier(self) -> None:
        self._accelerator.wait_for_everyone()

    def log(self, values: dict[str, float], step: int) -> None:
        self._accelerator.log(values, step=step)

    def close(self) -> None:
        self._accelerator.end_training()


def open_distributed(report_to: Sequence[str], settings: BaseModel, directory: Path) -> Distributed:
    """One process, or accelerate's processes if several were launched or trackers are requested.

    ``settings`` is what the trackers record of the run.

    Raises ``MissingExtraError`` if accelerate is not installed, ``TrainingError`` for a tracker that is not.
    """
    several = launched() > 1 or "ACCELERATE_USE_FSDP" in os.environ
    if not several and not report_to:
        return Distributed()
    need("accelerate", "training in several processes" if several else "'report_to'")
    return Accelerated(report_to, settings, directory)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which each process may hold a shard; every process has to call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The whole weights of ``model``, sharded or not; every process has to call it."""
    return {name: full_tensor(tensor) for name, tensor in model.state_dict().items()}


def shard_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This process's shard of a full tensor, placed as ``like`` is."""
    tensor = tensor.to(like.device)
    return (
        distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor
    )


def _check_trackers(names: Iterable[str]) -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise TrainingError(
                f"'report_to' has {name!r}; accelerate knows {', '.join(sorted(LOGGER_TYPE_TO_CLASS))}"
            )
        if name not in {str(tracker) for tracker in get_available_trackers()}:
            raise TrainingError(
                f"'report_to' has {name!r}, whose package is not installed; pip install {name}"
            )


def _flat(settings: BaseModel) -> dict[str, Any]:
    """Settings as trackers take them: numbers and text."""
    return {
        name: value if isinstance(value, (int, float, str)) else str(value)
        for name, value in settings.model_dump().items()
    }
