"""How to train, and what happened: the settings and the log of a training run."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.models.lora import Lora
from surefoot.training.losses import Loss


class TrainingConfig(BaseModel):
    """How to train. Defaults suit the lab's models; large ones want a smaller ``learning_rate``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=32, ge=1)
    """Traces (or pairs) per update, over all processes and forward passes together."""
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
    loss: Loss = "bce"
    """What is minimised (``surefoot.training.losses``); the head must fit it."""
    lora: Lora | None = None
    """Train an adapter and the head, in place of the whole model."""
    balance: float | None = Field(default=None, gt=0, le=1)
    """Threshold of two-bucket sampling: traces with a target below it, and those without, are drawn equally
    often, the rarer ones repeatedly (Setlur et al., arXiv 2410.08146, at 0.5)."""
    accumulate: int = Field(default=1, ge=1)
    """Forward passes per update (and process): each takes its share of the batch, by length."""
    tokens_per_pass: int | None = Field(default=None, ge=1)
    """Most tokens, padding counted, of one forward pass; an update takes as many passes as that needs."""
    layout: Literal["padded", "packed"] = "padded"
    """padded: one trace a row; packed: the traces of a pass in one row, which do not see each other. Faster
    is padded on a CPU, packed where the trunk runs FlashAttention."""
    gradient_checkpointing: bool = False
    """Compute activations again on the way back: less memory, about a third more time."""
    bf16: bool = False
    """Run the trunk in bfloat16; weights, head and optimiser stay as they are."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Updates between evaluations on the held-out traces; ``None`` = once an epoch."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many evaluations without a better step AUC; ``None`` = go on to the end."""
    report_to: tuple[str, ...] = ()
    """Trackers that get the curves too: tensorboard, wandb, trackio ... (those of accelerate)."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lora and self.freeze_trunk:
            raise ValueError("'lora' trains an adapter in the trunk, 'freeze_trunk' none of it; choose one")
        if self.balance is not None and self.loss == "pairwise":
            raise ValueError("'balance' parts single traces; pairs have none to part")
        return self


class Evaluation(BaseModel):
    """Step AUC on the held-out traces after ``update`` updates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: int
    auc: float


class TrainingLog(BaseModel):
    """What happened: one loss and one gradient norm per update, evaluations, and the tokens read."""

    losses: list[float] = Field(default_factory=list)
    norms: list[float] = Field(default_factory=list)
    """Norm of the gradient before clipping."""
    tokens: int = 0
    """Tokens of the traces, padding left out."""
    validation: list[Evaluation] = Field(default_factory=list)
    stopped: str | None = None
    """Why training ended early; ``None`` if it did not."""

    @property
    def best(self) -> Evaluation | None:
        """The first evaluation with the highest AUC: what is kept."""
        return max(self.validation, key=lambda one: one.auc, default=None)

    @property
    def stale(self) -> int:
        """Evaluations since the best one."""
        return len(self.validation) - 1 - self.validation.index(self.best) if self.best else 0


def rate_share(update: int, total: int, warmup: float) -> float:
    """Share of the highest learning rate: up over the first ``warmup`` of the updates, then linearly to 0."""
    rise = max(1, round(warmup * total))
    return min(1.0, (update + 1) / rise) * (1 - update / total)
