"""Settings of training, one class for each kind of model, and the log that a run leaves behind.

Loads without torch: the command line makes its options from these classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from surefoot.io.atomic import atomic_file
from surefoot.models.lora import Lora
from surefoot.records import FrozenModel

Loss = Literal["bce", "mse", "classes", "pairwise"]
"""See :mod:`surefoot.training.classifier`."""


Layout = Literal["padded", "packed", "tree"]
"""How the traces of a microbatch lie in its rows."""


class OptimiserSettings(FrozenModel):
    """What the optimiser of any model reads."""

    learning_rate: float = Field(gt=0, description="Learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay of AdamW.")
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Gradients with a larger norm are scaled down to this one."
    )


class LoopConfig(OptimiserSettings):
    """What every kind of training has. Defaults suit the lab's models; large ones want a smaller rate."""

    epochs: int = Field(default=3, ge=1, description="Passes over the training data.")
    batch_size: int = Field(
        default=16,
        ge=1,
        description="Traces (or pairs) per optimiser step, over all processes and microbatches.",
    )
    learning_rate: float = Field(
        default=3e-4, gt=0, description="Highest learning rate; 1e-5 suits a large trunk."
    )
    weight_decay: float = Field(default=0.01, ge=0, description="Weight decay of AdamW.")
    warmup: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Share of the steps in which the learning rate rises; then it falls linearly to 0.",
    )
    seed: int = Field(default=0, description="Seed of the batch order, dropout and new weights.")
    checkpoint_every: int = Field(default=200, ge=1, description="Optimiser steps between checkpoints.")
    gradient_accumulation_steps: int = Field(
        default=1, ge=1, description="Microbatches per optimiser step and process, cut by length."
    )
    microbatch_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of one microbatch, padding included; adds microbatches where needed. If not "
        "given 2,048, in the layout tree 4,096.",
    )
    layout: Layout | None = Field(
        default=None,
        description="padded: one trace per row; packed: the traces of a microbatch in one row, common "
        "prefixes read once; tree: packed, with neighbours that begin alike in one update, for data whose "
        "traces share prefixes. By default packed on a CPU where the trunk allows it, else padded.",
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="Recompute activations in the backward pass: less memory for about a third more time.",
    )
    report_to: tuple[str, ...] = Field(
        default=(), description="Trackers for the curves (accelerate's names): tensorboard, wandb, trackio."
    )


class TrunkConfig(LoopConfig):
    """Kinds that can train an adapter, and in bfloat16."""

    lora: Lora | None = Field(
        default=None, description="Train a low-rank adapter (peft) instead of the whole model."
    )
    bf16: bool = Field(
        default=False, description="Run the trunk in bfloat16; weights and optimiser keep their type."
    )


class TrainingConfig(TrunkConfig):
    """Training of a trunk with a head that scores steps: PRMs, ORMs and PAVs."""

    freeze_trunk: bool = Field(
        default=False, description="Train the head only, on hidden states that are computed once."
    )
    head_epochs: int = Field(
        default=3,
        ge=0,
        # a random head would spoil the trunk: Kumar et al., arXiv 2202.10054; PURE, arXiv 2504.15275
        description="Epochs for the head alone, on the frozen trunk, before the whole model is trained.",
    )
    head_learning_rate: float = Field(
        default=1e-2, gt=0, description="Highest learning rate while the head is trained alone."
    )
    loss: Loss = Field(
        default="bce",
        description="bce (cross-entropy), mse (squared error), classes (bad, neutral, good) or pairwise "
        "(preferences between rival steps).",
    )
    evaluate_every: int | None = Field(
        default=None,
        ge=1,
        description="Optimiser steps between evaluations on the held-out traces; once per epoch by default.",
    )
    patience: int | None = Field(
        default=None, ge=1, description="Stop after this many evaluations without a better step AUC."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lora and self.freeze_trunk:
            raise ValueError(
                "'lora' trains an adapter in the trunk and 'freeze_trunk' nothing in it; choose one"
            )
        return self


class ImplicitConfig(LoopConfig):
    """Training of an implicit PRM on outcomes. EurusPRM (7B) had a rate of 5e-7 and 64 traces per step."""


class SFTConfig(TrunkConfig):
    """Supervised fine-tuning of a language model on chosen tokens: cloned policies."""


class VerifierConfig(SFTConfig):
    """Fine-tuning of a generative verifier, as ThinkPRM (1.5B, full weights; arXiv 2504.16828) did it."""

    batch_size: int = Field(default=32, ge=1, description="Critiques per optimiser step.")
    learning_rate: float = Field(default=6e-5, gt=0, description="Highest learning rate.")


class ProbeConfig(FrozenModel):
    """What a linear probe tries; the choice is made by cross-validation over training problems."""

    layers: tuple[int, ...] = Field(
        default=(), description="Layers, 0 = embeddings; by default five, evenly spread."
    )
    positions: tuple[Literal["before", "first", "middle", "late", "last"], ...] = Field(
        default=("before", "first", "middle", "late", "last"),
        min_length=1,
        description="Token of a step: `before` it, its `first`, the `middle` one, the one before its last "
        "(`late`), its `last`.",
    )
    steps: tuple[Literal["every", "opening", "middle", "closing"], ...] = Field(
        default=(),
        description="Steps that are read: `every`, or one a trace; by default every step for labels of "
        "steps, and all four are tried for outcomes.",
    )
    folds: int = Field(default=5, ge=2, description="Folds of the cross-validation, by problem.")
    strength: float = Field(
        default=0.1, gt=0, description="Inverse of the L2 penalty on standardised states (scikit-learn's C)."
    )
    seed: int = Field(default=0, description="Seed of the folds.")


class StepTargets(FrozenModel):
    """A PRM's targets: the labels of the steps.

    A correctness label of +1 becomes 1 and -1 becomes 0; ``neutral`` says what 0 becomes. A value label is
    the target itself, or 1[value > 0] with ``hard``. With ``up_to_first_error`` nothing after the first bad
    step is trained on (Lightman et al., arXiv 2305.20050, section 2.6).

    An advantage A in [-1, 1] becomes (1 + A) / 2: a score s then says A = 2 s - 1. None of the options above
    applies to advantages, and they are not mixed with labels of another kind.
    """

    kind: Literal["step"] = "step"
    neutral: Literal["good", "bad", "drop", "class"] = Field(
        default="good",
        description="What a label of 0 becomes: good (1), bad (0), drop (no target) or class (½, a class of "
        "its own for loss 'classes').",
    )
    hard: bool = Field(default=False, description="Train on 1[value > 0] instead of the value.")
    up_to_first_error: bool = Field(default=False, description="No loss after the first bad step.")


class OutcomeTargets(FrozenModel):
    """An ORM's targets: the outcome of the whole trace (Cobbe et al., arXiv 2110.14168)."""

    kind: Literal["outcome"] = "outcome"
    at: Literal["last", "every"] = Field(
        default="every", description="Put the outcome at the last step or at every step."
    )


class Evaluation(FrozenModel):
    """Step AUC on the held-out traces after ``update`` updates."""

    update: int
    auc: float


class TrainingLog(BaseModel):
    """What happened: one loss and one gradient norm per update, evaluations, and the tokens read."""

    losses: list[float] = Field(default_factory=list)
    norms: list[float] = Field(default_factory=list)
    """Norm of the gradient before clipping."""
    tokens: int = 0
    """Tokens of the traces without padding."""
    read_tokens: int = 0
    """Those that went through the model: in the layout ``tree``, shared prefixes count once a microbatch."""
    validation: list[Evaluation] = Field(default_factory=list)
    stopped: str | None = None
    """Why training ended early; ``None`` if it did not."""

    def row(self, update: int, rate: float) -> dict[str, float]:
        """The row of the curves of an update, from 1, with the AUC where it was measured."""
        row = {"loss": self.losses[update - 1], "gradient_norm": self.norms[update - 1]}
        auc = [item.auc for item in self.validation if item.update == update]
        return row | {"learning_rate": rate} | ({"validation_auc": auc[0]} if auc else {})

    @property
    def best(self) -> Evaluation | None:
        """The first evaluation with the highest AUC: the one whose weights are saved."""
        return max(self.validation, key=lambda evaluation: evaluation.auc, default=None)

    @property
    def stale(self) -> int:
        """Evaluations since the best one."""
        return len(self.validation) - 1 - self.validation.index(self.best) if self.best else 0


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object per line, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        stream.writelines(json.dumps(row).encode() + b"\n" for row in rows)


def rate_share(update: int, total: int, warmup: float) -> float:
    """Share of the highest learning rate at ``update`` of ``total``, counted from 0; in (0, 1].

    It rises linearly over the first ``warmup`` of the updates, is 1 at the last of these, and falls linearly
    to what would be 0 one update after the last (``get_linear_schedule_with_warmup`` of transformers, one
    update on, so that no update has the rate 0).
    """
    rise = max(1, round(warmup * total))
    if update < rise:
        return (update + 1) / rise
    return (total - update) / (total - rise + 1)
