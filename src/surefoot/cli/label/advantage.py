"""``surefoot label advantage``: what each step added, from values before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.protocols import LabelledTrace
    from surefoot.records import StepLabel


def advantage(
    traces: Annotated[str, typer.Argument(help="File of trace records with steps, or - for standard input.")],
    problems: o.Problems,
    labels: Annotated[
        str, typer.Option("--labels", help="File of value labels, by soft estimates (surefoot label mc).")
    ],
    out: o.Out = "-",
    best_of: Annotated[
        int,
        typer.Option("--best-of", min=1, help="Prover: the best of so many samples of the labels' policy."),
    ] = 1,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="File of plain samples of that policy; a problem's success rate is the first step's before.",
        ),
    ] = None,
) -> None:
    """Label steps by advantage: the chance of success after a step less the chance before it.

    A prover that takes the best of K samples costs nothing more: its values are 1 - (1 - value)^K (Setlur et
    al., arXiv 2410.08146). Without --start the first step of a trace has no label. Samples that were
    chosen by outcome have another success rate, so do not give these.

    Example: `surefoot label advantage traces.jsonl --problems problems.jsonl --labels values.jsonl
    --best-of 4 --start traces.jsonl --out advantages.jsonl`
    """
    from surefoot.cli._pieces import file_inputs, in_pieces
    from surefoot.cli._shared import labelled, read_all
    from surefoot.cli.label._write import Tally
    from surefoot.labelling.advantage import advantage_labels, start_values
    from surefoot.records import Problem, StepLabel, Trace

    values = read_all(labels, StepLabel)
    items = _valued(labelled(read_all(problems, Problem), read_all(traces, Trace), values), labels)
    rates = start_values(read_all(start, Trace)) if start else {}
    if start:
        typer.echo(f"success rates of {len(rates)} problems from {start}", err=True)
    tally = Tally()

    def work(piece: Sequence[LabelledTrace]) -> list[StepLabel]:
        made = advantage_labels(piece, start=rates, best_of=best_of)
        flat = [label for of_trace in made for label in of_trace]
        tally.add(flat)
        return flat

    in_pieces(
        out,
        StepLabel,
        items,
        work,
        size=1000,
        command="label advantage",
        config={"best_of": best_of, "start": sorted(rates.items())},
        inputs=file_inputs(problems=problems, traces=traces, labels=labels),
    )
    typer.echo(tally.summary(), err=True)


def _valued(items: list[LabelledTrace], labels: str) -> list[LabelledTrace]:
    """Items that have a value; how many have none is said. Raises ``LabelError`` if none has."""
    from surefoot.errors import LabelError

    found = [item for item in items if any(label.kind == "value" for label in item.labels)]
    if not found:
        raise LabelError(f"{labels}: no label of kind 'value' for these traces; make some with label mc")
    if len(found) < len(items):
        typer.echo(f"{len(items) - len(found)} traces skipped: they have no label of kind 'value'", err=True)
    return found
