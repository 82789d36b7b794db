"""``surefoot train``: reward models from labelled traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.models.card import CheckpointCard
    from surefoot.protocols import LabelledTrace
    from surefoot.records import StepLabel
    from surefoot.training.loop import TrainingConfig
    from surefoot.training.targets import OutcomeTargets, StepTargets

app = typer.Typer(help="Train reward models on labelled traces.", no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--out", "-o", help="Directory for the checkpoint.")]
Base = Annotated[
    str,
    typer.Option(
        "--base", help="Trunk to start from: 'lab' (the lab's trunk), a checkpoint directory or hub name."
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", min=1)]
BatchTraces = Annotated[int, typer.Option("--batch-size", min=1, help="Traces per update.")]
Rate = Annotated[
    float, typer.Option("--learning-rate", help="Highest learning rate; 1e-5 suits a large trunk.")
]
Freeze = Annotated[bool, typer.Option("--freeze-trunk", help="Train the head only; each trace is read once.")]
HeadEpochs = Annotated[
    int,
    typer.Option(
        "--head-epochs", min=0, help="Epochs for the head alone, before the whole model is trained."
    ),
]
MaxLength = Annotated[
    int, typer.Option("--max-length", help="Tokens; steps beyond are left out and counted.")
]


@app.command("prm")
def prm(
    problems: o.Problems,
    traces: o.Traces,
    labels: Annotated[str, typer.Option("--labels", help="File of step labels.")],
    out: Directory,
    base: Base = "lab",
    hard: Annotated[
        bool, typer.Option("--hard", help="Train on 1[value > 0] in place of the value.")
    ] = False,
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a 0 rating becomes: good, bad or drop.")
    ] = "good",
    up_to_first_error: Annotated[
        bool, typer.Option("--up-to-first-error", help="No loss after the first bad step.")
    ] = False,
    aggregation: Annotated[str, typer.Option("--aggregation", help="min, product, last or mean.")] = "min",
    template: o.Template = "{problem}\n",
    chat: o.Chat = False,
    system: o.System = None,
    epochs: Epochs = 3,
    batch_size: BatchTraces = 16,
    learning_rate: Rate = 3e-4,
    freeze_trunk: Freeze = False,
    head_epochs: HeadEpochs = 3,
    max_length: MaxLength = 2048,
    seed: o.Seed = 0,
    device: o.Device = "cpu",
) -> None:
    """Train a process reward model: one score a step.

    Start a killed command again and it goes on from its last checkpoint.

    Example: `surefoot train prm --problems p.jsonl --traces t.jsonl --labels l.jsonl --out prm`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import checked_options, read_all
    from surefoot.models.card import CheckpointCard
    from surefoot.models.encoding import Encoding
    from surefoot.records import StepLabel
    from surefoot.training.loop import TrainingConfig
    from surefoot.training.targets import StepTargets

    found = read_all(labels, StepLabel)
    kinds = {label.kind for label in found}
    if len(kinds) > 1:
        typer.echo(f"labels of several kinds are mixed: {', '.join(sorted(kinds))}", err=True)
    with checked_options():
        card = CheckpointCard.model_validate(
            {
                "kind": "prm",
                "encoding": Encoding(template=template, chat=chat, system=system, max_length=max_length),
                "aggregation": aggregation,
                "score_means": "value" if kinds == {"value"} else "correctness",
                "label_source": ", ".join(sorted({label.source for label in found})),
                "base": base,
                "frozen_trunk": freeze_trunk,
            }
        )
        targets = StepTargets.model_validate(
            {"neutral": neutral, "hard": hard, "up_to_first_error": up_to_first_error}
        )
        config = TrainingConfig(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            freeze_trunk=freeze_trunk,
            head_epochs=head_epochs,
            seed=seed,
        )
    inputs = file_inputs(problems=problems, traces=traces, labels=labels)
    _train("prm", out, base, card, targets, config, _items(problems, traces, found), inputs, device)


@app.command("orm")
def orm(
    problems: o.Problems,
    traces: o.Traces,
    out: Directory,
    base: Base = "lab",
    at: Annotated[
        str, typer.Option("--at", help="Put the outcome at the last step or at every step.")
    ] = "every",
    template: o.Template = "{problem}\n",
    chat: o.Chat = False,
    system: o.System = None,
    epochs: Epochs = 3,
    batch_size: BatchTraces = 16,
    learning_rate: Rate = 3e-4,
    freeze_trunk: Freeze = False,
    head_epochs: HeadEpochs = 3,
    max_length: MaxLength = 2048,
    seed: o.Seed = 0,
    device: o.Device = "cpu",
) -> None:
    """Train an outcome reward model on whether the traces' final answers are right.

    Example: `surefoot train orm --problems problems.jsonl --traces traces.jsonl --out orm`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import checked_options
    from surefoot.models.card import CheckpointCard
    from surefoot.models.encoding import Encoding
    from surefoot.training.loop import TrainingConfig
    from surefoot.training.targets import OutcomeTargets

    with checked_options():
        card = CheckpointCard(
            kind="orm",
            encoding=Encoding(template=template, chat=chat, system=system, max_length=max_length),
            aggregation="last",
            score_means="outcome",
            label_source="outcome",
            base=base,
            frozen_trunk=freeze_trunk,
        )
        targets = OutcomeTargets.model_validate({"at": at})
        config = TrainingConfig(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            freeze_trunk=freeze_trunk,
            head_epochs=head_epochs,
            seed=seed,
        )
    inputs = file_inputs(problems=problems, traces=traces)
    _train("orm", out, base, card, targets, config, _items(problems, traces, []), inputs, device)


def _items(problems: str, traces: str, labels: list[StepLabel]) -> list[LabelledTrace]:
    from surefoot.cli._shared import labelled, read_all
    from surefoot.records import Problem, Trace

    return labelled(read_all(problems, Problem), read_all(traces, Trace), labels)


def _train(
    kind: str,
    out: Path,
    base: str,
    card: CheckpointCard,
    targets: StepTargets | OutcomeTargets,
    config: TrainingConfig,
    items: list[LabelledTrace],
    inputs: dict[str, Path],
    device: str,
) -> None:
    from surefoot.cli._shared import stages
    from surefoot.lab.checkpoints import TRUNK
    from surefoot.models.reward_model import RewardModel
    from surefoot.records import content_id
    from surefoot.store import Run
    from surefoot.training.loop import train
    from surefoot.training.targets import build_examples

    settings: dict[str, Any] = {
        "card": card.model_dump(),
        "targets": targets.model_dump(),
        "training": config.model_dump(),
        "items": content_id(*items),
    }
    with Run.open(out, command=f"train {kind}", config=settings, inputs=inputs) as run, stages() as progress:
        if run.done("train"):
            typer.echo(f"{out} is finished already", err=True)
            return
        model = RewardModel.initialise(TRUNK if base == "lab" else base, card).to(device)
        data = build_examples(model.tokenizer, model.card.encoding, items, targets)
        for reason, count in data.dropped.items():
            typer.echo(f"left out: {count} {reason}", err=True)
        log = train(
            model,
            data.examples,
            config,
            out,
            progress=lambda done, total, _loss: progress(f"train {kind}", done, total),
        )
        run.finish("train", {"updates": len(log.losses), "tokens": log.tokens, "dropped": dict(data.dropped)})
    tail = log.losses[-50:]
    typer.echo(
        f"{out}: {len(log.losses)} updates, mean loss of the last {len(tail)}: {sum(tail) / len(tail):.4f}",
        err=True,
    )
