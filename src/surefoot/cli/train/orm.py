"""``surefoot train orm``: outcome reward models."""

from __future__ import annotations

from typing import Annotated

import typer

from surefoot.cli import _options as o
from surefoot.cli.train._options import ClassifierOptions, Directory, InputOptions


def orm(
    problems: o.Problems,
    traces: o.Traces,
    out: Directory,
    reads: InputOptions,
    options: ClassifierOptions,
    at: Annotated[
        str, typer.Option("--at", help="Put the outcome at the last step or at every step.")
    ] = "every",
) -> None:
    """Train an outcome reward model on whether the traces' final answers are right.

    Start a killed command again and it goes on from its last checkpoint.

    Example: `surefoot train orm --problems problems.jsonl --traces traces.jsonl --out orm`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import checked_options, labelled, read_all
    from surefoot.cli.train._run import of_traces, split, train_classifier
    from surefoot.records import Problem, Trace, content_id
    from surefoot.training.config import OutcomeTargets, TrainingConfig

    with checked_options():
        card = options.card(
            reads, kind="orm", aggregation="last", score_means="outcome", label_source="outcome"
        )
        targets = OutcomeTargets.model_validate({"at": at})
        config = options.config(TrainingConfig)
    items = labelled(read_all(problems, Problem), read_all(traces, Trace), [])
    training, held_out = split(items, options.validation)
    train_classifier(
        "orm",
        out,
        base=reads.base,
        card=card,
        config=config,
        material=of_traces(training, targets),
        held_out=(held_out, targets),
        settings={
            "targets": targets.model_dump(),
            "validation": options.validation,
            "items": content_id(*items),
        },
        inputs=file_inputs(problems=problems, traces=traces),
        device=options.device,
    )
