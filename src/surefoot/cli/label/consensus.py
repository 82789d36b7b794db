"""``surefoot label consensus``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.labelling.consensus import ConsensusRule
    from surefoot.labels import Neutral


def consensus(
    sources: Annotated[
        list[str],
        typer.Argument(help="NAME=FILE for each source of labels, two or more.", metavar="NAME=FILE"),
    ],
    traces: o.Traces,
    problems: o.Problems,
    out: o.Out = "-",
    rule: Annotated[
        str, typer.Option("--rule", help="first-error keeps or drops traces; unanimous and weighted, steps.")
    ] = "first-error",
    weight: Annotated[
        list[str] | None, typer.Option("--weight", help="NAME=NUMBER for --rule weighted; 1 if not given.")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="Least lead for --rule weighted, as a share of all weights; 0 = any."),
    ] = None,
    good_above: Annotated[
        float,
        typer.Option("--good-above", help="A value label above this is good; 0 = any rollout got there."),
    ] = 0.0,
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a label of 0 is: good, bad or drop (no vote).")
    ] = "drop",
    report: Annotated[
        str | None, typer.Option("--report", help="JSON file for what was kept and dropped, and why.")
    ] = None,
) -> None:
    """Keep what several sources of labels agree on, and count what they do not.

    The default is the published filter (arXiv 2501.07301): a trace is kept if all sources have the same
    first error, or all none. Labels of traces without any consensus are not written.

    Example: `surefoot label consensus mc=mc.jsonl judge=judge.jsonl --traces traces.jsonl
    --problems problems.jsonl --report report.json --out labels.jsonl`
    """
    from pathlib import Path

    from surefoot.cli._shared import pair, read_all
    from surefoot.errors import LabelError
    from surefoot.io import write_json, write_records
    from surefoot.labelling.consensus import combine_labels, rows_of
    from surefoot.records import Problem, StepLabel, Trace

    deciding = _rule(rule, weight or [], margin)
    if neutral not in ("good", "bad", "drop"):
        raise LabelError(f"--neutral is {neutral!r}; choose good, bad or drop")
    files = _named(sources, "NAME=FILE")
    items = pair(read_all(problems, Problem), read_all(traces, Trace))
    rows = {}
    for name, path in files.items():
        rows[name], strays = rows_of(items, read_all(path, StepLabel))
        if strays:
            typer.echo(f"{strays} labels of {name} skipped: they are of no step of a usable trace", err=True)
    combined = combine_labels(
        items, rows, rule=deciding, good_above=good_above, neutral=cast("Neutral", neutral)
    )
    kept = [labels for labels in combined.labels if any(label.value is not None for label in labels)]
    write_records(
        out if out == "-" else Path(out), [label for labels in kept for label in labels], record=StepLabel
    )
    if report:
        write_json(Path(report), combined.report.as_json())
    typer.echo(combined.report.summary(), err=True)


def _rule(name: str, weights: list[str], margin: float | None) -> ConsensusRule:
    from surefoot.errors import LabelError
    from surefoot.labelling.consensus import SameFirstError, Unanimous, Weighted

    if name == "weighted":
        given = {source: _number(source, text) for source, text in _named(weights, "NAME=NUMBER").items()}
        return Weighted(weights=given, margin=margin or 0.0)
    if weights or margin is not None:
        raise LabelError(f"--weight and --margin belong to --rule weighted, not to --rule {name}")
    if name not in ("first-error", "unanimous"):
        raise LabelError(f"--rule is {name!r}; choose first-error, unanimous or weighted")
    return SameFirstError() if name == "first-error" else Unanimous()


def _named(words: list[str], form: str) -> dict[str, str]:
    from surefoot.errors import LabelError

    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise LabelError(f"{word!r} is not of the form {form}")
        if name in named:
            raise LabelError(f"'{name}' is given twice; every source has its own name")
        named[name] = value
    return named


def _number(source: str, text: str) -> float:
    from surefoot.errors import LabelError

    try:
        return float(text)
    except ValueError:
        raise LabelError(f"--weight {source}={text}: give a number") from None
