"""What the evaluations share: named arguments, scorers and judges opened with a progress bar, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from surefoot.errors import LabelError

if TYPE_CHECKING:
    from surefoot.evaluation.step_scores import System, SystemCounts
    from surefoot.labels import LabelRule
    from surefoot.protocols import LabelledTrace, ProblemTrace
    from surefoot.stats.intervals import Cell

_ENDINGS = (".jsonl.gz", ".json.gz", ".jsonl", ".json", ".parquet")


def named(sources: Sequence[str]) -> dict[str, str]:
    """Name → path of arguments like ``NAME=PATH`` or ``PATH``, whose stem is then the name.

    Raises ``LabelError`` for a name that occurs twice.
    """
    paths: dict[str, str] = {}
    for source in sources:
        name, equals, path = source.partition("=")
        if not equals:
            path, name = source, Path(source).name
            name = next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)
        if not name or not path:
            raise LabelError(f"{source!r}: give NAME=FILE, or FILE alone")
        if name in paths:
            raise LabelError(f"two sources are called {name!r}; give NAME=FILE to tell them apart")
        paths[name] = path
    return paths


def open_all(
    sources: Mapping[str, str],
    items: Sequence[LabelledTrace],
    out: Path,
    *,
    reading: LabelRule | None = None,
    device: str = "cpu",
) -> list[System]:
    """Scorers and judges; scores of checkpoints are kept in ``out/scores``. Bad lines are said."""
    from surefoot.cli._shared import stages
    from surefoot.evaluation.step_scores import open_systems
    from surefoot.protocols import ProblemTrace

    traces: list[ProblemTrace] = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    with stages() as progress:
        systems = open_systems(
            sources, traces, out / "scores", reading=reading, device=device, progress=progress
        )
    for system in systems:
        if system.counts.skipped_lines:
            typer.echo(
                f"{system.name}: {system.counts.skipped_lines} lines skipped, no valid record", err=True
            )
    return systems


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]], *, spec: str = ".1%") -> None:
    """A table on standard output; the first column is text, floats and intervals print as ``spec`` says."""
    from rich.console import Console
    from rich.table import Table

    from surefoot.stats.intervals import format_cell

    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(format_cell(cell, spec) for cell in row))
    Console().print(table)


def show_records(systems: Sequence[SystemCounts]) -> None:
    """What the records of the systems are, where anything was left aside."""
    show(
        "Records of each source",
        (
            "source",
            "kind",
            "records",
            "foreign",
            "superseded",
            "steps without value",
            "traces without record",
        ),
        [
            [
                s.name,
                s.kind,
                s.counts.records,
                s.counts.foreign,
                s.counts.superseded,
                s.counts.without_value,
                s.traces_without_record,
            ]
            for s in systems
        ],
    )


def rule_text(rule: str, thresholds: Mapping[str, float]) -> str:
    """The rule with the thresholds that it gave."""
    values = ", ".join(f"{value:.3g}" for value in thresholds.values())
    return f"{rule} ({values})" if values and values != rule else rule
