"""``surefoot evaluate prmbench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.evaluation.benchmarks.prmbench import PRMBenchEvaluation
    from surefoot.evaluation.benchmarks.processbench import Missing
    from surefoot.protocols import LabelledTrace


def prmbench(
    sources: Annotated[
        list[str],
        typer.Argument(help="NAME=CHECKPOINT, or NAME=FILE of step scores or of a judge's labels."),
    ],
    data: Annotated[list[str], typer.Option("--data", help="PRMBench file; may be repeated.")],
    out: Annotated[
        str, typer.Option("--out", "-o", help="Directory for prmbench.json, prmbench.html and scores.")
    ],
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            help="A number (a step above it is kept), or split (fitted on the other half of the problems); "
            "may be repeated. By default 0.5, which is the published one, and split.",
        ),
    ] = None,
    redundancy: Annotated[
        list[str] | None,
        typer.Option(
            "--redundancy",
            help="NAME=FILE of redundancy scores of the source NAME, for the classes of simplicity.",
        ),
    ] = None,
    redundancy_threshold: Annotated[
        float, typer.Option("--redundancy-threshold", help="A step with more redundancy is flagged.")
    ] = 0.15,
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            help="Traces of which a source has no record: leave-out (of all sources), or wrong: as a trace "
            "without verdict, which PRMBench does not count.",
        ),
    ] = "leave-out",
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a judge's label of 0 is: good, bad or drop (unknown).")
    ] = "good",
    device: o.Device = "cpu",
    draws: Annotated[int, typer.Option("--draws", min=1, help="Bootstrap draws for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.")] = 0,
) -> None:
    """Flag wrong steps: PRMBench's PRMScore of scorers and judges, side by side, with intervals.

    Scores of checkpoints are kept in DIR/scores and used again; a killed run goes on. The tables are
    printed; DIR/prmbench.json has every number and DIR/prmbench.html the plots.

    Example: `surefoot evaluate prmbench mine=runs/prm --data prmbench.jsonl --out bench`
    """
    from pathlib import Path

    from surefoot.cli._shared import choice
    from surefoot.cli.evaluate._sources import named, open_all
    from surefoot.evaluation.benchmarks.prmbench import (
        evaluate_prmbench,
        prmbench_cases,
        write_prmbench_report,
    )
    from surefoot.evaluation.splits import SPLIT, parse_rules
    from surefoot.io import write_json
    from surefoot.labels import LabelRule

    choice("--missing", missing, "leave-out", "wrong")
    choice("--neutral", neutral, "good", "bad", "drop")
    files, paths, more = named(sources), named(data), named(redundancy or [])
    rules = parse_rules(threshold or ["0.5", SPLIT], [])
    items = [item for path in paths.values() for item in _read(path)]
    cases = prmbench_cases(items)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    reading = LabelRule(neutral=neutral)  # type: ignore[arg-type]
    kept = [case.item for case in cases.cases]
    systems = open_all(files, kept, folder, reading=reading, device=device)
    found = evaluate_prmbench(
        cases,
        systems,
        redundancy={system.name: system for system in open_all(more, kept, folder)},
        redundancy_threshold=redundancy_threshold,
        rules=rules,
        missing=cast("Missing", missing),
        draws=draws,
        seed=seed,
    )
    inputs = {"sources": files, "data": paths, "redundancy": more, "neutral": neutral}
    write_json(folder / "prmbench.json", {"inputs": inputs, **found.to_json()})
    write_prmbench_report(found, folder / "prmbench.html")
    _print(found)


def _read(path: str) -> list[LabelledTrace]:
    """Rows and controls; what is skipped is said once."""
    from surefoot.formats import read_prmbench, read_prmbench_controls
    from surefoot.io import ReadReport

    report, controls = ReadReport(), ReadReport()
    items = [*read_prmbench(path, report=report), *read_prmbench_controls(path, report=controls)]
    for kind, counted in (("", report), ("controls of ", controls)):
        if counted.bad_count > (0 if counted is report else report.bad_count):
            typer.echo(kind + counted.summary(), err=True)
    return items


def _print(found: PRMBenchEvaluation) -> None:
    from surefoot.cli.evaluate._sources import rule_text, show, show_records
    from surefoot.evaluation.benchmarks.prmbench import GROUPS

    show_records(found.systems)
    aside = "".join(
        f", {count} {why}"
        for count, why in (
            (found.left_out, "left out: no record of every source"),
            (found.repeated, "repeated rows left out"),
        )
        if count
    )
    show(
        f"PRMScore with 95 % interval; {found.traces} traces, {found.controls} controls{aside}",
        ("source", "threshold", "all", *GROUPS, "valid kept", "wrong flagged", "unparsed"),
        [
            [
                s.system,
                rule_text(s.rule, s.thresholds),
                s.flags.total.score,
                *s.flags.groups.values(),
                s.flags.accuracy_good,
                s.flags.accuracy_bad,
                s.flags.unparsed,
            ]
            for s in found.scores
        ],
    )
    short = {kind: code for group in GROUPS.values() for kind, code in group.items()}
    show(
        "PRMScore by class (MS: F1 alone)",
        ("source", "threshold", *short.values()),
        [[s.system, s.rule, *(s.flags.classes[kind].score.value for kind in short)] for s in found.scores],
    )
