"""The training loop of reward models that score steps.

The order of batches depends on the seed alone, and a checkpoint holds weights, optimiser and position, so
a run that is killed goes on with exactly the losses it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from surefoot.errors import TrainingError
from surefoot.io import write_json
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.training.batches import Pass, batch_order, can_pack, cut_passes, lay_out
from surefoot.training.checkpoint import load_state, load_weights, save_state, save_weights, write_curves
from surefoot.training.config import Evaluation, TrainingConfig, TrainingLog, rate_share
from surefoot.training.features import FrozenFeatures
from surefoot.training.losses import check_head, reduced_loss
from surefoot.training.targets import Example, TrainingItem
from surefoot.training.updates import recompute_activations
from surefoot.training.validation import HeldOut
from surefoot.training.workers import Alone, Workers, open_workers, whole

Progress = Callable[[int, int, float], None]


def train(
    model: RewardModel,
    examples: Sequence[TrainingItem],
    config: TrainingConfig,
    directory: Path,
    *,
    validation: Sequence[Example] = (),
    progress: Progress | None = None,
) -> TrainingLog:
    """Train ``model`` and save it to ``directory``; returns the log, which is also ``training.json``.

    ``examples`` are labelled traces, or pairs for the loss ``pairwise``; the loss is the mean over the
    labelled steps (or pairs) of an update, however many forward passes and processes share it
    (:mod:`surefoot.training.losses`). With ``validation`` the step AUC on those traces is measured, the best
    weights are the ones kept, and ``config.patience`` may end training early. ``progress`` gets (updates
    done, updates in all, loss). ``curves.jsonl`` has a row an update. Continues from
    ``directory/checkpoint.safetensors`` if there is one.

    Started in several processes (``accelerate launch``, ``torchrun``), each calls this with the same
    arguments; one of them writes. Under FSDP the model in memory stays in parts: load what was saved.

    Raises ``TrainingError`` naming the traces of a batch whose loss or gradient is not finite, for a head
    that does not fit the loss, and for an option that the device, the trunk or the installation lacks.
    """
    check_head(config.loss, model.card.head)
    _check_device(model, config)
    held_out = None
    if validation:
        held_out = HeldOut(validation, neutral_is_good=model.card.neutral == "good")
    elif config.patience:
        raise TrainingError("'patience' counts evaluations on held-out traces: give 'validation'")
    workers = open_workers(config.report_to, config, directory)
    checkpoint = directory / "checkpoint.safetensors"
    if config.head_epochs and not config.freeze_trunk and not checkpoint.exists():
        changes = {
            "epochs": config.head_epochs,
            "learning_rate": config.head_learning_rate,
            "freeze_trunk": True,
            "lora": None,
        }
        head_first = config.model_copy(update=changes)
        _optimise(_Plan(model, examples, head_first, directory, workers))
    workers.wait()  # or one process could see a checkpoint that another has only just written
    log = _optimise(_Plan(model, examples, config, directory, workers, checkpoint, held_out, progress))
    model.eval()
    state = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    if workers.rank == 0:
        model.save(directory, state=state)
        write_json(directory / "training.json", {"config": config.model_dump(), **log.model_dump()})
        checkpoint.unlink(missing_ok=True)
    workers.wait()
    workers.close()
    return log


@dataclass(frozen=True)
class _Plan:
    """One round of updates: of the whole model, its adapter, or its head alone."""

    model: RewardModel
    items: Sequence[TrainingItem]
    config: TrainingConfig
    directory: Path
    workers: Workers
    checkpoint: Path | None = None
    held_out: HeldOut | None = None
    progress: Progress | None = None


def _optimise(plan: _Plan) -> TrainingLog:
    """The updates that the plan asks for, from its checkpoint on if that exists."""
    model, config, workers = plan.model, plan.config, plan.workers
    _choose_parameters(model, config)
    features = _features(plan) if config.freeze_trunk else None
    # a head alone is so small that every process trains it by itself, in step with the others
    team: Workers = Alone() if features else workers
    called, optimiser = team.prepare(
        model,
        partial(
            torch.optim.AdamW, lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.98)
        ),
    )
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    run = _Run(plan, called, optimiser, parameters, features, team)
    batches = batch_order(plan.items, config, balance=config.balance)
    rates = [
        config.learning_rate * rate_share(update, len(batches), config.warmup)
        for update in range(len(batches))
    ]
    log = TrainingLog()
    if plan.checkpoint:
        log = load_state(plan.checkpoint, parameters, [optimiser], TrainingLog)
    every = config.evaluate_every or math.ceil(len(batches) / config.epochs)
    for update in range(len(log.losses), len(batches)):
        if log.stopped:
            break
        batch = [plan.items[index] for index in batches[update]]
        run.update(update, batch, rates[update], log)
        done = update + 1
        if plan.held_out and (done % every == 0 or done == len(batches)):
            run.evaluate(done, log)
        workers.report(
            {"loss": log.losses[-1], "learning_rate": rates[update]} | run.measured(done, log), done
        )
        if plan.progress:
            plan.progress(done, len(batches), log.losses[-1])
        if plan.checkpoint and done % config.checkpoint_every == 0 and done < len(batches):
            save_state(plan.checkpoint, parameters, [optimiser], log, write=workers.rank == 0)
            run.write_curves(log, rates)
    run.finish(log, rates)
    return log


@dataclass(frozen=True)
class _Run:
    """What the updates of one round share."""

    plan: _Plan
    called: nn.Module
    optimiser: torch.optim.Optimizer
    parameters: dict[str, nn.Parameter]
    features: FrozenFeatures | None
    team: Workers

    def update(self, number: int, batch: list[TrainingItem], rate: float, log: TrainingLog) -> None:
        """One step of the optimiser on the mean loss of ``batch``; written into ``log``."""
        config, team = self.plan.config, self.team
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        torch.manual_seed(config.seed + number)  # dropout, too, is the same after a restart
        passes = cut_passes(batch, config, layout=config.layout, workers=team.count)
        share = 1 / sum(len(item.terms) for item in batch) if len(passes) > 1 else None
        mine = passes[team.rank :: team.count]
        self.optimiser.zero_grad()
        losses = []
        for one in mine:
            last = one is mine[-1]
            with team.waiting(self.called, last=last):
                loss = self._loss(one, share)
                team.backward(self.called, loss, last=last)
            losses.append(loss.item())
        log.losses.append(team.total(sum(losses)))
        _check_finite(log.losses[-1], "loss", number, batch, mine, losses)
        norm = team.clip(self.parameters.values(), config.max_grad_norm)
        _check_finite(norm, "norm of the gradient", number, batch, mine, losses)
        self.optimiser.step()
        log.norms.append(norm)
        log.tokens += sum(len(part.ids) for item in batch for part in item.parts)

    def _loss(self, one: Pass, share: float | None) -> torch.Tensor:
        """Mean over the terms of the only pass, or this pass's part of the mean: ``share`` a term."""
        kind, head, outputs = self.plan.config.loss, self.plan.model.card.head, self.outputs(one.parts)
        if share is None:
            return reduced_loss(kind, head, outputs, one.targets)
        return reduced_loss(kind, head, outputs, one.targets, reduction="sum") * (share * one.weight)

    def outputs(self, parts: list[Example]) -> torch.Tensor:
        """The head's outputs [S, C] at the positions of some traces."""
        if self.features:
            return self.features.logits(parts)
        device = next(self.plan.model.parameters()).device
        given = lay_out(parts, self.plan.config.layout, device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.plan.config.bf16):
            return self.called(given.ids_bt, given.mask_bt, given.rows_s, given.at_s, given.depths_bt)

    def evaluate(self, done: int, log: TrainingLog) -> None:
        """Measure the held-out AUC, keep weights that are the best, and say whether to stop."""
        if not self.plan.held_out:
            return
        log.validation.append(
            Evaluation(update=done, auc=self.plan.held_out.auc(self.plan.model, self.outputs))
        )
        if log.stale == 0:
            save_weights(self._best, self.parameters, write=self.plan.workers.rank == 0)
        if self.plan.config.patience and log.stale >= self.plan.config.patience:
            log.stopped = f"no better step AUC in {log.stale} evaluations"

    def measured(self, done: int, log: TrainingLog) -> dict[str, float]:
        """The newest row of the curves, for trackers."""
        row = {"gradient_norm": log.norms[-1]}
        if log.validation and log.validation[-1].update == done:
            row["validation_auc"] = log.validation[-1].auc
        return row

    def write_curves(self, log: TrainingLog, rates: list[float]) -> None:
        """``curves.jsonl``, of the round that has a checkpoint."""
        if self.plan.checkpoint and self.plan.workers.rank == 0:
            write_curves(self.plan.directory / "curves.jsonl", log, rates)

    def finish(self, log: TrainingLog, rates: list[float]) -> None:
        """Go back to the best weights, and clear away what only a running round needs."""
        self.write_curves(log, rates)
        self.plan.workers.wait()
        if log.validation:
            load_weights(self._best, self.parameters)
            self.plan.workers.wait()
        if self.plan.workers.rank == 0:
            if self.features:
                self.features.remove()
            if log.validation:
                self._best.unlink()

    @property
    def _best(self) -> Path:
        return self.plan.directory / "best.safetensors"


def _choose_parameters(model: RewardModel, config: TrainingConfig) -> None:
    """Which parameters require a gradient, and whether dropout is on."""
    model.train(not config.freeze_trunk)
    if config.lora:
        if not has_adapter(model.trunk):
            add_adapter(model.trunk, config.lora, seed=config.seed)
        model.trunk.train()
    else:
        model.trunk.requires_grad_(not config.freeze_trunk)
    if config.gradient_checkpointing and not config.freeze_trunk:
        recompute_activations(model.trunk)


def _features(plan: _Plan) -> FrozenFeatures:
    """What the frozen trunk says of every trace: read by one process, then by the others from its files."""
    parts = [part for item in plan.items for part in item.parts]
    parts += plan.held_out.examples if plan.held_out else []
    made = FrozenFeatures(plan.model, parts, plan.directory) if plan.workers.rank == 0 else None
    plan.workers.wait()
    return made or FrozenFeatures(plan.model, parts, plan.directory)


def _check_device(model: RewardModel, config: TrainingConfig) -> None:
    device = next(model.parameters()).device
    if config.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise TrainingError(f"'bf16' is on, but {torch.cuda.get_device_name(device)} has no bfloat16")
    if config.layout == "packed" and not config.freeze_trunk and not can_pack(model.trunk):
        raise TrainingError(
            "traces packed into one row would see each other in this trunk; use the layout 'padded'"
        )


def _check_finite(
    value: float, what: str, update: int, batch: list[TrainingItem], mine: list[Pass], losses: list[float]
) -> None:
    """Raise ``TrainingError`` naming the traces of the passes whose loss is at fault, else of the batch."""
    if math.isfinite(value):
        return
    at_fault = [
        item for one, loss in zip(mine, losses, strict=True) if not math.isfinite(loss) for item in one.items
    ]
    names = ", ".join(item.trace_id for item in (at_fault or batch)[:8])
    raise TrainingError(f"the {what} is {value} at update {update}; traces of this batch: {names}")
