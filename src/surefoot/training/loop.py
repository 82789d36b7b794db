"""The training loop: batches, steps, curves, evaluation, checkpoints.

Step classifiers, outcome models, implicit models, verifiers and cloned policies are all trained by
:func:`run_updates`. The order of batches depends on the seed alone, and a checkpoint holds weights, optimiser
and position, so that a run that is killed resumes with exactly the losses it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from surefoot.io import write_json
from surefoot.io.atomic import sync_tree
from surefoot.training.batches import batch_order, cut_microbatches
from surefoot.training.checkpoint import load_state, load_weights, save_state, save_weights, write_curves
from surefoot.training.config import Evaluation, LoopConfig, TrainingLog, rate_share
from surefoot.training.distributed import Distributed
from surefoot.training.examples import TrainingItem
from surefoot.training.optimisation import ModelOptimiser

CHECKPOINT = "checkpoint.safetensors"
BETAS = (0.9, 0.98)
"""Of AdamW."""

I = TypeVar("I", bound=TrainingItem)  # noqa: E741
Progress = Callable[[int, int, float], None]
"""Called with updates done, updates in all, and the loss."""
ShareOfLoss = Callable[[list[I], int], torch.Tensor]
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
    items: Sequence[I],
    loss: ShareOfLoss[I],
    config: LoopConfig,
    directory: Path,
    *,
    processes: Distributed,
    terms: Callable[[I], int] = lambda item: len(item.terms),
    balance: float | None = None,
    layout: str = "padded",
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
    batches = batch_order(items, config, balance=balance)
    rates = [config.learning_rate * rate_share(n, len(batches), config.warmup) for n in range(len(batches))]
    best = _Best(directory / "best.safetensors", optimiser, processes)
    interval = (validation and validation.every) or math.ceil(len(batches) / config.epochs)
    for update in range(len(log.losses), len(batches)):
        if log.stopped:
            break
        batch = [items[number] for number in batches[update]]
        optimiser.set_rate(rates[update])
        torch.manual_seed(config.seed + update)  # so that dropout is the same after a restart
        _step(optimiser, batch, loss, config, log, terms=terms, layout=layout)
        done = update + 1
        if validation and (done % interval == 0 or done == len(batches)):
            best.evaluate(validation, log)
        if keep_state:
            processes.log(_row(log, rates[update]), done)
        if progress:
            progress(done, len(batches), log.losses[-1])
        if keep_state and done % config.checkpoint_every == 0 and done < len(batches):
            save_state(checkpoint, parameters, [optimiser.optimiser], log, write=first)
            if first:
                write_curves(directory / "curves.jsonl", log, rates)
    if keep_state and first:
        write_curves(directory / "curves.jsonl", log, rates)
    processes.barrier()
    if log.validation:
        best.restore()
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
    batch: list[I],
    loss: ShareOfLoss[I],
    config: LoopConfig,
    log: TrainingLog,
    *,
    terms: Callable[[I], int],
    layout: str,
) -> None:
    """One step of the optimiser on the mean loss of ``batch``; appended to ``log``."""
    world_size, rank = optimiser.processes.world_size, optimiser.processes.rank
    microbatches = cut_microbatches(batch, config, layout=layout, world_size=world_size)
    total = sum(map(terms, batch))

    def describe(culprits: list[list[I]]) -> str:
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
    log.tokens += sum(len(part.ids) for item in batch for part in item.parts)


@dataclass(frozen=True)
class _Best:
    """The weights of the best evaluation so far, on disk."""

    path: Path
    optimiser: ModelOptimiser
    processes: Distributed

    def evaluate(self, validation: Validation, log: TrainingLog) -> None:
        """Measure the AUC, keep weights that are the best, and decide whether to stop."""
        log.validation.append(Evaluation(update=len(log.losses), auc=validation.auc()))
        if log.stale == 0:
            save_weights(self.path, self.optimiser.parameters, write=self.processes.rank == 0)
        if validation.patience and log.stale >= validation.patience:
            log.stopped = f"no better step AUC in {log.stale} evaluations"

    def restore(self) -> None:
        """Back to these weights; every process calls it."""
        load_weights(self.path, self.optimiser.parameters)
        self.processes.barrier()
        if self.processes.rank == 0:
            self.path.unlink()


def _row(log: TrainingLog, rate: float) -> dict[str, float]:
    """The newest row of the curves, for trackers."""
    row = {"loss": log.losses[-1], "learning_rate": rate, "gradient_norm": log.norms[-1]}
    if log.validation and log.validation[-1].update == len(log.losses):
        row["validation_auc"] = log.validation[-1].auc
    return row
