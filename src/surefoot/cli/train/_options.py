"""Options that the ``train`` commands share, and the card and settings that they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.models.card import CheckpointCard
    from surefoot.models.encoding import Encoding
    from surefoot.training.config import LoopConfig

    C = TypeVar("C", bound=LoopConfig)

Directory = Annotated[Path, typer.Option("--out", "-o", help="Directory for the checkpoint.")]
Base = Annotated[
    str,
    typer.Option(
        "--base", help="Model to start from: 'lab' (the lab's trunk), a checkpoint directory or hub name."
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", min=1, help="Passes over the traces.")]
BatchTraces = Annotated[int, typer.Option("--batch-size", min=1, help="Traces (or pairs) per update.")]
Rate = Annotated[
    float, typer.Option("--learning-rate", help="Highest learning rate; 1e-5 suits a large trunk.")
]
MaxLength = Annotated[
    int, typer.Option("--max-length", help="Tokens; what lies beyond is left out and counted.")
]
Balance = Annotated[
    float | None,
    typer.Option("--balance", help="Draw traces with a target below this as often as others."),
]
Accumulate = Annotated[
    int, typer.Option("--accumulate", min=1, help="Forward passes that share an update's traces.")
]
TokensPerPass = Annotated[
    int | None, typer.Option("--tokens-per-pass", min=1, help="Most padded tokens of one forward pass.")
]
Checkpointing = Annotated[
    bool, typer.Option("--gradient-checkpointing", help="Less memory for about a third more time.")
]
Marker = Annotated[
    str | None,
    typer.Option("--marker", help="Text put in after each step, where its score is read, e.g. <extra_0>."),
]
Freeze = Annotated[bool, typer.Option("--freeze-trunk", help="Train the head only; each trace is read once.")]
HeadEpochs = Annotated[
    int,
    typer.Option(
        "--head-epochs", min=0, help="Epochs for the head alone, before the whole model is trained."
    ),
]
LoraRank = Annotated[
    int | None, typer.Option("--lora", min=1, help="Train an adapter of this rank (peft), not the trunk.")
]
LoraAlpha = Annotated[
    float | None, typer.Option("--lora-alpha", help="Scale of the adapter; twice its rank unless given.")
]
LoraTargets = Annotated[
    list[str] | None,
    typer.Option(
        "--lora-target", help="Layers to adapt, by the end of their names; repeat; all linear ones."
    ),
]
Validation = Annotated[
    float,
    typer.Option(
        "--validation", min=0, max=0.9, help="Share of the problems to hold out; the best weights are kept."
    ),
]
Patience = Annotated[
    int | None,
    typer.Option("--patience", min=1, help="Stop after so many evaluations without a better step AUC."),
]
EvaluateEvery = Annotated[
    int | None, typer.Option("--evaluate-every", min=1, help="Updates between evaluations; else an epoch.")
]
Packed = Annotated[
    bool, typer.Option("--packed", help="Put the traces of a pass into one row (with FlashAttention).")
]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Run the trunk in bfloat16.")]
ReportTo = Annotated[
    list[str] | None,
    typer.Option("--report-to", help="Tracker for the curves: tensorboard, wandb, trackio; repeat."),
]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Where a reward model of steps starts, and what it reads."""

    base: Base = "lab"
    template: o.Template = "{problem}\n"
    chat: o.Chat = False
    system: o.System = None
    max_length: MaxLength = 2048

    def encoding(self, marker: str | None = None) -> Encoding:
        """How problem and solution become tokens. Raises ``ValidationError`` (pydantic)."""
        from surefoot.models.encoding import Encoding

        names = ("template", "chat", "system", "max_length")
        return Encoding.model_validate({name: getattr(self, name) for name in names} | {"marker": marker})


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Updates, as every kind has them."""

    epochs: Epochs = 3
    batch_size: BatchTraces = 16
    learning_rate: Rate = 3e-4
    accumulate: Accumulate = 1
    tokens_per_pass: TokensPerPass = None
    gradient_checkpointing: Checkpointing = False
    seed: o.Seed = 0
    device: o.Device = "cpu"

    def config(self, kind: type[C], **more: Any) -> C:
        """Settings of the loop. Raises ``ValidationError`` (pydantic) for a value that it refuses."""
        return kind.model_validate(self._settings() | more)

    def _settings(self) -> dict[str, Any]:
        names = ("epochs", "batch_size", "learning_rate", "seed", "gradient_checkpointing")
        return {name: getattr(self, name) for name in names} | {
            "gradient_accumulation_steps": self.accumulate,
            "microbatch_tokens": self.tokens_per_pass,
        }


@dataclass(frozen=True, kw_only=True)
class LargeLoopOptions(LoopOptions):
    """Updates of kinds that can train an adapter, in bfloat16, on packed rows."""

    lora: LoraRank = None
    lora_alpha: LoraAlpha = None
    lora_target: LoraTargets = None
    packed: Packed = False
    bf16: Bf16 = False

    def _settings(self) -> dict[str, Any]:
        from surefoot.models.lora import Lora

        adapter = None
        if self.lora is None and (self.lora_alpha is not None or self.lora_target):
            raise ValueError(
                "--lora-alpha and --lora-target need --lora: without it the whole model is trained"
            )
        if self.lora is not None:
            adapter = Lora(rank=self.lora, alpha=self.lora_alpha, targets=tuple(self.lora_target or ()))
        layout = "packed" if self.packed else "padded"
        return super()._settings() | {"lora": adapter, "layout": layout, "bf16": self.bf16}


@dataclass(frozen=True, kw_only=True)
class ClassifierOptions(LargeLoopOptions):
    """What ``train prm`` and ``train orm`` share: a trunk with a head that is read at the steps."""

    marker: Marker = None
    freeze_trunk: Freeze = False
    head_epochs: HeadEpochs = 3
    validation: Validation = 0.0
    patience: Patience = None
    evaluate_every: EvaluateEvery = None
    report_to: ReportTo = None

    def card(self, reads: InputOptions, **facts: Any) -> CheckpointCard:
        """The card of the checkpoint to train. Raises ``ValidationError`` (pydantic)."""
        from surefoot.models.card import CheckpointCard

        named = {"base": reads.base, "frozen_trunk": self.freeze_trunk}
        return CheckpointCard.model_validate({"encoding": reads.encoding(self.marker), **named, **facts})

    def _settings(self) -> dict[str, Any]:
        names = ("freeze_trunk", "head_epochs", "patience", "evaluate_every")
        mine = {name: getattr(self, name) for name in names}
        return super()._settings() | mine | {"report_to": tuple(self.report_to or ())}


def base_path(base: str) -> str | Path:
    """Directory or hub name of ``--base``."""
    from surefoot.lab.checkpoints import TRUNK

    return TRUNK if base == "lab" else base
