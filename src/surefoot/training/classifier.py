"""Training of reward models that score steps: a trunk with a head, on labelled traces or pairs."""

from __future__ import annotations

import logging
import shutil
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.errors import TrainingError
from surefoot.io.atomic import atomic_path
from surefoot.labels import target_is_good
from surefoot.models.engine.packed_attention import attending_to_each
from surefoot.models.engine.packing import read_states
from surefoot.models.engine.tensor_shards import content_key, fingerprint
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.stats.roc import roc_auc
from surefoot.training.batches import can_pack, lay_out
from surefoot.training.config import TrainingConfig, TrainingLog
from surefoot.training.distributed import Distributed, full_state, open_distributed
from surefoot.training.examples import Example, TrainingItem
from surefoot.training.loop import BETAS, CHECKPOINT, Progress, Validation, finish, run_updates
from surefoot.training.losses import check_head, ranking_loss, reduced_loss
from surefoot.training.optimisation import ModelOptimiser, recompute_activations
from surefoot.tree import shared_length

_EVALUATED_TOGETHER = 32
"""Held-out traces of one forward pass."""

_FILE_TOKENS = 50_000
"""Tokens of a file of frozen features: what a killed run loses at most."""

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
    arguments; one of them writes. Under FSDP the model in memory stays sharded: load the saved checkpoint.

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
    state = full_state(model)
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
        parts = chain(
            (part for item in examples for part in item.parts), held_out.examples if held_out else ()
        )
        features = _features(model, parts, directory, processes)
    optimiser = ModelOptimiser(
        model,
        config,
        name="the reward model",
        betas=BETAS,
        # the head is so small that every process trains all of it, on the same batches
        processes=Distributed() if features else processes,
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

    Examples that begin alike and lie together share their common tokens
    (:mod:`surefoot.models.engine.packing`), which makes a PRM800K problem with its thirty rated alternatives
    some fourteen times cheaper. States are written to ``directory/features`` as they come, under a hash of
    trunk, tokens and positions, and read from there: a run that is killed resumes there, and memory holds 16
    bytes of an example. Progress is logged to ``surefoot.training.classifier`` at level INFO.
    """

    def __init__(self, model: RewardModel, examples: Iterable[Example], directory: Path) -> None:
        self._model, self._directory = model, directory / "features"
        self._trunk = (fingerprint(model.trunk), str(model.trunk.dtype))
        self._directory.mkdir(parents=True, exist_ok=True)
        self._files: list[NDArray[np.float32]] = []
        self._starts = [0]
        keys, rows = array("Q"), array("Q")
        done = 0
        for item in _of_size(examples, _FILE_TOKENS):
            keys.extend(map(self._key, item))
            ends = list(accumulate((len(example.positions) for example in item), initial=self._starts[-1]))
            rows.extend(ends[:-1])
            self._starts.append(ends[-1])
            done += len(item)
            self._files.append(self._states(item, done))
        sorted_keys = np.argsort(np.array(keys, dtype=np.uint64), kind="stable")
        self._keys = np.array(keys, dtype=np.uint64)[sorted_keys]
        self._rows = np.array(rows, dtype=np.int64)[sorted_keys]

    def logits(self, batch: Sequence[Example]) -> torch.Tensor:
        """The head's outputs at each labelled step of the batch, shape [S, C], with gradient to the head."""
        rows = np.searchsorted(self._keys, np.array([self._key(item) for item in batch], dtype=np.uint64))
        states = [
            self._read(int(self._rows[at]), len(item.positions)) for at, item in zip(rows, batch, strict=True)
        ]
        head = self._model.head
        return head(torch.cat(states).to(head.weight.device))

    def remove(self) -> None:
        """Delete the files, when the run is over."""
        shutil.rmtree(self._directory)

    def _key(self, example: Example) -> int:
        """64 bits: two of a hundred million examples have the same with a chance of three in ten thousand."""
        return int(content_key(example.ids, example.positions)[:16], 16)

    def _read(self, row: int, count: int) -> torch.Tensor:
        number = bisect_right(self._starts, row) - 1
        start = row - self._starts[number]
        return torch.from_numpy(self._files[number][start : start + count].copy())

    def _states(self, examples: Sequence[Example], done: int) -> NDArray[np.float32]:
        """States at the positions of ``examples``, one after another, in a file; ``done`` with these."""
        name = content_key(self._trunk, [(example.ids, example.positions) for example in examples])
        path = self._directory / f"{name}.npy"
        if not path.exists():
            of_example: dict[int, torch.Tensor] = {}
            ids = [example.ids for example in examples]
            for reading in read_states(self._model.trunk, ids, [example.positions for example in examples]):
                of_example |= {number: states.float().cpu() for number, states in reading.states.items()}
            with atomic_path(path) as temporary, temporary.open("wb") as stream:
                np.save(stream, torch.cat([of_example[at] for at in range(len(examples))]).numpy())
            logger.info("frozen trunk: %d traces read", done)
        states: NDArray[np.float32] = np.load(path, mmap_mode="r")
        return states


def _of_size(examples: Iterable[Example], tokens: int) -> Iterator[list[Example]]:
    """Neighbours that have about so many tokens, those with which the one before begins not counted."""
    chunk: list[Example] = []
    previous: tuple[int, ...] = ()
    count = 0
    for example in examples:
        chunk.append(example)
        count += len(example.ids) - shared_length(previous, example.ids)
        previous = example.ids
        if count >= tokens:
            yield chunk
            chunk, previous, count = [], (), 0
    if chunk:
        yield chunk


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
    model: RewardModel, parts: Iterable[Example], directory: Path, processes: Distributed
) -> FrozenFeatures:
    """Computed by one process; the others read its files."""
    if processes.rank > 0:
        processes.barrier()
        return FrozenFeatures(model, parts, directory)
    computed = FrozenFeatures(model, parts, directory)
    processes.barrier()
    return computed


def _check_device(model: RewardModel, config: TrainingConfig) -> None:
    device = next(model.parameters()).device
    if config.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise TrainingError(f"'bf16' is on, but {torch.cuda.get_device_name(device)} lacks bfloat16")
    if config.layout == "packed" and not config.freeze_trunk and not can_pack(model.trunk):
        raise TrainingError(
            "traces packed into one row would see each other in this trunk; use the layout 'padded'"
        )
