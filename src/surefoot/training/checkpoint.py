"""Files of a run in training: its state, the best weights so far, and the curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from surefoot.io.atomic import atomic_file, atomic_path
from surefoot.training.config import TrainingLog
from surefoot.training.distributed import full_tensor, shard_like

Parameters = Mapping[str, torch.nn.Parameter]
L = TypeVar("L", bound=BaseModel)


def save_state(
    path: Path,
    parameters: Parameters,
    optimisers: Sequence[torch.optim.Optimizer],
    log: BaseModel,
    *,
    write: bool,
) -> None:
    """Trained weights, their optimisers and the log in one file. Every process calls it, one with ``write``.

    Each parameter belongs to one of ``optimisers``.
    """
    tensors = {}
    owners = _owners(optimisers)
    for name, parameter in parameters.items():
        tensors[f"parameter/{name}"] = full_tensor(parameter.detach())
        for key, value in owners[parameter].state[parameter].items():
            tensors[f"{key}/{name}"] = full_tensor(value)
    if write:
        _write(path, tensors, {"log": log.model_dump_json()})


def load_state(
    path: Path, parameters: Parameters, optimisers: Sequence[torch.optim.Optimizer], log: type[L]
) -> L:
    """Restore the state from ``path`` and return its log, an empty one without a file."""
    if not path.exists():
        return log()
    owners = _owners(optimisers)
    with safe_open(path, framework="pt") as state, torch.no_grad():
        restored = log.model_validate_json(state.metadata()["log"])
        keys = set(state.keys())
        for name, parameter in parameters.items():
            parameter.copy_(shard_like(state.get_tensor(f"parameter/{name}"), parameter))
            moments = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}/{name}" in keys]
            values = {key: state.get_tensor(f"{key}/{name}") for key in moments}
            if values:
                owners[parameter].state[parameter] = {
                    key: value if key == "step" else shard_like(value, parameter)
                    for key, value in values.items()
                }
    return restored


def _owners(optimisers: Sequence[torch.optim.Optimizer]) -> dict[torch.Tensor, torch.optim.Optimizer]:
    return {
        parameter: optimiser
        for optimiser in optimisers
        for group in optimiser.param_groups
        for parameter in group["params"]
    }


def save_weights(path: Path, parameters: Parameters, *, write: bool) -> None:
    """Trained weights alone. Every process calls it, one with ``write``."""
    tensors = {name: full_tensor(parameter.detach()) for name, parameter in parameters.items()}
    if write:
        _write(path, tensors, {})


@torch.no_grad()
def load_weights(path: Path, parameters: Parameters) -> None:
    """Put the weights of :func:`save_weights` back."""
    tensors = load_file(path)
    for name, parameter in parameters.items():
        parameter.copy_(shard_like(tensors[name], parameter))


def write_curves(path: Path, log: TrainingLog, rates: list[float]) -> None:
    """One JSON line per update: loss, gradient norm, learning rate, and the AUC where it was measured."""
    auc = {item.update: item.auc for item in log.validation}
    rows = []
    for update, (loss, norm, rate) in enumerate(zip(log.losses, log.norms, rates, strict=False), start=1):
        row = {"update": update, "loss": loss, "gradient_norm": norm, "learning_rate": rate}
        rows.append(row | ({"validation_auc": auc[update]} if update in auc else {}))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata)
