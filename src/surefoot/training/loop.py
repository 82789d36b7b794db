"""The training loop of discriminative reward models.

The order of batches depends on the seed alone, and a checkpoint holds weights, optimiser and position, so
a run that is killed goes on with exactly the losses it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn.functional import binary_cross_entropy_with_logits

from surefoot.errors import TrainingError
from surefoot.models.reward_model import RewardModel, pad_batch
from surefoot.store import write_json
from surefoot.training.features import FrozenFeatures
from surefoot.training.targets import Example


class TrainingConfig(BaseModel):
    """How to train. Defaults suit the lab's models; large ones want a smaller ``learning_rate``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=32, ge=1)
    """Traces per update."""
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = 0.01
    warmup: float = Field(default=0.05, ge=0, le=1)
    """Share of the updates in which the rate rises; then it falls linearly to 0."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    checkpoint_every: int = Field(default=200, ge=1)
    """Updates between checkpoints."""
    freeze_trunk: bool = False
    """Train the head only, on hidden states computed once."""
    head_epochs: int = Field(default=0, ge=0)
    """Epochs for the head alone, on the frozen trunk, before the whole model is trained, so that a head that
    knows nothing does not spoil the trunk (Kumar et al., arXiv 2202.10054; PURE, arXiv 2504.15275)."""
    head_learning_rate: float = Field(default=1e-2, gt=0)


class TrainingLog(BaseModel):
    """What happened: one loss per update, and the tokens read."""

    losses: list[float] = Field(default_factory=list)
    tokens: int = 0


def train(
    model: RewardModel,
    examples: list[Example],
    config: TrainingConfig,
    directory: Path,
    *,
    progress: Callable[[int, int, float], None] | None = None,
) -> TrainingLog:
    """Train ``model`` and save it to ``directory``; returns the log, which is also ``training.json``.

    Binary cross-entropy on the logit at each labelled step against its target in [0, 1] (soft labels are
    soft targets), mean over the labelled steps of the batch. ``progress`` gets (updates done, updates in
    all, loss). Continues from ``directory/checkpoint.safetensors`` if there is one.

    Raises ``TrainingError`` naming the traces of a batch whose loss is not finite.
    """
    checkpoint = directory / "checkpoint.safetensors"
    if config.head_epochs and not config.freeze_trunk and not checkpoint.exists():
        changes = {
            "epochs": config.head_epochs,
            "learning_rate": config.head_learning_rate,
            "freeze_trunk": True,
        }
        _optimise(
            model, examples, config.model_copy(update=changes), directory, checkpoint=None, progress=None
        )
    log = _optimise(model, examples, config, directory, checkpoint=checkpoint, progress=progress)
    model.eval()
    model.save(directory)
    write_json(directory / "training.json", {"config": config.model_dump(), **log.model_dump()})
    checkpoint.unlink(missing_ok=True)
    return log


def _optimise(
    model: RewardModel,
    examples: list[Example],
    config: TrainingConfig,
    directory: Path,
    *,
    checkpoint: Path | None,
    progress: Callable[[int, int, float], None] | None,
) -> TrainingLog:
    """One pass through the updates that ``config`` asks for, from ``checkpoint`` on if it exists."""
    model.trunk.requires_grad_(not config.freeze_trunk)
    model.train(not config.freeze_trunk)
    batches = _batch_order(examples, config)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimiser = torch.optim.AdamW(
        parameters.values(), lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.98)
    )
    log = _restore(checkpoint, parameters, optimiser) if checkpoint else TrainingLog()
    features = FrozenFeatures(model, examples, directory) if config.freeze_trunk else None
    for update in range(len(log.losses), len(batches)):
        batch = [examples[index] for index in batches[update]]
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * _schedule(update, len(batches), config.warmup)
        torch.manual_seed(config.seed + update)  # dropout, too, is the same after a restart
        logits = features.logits(batch) if features else _logits(model, batch)
        loss = _loss(logits, batch, update)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), config.clip)
        optimiser.step()
        log.losses.append(loss.item())
        log.tokens += sum(len(example.ids) for example in batch)
        if progress:
            progress(update + 1, len(batches), loss.item())
        if checkpoint and (update + 1) % config.checkpoint_every == 0 and update + 1 < len(batches):
            _save(checkpoint, parameters, optimiser, log)
    if features:
        features.remove()
    return log


def _loss(logits: torch.Tensor, batch: list[Example], update: int) -> torch.Tensor:
    values = [value for example in batch for value in example.targets]
    loss = binary_cross_entropy_with_logits(logits, torch.tensor(values, device=logits.device))
    if not math.isfinite(loss.item()):
        names = ", ".join(example.trace_id for example in batch[:8])
        raise TrainingError(f"the loss is {loss.item()} at update {update}; traces of this batch: {names}")
    return loss


def _logits(model: RewardModel, batch: list[Example]) -> torch.Tensor:
    device = next(model.parameters()).device
    ids, mask = pad_batch([example.ids for example in batch])
    rows = torch.tensor([row for row, example in enumerate(batch) for _ in example.positions], device=device)
    at = torch.tensor([position for example in batch for position in example.positions], device=device)
    return model(ids.to(device), mask.to(device), rows, at)


def _batch_order(examples: list[Example], config: TrainingConfig) -> list[list[int]]:
    """Example numbers of every update: each epoch sees each example once, in a new order.

    Within a window of 16 batches similar lengths are put together, which saves padding, and the batches
    are then shuffled again.
    """
    rng = np.random.default_rng(config.seed)
    batches: list[list[int]] = []
    size = config.batch_size
    for _ in range(config.epochs):
        order = rng.permutation(len(examples)).tolist()
        epoch = []
        for start in range(0, len(order), 16 * size):
            window = sorted(order[start : start + 16 * size], key=lambda index: len(examples[index].ids))
            epoch += [window[at : at + size] for at in range(0, len(window), size)]
        batches += [epoch[index] for index in rng.permutation(len(epoch))]
    return batches


def _schedule(update: int, total: int, warmup: float) -> float:
    rise = max(1, round(warmup * total))
    return min(1.0, (update + 1) / rise) * (1 - update / total)


def _save(
    checkpoint: Path,
    parameters: dict[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
    log: TrainingLog,
) -> None:
    """One file, renamed into place: whole or absent, whenever the process is killed."""
    tensors = {}
    for name, parameter in parameters.items():
        tensors[f"parameter/{name}"] = parameter.detach()
        for key, value in optimiser.state[parameter].items():
            tensors[f"{key}/{name}"] = value
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    temporary = checkpoint.with_name(f".{checkpoint.name}.part")  # a run clears these away when it opens
    save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, {"log": log.model_dump_json()})
    temporary.replace(checkpoint)


def _restore(
    checkpoint: Path, parameters: dict[str, torch.nn.Parameter], optimiser: torch.optim.Optimizer
) -> TrainingLog:
    if not checkpoint.exists():
        return TrainingLog()
    with safe_open(checkpoint, framework="pt") as state, torch.no_grad():
        log = TrainingLog.model_validate_json(state.metadata()["log"])
        known = set(state.keys())
        for name, parameter in parameters.items():
            parameter.copy_(state.get_tensor(f"parameter/{name}"))
            moments = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}/{name}" in known]
            values = {key: state.get_tensor(f"{key}/{name}") for key in moments}
            optimiser.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in values.items()
            }
    return log
