"""Shared parts of the audit commands: settings, traces with labels, scorers under audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import ReportCommand, show_skipped
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


class AuditCommand(ReportCommand):
    """Settings of every audit."""

    scorers: o.Sources = Field(
        description="Scorers, as NAME=CHECKPOINT or NAME=FILE of step scores (records, or published scores)."
    )
    out: o.OutDirectory = Field(description="Directory for the JSON file and the HTML report.")
    aggregate: str | None = Field(
        default=None,
        description="How step scores become one number: `min`, `product`, `last`, `mean` or `sum`. By "
        "default the rule of each checkpoint, and `min` for stored scores. `NAME=RULE` sets it for one "
        "scorer; separate several with commas.",
    )
    limit: int | None = Field(
        default=None, ge=1, description="Number of problems, chosen at random with `--seed`; all by default."
    )
    loading: o.Models = Loading()

    @field_validator("aggregate")
    @classmethod
    def _check_aggregate(cls, value: str | None) -> str | None:
        _rules(value)
        return value

    def subjects(self, *, partial: bool = False) -> list[AuditedScorer]:
        """The scorers, in order. Raises ``RunError`` for repeated names."""
        from surefoot.io.sources import names_files

        rules = _rules(self.aggregate)
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
        return [replace(subject, partial=partial) for subject in subjects]

    def each(
        self, audit: Callable[..., T], subjects: Iterable[AuditedScorer], *material: Any, **options: Any
    ) -> list[T]:
        """The results of an audit for each scorer."""
        return [audit(s, *material, draws=self.draws, seed=self.seed, **options) for s in subjects]

    def finish(self, sections: Sequence[Section], results: Mapping[str, Any]) -> None:
        """Print the sections, and write the report's two files; ``results`` are the audits' records."""
        from surefoot.evaluation.report import Report, to_json

        settings = self.model_dump(mode="json")
        findings = {section.title: list(section.findings) for section in sections}
        texts = ", ".join(f"{key} {value}" for key, value in settings.items() if isinstance(value, str | int))

        def report(path: Path) -> Report:
            page = Report(f"Audit: {self.report_name}")
            page.text(f"Intervals are 95 %, by bootstrap over problems. {texts}.")
            for section in sections:
                page.section(section)
            return page.write(path)

        self.write({"settings": settings, "findings": findings, **to_json(results)}, report)


class CaseAudit(AuditCommand):
    """Settings of the audits of traces with step labels."""

    problems: o.Problems | None = None
    traces: o.Traces | None = None
    labels: Annotated[str | None, o.INPUT] = Field(
        default=None, description="File of step labels, or `lab` for the exact checker of the lab."
    )
    processbench: Annotated[tuple[str, ...], o.INPUT] = Field(
        default=(), description="File in ProcessBench's format, in place of problems, traces and labels."
    )
    per_problem: int | None = Field(
        default=None, ge=1, description="Use only the first traces of each problem; all by default."
    )

    @property
    def in_lab(self) -> bool:
        """Whether the exact truth is known."""
        return self.labels == "lab"

    def check_source(self) -> None:
        """Raise ``ValueError`` unless exactly one source of traces is given."""
        if self.processbench:
            refuse_unused("--processbench", problems=self.problems, traces=self.traces, labels=self.labels)
        if bool(self.processbench) == bool(self.problems and self.traces):
            raise ValueError("give 'problems' and 'traces' (with 'labels'), or 'processbench'")

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check_source()
        return self

    def cases(self, *, per_problem: int | None = None) -> list[Case]:
        """The first ``per_problem`` traces of each problem; without labels every step is unknown."""
        if self.processbench:
            return read_processbench_cases(self.processbench, self.limit, self.seed, per_problem)
        problems, traces = self.problems or "", self.traces or ""
        return read_cases(problems, traces, self.labels, self.limit, self.seed, per_problem)


class PartialAudit(CaseAudit):
    """Settings of the audits that accept traces with some unscored steps."""

    partial: bool = Field(
        default=False,
        description="Aggregate the scored steps of a trace that has unscored ones; otherwise it is left out.",
    )


def refuse_unused(because_of: str, **options: object) -> None:
    """Raise ``ValueError`` for options that have no effect together with ``because_of``."""
    unused = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if unused:
        raise ValueError(f"{', '.join(unused)}: not used with {because_of}; leave out one or the other")


def first_of_each(items: Iterable[T], most: int | None, problem_id: Callable[[T], str]) -> Iterator[T]:
    """The first ``most`` items of each problem; ``None`` = all."""
    counts: Counter[str] = Counter()
    for item in items:
        counts[problem_id(item)] += 1
        if most is None or counts[problem_id(item)] <= most:
            yield item


def read_cases(
    problems: str,
    traces: str,
    labels: str | None,
    limit: int | None,
    seed: int,
    per_problem: int | None = None,
) -> list[Case]:
    """Traces with their step labels, of ``limit`` random problems; without labels every step is unknown.

    Only the chosen traces are in memory.
    """
    from surefoot.cli.runs import pair, read_table
    from surefoot.evaluation.audits import Case, lab_cases, labelled_cases
    from surefoot.records import Problem, StepLabel, Trace

    joined = pair(read_table(problems, Problem), read_table(traces, Trace))
    names = set(subset(list(dict.fromkeys(joined.problem_ids())), limit, seed))
    chosen = joined.of_problems(names.__contains__)
    items = list(first_of_each(chosen, per_problem, lambda item: item.problem.id))
    if labels == "lab":
        return lab_cases(items)
    if labels:
        by_trace = read_table(labels, StepLabel).find_many([item.trace.id for item in items])
        return labelled_cases(items, [label for group in by_trace.values() for label in group])
    return [Case(item=item, good=(None,) * len(item.trace.steps)) for item in items]


def read_processbench_cases(
    files: Sequence[str], limit: int | None, seed: int, per_problem: int | None = None
) -> list[Case]:
    """Labelled traces of files in ProcessBench's format, of ``limit`` random problems."""
    from surefoot.cli.evaluate.inputs import unlabelled
    from surefoot.evaluation.audits import labelled_cases
    from surefoot.formats import read_processbench

    rows = [row for file in files for row in read_processbench(file)]
    names = set(subset(list(dict.fromkeys(row.problem.id for row in rows)), limit, seed))
    chosen = [row for row in rows if row.problem.id in names]
    rows = list(first_of_each(chosen, per_problem, lambda row: row.problem.id))
    return labelled_cases(unlabelled(rows), [label for row in rows for label in row.labels])


def subset(rows: Sequence[T], limit: int | None, seed: int) -> Sequence[T]:
    """``limit`` random rows in their original order; ``None`` = all."""
    import numpy as np

    if limit is None or limit >= len(rows):
        return rows
    return [rows[at] for at in sorted(np.random.default_rng(seed).choice(len(rows), limit, replace=False))]


def with_scores(cases: list[Case], subjects: list[AuditedScorer]) -> list[Case]:
    """Cases with a record in every file of stored scores; the others are counted on standard error.

    Raises ``RunError`` if none is left.
    """
    from surefoot.evaluation import StoredScores

    ids = [case.item.trace.id for case in cases]
    scorers = [subject.scorer for subject in subjects]
    recorded = [scorer.of(ids) for scorer in scorers if isinstance(scorer, StoredScores)]
    scored = [case for case in cases if all(case.item.trace.id in records for records in recorded)]
    if not scored:
        raise RunError("no trace has a record in every file of scores; give the traces that were scored")
    if len(scored) < len(cases):
        missing = len(cases) - len(scored)
        echo(f"{missing} traces left out: not in every file of scores, by trace id", err=True)
    return scored


def read_folder(path: str, limit: int | None, seed: int) -> list[Case]:
    """Cases of a file in ProcessBench's format, or of a directory with problems, traces and labels."""
    from surefoot.io.sources import ENDINGS

    folder = Path(path)
    if folder.is_file():
        return read_processbench_cases([path], limit, seed)
    files = []
    for name in ("problems", "traces", "labels"):
        matches = [file for ending in ENDINGS if (file := folder / f"{name}{ending}").is_file()]
        if not matches:
            raise RunError(f"{path}: it contains no {name}.jsonl; make the directory with `surefoot import`")
        files.append(str(matches[0]))
    problems, traces, labels = files
    return read_cases(problems, traces, labels, limit, seed)


def read_pool(path: str, aggregate: str | None) -> tuple[list[AuditedScorer], list[ProblemTrace]]:
    """A pool's scorer, once for each rule unless one is given; outcomes are the file's verdicts."""
    from surefoot.evaluation import StoredScores
    from surefoot.evaluation.audits import AuditedScorer
    from surefoot.formats import read_candidate_pool
    from surefoot.protocols import ProblemTrace

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
        AuditedScorer(name=f"{name} ({rule})", scorer=StoredScores(records), rule=rule, stored=True)
        for rule in AGGREGATORS
        if aggregate in (None, rule)
    ], items


def _rules(aggregate: str | None) -> dict[str, Aggregator]:
    """Rule by scorer's name; the default rule is under the empty name."""
    rules: dict[str, Aggregator] = {}
    for part in aggregate.split(",") if aggregate else []:
        name, _, rule = part.rpartition("=")
        if rule not in AGGREGATORS:
            raise ValueError(f"'aggregate' {part}: choose from {', '.join(AGGREGATORS)}")
        rules[name] = rule
    return rules


def _loaded(name: str, path: str, rules: Mapping[str, Aggregator], loading: Loading) -> AuditedScorer:
    from surefoot.evaluation.audits import AuditedScorer, CachedScorer
    from surefoot.models import load_prm

    scorer = load_prm(path, loading=loading)
    rule = rules.get(name) or rules.get("") or scorer.card.aggregation
    return AuditedScorer(name=name, scorer=CachedScorer(scorer), rule=rule)


def _stored(name: str, path: str, rules: Mapping[str, Aggregator]) -> list[AuditedScorer]:
    """One scorer per name in the file: ``name`` itself if there is only one, else ``name/scorer``."""
    from surefoot.evaluation.audits import AuditedScorer
    from surefoot.evaluation.stored_scores import scorer_tables

    return [
        AuditedScorer(
            name=part,
            scorer=scores,
            rule=rules.get(part) or rules.get(name) or rules.get("", "min"),
            stored=True,
        )
        for part, scores in scorer_tables(name, _read_scores(path)).items()
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
        published = (scores for file in files_of(path) for scores in read_fover_scores(file))
        table = open_table(path, StepScores, records=published)
    if not table:
        raise RecordError(f"{path}: no step scores in it; see docs/reference/formats.md")
    show_skipped(report, f"{path}: ")
    if table.repeated:
        echo(f"{path}: {table.repeated} repeated scores left out", err=True)
    return table
