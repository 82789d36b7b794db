"""The updates of training a language model as a whole, or its adapter, in one process.

Shared by implicit reward models, generative verifiers and cloned policies. The order of batches depends on
the seed alone, and a checkpoint holds weights, optimiser and position, so a killed run goes on with the
losses it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from surefoot.errors import TrainingError
from surefoot.io import write_json
from surefoot.training.batches import Pass, batch_order, cut_passes
from surefoot.training.checkpoint import load_state, save_state, write_curves
from surefoot.training.config import LoopConfig, TrainingLog, rate_share
from surefoot.training.targets import Example

Progress = Callable[[int, int, float], None]
SummedLoss = Callable[[Sequence[Example]], torch.Tensor]
"""Sum of the losses of some examples, with gradient."""


def run_updates(
    model: PreTrainedModel,
    examples: Sequence[Example],
    loss: SummedLoss,
    config: LoopConfig,
    directory: Path,
    *,
    terms: Callable[[Example], int],
    save: Callable[[], None],
    balance: float | None = None,
    layout: str = "padded",
    progress: Progress | None = None,
) -> TrainingLog:
    """Train the parameters of ``model`` that require a gradient; returns the log, also ``training.json``.

    The loss of an update is the sum over its examples, divided by their ``terms``, in as many forward passes
    as ``config`` wants. ``save`` is called at the end, before the checkpoint is deleted. ``progress`` gets
    (updates done, updates in all, loss). Continues from ``directory/checkpoint.safetensors`` if there is one.

    Raises ``TrainingError`` naming the traces of a batch whose loss or gradient is not finite.
    """
    checkpoint = directory / "checkpoint.safetensors"
    model.train()
    if config.gradient_checkpointing:
        recompute_activations(model)
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimiser = torch.optim.AdamW(
        parameters.values(), lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.98)
    )
    log = load_state(checkpoint, parameters, [optimiser], TrainingLog)
    batches = batch_order(examples, config, balance=balance)
    rates = [config.learning_rate * rate_share(n, len(batches), config.warmup) for n in range(len(batches))]
    for update in range(len(log.losses), len(batches)):
        batch = [examples[index] for index in batches[update]]
        for group in optimiser.param_groups:
            group["lr"] = rates[update]
        torch.manual_seed(config.seed + update)  # dropout, too, is the same after a restart
        optimiser.zero_grad()
        log.losses.append(
            _backward(loss, cut_passes(list(batch), config, layout=layout), update, sum(map(terms, batch)))
        )
        norm = float(torch.nn.utils.clip_grad_norm_(parameters.values(), config.max_grad_norm))
        _require_finite(norm, "norm of the gradient", update, batch)
        optimiser.step()
        log.norms.append(norm)
        log.tokens += sum(len(example.ids) for example in batch)
        if progress:
            progress(update + 1, len(batches), log.losses[-1])
        if (update + 1) % config.checkpoint_every == 0 and update + 1 < len(batches):
            save_state(checkpoint, parameters, [optimiser], log, write=True)
    model.eval()
    write_curves(directory / "curves.jsonl", log, rates)
    save()
    write_json(directory / "training.json", {"config": config.model_dump(), **log.model_dump()})
    checkpoint.unlink(missing_ok=True)
    return log


def recompute_activations(model: PreTrainedModel) -> None:
    """Turn gradient checkpointing on, by its name since transformers 5.20 or so, or the one before."""
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable = next(getattr(model, name) for name in names if hasattr(model, name))
    enable({"use_reentrant": False})


def _backward(loss: SummedLoss, passes: Sequence[Pass], update: int, terms: int) -> float:
    """Gradient of the batch's mean loss, in as many passes as ``config`` wants; returns that loss."""
    total = 0.0
    for one in passes:
        term = loss(one.parts) / terms
        _require_finite(term.item(), "loss", update, one.parts)
        term.backward()
        total += term.item()
    return total


def _require_finite(value: float, what: str, update: int, batch: Sequence[Example]) -> None:
    if not math.isfinite(value):
        names = ", ".join(example.trace_id for example in batch[:8])
        raise TrainingError(f"the {what} is {value} at update {update}; traces of this batch: {names}")
