"""The processes that train together: one alone, or several by ``accelerate``.

The loop asks for a few things only: which passes are mine, go backward, the norm of the whole gradient, a sum
over all, a whole tensor. One process needs no accelerate; several are started by ``accelerate launch`` or
``torchrun``, and DDP or FSDP is what accelerate's own configuration says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import BaseModel
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from surefoot.errors import TrainingError


class Workers(Protocol):
    """One process's view of all of them."""

    count: int
    rank: int

    def prepare(
        self, model: nn.Module, optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model to call and the optimiser to step, ready for this process's device."""

    def backward(self, model: nn.Module, loss: torch.Tensor, *, last: bool) -> None:
        """Add gradients; those of all processes meet at the last pass of an update."""

    def waiting(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Around a forward pass after which gradients are not yet exchanged, unless it is the last."""

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> float:
        """Scale the gradient to a norm of at most ``most``; returns what it was."""

    def total(self, value: float) -> float:
        """Sum over all processes."""

    def largest(self, value: int) -> int:
        """Largest of all processes' values."""

    def wait(self) -> None:
        """Until every process is here."""

    def report(self, values: dict[str, float], update: int) -> None:
        """Give a row of the curves to the trackers."""

    def close(self) -> None:
        """End what was started."""


class Alone:
    """One process, without accelerate."""

    count = 1
    rank = 0

    def prepare(
        self, model: nn.Module, optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        return model, optimiser(parameter for parameter in model.parameters() if parameter.requires_grad)

    def backward(self, model: nn.Module, loss: torch.Tensor, *, last: bool) -> None:  # noqa: ARG002
        loss.backward()

    def waiting(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> float:
        return float(torch.nn.utils.clip_grad_norm_(parameters, most))

    def total(self, value: float) -> float:
        return value

    def largest(self, value: int) -> int:
        return value

    def wait(self) -> None:
        return None

    def report(self, values: dict[str, float], update: int) -> None:  # noqa: ARG002
        return None

    def close(self) -> None:
        return None


class Accelerated:
    """Processes and trackers by ``accelerate.Accelerator``."""

    def __init__(self, report_to: Sequence[str], settings: BaseModel, directory: Path) -> None:
        from accelerate import Accelerator

        _check_trackers(report_to)
        self._accelerator = Accelerator(
            log_with=list(report_to) or None, project_dir=str(directory / "tracking")
        )
        self.count: int = self._accelerator.num_processes
        self.rank: int = self._accelerator.process_index
        if report_to:
            self._accelerator.init_trackers("surefoot", config=_flat(settings))

    def prepare(
        self, model: nn.Module, optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        made = optimiser(parameter for parameter in model.parameters() if parameter.requires_grad)
        prepared = self._accelerator.prepare(model, made)
        return prepared[0], prepared[1]

    def backward(self, model: nn.Module, loss: torch.Tensor, *, last: bool) -> None:  # noqa: ARG002
        self._accelerator.backward(loss * self.count)  # gradients are averaged over the processes

    def waiting(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self._accelerator.no_sync(model)

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> float:
        norm = self._accelerator.clip_grad_norm_(list(parameters), most)
        return float(whole(norm)) if norm is not None else 0.0

    def total(self, value: float) -> float:
        single = torch.tensor(value, dtype=torch.float64, device=self._accelerator.device)
        return float(self._accelerator.reduce(single, reduction="sum"))

    def largest(self, value: int) -> int:
        return int(self._accelerator.gather(torch.tensor([value], device=self._accelerator.device)).max())

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()

    def report(self, values: dict[str, float], update: int) -> None:
        self._accelerator.log(values, step=update)

    def close(self) -> None:
        self._accelerator.end_training()


def open_workers(report_to: Sequence[str], settings: BaseModel, directory: Path) -> Workers:
    """This process alone, or with accelerate if it was launched with others or trackers are wanted.

    ``settings`` is what the trackers note down of the run.

    Raises ``TrainingError`` if a package is absent that this needs.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1 or "ACCELERATE_USE_FSDP" in os.environ
    if not launched and not report_to:
        return Alone()
    if find_spec("accelerate") is None:
        why = "several processes need" if launched else "'report_to' needs"
        raise TrainingError(f"{why} the package accelerate; pip install 'surefoot[train]'")
    return Accelerated(report_to, settings, directory)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which each process may hold a part; every process has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This process's part of a whole tensor, where ``like`` has its own."""
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
        if name not in {str(known) for known in get_available_trackers()}:
            raise TrainingError(f"'report_to' has {name!r}, whose package is absent; pip install {name}")


def _flat(settings: BaseModel) -> dict[str, Any]:
    """Settings as trackers take them: numbers and text."""
    return {
        name: value if isinstance(value, (int, float, str)) else str(value)
        for name, value in settings.model_dump().items()
    }
