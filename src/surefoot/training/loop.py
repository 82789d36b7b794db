"""The training loop: batches, steps, curves, evaluation, checkpoints.

Step classifiers, outcome models, implicit models, verifiers and cloned policies are all trained by
:func:`run_updates`. The order of batches depends on the seed alone, and a checkpoint holds weights, optimiser
and position, so that a run that is killed resumes with exactly the losses it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel
from safetensors import safe_open
from safetensors.torch import save_file

from surefoot.io import write_json
from surefoot.io.atomic import atomic_path, sync_tree
from surefoot.io.sources import reading_checkpoint
from surefoot.training.batches import batch_order, cut_microbatches, tokens_read
from surefoot.training.config import Evaluation, LoopConfig, TrainingLog, rate_share, write_rows
from surefoot.training.examples import Example
from surefoot.training.optimisation import Distributed, ModelOptimiser, full_tensor, shard_like

CHECKPOINT = "checkpoint.safetensors"
BETAS = (0.9, 0.98)
"""Of AdamW."""

Progress = Callable[[int, int, float], None]
"""Called with updates done, updates in all, and the loss."""
ShareOfLoss = Callable[[list[Example], int], torch.Tensor]
"""A microbatch's part of the mean loss of its batch, which has so many terms, with gradient."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Evaluation on held-out traces; the weights with the best AUC are the ones kept."""

    auc: Callable[[], float]
    """Step AUC of the model as it is; every process computes it."""
    every: int | None = None
    """Updates between evaluations; once per epoch by default."""
    patience: int | None = None
    """Training stops after this many evaluations without a better AUC."""


def run_updates(
    optimiser: ModelOptimiser,
    items: Sequence[Example],
    loss: ShareOfLoss,
    config: LoopConfig,
    directory: Path,
    *,
    processes: Distributed,
    terms: Callable[[Example], int] = lambda item: len(item.targets),
    validation: Validation | None = None,
    progress: Progress | None = None,
    keep_state: bool = True,
) -> TrainingLog:
    """Train on ``items``; returns the log.

    The loss of an update is the mean over the ``terms`` of its batch, however many microbatches and processes
    share it. With ``keep_state`` a checkpoint and ``curves.jsonl`` are written to ``directory``, and training
    resumes from the checkpoint if there is one.

    Raises ``TrainingError`` naming the traces whose loss or gradient is not finite.
    """
    checkpoint, first = directory / CHECKPOINT, processes.rank == 0
    parameters = optimiser.parameters
    log = (
        load_state(checkpoint, parameters, [optimiser.optimiser], TrainingLog)
        if keep_state
        else TrainingLog()
    )
    batches = batch_order(items, config)
    rates = [config.learning_rate * rate_share(n, len(batches), config.warmup) for n in range(len(batches))]
    best = directory / "best.safetensors"
    interval = (validation and validation.every) or math.ceil(len(batches) / config.epochs)

    def write_curves() -> None:
        if keep_state and first:
            rows = ({"update": n} | log.row(n, rates[n - 1]) for n in range(1, len(log.losses) + 1))
            write_rows(directory / "curves.jsonl", rows)

    for update in range(len(log.losses), len(batches)):
        if log.stopped:
            break
        batch = [items[number] for number in batches[update]]
        optimiser.set_rate(rates[update])
        torch.manual_seed(config.seed + update)  # so that dropout is the same after a restart
        _step(optimiser, batch, loss, config, log, terms=terms)
        done = update + 1
        if validation and (done % interval == 0 or done == len(batches)):
            log.validation.append(Evaluation(update=done, auc=validation.auc()))
            if log.stale == 0:
                save_state(best, parameters, (), log, write=first)
            elif validation.patience and log.stale >= validation.patience:
                log.stopped = f"no better step AUC in {log.stale} evaluations"
        if keep_state:
            processes.log(log.row(done, rates[update]), done)
        if progress:
            progress(done, len(batches), log.losses[-1])
        if keep_state and done % config.checkpoint_every == 0 and done < len(batches):
            save_state(checkpoint, parameters, [optimiser.optimiser], log, write=first)
            write_curves()
    write_curves()
    processes.barrier()
    if log.validation:
        load_state(best, parameters, (), TrainingLog)
        processes.barrier()
        if first:
            best.unlink()
    return log


def finish(
    directory: Path, config: LoopConfig, log: TrainingLog, processes: Distributed, save: Callable[[], None]
) -> None:
    """Save the model, then ``training.json``, then delete the checkpoint; one process writes.

    Each is on the disk before the next begins: a directory that has ``training.json`` has the model.
    """
    if processes.rank == 0:
        save()
        sync_tree(directory)
        facts = {"config": config.model_dump(), "processes": processes.world_size}
        write_json(directory / "training.json", facts | log.model_dump())
        (directory / CHECKPOINT).unlink(missing_ok=True)
    processes.barrier()
    processes.close()


def _step(
    optimiser: ModelOptimiser,
    batch: list[Example],
    loss: ShareOfLoss,
    config: LoopConfig,
    log: TrainingLog,
    *,
    terms: Callable[[Example], int],
) -> None:
    """One step of the optimiser on the mean loss of ``batch``; appended to ``log``."""
    world_size, rank = optimiser.processes.world_size, optimiser.processes.rank
    microbatches = cut_microbatches(batch, config, world_size=world_size)
    total = sum(map(terms, batch))

    def describe(culprits: list[list[Example]]) -> str:
        names = [item.trace_id for microbatch in culprits for item in microbatch] or [
            item.trace_id for item in batch
        ]
        return f" at update {len(log.losses)}, traces of this batch: {', '.join(names[:8])}"

    value, norm = optimiser.step(
        microbatches[rank::world_size],
        lambda microbatch: loss(microbatch, total),
        idle=[min(batch, key=lambda item: item.length)],
        describe=describe,
    )
    log.losses.append(value)
    log.norms.append(norm)
    log.tokens += tokens_read(batch, "padded")
    log.read_tokens += sum(tokens_read(microbatch, config.layout) for microbatch in microbatches)


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

    Each parameter belongs to one of ``optimisers``, or there are none: then the file has the weights alone.
    """
    tensors = {}
    owners = _owners(optimisers)
    for name, parameter in parameters.items():
        tensors[f"parameter/{name}"] = full_tensor(parameter.detach())
        moments = owners[parameter].state[parameter] if owners else {}
        tensors |= {f"{key}/{name}": full_tensor(value) for key, value in moments.items()}
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, {"log": log.model_dump_json()})


def load_state(
    path: Path, parameters: Parameters, optimisers: Sequence[torch.optim.Optimizer], log: type[L]
) -> L:
    """Restore the state from ``path`` and return its log, an empty one without a file."""
    if not path.exists():
        return log()
    owners = _owners(optimisers)
    with (
        reading_checkpoint(f"{path} cannot be resumed from; delete it to begin again"),
        safe_open(path, framework="pt") as state,
        torch.no_grad(),
    ):
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
