"""``surefoot evaluate processbench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.evaluation.benchmarks.processbench import Missing, ProcessBenchEvaluation
    from surefoot.protocols import LabelledTrace


def processbench(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="NAME=CHECKPOINT, or NAME=FILE of step scores, of a judge's labels, or of published scores."
        ),
    ],
    data: Annotated[
        list[str],
        typer.Option("--data", help="A subset's file, as NAME=FILE or FILE; repeat it for several subsets."),
    ],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="Directory for processbench.json, processbench.html and scores."),
    ],
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            help="split (fitted on the other half of the problems), a subset's name (fitted on it, applied "
            "to all) or a number; may be repeated. By default split, gsm8k if it is there, and 0.5.",
        ),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            "--missing", help="Traces of which a source has no record: leave-out (of all sources) or wrong."
        ),
    ] = "leave-out",
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a judge's label of 0 is: good, bad or drop (unknown).")
    ] = "good",
    device: o.Device = "cpu",
    draws: Annotated[int, typer.Option("--draws", min=1, help="Bootstrap draws for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.")] = 0,
) -> None:
    """Find the first error: ProcessBench's F1 of scorers and judges, side by side, with intervals.

    Scores of checkpoints are kept in DIR/scores and used again; a killed run goes on. The tables are
    printed; DIR/processbench.json has every number and DIR/processbench.html the plots.

    Example: `surefoot evaluate processbench mine=runs/prm judge=labels.jsonl --data gsm8k.json
    --data math.json --out bench`
    """
    from pathlib import Path

    from surefoot.cli._shared import choice
    from surefoot.cli.evaluate._sources import named, open_all
    from surefoot.evaluation.benchmarks.processbench import (
        evaluate_processbench,
        processbench_cases,
        write_processbench_report,
    )
    from surefoot.evaluation.splits import SPLIT, parse_rules
    from surefoot.io import write_json
    from surefoot.labels import LabelRule

    choice("--missing", missing, "leave-out", "wrong")
    choice("--neutral", neutral, "good", "bad", "drop")
    files, paths = named(sources), named(data)
    rules = parse_rules(threshold or [SPLIT, *(["gsm8k"] if "gsm8k" in paths else []), "0.5"], list(paths))
    subsets = {name: _read(path) for name, path in paths.items()}
    items = [item for found in subsets.values() for item in found]
    cases = processbench_cases(subsets)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    reading = LabelRule(neutral=neutral)  # type: ignore[arg-type]
    systems = open_all(files, items, folder, reading=reading, device=device)
    found = evaluate_processbench(
        cases, systems, rules=rules, missing=cast("Missing", missing), draws=draws, seed=seed
    )
    inputs = {"sources": files, "data": paths, "neutral": neutral}
    write_json(folder / "processbench.json", {"inputs": inputs, **found.to_json()})
    write_processbench_report(found, folder / "processbench.html")
    _print(found)


def _read(path: str) -> list[LabelledTrace]:
    from surefoot.formats import read_processbench
    from surefoot.io import ReadReport

    report = ReadReport()
    items = list(read_processbench(path, report=report))
    if report.bad_count:
        typer.echo(report.summary(), err=True)
    return items


def _print(found: ProcessBenchEvaluation) -> None:
    from surefoot.cli.evaluate._sources import rule_text, show, show_records

    show_records(found.systems)
    left_out = f", {found.left_out} left out: no record of every source" if found.left_out else ""
    show(
        f"ProcessBench F1 with 95 % interval; {found.traces} traces, {found.problems} problems{left_out}",
        ("source", "threshold", *found.subsets, "mean", "less the first", "unparsed"),
        [
            [
                s.system,
                rule_text(s.rule, s.thresholds),
                *(f"{part.f1:.1%}{'*' if name == s.seen else ''}" for name, part in s.subsets.items()),
                s.average_f1,
                "" if s.difference is None else f"{s.difference:+.1%}",
                sum(part.unparsed for part in s.subsets.values()),
            ]
            for s in found.scores
        ],
    )
    if any(s.seen for s in found.scores):
        typer.echo("* the threshold was fitted on this very subset: optimistic")
