"""Options that the audits share, and what they become: cases, and scorers under audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import typer

from surefoot.errors import RunError

if TYPE_CHECKING:
    from surefoot.evaluation.audits import Case, Subject
    from surefoot.protocols import ProblemTrace
    from surefoot.records import StepScores
    from surefoot.scores import Aggregator

T = TypeVar("T")

Scorers = Annotated[
    list[str],
    typer.Argument(
        help="Scorers, as NAME=CHECKPOINT or NAME=FILE of step scores (records, or published scores)."
    ),
]
Problems = Annotated[str | None, typer.Option("--problems", help="File of problem records.")]
Traces = Annotated[str | None, typer.Option("--traces", help="File of trace records.")]
Labels = Annotated[
    str | None,
    typer.Option("--labels", help="File of step labels, or 'lab' for the exact checker of the lab."),
]
ProcessBench = Annotated[
    list[str] | None,
    typer.Option(
        "--processbench",
        help="File in ProcessBench's format, in place of problems, traces and labels. May be repeated.",
    ),
]
Out = Annotated[str, typer.Option("--out", "-o", help="Directory for the JSON file and the HTML report.")]
Aggregate = Annotated[
    str | None,
    typer.Option(
        "--aggregate",
        help="Step scores to one number: min, product, last or mean; else each checkpoint's own, for stored "
        "scores min. NAME=RULE sets it for one scorer.",
    ),
]
Partial = Annotated[
    bool,
    typer.Option(
        "--partial", help="Aggregate the scored steps of a trace that has unscored ones; else it is left out."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Use so many problems, drawn with --seed; all if not given."),
]
PerProblem = Annotated[
    int | None,
    typer.Option("--per-problem", min=1, help="Use the first so many traces of a problem; all if not given."),
]
Device = Annotated[str, typer.Option("--device", help="Where checkpoints run: cpu, cuda, cuda:1, mps.")]
Draws = Annotated[int, typer.Option("--draws", min=1, help="Bootstrap draws for the intervals.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of edits, shuffles and bootstrap.")]


def read_cases(
    problems: str | None,
    traces: str | None,
    labels: str | None,
    processbench: list[str] | None,
    *,
    limit: int | None,
    per_problem: int | None = None,
    seed: int = 0,
) -> list[Case]:
    """Traces with what is known of their steps; without labels every step is unknown.

    Raises ``RunError`` if it is not said where they come from, or twice.
    """
    if processbench:
        refuse_idle("--processbench", problems=problems, traces=traces, labels=labels)
    if bool(processbench) == bool(problems and traces):
        raise RunError("give --problems and --traces (with --labels), or --processbench")
    if processbench:
        cases = _from_processbench(processbench)
    else:
        cases = _from_records(cast(str, problems), cast(str, traces), labels)
    return limited(cases, limit, per_problem, seed)


def open_subjects(sources: list[str], *, aggregate: str | None, partial: bool, device: str) -> list[Subject]:
    """Scorers by name, in order. Raises ``RunError`` for a name that comes twice."""
    rules = _rules(aggregate)
    subjects: list[Subject] = []
    for source in sources:
        name, equals, path = source.partition("=")
        if not equals:
            name, path = Path(source).name.split(".")[0], source
        if not name or not path:
            raise RunError(f"{source!r}: give NAME=CHECKPOINT or NAME=FILE")
        subjects += (
            _stored(name, path, rules) if Path(path).is_file() else [_loaded(name, path, rules, device)]
        )
    names = [subject.name for subject in subjects]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RunError(f"two scorers are called {min(twice)!r}; give NAME=… to tell them apart")
    if unknown := set(rules) - {"", *names}:
        raise RunError(f"--aggregate {min(unknown)}=…: no scorer has this name; there are {', '.join(names)}")
    if partial:
        from dataclasses import replace

        subjects = [replace(subject, partial=True) for subject in subjects]
    return subjects


def limited(cases: list[Case], limit: int | None, per_problem: int | None, seed: int) -> list[Case]:
    """Cases of ``limit`` problems drawn with ``seed``, the first ``per_problem`` of each; ``None`` = all."""
    names = drawn(list(dict.fromkeys(case.problem_id for case in cases)), limit, seed)
    left = dict.fromkeys(names, per_problem if per_problem is not None else len(cases))
    kept = []
    for case in cases:
        if left.get(case.problem_id, 0):
            left[case.problem_id] -= 1
            kept.append(case)
    return kept


def drawn(rows: list[T], limit: int | None, seed: int) -> list[T]:
    """``limit`` of the rows, drawn with ``seed``, in their order; ``None`` = all."""
    import numpy as np

    if limit is None or limit >= len(rows):
        return rows
    return [rows[at] for at in sorted(np.random.default_rng(seed).choice(len(rows), limit, replace=False))]


def refuse_idle(beside: str, **given: object) -> None:
    """Raise ``RunError`` for an option that does nothing beside another one: those that are not ``None``,
    empty or ``False``."""
    idle = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False, [])]
    if idle:
        raise RunError(f"{', '.join(idle)}: not used with {beside}; leave out one or the other")


def recorded(cases: list[Case], subjects: list[Subject]) -> list[Case]:
    """Cases of which every file of stored scores has a record; the others are counted on standard error.

    Raises ``RunError`` if there is none.
    """
    from surefoot.evaluation.audits import StoredScores

    files = [subject.scorer for subject in subjects if isinstance(subject.scorer, StoredScores)]
    kept = [case for case in cases if all(file.has(case.item) for file in files)]
    if not kept:
        raise RunError("no trace has a record in every file of scores; give the traces that were scored")
    if len(kept) < len(cases):
        typer.echo(
            f"{len(cases) - len(kept)} traces left out: not in every file of scores, by trace id", err=True
        )
    return kept


def items_of(cases: list[Case]) -> list[ProblemTrace]:
    """The traces of cases with their problems."""
    return [case.item for case in cases]


def _from_records(problems: str, traces: str, labels: str | None) -> list[Case]:
    from surefoot.cli._shared import pair, read_all
    from surefoot.evaluation.audits import Case, lab_cases, labelled_cases
    from surefoot.records import Problem, StepLabel, Trace

    items = pair(read_all(problems, Problem), read_all(traces, Trace))
    if labels == "lab":
        return lab_cases(items)
    if labels:
        return labelled_cases(items, read_all(labels, StepLabel))
    return [Case(item=item, good=(None,) * len(item.trace.steps)) for item in items]


def _from_processbench(files: list[str]) -> list[Case]:
    from surefoot.evaluation.audits import labelled_cases
    from surefoot.formats import read_processbench
    from surefoot.protocols import ProblemTrace

    found = [item for file in files for item in read_processbench(file)]
    items = [ProblemTrace(problem=item.problem, trace=item.trace) for item in found]
    return labelled_cases(items, [label for item in found for label in item.labels])


def _rules(aggregate: str | None) -> dict[str, Aggregator]:
    """Rule by scorer's name; the one for all others is under the empty name."""
    from surefoot.scores import AGGREGATORS

    rules: dict[str, Aggregator] = {}
    for part in aggregate.split(",") if aggregate else []:
        name, _, rule = part.rpartition("=")
        if rule not in AGGREGATORS:
            raise RunError(f"--aggregate {part}: choose from {', '.join(AGGREGATORS)}")
        rules[name] = rule
    return rules


def _loaded(name: str, path: str, rules: dict[str, Aggregator], device: str) -> Subject:
    from surefoot.evaluation.audits import Remembered, Subject
    from surefoot.models.loading import load_prm

    scorer = load_prm(path, device=device)
    rule = rules.get(name) or rules.get("") or scorer.card.aggregation
    return Subject(name=name, scorer=Remembered(scorer), rule=rule)


def _stored(name: str, path: str, rules: dict[str, Aggregator]) -> list[Subject]:
    """One scorer a name in the file: ``name`` itself if there is one only, else ``name/scorer``."""
    from surefoot.evaluation.audits import StoredScores, Subject

    records = _scores(path)
    names = list(dict.fromkeys(record.scorer for record in records))
    parts = {f"{name}/{scorer}": [r for r in records if r.scorer == scorer] for scorer in names}
    if len(parts) == 1:
        parts = {name: records}
    return [
        Subject(
            name=part,
            scorer=StoredScores(part, rows),
            rule=rules.get(part) or rules.get(name) or rules.get("", "min"),
            stored=True,
        )
        for part, rows in parts.items()
    ]


def _scores(path: str) -> list[StepScores]:
    from surefoot.errors import RecordError
    from surefoot.formats.processbench import read_fover_scores
    from surefoot.io import ReadReport, read_records
    from surefoot.records import StepScores

    report = ReadReport()
    records = list(read_records(Path(path), StepScores, report=report)) or list(read_fover_scores(path))
    if not records:
        raise RecordError(f"{path}: no step scores in it; see docs/reference/formats.md")
    if report.bad_count and records:
        typer.echo(f"{path}: {report.summary()}", err=True)
    return records
