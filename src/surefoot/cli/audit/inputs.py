"""What the audits read and write: cases, scorers under audit, and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from surefoot.cli import options as o
from surefoot.cli.runs import print_table
from surefoot.cli.settings import Command
from surefoot.cli.terminal import echo
from surefoot.errors import RunError
from surefoot.policies.devices import Loading
from surefoot.scores import AGGREGATORS, Aggregator

if TYPE_CHECKING:
    from surefoot.evaluation.audits import AuditedScorer, Case
    from surefoot.evaluation.report import Section
    from surefoot.io.tables import RecordTable
    from surefoot.protocols import ProblemTrace
    from surefoot.records import StepScores

T = TypeVar("T")

PRINTED_ROWS = 60
"""Rows of a table that are printed; the report has them all."""


class AuditCommand(Command):
    """Settings of every audit."""

    report_name: ClassVar[str]

    scorers: o.Sources = Field(
        description="Scorers, as NAME=CHECKPOINT or NAME=FILE of step scores (records, or published scores)."
    )
    out: o.OutDirectory = Field(description="Directory for the JSON file and the HTML report.")
    aggregate: str | None = Field(
        default=None,
        description="How step scores become one number: `min`, `product`, `last`, `mean` or `sum`; if not "
        "given, as each checkpoint says, and `min` for stored scores. `NAME=RULE` sets it for one scorer; "
        "separate several by commas.",
    )
    limit: int | None = Field(
        default=None, ge=1, description="Use so many problems, drawn with `--seed`; all if not given."
    )
    draws: o.Draws = 1000
    seed: o.Seed = 0
    loading: o.Models = Loading()

    @field_validator("aggregate")
    @classmethod
    def _known_rules(cls, value: str | None) -> str | None:
        rules_by_name(value)
        return value

    def subjects(self, *, partial: bool = False) -> list[AuditedScorer]:
        """The scorers, in order. Raises ``RunError`` for a name that comes twice."""
        from surefoot.io.sources import names_files

        rules = rules_by_name(self.aggregate)
        subjects: list[AuditedScorer] = []
        for source in self.scorers:
            name, equals, path = source.partition("=")
            if not equals:
                name, path = Path(source).name.split(".")[0], source
            if not name or not path:
                raise RunError(f"{source!r}: give NAME=CHECKPOINT or NAME=FILE")
            stored = names_files(path)
            subjects += _stored(name, path, rules) if stored else [_loaded(name, path, rules, self.loading)]
        names = [subject.name for subject in subjects]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise RunError(f"two scorers are called {min(repeated)!r}; give NAME=… to distinguish them")
        if unknown := set(rules) - {"", *names}:
            raise RunError(
                f"--aggregate {min(unknown)}=…: no scorer has this name; there are {', '.join(names)}"
            )
        return [replace(subject, partial=True) for subject in subjects] if partial else subjects

    def outputs(self) -> list[Path]:
        """The report's files; another audit's can lie beside them."""
        return [self.out / f"{self.report_name}.{ending}" for ending in ("json", "html")]

    def leave(self, sections: Sequence[Section], results: Mapping[str, Any]) -> None:
        """Print the sections, and write the report's two files into ``out``.

        ``results`` are the audits' records.
        """
        from surefoot.evaluation.report import Report, to_json
        from surefoot.io import write_json

        self.out.mkdir(parents=True, exist_ok=True)
        for_json, for_html = self.outputs()
        settings = self.model_dump(mode="json")
        findings = {section.title: list(section.findings) for section in sections}
        data = {"settings": settings, "findings": findings, **to_json(results)}
        write_json(for_json, data)
        shown = ", ".join(f"{key} {value}" for key, value in settings.items() if isinstance(value, str | int))
        note = f"Intervals are 95 %, by bootstrap over problems. {shown}."
        report = Report(f"Audit: {self.report_name}").text(note)
        for section in sections:
            report.section(section)
        report.write(for_html)
        _print(sections)


class CaseAudit(AuditCommand):
    """Settings of the audits that read traces with what is known of their steps."""

    problems: o.Problems | None = None
    traces: o.Traces | None = None
    labels: Annotated[str | None, o.INPUT] = Field(
        default=None, description="File of step labels, or `lab` for the exact checker of the lab."
    )
    processbench: Annotated[tuple[str, ...], o.INPUT] = Field(
        default=(), description="File in ProcessBench's format, in place of problems, traces and labels."
    )
    per_problem: int | None = Field(
        default=None, ge=1, description="Use the first so many traces of each problem; all if not given."
    )

    @property
    def in_lab(self) -> bool:
        """Whether the exact truth is known."""
        return self.labels == "lab"

    def _check_source(self) -> None:
        if self.processbench:
            refuse_unused("--processbench", problems=self.problems, traces=self.traces, labels=self.labels)
        if bool(self.processbench) == bool(self.problems and self.traces):
            raise ValueError("give 'problems' and 'traces' (with 'labels'), or 'processbench'")

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_source()
        return self

    def cases(self, *, per_problem: int | None = None) -> list[Case]:
        """The first ``per_problem`` traces of each problem; without labels every step is unknown."""
        choice = CaseChoice(problems=self.limit, per_problem=per_problem, seed=self.seed)
        if self.processbench:
            return read_processbench_cases(self.processbench, choice)
        return read_cases(self.problems or "", self.traces or "", self.labels, choice)


class PartialAudit(CaseAudit):
    """Settings of the audits that may read traces of which only some steps are scored."""

    partial: bool = Field(
        default=False,
        description="Aggregate the scored steps of a trace that has unscored ones; otherwise it is left out.",
    )


def rules_by_name(aggregate: str | None) -> dict[str, Aggregator]:
    """Rule by scorer's name; the one for all others is under the empty name."""
    rules: dict[str, Aggregator] = {}
    for part in aggregate.split(",") if aggregate else []:
        name, _, rule = part.rpartition("=")
        if rule not in AGGREGATORS:
            raise ValueError(f"'aggregate' {part}: choose from {', '.join(AGGREGATORS)}")
        rules[name] = rule
    return rules


def refuse_unused(beside: str, **options: object) -> None:
    """Raise ``ValueError`` for options that do nothing beside another one: those that are set."""
    unused = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if unused:
        raise ValueError(f"{', '.join(unused)}: not used with {beside}; leave out one or the other")


@dataclass(frozen=True, kw_only=True)
class CaseChoice:
    """Which of a file's cases are read: the ``per_problem`` first ones of each of so many problems.

    The problems are drawn with ``seed``. ``None`` = all.
    """

    problems: int | None = None
    per_problem: int | None = None
    seed: int = 0

    def names(self, problem_ids: Iterable[str]) -> set[str]:
        """The ids that were drawn."""
        return set(subset(list(dict.fromkeys(problem_ids)), self.problems, self.seed))


ALL_CASES = CaseChoice()


def first_of_each(items: Iterable[T], most: int | None, problem_id: Callable[[T], str]) -> Iterator[T]:
    """The first ``most`` items of each problem; ``None`` = all."""
    read: Counter[str] = Counter()
    for item in items:
        read[problem_id(item)] += 1
        if most is None or read[problem_id(item)] <= most:
            yield item


def read_cases(problems: str, traces: str, labels: str | None, choice: CaseChoice = ALL_CASES) -> list[Case]:
    """Traces with what is known of their steps; without labels every step is unknown.

    Of the files, only what is chosen is held in memory.
    """
    from surefoot.cli.runs import pair, read_table
    from surefoot.evaluation.audits import Case, lab_cases, labelled_cases
    from surefoot.records import Problem, StepLabel, Trace

    joined = pair(read_table(problems, Problem), read_table(traces, Trace))
    names = choice.names(joined.problem_ids())
    chosen = joined.of_problems(names.__contains__)
    items = list(first_of_each(chosen, choice.per_problem, lambda item: item.problem.id))
    if labels == "lab":
        return lab_cases(items)
    if labels:
        found = read_table(labels, StepLabel).find_many([item.trace.id for item in items])
        return labelled_cases(items, [label for some in found.values() for label in some])
    return [Case(item=item, good=(None,) * len(item.trace.steps)) for item in items]


def read_processbench_cases(files: Sequence[str], choice: CaseChoice = ALL_CASES) -> list[Case]:
    """Traces of files in ProcessBench's format, with the labels there."""
    from surefoot.evaluation.audits import labelled_cases
    from surefoot.formats import read_processbench
    from surefoot.protocols import ProblemTrace

    read = [row for file in files for row in read_processbench(file)]
    names = choice.names(row.problem.id for row in read)
    chosen = (row for row in read if row.problem.id in names)
    rows = list(first_of_each(chosen, choice.per_problem, lambda row: row.problem.id))
    items = [ProblemTrace(problem=row.problem, trace=row.trace) for row in rows]
    return labelled_cases(items, [label for row in rows for label in row.labels])


def subset(rows: Sequence[T], limit: int | None, seed: int) -> Sequence[T]:
    """``limit`` of the rows, drawn with ``seed``, in their order; ``None`` = all."""
    import numpy as np

    if limit is None or limit >= len(rows):
        return rows
    return [rows[at] for at in sorted(np.random.default_rng(seed).choice(len(rows), limit, replace=False))]


def with_scores(cases: list[Case], subjects: list[AuditedScorer]) -> list[Case]:
    """Cases of which every file of stored scores has a record; the others are counted on standard error.

    Raises ``RunError`` if there is none.
    """
    from surefoot.evaluation.audits import StoredScores

    files = [subject.scorer for subject in subjects if isinstance(subject.scorer, StoredScores)]
    known = [file.have([case.item for case in cases]) for file in files]
    scored = [case for case, *there in zip(cases, *known, strict=True) if all(there)]
    if not scored:
        raise RunError("no trace has a record in every file of scores; give the traces that were scored")
    if len(scored) < len(cases):
        echo(
            f"{len(cases) - len(scored)} traces left out: not in every file of scores, by trace id", err=True
        )
    return scored


def read_folder(path: str, choice: CaseChoice) -> list[Case]:
    """Cases of a file in ProcessBench's format, or of a directory that ``convert`` wrote."""
    from surefoot.io.sources import ENDINGS

    folder = Path(path)
    if folder.is_file():
        return read_processbench_cases([path], choice)
    files = {}
    for name in ("problems", "traces", "labels"):
        there = [folder / f"{name}{ending}" for ending in ENDINGS if (folder / f"{name}{ending}").is_file()]
        if not there:
            raise RunError(f"{path}: no {name}.jsonl in it; make the directory with `surefoot convert`")
        files[name] = str(there[0])
    return read_cases(files["problems"], files["traces"], files["labels"], choice)


def read_pool(path: str, aggregate: str | None) -> tuple[list[AuditedScorer], list[ProblemTrace]]:
    """A pool's own scorer, once for each rule unless one is given; outcomes are the file's verdicts."""
    from surefoot.evaluation.audits import AuditedScorer, StoredScores
    from surefoot.formats import read_candidate_pool
    from surefoot.protocols import ProblemTrace

    rules = [rule for rule in AGGREGATORS if aggregate in (None, rule)]
    pools = list(read_candidate_pool(path))
    if dropped := sum(count for pool in pools for count in pool.dropped.values()):
        echo(f"{dropped} candidates skipped: not as many steps, cut at blank lines, as scores", err=True)
    items = [
        ProblemTrace(
            problem=pool.problem, trace=trace.model_copy(update={"outcome": trace.meta.get("correct")})
        )
        for pool in pools
        for trace in pool.traces
    ]
    records = [record for pool in pools for record in pool.scores]
    name = records[0].scorer if records else "stored"
    return [
        AuditedScorer(name=f"{name} ({rule})", scorer=StoredScores(name, records), rule=rule, stored=True)
        for rule in rules
    ], items


def _loaded(name: str, path: str, rules: Mapping[str, Aggregator], loading: Loading) -> AuditedScorer:
    from surefoot.evaluation.audits import AuditedScorer, CachedScorer
    from surefoot.models import load_prm

    scorer = load_prm(path, loading=loading)
    rule = rules.get(name) or rules.get("") or scorer.card.aggregation
    return AuditedScorer(name=name, scorer=CachedScorer(scorer), rule=rule)


def _stored(name: str, path: str, rules: Mapping[str, Aggregator]) -> list[AuditedScorer]:
    """One scorer per name in the file: ``name`` itself if there is only one, else ``name/scorer``."""
    from surefoot.evaluation.audits import AuditedScorer, StoredScores
    from surefoot.evaluation.scorer_table import scorer_tables

    return [
        AuditedScorer(
            name=part,
            scorer=StoredScores(part, table),
            rule=rules.get(part) or rules.get(name) or rules.get("", "min"),
            stored=True,
        )
        for part, table in scorer_tables(name, _read_scores(path)).items()
    ]


def _read_scores(path: str) -> RecordTable[StepScores]:
    from surefoot.errors import RecordError
    from surefoot.formats import read_fover_scores
    from surefoot.io import ReadReport, read_records
    from surefoot.io.sources import files_of
    from surefoot.io.tables import open_table
    from surefoot.records import StepScores

    report = ReadReport()
    table = open_table(path, StepScores, records=read_records(path, StepScores, report=report))
    if not table:
        published = (one for file in files_of(path) for one in read_fover_scores(file))
        table = open_table(path, StepScores, records=published)
    if not table:
        raise RecordError(f"{path}: no step scores in it; see docs/reference/formats.md")
    if report.bad_count:
        echo(f"{path}: {report.summary()}", err=True)
    if table.repeated:
        echo(f"{path}: {table.repeated} scores come again and are left out", err=True)
    return table


def _print(sections: Sequence[Section]) -> None:
    for section in sections:
        echo(f"\n{section.title}")
        for table in section.tables:
            if not table.rows or any("\n" in str(cell) for row in table.rows for cell in row):
                continue  # whole solutions are for the page
            print_table(replace(table, rows=table.rows[:PRINTED_ROWS], spec=".3f"))
            if len(table.rows) > PRINTED_ROWS:
                echo(f"{len(table.rows) - PRINTED_ROWS} more rows are in the report")
        for finding in section.findings:
            echo(finding)
