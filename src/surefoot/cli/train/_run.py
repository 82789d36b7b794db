"""What the ``train`` commands do once their options are read: data, held-out part, run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from surefoot.cli.train._options import base_path

if TYPE_CHECKING:
    from surefoot.models.card import CheckpointCard
    from surefoot.models.kinds.classifier import RewardModel
    from surefoot.protocols import LabelledTrace
    from surefoot.training.config import OutcomeTargets, StepTargets, TrainingConfig
    from surefoot.training.examples import Example, TrainingItem

Progress = Callable[[int, int, float], None]
"""Called with updates done, updates in all, and the loss."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """Items ready for the loop, and what of the files was left out."""

    items: Sequence[TrainingItem]
    dropped: Mapping[str, int]
    first: Mapping[str, str]
    """First record of each reason."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training has come to."""

    losses: Sequence[float]
    tokens: int
    dropped: Mapping[str, int]
    remarks: Sequence[str] = field(default_factory=tuple)


def split(items: list[LabelledTrace], share: float) -> tuple[list[LabelledTrace], list[LabelledTrace]]:
    """Training items, and those of about ``share`` of the problems, chosen by their ids alone.

    Raises ``RunError`` if a share is wanted but no problem falls into it, or every one.
    """
    from surefoot.cli._shared import is_held_out
    from surefoot.errors import RunError

    def held(item: LabelledTrace) -> bool:
        return is_held_out(item.problem.id, share)

    kept, held_out = [item for item in items if not held(item)], [item for item in items if held(item)]
    if share and not (kept and held_out):
        problems = len({item.problem.id for item in items})
        raise RunError(f"--validation {share:g} of {problems} problems leaves nothing on one side")
    return kept, held_out


def of_traces(items: list[LabelledTrace], targets: StepTargets | OutcomeTargets) -> Callable[..., Material]:
    """What builds the material of a model from labelled traces."""

    def build(model: RewardModel) -> Material:
        from surefoot.training.examples import build_examples

        data = build_examples(model.tokenizer, model.card.encoding, items, targets)
        return Material(items=data.examples, dropped=data.dropped, first=data.first)

    return build


def train_classifier(
    kind: str,
    out: Path,
    *,
    base: str,
    card: CheckpointCard,
    config: TrainingConfig,
    material: Callable[[RewardModel], Material],
    held_out: tuple[list[LabelledTrace], StepTargets | OutcomeTargets],
    settings: Mapping[str, Any],
    inputs: Mapping[str, Path],
    device: str,
) -> None:
    """Train a trunk with a head in the run directory ``out``, and say what came of it."""

    def work(progress: Progress) -> Trained:
        from surefoot.models.kinds.classifier import RewardModel
        from surefoot.training.classifier import train
        from surefoot.training.examples import build_examples

        model = RewardModel.initialise(base_path(base), card).to(device)
        data = material(model)
        validation: Sequence[Example] = []
        if held_out[0]:
            validation = build_examples(model.tokenizer, model.card.encoding, *held_out).examples
        say_left_out(data.dropped, data.first)
        log = train(model, data.items, config, out, validation=validation, progress=progress)
        remarks = []
        if log.best:
            remarks.append(f"held-out step AUC {log.best.auc:.4f} after update {log.best.update}")
        if log.stopped:
            remarks.append(log.stopped)
        return Trained(losses=log.losses, tokens=log.tokens, dropped=data.dropped, remarks=remarks)

    resolved = {"card": card.model_dump(), "training": config.model_dump(), **settings}
    in_run(kind, out, work, settings=resolved, inputs=inputs)


def in_run(
    kind: str,
    out: Path,
    work: Callable[[Progress], Trained],
    *,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Path],
) -> None:
    """Do ``work`` in the run directory ``out``, unless it is done there, and say what came of it.

    Raises ``RunError`` if ``out`` holds a run of other settings or inputs.
    """
    from surefoot.cli._shared import one_writer, stages

    with one_writer(out, f"train {kind}", settings, inputs) as run, stages() as progress:
        if (out / "done" / "train.json").exists():
            typer.echo(f"{out} is finished already", err=True)
            return
        trained = work(lambda done, total, _loss: progress(f"train {kind}", done, total))
        if run is None:
            return
        dropped = dict(trained.dropped)
        run.finish("train", {"updates": len(trained.losses), "tokens": trained.tokens, "dropped": dropped})
    tail = trained.losses[-50:]
    said = f"{len(trained.losses)} updates, mean loss of the last {len(tail)}: {sum(tail) / len(tail):.4f}"
    typer.echo(f"{out}: {', '.join([said, *trained.remarks])}", err=True)


def say_left_out(dropped: Mapping[str, int], first: Mapping[str, str] | None = None) -> None:
    """Count on standard error what is not trained on, with the first record of each reason if known."""
    for reason, count in dropped.items():
        where = f", first in {first[reason]}" if first else ""
        typer.echo(f"left out: {count} {reason}{where}", err=True)
