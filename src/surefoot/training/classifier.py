"""Training of reward models that score steps: a trunk with a head, on labelled traces or pairs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from surefoot.errors import TrainingError
from surefoot.labels import target_is_good
from surefoot.models.engine.packed_attention import attending_to_each
from surefoot.models.engine.packing import read_states
from surefoot.models.engine.tensor_shards import TensorShards, content_key, fingerprint
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.stats.roc import roc_auc
from surefoot.training.batches import can_pack, lay_out
from surefoot.training.config import TrainingConfig, TrainingLog
from surefoot.training.distributed import Distributed, SingleProcess, full_tensor, open_distributed
from surefoot.training.examples import Example, TrainingItem
from surefoot.training.loop import BETAS, CHECKPOINT, Progress, Validation, finish, run_updates
from surefoot.training.losses import check_head, ranking_loss, reduced_loss
from surefoot.training.optimisation import ModelOptimiser, recompute_activations

_EVALUATED_TOGETHER = 32
"""Held-out traces of one forward pass."""

_SHARD_TOKENS = 50_000
"""Tokens read between two files of frozen features: what a killed run loses at most."""

logger = logging.getLogger(__name__)


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
    labelled steps (pairs; traces for ``pqm``) of an update, however many microbatches and processes share it
    (:mod:`surefoot.training.losses`). With ``validation`` the step AUC on those traces is measured, the best
    weights are the ones kept, and ``config.patience`` may end training early. ``progress`` gets (updates
    done, updates in all, loss). ``curves.jsonl`` has a row per update. Resumes from
    ``directory/checkpoint.safetensors`` if there is one.

    Started in several processes (``accelerate launch``, ``torchrun``), each calls this with the same
    arguments; one of them writes. Under FSDP the model in memory stays sharded: load what was saved.

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
    processes = open_distributed(config.report_to, config, directory)
    if config.head_epochs and not config.freeze_trunk and not (directory / CHECKPOINT).exists():
        head_first = config.model_copy(
            update={
                "epochs": config.head_epochs,
                "learning_rate": config.head_learning_rate,
                "freeze_trunk": True,
                "lora": None,
            }
        )
        _fit(model, examples, head_first, directory, processes, keep_state=False)
    processes.barrier()  # or one process could see a checkpoint that another has only just written
    log = _fit(model, examples, config, directory, processes, held_out=held_out, progress=progress)
    model.eval()
    state = {name: full_tensor(tensor) for name, tensor in model.state_dict().items()}
    finish(directory, config, log, processes, lambda: model.save(directory, state=state))
    return log


def _fit(
    model: RewardModel,
    examples: Sequence[TrainingItem],
    config: TrainingConfig,
    directory: Path,
    processes: Distributed,
    *,
    held_out: HeldOut | None = None,
    progress: Progress | None = None,
    keep_state: bool = True,
) -> TrainingLog:
    """The updates of the whole model, of its adapter, or of its head alone."""
    _choose_parameters(model, config)
    features = None
    if config.freeze_trunk:
        parts = [part for item in examples for part in item.parts] + (held_out.examples if held_out else [])
        features = _features(model, parts, directory, processes)
    optimiser = ModelOptimiser(
        model,
        config,
        name="the reward model",
        betas=BETAS,
        # a head alone is so small that every process trains it by itself, in step with the others
        processes=SingleProcess() if features else processes,
    )

    def outputs(parts: Sequence[Example]) -> torch.Tensor:
        """The head's outputs [S, C] at the positions of some traces."""
        if features:
            return features.logits(parts)
        device = next(model.parameters()).device
        batch = lay_out(parts, config.layout, device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.bf16):
            logits: torch.Tensor = optimiser.called(
                batch.ids_bt, batch.mask_bt, batch.rows_s, batch.at_s, batch.position_ids_bt, batch.lengths
            )
        return logits

    def loss(microbatch: list[TrainingItem], terms: int) -> torch.Tensor:
        targets = [target for item in microbatch for target in item.terms]
        logits = outputs([part for item in microbatch for part in item.parts])
        if config.loss == "pqm":
            lengths = [len(item.terms) for item in microbatch]
            return ranking_loss(logits[:, 0], targets, lengths, zeta=config.zeta) * (1 / terms)
        if len(targets) == terms:  # the whole batch
            return reduced_loss(config.loss, model.card.head, logits, targets)
        return reduced_loss(config.loss, model.card.head, logits, targets, reduction="sum") * (1 / terms)

    validation = None
    if held_out:
        validation = Validation(
            auc=lambda: held_out.auc(model, outputs), every=config.evaluate_every, patience=config.patience
        )
    alone = config.layout == "packed" and not config.freeze_trunk
    with attending_to_each(model.trunk) if alone else nullcontext():
        log = run_updates(
            optimiser,
            examples,
            loss,
            config,
            directory,
            processes=processes,
            terms=(lambda _: 1) if config.loss == "pqm" else (lambda item: len(item.terms)),
            balance=config.balance,
            layout=config.layout,
            validation=validation,
            progress=progress,
            keep_state=keep_state,
        )
    if features and processes.rank == 0:
        features.remove()
    return log


class HeldOut:
    """Labelled traces that are not trained on.

    A step is good from a target of ½ on (a neutral one counts as the card's ``neutral`` says). Raises
    ``TrainingError`` if all steps are good, or all bad: there is no AUC then.
    """

    def __init__(self, examples: Sequence[Example], *, neutral_is_good: bool) -> None:
        self.examples = sorted(examples, key=lambda example: len(example.ids))
        self._good = [
            target_is_good(target, neutral="good" if neutral_is_good else "bad")
            for example in self.examples
            for target in example.targets
        ]
        if len(set(self._good)) < 2:
            raise TrainingError(
                f"the {len(self._good)} held-out steps are all {'good' if any(self._good) else 'bad'}: "
                "early stopping needs both kinds"
            )

    @torch.no_grad()
    def auc(self, model: RewardModel, outputs: Callable[[Sequence[Example]], torch.Tensor]) -> float:
        """Step AUC; ``outputs`` gives the head's outputs [S, C] of some traces. Every process computes it."""
        was_training = model.training
        model.eval()
        scores: list[float] = []
        for start in range(0, len(self.examples), _EVALUATED_TOGETHER):
            batch = self.examples[start : start + _EVALUATED_TOGETHER]
            scores += model.scores(outputs(batch).float()).double().tolist()
        model.train(was_training)
        return roc_auc(scores, self._good).value


class FrozenFeatures:
    """Hidden states of a frozen trunk at the labelled steps, computed once, however many epochs there are.

    Examples that begin alike share their common tokens (:mod:`surefoot.models.engine.packing`),
    which makes a PRM800K problem with its thirty rated alternatives some fourteen times cheaper. States are
    written to ``directory/features`` as they come, under a hash of trunk, tokens and positions; a run that
    is killed resumes there. Progress is logged to ``surefoot.training.classifier`` at level INFO.
    """

    def __init__(self, model: RewardModel, examples: Sequence[Example], directory: Path) -> None:
        self._model, self._shards = model, TensorShards(directory / "features")
        self._trunk = (fingerprint(model.trunk), str(model.trunk.dtype))
        wanted = {self._key(example): example for example in examples}
        self._known = self._shards.load(wanted)
        self._read({key: example for key, example in wanted.items() if key not in self._known})

    def logits(self, batch: Sequence[Example]) -> torch.Tensor:
        """The head's outputs at each labelled step of the batch, shape [S, C], with gradient to the head."""
        states = torch.cat([self._known[self._key(example)] for example in batch])
        head = self._model.head
        return head(states.to(head.weight.device))

    def remove(self) -> None:
        """Delete the files, when the run is over."""
        self._shards.remove()

    def _key(self, example: Example) -> str:
        return content_key(self._trunk, example.ids, example.positions)

    def _read(self, missing: dict[str, Example]) -> None:
        if not missing:
            return
        keys, examples = list(missing), list(missing.values())
        shard: dict[str, torch.Tensor] = {}
        tokens = done = 0
        for reading in read_states(
            self._model.trunk,
            [example.ids for example in examples],
            [example.positions for example in examples],
        ):
            shard |= {keys[number]: states.float().cpu() for number, states in reading.states.items()}
            tokens += reading.tokens
            done += len(reading.states)
            if tokens >= _SHARD_TOKENS or done == len(missing):
                self._shards.write(shard)
                self._known |= shard
                logger.info("frozen trunk: %d of %d traces read", done, len(missing))
                shard, tokens = {}, 0


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


def _features(
    model: RewardModel, parts: Sequence[Example], directory: Path, processes: Distributed
) -> FrozenFeatures:
    """Computed by one process; the others read its files."""
    computed = FrozenFeatures(model, parts, directory) if processes.rank == 0 else None
    processes.barrier()
    return computed or FrozenFeatures(model, parts, directory)


def _check_device(model: RewardModel, config: TrainingConfig) -> None:
    device = next(model.parameters()).device
    if config.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise TrainingError(f"'bf16' is on, but {torch.cuda.get_device_name(device)} has no bfloat16")
    if config.layout == "packed" and not config.freeze_trunk and not can_pack(model.trunk):
        raise TrainingError(
            "traces packed into one row would see each other in this trunk; use the layout 'padded'"
        )
