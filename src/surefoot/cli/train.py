"""``surefoot train``: reward models from labelled traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.cli._training import Material
    from surefoot.models.reward_model import RewardModel
    from surefoot.protocols import LabelledTrace
    from surefoot.records import StepLabel

app = typer.Typer(help="Train reward models on labelled traces.", no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--out", "-o", help="Directory for the checkpoint.")]
Base = Annotated[
    str,
    typer.Option(
        "--base", help="Trunk to start from: 'lab' (the lab's trunk), a checkpoint directory or hub name."
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", min=1)]
BatchTraces = Annotated[int, typer.Option("--batch-size", min=1, help="Traces (or pairs) per update.")]
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
Marker = Annotated[
    str | None,
    typer.Option("--marker", help="Text put in after each step, where its score is read, e.g. <extra_0>."),
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
Accumulate = Annotated[
    int, typer.Option("--accumulate", min=1, help="Forward passes that share an update's traces.")
]
TokensPerPass = Annotated[
    int | None, typer.Option("--tokens-per-pass", min=1, help="Most padded tokens of one forward pass.")
]
Packed = Annotated[
    bool, typer.Option("--packed", help="Put the traces of a pass into one row (with FlashAttention).")
]
Checkpointing = Annotated[
    bool, typer.Option("--gradient-checkpointing", help="Less memory for about a third more time.")
]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Run the trunk in bfloat16.")]
ReportTo = Annotated[
    list[str] | None,
    typer.Option("--report-to", help="Tracker for the curves: tensorboard, wandb, trackio; repeat."),
]


@app.command("prm")
def prm(
    problems: o.Problems,
    out: Directory,
    traces: Annotated[str | None, typer.Option("--traces", help="File of trace records.")] = None,
    labels: Annotated[str | None, typer.Option("--labels", help="File of step labels.")] = None,
    pairs: Annotated[
        str | None, typer.Option("--pairs", help="File of step pairs, for --loss pairwise.")
    ] = None,
    base: Base = "lab",
    loss: Annotated[str, typer.Option("--loss", help="bce, mse, classes or pairwise.")] = "bce",
    linear: Annotated[
        bool, typer.Option("--linear", help="With --loss mse: the output is the score, without a sigmoid.")
    ] = False,
    hard: Annotated[
        bool, typer.Option("--hard", help="Train on 1[value > 0] in place of the value.")
    ] = False,
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a 0 rating becomes: good, bad or drop.")
    ] = "good",
    up_to_first_error: Annotated[
        bool, typer.Option("--up-to-first-error", help="No loss after the first bad step.")
    ] = False,
    balance: Annotated[
        float | None,
        typer.Option("--balance", help="Draw traces with a target below this as often as others."),
    ] = None,
    aggregation: Annotated[str, typer.Option("--aggregation", help="min, product, last or mean.")] = "min",
    template: o.Template = "{problem}\n",
    chat: o.Chat = False,
    system: o.System = None,
    marker: Marker = None,
    segment: Annotated[
        str, typer.Option("--segment", help="How the prefixes of pairs are cut, where there is a marker.")
    ] = "line",
    epochs: Epochs = 3,
    batch_size: BatchTraces = 16,
    learning_rate: Rate = 3e-4,
    freeze_trunk: Freeze = False,
    head_epochs: HeadEpochs = 3,
    lora: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_target: LoraTargets = None,
    max_length: MaxLength = 2048,
    validation: Validation = 0.0,
    patience: Patience = None,
    evaluate_every: EvaluateEvery = None,
    accumulate: Accumulate = 1,
    tokens_per_pass: TokensPerPass = None,
    packed: Packed = False,
    gradient_checkpointing: Checkpointing = False,
    bf16: Bf16 = False,
    report_to: ReportTo = None,
    seed: o.Seed = 0,
    device: o.Device = "cpu",
) -> None:
    """Train a process reward model: one score a step.

    Start a killed command again and it goes on from its last checkpoint. Several processes:
    `accelerate launch -m surefoot train prm ...`

    Example: `surefoot train prm --problems p.jsonl --traces t.jsonl --labels l.jsonl --out prm`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import checked_options, choice
    from surefoot.cli._training import make_card, make_config, of_traces, run_training, split
    from surefoot.records import content_id
    from surefoot.training.targets import StepTargets

    choice("--loss", loss, "bce", "mse", "classes", "pairwise")
    _check_files(loss, traces=traces, labels=labels, pairs=pairs)
    found = _read_labels(labels)
    kinds = {label.kind for label in found}
    with checked_options():
        card = make_card(
            {
                "template": template,
                "chat": chat,
                "system": system,
                "max_length": max_length,
                "marker": marker,
            },
            kind="prm",
            aggregation=aggregation,
            score_means="correctness" if kinds - {"value"} else "value",
            label_source=", ".join(sorted({label.source for label in found})) or "pairs",
            base=base,
            frozen_trunk=freeze_trunk,
            head="classes" if loss == "classes" else "linear" if linear else "logit",
            neutral=neutral if loss == "classes" else "good",
        )
        treated = "class" if loss == "classes" else neutral
        targets = StepTargets.model_validate(
            {"neutral": treated, "hard": hard, "up_to_first_error": up_to_first_error}
        )
        config = make_config(
            lora=lora,
            lora_alpha=lora_alpha,
            lora_targets=lora_target,
            loss=loss,
            balance=balance,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            freeze_trunk=freeze_trunk,
            head_epochs=head_epochs,
            patience=patience,
            evaluate_every=evaluate_every,
            accumulate=accumulate,
            tokens_per_pass=tokens_per_pass,
            layout="packed" if packed else "padded",
            gradient_checkpointing=gradient_checkpointing,
            bf16=bf16,
            report_to=tuple(report_to or ()),
            seed=seed,
        )
    items = _items(problems, traces, found) if traces else []
    training, held_out = split(items, validation)
    run_training(
        "prm",
        out,
        base=base,
        card=card,
        config=config,
        material=(
            _of_pairs(problems, pairs, segment, hard=hard, held_out=held_out)
            if pairs
            else of_traces(training, targets)
        ),
        held_out=(held_out, targets),
        settings={"targets": targets.model_dump(), "validation": validation, "items": content_id(*items)},
        inputs=file_inputs(problems=problems, traces=traces, labels=labels, pairs=pairs),
        device=device,
    )


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
    marker: Marker = None,
    epochs: Epochs = 3,
    batch_size: BatchTraces = 16,
    learning_rate: Rate = 3e-4,
    freeze_trunk: Freeze = False,
    head_epochs: HeadEpochs = 3,
    lora: LoraRank = None,
    lora_alpha: LoraAlpha = None,
    lora_target: LoraTargets = None,
    max_length: MaxLength = 2048,
    validation: Validation = 0.0,
    patience: Patience = None,
    evaluate_every: EvaluateEvery = None,
    accumulate: Accumulate = 1,
    tokens_per_pass: TokensPerPass = None,
    packed: Packed = False,
    gradient_checkpointing: Checkpointing = False,
    bf16: Bf16 = False,
    report_to: ReportTo = None,
    seed: o.Seed = 0,
    device: o.Device = "cpu",
) -> None:
    """Train an outcome reward model on whether the traces' final answers are right.

    Example: `surefoot train orm --problems problems.jsonl --traces traces.jsonl --out orm`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import checked_options
    from surefoot.cli._training import make_card, make_config, of_traces, run_training, split
    from surefoot.records import content_id
    from surefoot.training.targets import OutcomeTargets

    with checked_options():
        card = make_card(
            {
                "template": template,
                "chat": chat,
                "system": system,
                "max_length": max_length,
                "marker": marker,
            },
            kind="orm",
            aggregation="last",
            score_means="outcome",
            label_source="outcome",
            base=base,
            frozen_trunk=freeze_trunk,
        )
        targets = OutcomeTargets.model_validate({"at": at})
        config = make_config(
            lora=lora,
            lora_alpha=lora_alpha,
            lora_targets=lora_target,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            freeze_trunk=freeze_trunk,
            head_epochs=head_epochs,
            patience=patience,
            evaluate_every=evaluate_every,
            accumulate=accumulate,
            tokens_per_pass=tokens_per_pass,
            layout="packed" if packed else "padded",
            gradient_checkpointing=gradient_checkpointing,
            bf16=bf16,
            report_to=tuple(report_to or ()),
            seed=seed,
        )
    items = _items(problems, traces, [])
    training, held_out = split(items, validation)
    run_training(
        "orm",
        out,
        base=base,
        card=card,
        config=config,
        material=of_traces(training, targets),
        held_out=(held_out, targets),
        settings={"targets": targets.model_dump(), "validation": validation, "items": content_id(*items)},
        inputs=file_inputs(problems=problems, traces=traces),
        device=device,
    )


def _check_files(loss: str, *, traces: str | None, labels: str | None, pairs: str | None) -> None:
    from surefoot.errors import RunError

    if (loss == "pairwise") != (pairs is not None):
        raise RunError("--loss pairwise and --pairs go together: one needs the other")
    if (traces is None) != (labels is None) or (pairs is None and traces is None):
        raise RunError("give --traces and --labels (or --pairs, with those two for --validation alone)")


def _read_labels(labels: str | None) -> list[StepLabel]:
    from surefoot.cli._shared import read_all
    from surefoot.records import StepLabel

    found = read_all(labels, StepLabel) if labels else []
    kinds = {label.kind for label in found}
    if len(kinds) > 1:
        typer.echo(f"labels of several kinds are mixed: {', '.join(sorted(kinds))}", err=True)
    return found


def _items(problems: str, traces: str, labels: list[StepLabel]) -> list[LabelledTrace]:
    from surefoot.cli._shared import labelled, read_all
    from surefoot.records import Problem, Trace

    return labelled(read_all(problems, Problem), read_all(traces, Trace), labels)


def _of_pairs(
    problems: str, pairs: str, segment: str, *, hard: bool, held_out: list[LabelledTrace]
) -> Callable[[RewardModel], Material]:
    """What builds the material from a file of pairs, without those of held-out problems."""

    def build(model: RewardModel) -> Material:
        from surefoot.cli._shared import read_all
        from surefoot.cli._training import Material
        from surefoot.records import Problem, StepPair
        from surefoot.segment import segmenter
        from surefoot.training.pairs import build_pairs

        held = {item.problem.id for item in held_out}
        rows = [pair for pair in read_all(pairs, StepPair) if pair.problem_id not in held]
        encoding: Any = model.card.encoding
        cut = segmenter(segment)
        data = build_pairs(
            model.tokenizer, encoding, read_all(problems, Problem), rows, segmenter=cut, hard=hard
        )
        return Material(items=data.examples, dropped=data.dropped, first=data.first)

    return build
