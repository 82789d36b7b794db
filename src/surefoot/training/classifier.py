"""Training of reward models that score steps: a trunk with a head, on labelled traces or pairs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from surefoot.errors import TrainingError
from surefoot.labels import target_is_good
from surefoot.models.card import Head
from surefoot.models.engine.packing import read_states
from surefoot.models.engine.tensor_shards import TensorShards, content_key, fingerprint
from surefoot.models.engine.tree_attention import product_dtype
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.stats.roc import roc_auc
from surefoot.training.batches import lay_out, sharing_rows, with_layout
from surefoot.training.config import Loss, TrainingConfig, TrainingLog
from surefoot.training.examples import Example
from surefoot.training.loop import BETAS, CHECKPOINT, Progress, Validation, finish, run_updates
from surefoot.training.optimisation import (
    Distributed,
    ModelOptimiser,
    full_state,
    open_distributed,
    recompute_activations,
)
from surefoot.tree import shared_length

_EVALUATED_TOGETHER = 32
"""Held-out traces of one forward pass."""

_FILE_TOKENS = 50_000
"""Tokens of a file of frozen features: what a killed run loses at most."""

logger = logging.getLogger(__name__)


def train(
    model: RewardModel,
    examples: Sequence[Example],
    config: TrainingConfig,
    directory: Path,
    *,
    validation: Sequence[Example] = (),
    progress: Progress | None = None,
) -> TrainingLog:
    """Train ``model`` and save it to ``directory``; returns the log, which is also ``training.json``.

    ``examples`` are labelled traces, or pairs for the loss ``pairwise``; the loss is the mean over the
    labelled steps (or pairs) of an update, however many microbatches and processes share it
    (:func:`reduced_loss`). With ``validation`` the step AUC on those traces is
    measured, the best weights are the ones kept, and ``config.patience`` may end training early. ``progress``
    gets (updates done, updates in all, loss). ``curves.jsonl`` has a row per update. Resumes from
    ``directory/checkpoint.safetensors`` if there is one.

    Started in several processes (``accelerate launch``, ``torchrun``), each calls this with the same
    arguments; one of them writes. Under FSDP the model in memory stays sharded: load the saved checkpoint.

    Raises ``TrainingError`` naming the traces of a batch whose loss or gradient is not finite, for a head
    that does not fit the loss, and for an option that the device, the trunk or the installation lacks.
    """
    check_head(config.loss, model.card.head)
    config = _fitting(config, model)
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
    examples: Sequence[Example],
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
    parts = chain((part for item in examples for part in item.parts), held_out.examples if held_out else ())
    computing = partial(
        torch.autocast, next(model.parameters()).device.type, dtype=torch.bfloat16, enabled=config.bf16
    )
    with computing():
        if config.freeze_trunk:
            if processes.rank > 0:  # the others find the files of the first
                processes.barrier()
            features = FrozenFeatures(model, parts, directory)
            if processes.rank == 0:
                processes.barrier()
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
        batch = lay_out(parts, config.layout, device, trunk=model.trunk)
        with computing():
            logits: torch.Tensor = optimiser.called(
                batch.ids_bt, batch.mask_bt, batch.rows_s, batch.at_s, **batch.shared_rows
            )
        return logits

    def loss(microbatch: list[Example], terms: int) -> torch.Tensor:
        targets = [target for item in microbatch for target in item.targets]
        logits = outputs([part for item in microbatch for part in item.parts])
        if len(targets) == terms:  # the whole batch
            return reduced_loss(config.loss, model.card.head, logits, targets)
        return reduced_loss(config.loss, model.card.head, logits, targets, reduction="sum") * (1 / terms)

    validation = None
    if held_out:
        validation = Validation(
            auc=lambda: held_out.auc(model, outputs), every=config.evaluate_every, patience=config.patience
        )
    with nullcontext() if config.freeze_trunk else sharing_rows(model.trunk, config.layout):
        log = run_updates(
            optimiser,
            examples,
            loss,
            config,
            directory,
            processes=processes,
            validation=validation,
            progress=progress,
            keep_state=keep_state,
        )
    if features and processes.rank == 0:
        features.states.remove()
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
        return roc_auc(scores, self._good)


class FrozenFeatures:
    """Hidden states of a frozen trunk at the labelled steps, computed once, however many epochs there are.

    Examples that begin alike and lie together share their common tokens
    (:mod:`surefoot.models.engine.packing`), which makes a PRM800K problem with its thirty rated alternatives
    some fourteen times cheaper. States are written to ``directory/features`` as they come, under a hash of
    trunk, tokens and positions, and read from there: a run that is killed resumes there, and memory holds
    the hashes alone. Progress is logged to ``surefoot.training.classifier`` at level INFO.
    """

    def __init__(self, model: RewardModel, examples: Iterable[Example], directory: Path) -> None:
        self._model, self.states = model, TensorShards(directory / "features")
        self._trunk = (fingerprint(model.trunk), str(product_dtype(model.trunk)))
        done = 0
        for chunk in _of_size(examples, _FILE_TOKENS):
            done += len(chunk)
            missing = {key: example for example in chunk if (key := self._key(example)) not in self.states}
            if not missing:
                continue
            keys, read = list(missing), list(missing.values())
            states: dict[str, torch.Tensor] = {}
            for reading in read_states(
                model.trunk, [item.ids for item in read], [item.positions for item in read]
            ):
                states |= {keys[at]: state.float().cpu().clone() for at, state in reading.states.items()}
            self.states.update(states)
            logger.info("frozen trunk: %d traces read", done)

    def logits(self, batch: Sequence[Example]) -> torch.Tensor:
        """The head's outputs at each labelled step of the batch, shape [S, C], with gradient to the head."""
        head = self._model.head
        states = torch.cat([self.states[self._key(item)] for item in batch])
        return head(states.to(head.weight.device))

    def _key(self, example: Example) -> str:
        return content_key(self._trunk, example.ids, example.positions)


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


def _fitting(config: TrainingConfig, model: RewardModel) -> TrainingConfig:
    device = next(model.parameters()).device
    if config.bf16 and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise TrainingError(f"'bf16' is on, but {torch.cuda.get_device_name(device)} lacks bfloat16")
    return config if config.freeze_trunk else with_layout(config, model.trunk)


_HEADS: dict[Loss, tuple[Head, ...]] = {
    "bce": ("logit",),
    "mse": ("logit", "linear"),
    "classes": ("classes",),
    "pairwise": ("logit",),
}


def check_head(loss: Loss, head: Head) -> None:
    """Raise ``TrainingError`` if ``loss`` is none for ``head``."""
    if head not in _HEADS[loss]:
        raise TrainingError(
            f"loss {loss!r} trains a head {' or '.join(_HEADS[loss])}, but the card's 'head' is {head!r}"
        )


def reduced_loss(
    loss: Loss,
    head: Head,
    outputs_sc: torch.Tensor,
    targets: list[float],
    *,
    reduction: Literal["mean", "sum"] = "mean",
) -> torch.Tensor:
    """Mean or sum of the terms of outputs ``[S, C]``.

    * ``bce``: cross-entropy of a Bernoulli with its target in [0, 1]; its gradient on the logit is
      (score - target), 0 where they agree, for soft targets too (OmegaPRM, arXiv 2406.06592, eq. 4).
    * ``mse``: square of (score - target), where the score is the logit's sigmoid or the output itself.
    * ``classes``: cross-entropy of the three classes bad, neutral and good (Lightman et al., arXiv
      2305.20050), for targets 0, ½ and 1.
    * ``pairwise``: Bradley-Terry; rows 2k and 2k+1 are the rivals of pair k, whose target is the chance
      that the first is the better one (OmegaPRM).

    Raises ``TrainingError`` for ``classes`` with any other target.
    """
    if loss == "classes":
        return cross_entropy(outputs_sc, _classes(targets).to(outputs_sc.device), reduction=reduction)
    targets_sc = torch.tensor(targets, device=outputs_sc.device)
    logits = outputs_sc[:, 0]
    if loss == "mse":
        scores = torch.sigmoid(logits) if head == "logit" else logits
        return mse_loss(scores, targets_sc, reduction=reduction)
    if loss == "pairwise":
        logits = logits[0::2] - logits[1::2]
    return binary_cross_entropy_with_logits(logits, targets_sc, reduction=reduction)


def _classes(targets: list[float]) -> torch.Tensor:
    if strange := sorted({target for target in targets if target not in (0.0, 0.5, 1.0)}):
        raise TrainingError(
            f"three classes have targets 0, 0.5 (neutral) and 1, not {strange[0]:g}: train them on "
            "correctness labels (StepTargets with neutral='class'), or choose the loss bce or mse"
        )
    return torch.tensor([round(2 * target) for target in targets])
