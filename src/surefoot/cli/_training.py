"""What ``surefoot train`` does once its options are read: card and settings, data, held-out part, run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from surefoot.models.card import CheckpointCard
    from surefoot.models.reward_model import RewardModel
    from surefoot.protocols import LabelledTrace
    from surefoot.store import Run
    from surefoot.training.config import TrainingConfig
    from surefoot.training.targets import Example, OutcomeTargets, StepTargets, TrainingItem


@dataclass(frozen=True, kw_only=True)
class Material:
    """Items ready for the loop, and what of the files was left out."""

    items: Sequence[TrainingItem]
    dropped: Mapping[str, int]
    first: Mapping[str, str]
    """First record of each reason."""


def make_card(encoding: Mapping[str, Any], **facts: Any) -> CheckpointCard:
    """The card of a checkpoint to train; ``encoding`` as the options give it."""
    from surefoot.models.card import CheckpointCard
    from surefoot.models.encoding import Encoding

    return CheckpointCard.model_validate({"encoding": Encoding.model_validate(encoding), **facts})


def make_config(
    *, lora: int | None, lora_alpha: float | None, lora_targets: list[str] | None, **settings: Any
) -> TrainingConfig:
    """Settings of the loop from the options of their names."""
    from surefoot.models.lora import Lora
    from surefoot.training.config import TrainingConfig

    adapter = None
    if lora is not None:
        adapter = Lora(rank=lora, alpha=lora_alpha or 2.0 * lora, targets=tuple(lora_targets or ()))
    return TrainingConfig.model_validate({"lora": adapter, **settings})


def split(items: list[LabelledTrace], share: float) -> tuple[list[LabelledTrace], list[LabelledTrace]]:
    """Training items, and those of about ``share`` of the problems, chosen by their ids alone.

    Raises ``RunError`` if a share is wanted but no problem falls into it, or every one.
    """
    from surefoot.errors import RunError
    from surefoot.records import content_id

    def held(item: LabelledTrace) -> bool:
        return int(content_id("held out", item.problem.id), 16) < share * 2**64

    kept, held_out = [item for item in items if not held(item)], [item for item in items if held(item)]
    if share and not (kept and held_out):
        problems = len({item.problem.id for item in items})
        raise RunError(f"--validation {share:g} of {problems} problems leaves nothing on one side")
    return kept, held_out


def of_traces(items: list[LabelledTrace], targets: StepTargets | OutcomeTargets) -> Callable[..., Material]:
    """What builds the material of a model from labelled traces."""

    def build(model: RewardModel) -> Material:
        from surefoot.training.targets import build_examples

        data = build_examples(model.tokenizer, model.card.encoding, items, targets)
        return Material(items=data.examples, dropped=data.dropped, first=data.first)

    return build


def run_training(
    kind: str,
    out: Path,
    *,
    base: str,
    card: CheckpointCard,
    config: TrainingConfig,
    material: Callable[[RewardModel], Material],
    held_out: tuple[list[LabelledTrace], StepTargets | OutcomeTargets] | None,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Path],
    device: str,
) -> None:
    """Train in the run directory ``out`` and say what came of it."""
    from surefoot.cli._shared import stages
    from surefoot.lab.checkpoints import TRUNK
    from surefoot.models.reward_model import RewardModel
    from surefoot.training.loop import train
    from surefoot.training.targets import build_examples

    resolved = {"card": card.model_dump(), "training": config.model_dump(), **settings}
    with _one_writer(out, f"train {kind}", resolved, inputs) as run, stages() as progress:
        if (out / "done" / "train.json").exists():
            typer.echo(f"{out} is finished already", err=True)
            return
        model = RewardModel.initialise(TRUNK if base == "lab" else base, card).to(device)
        data = material(model)
        validation: list[Example] = []
        if held_out and held_out[0]:
            validation = build_examples(model.tokenizer, model.card.encoding, *held_out).examples
        for reason, count in data.dropped.items():
            typer.echo(f"left out: {count} {reason}, first in {data.first[reason]}", err=True)
        log = train(
            model,
            data.items,
            config,
            out,
            validation=validation,
            progress=lambda done, total, _loss: progress(f"train {kind}", done, total),
        )
        if run is None:
            return
        run.finish("train", {"updates": len(log.losses), "tokens": log.tokens, "dropped": dict(data.dropped)})
    tail = log.losses[-50:]
    said = f"{len(log.losses)} updates, mean loss of the last {len(tail)}: {sum(tail) / len(tail):.4f}"
    if log.best:
        said += f", held-out step AUC {log.best.auc:.4f} after update {log.best.update}"
    typer.echo(f"{out}: {said}{f' ({log.stopped})' if log.stopped else ''}", err=True)


@contextmanager
def _one_writer(
    out: Path, command: str, settings: Mapping[str, Any], inputs: Mapping[str, Path]
) -> Iterator[Run | None]:
    """The run directory, held by the first of several processes; ``None`` in the others."""
    from surefoot.store import Run

    if int(os.environ.get("RANK", "0")) > 0:
        yield None
        return
    with Run.open(out, command=command, config=settings, inputs=inputs) as run:
        yield run
