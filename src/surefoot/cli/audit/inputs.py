"""Shared parts of the audit commands: settings, traces with labels, scorers under audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import Field, field_validator

from surefoot import evaluation, models
from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import ReportCommand, named, read_scores, unlabelled
from surefoot.cli.runs import labelled, pair, read_table
from surefoot.cli.settings import fill
from surefoot.cli.terminal import note, note_count
from surefoot.errors import RunError
from surefoot.evaluation import audits as a
from surefoot.evaluation.report import Section
from surefoot.evaluation.step_scores import scorer_tables
from surefoot.formats import read_candidate_pool, read_processbench
from surefoot.io.sources import names_files
from surefoot.policies.devices import Loading
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepLabel, Trace
from surefoot.scores import AGGREGATORS, Aggregator

T = TypeVar("T")


class AuditCommand(ReportCommand):
    """Settings of every audit."""

    scorers: o.Sources
    """Scorers, as NAME=CHECKPOINT or NAME=FILE of step scores (records, or published scores)."""
    aggregate: str | None = None
    """How step scores become one number: `min`, `product`, `last`, `mean` or `sum`. By default the rule of
    each checkpoint, and `min` for stored scores. `NAME=RULE` sets it for one scorer; separate several with
    commas."""
    limit: int | None = Field(default=None, ge=1)
    """Number of problems, chosen at random with `--seed`; all by default."""
    loading: o.Models = Loading()

    @field_validator("aggregate")
    @classmethod
    def _check_aggregate(cls, value: str | None) -> str | None:
        _rules(value)
        return value

    def write_audit(
        self, sections: Sequence[Section], subjects: Sequence[a.AuditedScorer], cases: Sequence[a.Case]
    ) -> None:
        """Write the report, with worked examples of the first scorer at a threshold of 0.5."""
        self.write(*sections, judged=a.judged_cases(subjects[0], cases) if cases else ())

    def subjects(self, *, partial: bool = False) -> list[a.AuditedScorer]:
        """The scorers, in order; a file with several scorers gives one each, ``name/scorer``."""
        rules = _rules(self.aggregate)
        subjects: list[a.AuditedScorer] = []
        for name, path in named(self.scorers).items():
            if names_files(path):
                for part, scores in scorer_tables(name, read_scores(path)).items():
                    rule = rules.get(part) or rules.get(name) or rules.get("", "min")
                    subjects.append(a.AuditedScorer(name=part, scorer=scores, rule=rule, stored=True))
            else:
                prm = models.load_prm(path, loading=self.loading)
                rule = rules.get(name) or rules.get("") or prm.card.aggregation
                subjects.append(a.AuditedScorer(name=name, scorer=a.CachedScorer(prm), rule=rule))
        names = [subject.name for subject in subjects]
        if unknown := set(rules) - {"", *names, *named(self.scorers)}:
            raise RunError(
                f"--aggregate {min(unknown)}=…: no scorer has this name; there are {', '.join(names)}"
            )
        return [replace(subject, partial=partial) for subject in subjects]

    def each(
        self, audit: Callable[..., T], subjects: Iterable[a.AuditedScorer], *material: Any, **options: Any
    ) -> list[T]:
        """The results of an audit for each scorer."""
        return [fill(audit, self, subject, *material, **options) for subject in subjects]

    def read(
        self,
        problems: str | None,
        traces: str | None,
        labels: str | None,
        processbench: Sequence[str] = (),
        per_problem: int | None = None,
    ) -> list[a.Case]:
        """The first ``per_problem`` traces of each of ``limit`` random problems, with their step labels.

        Without labels every step is unknown. Only the chosen traces are in memory.
        """
        chosen: Any
        if processbench:
            rows = [row for file in processbench for row in read_processbench(file)]
            ids = subset(list(dict.fromkeys(row.problem.id for row in rows)), self.limit, self.seed)
            chosen = [row for row in rows if row.problem.id in set(ids)]
        else:
            records = read_table(problems or "", Problem), read_table(traces or "", Trace)
            file = None if labels == "lab" else labels
            joined = labelled(*records, read_table(file, StepLabel)) if file else pair(*records)
            ids = subset(list(dict.fromkeys(joined.problem_ids())), self.limit, self.seed)
            chosen = joined.of_problems(set(ids).__contains__)
        rows = list(first_of_each(chosen, per_problem, lambda row: row.problem.id))
        items = unlabelled(rows)
        if labels == "lab":
            return a.lab_cases(items)
        if labels or processbench:
            return a.labelled_cases(items, [label for row in rows for label in row.labels])
        return [a.Case(item=item, good=(None,) * len(item.trace.steps)) for item in items]


def refuse_unused(because_of: str, **options: object) -> None:
    """Raise ``ValueError`` for options that are not used together with ``because_of``."""
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


def subset(rows: Sequence[T], limit: int | None, seed: int) -> Sequence[T]:
    """``limit`` random rows in their original order; ``None`` = all."""
    import numpy as np

    if limit is None or limit >= len(rows):
        return rows
    return [rows[at] for at in sorted(np.random.default_rng(seed).choice(len(rows), limit, replace=False))]


def with_scores(cases: list[a.Case], subjects: list[a.AuditedScorer]) -> list[a.Case]:
    """Cases with a record in every file of stored scores; the others are counted on standard error.

    Raises ``RunError`` if none is left.
    """
    ids = [case.item.trace.id for case in cases]
    scorers = [subject.scorer for subject in subjects]
    recorded = [scorer.of(ids) for scorer in scorers if isinstance(scorer, evaluation.StoredScores)]
    scored = [case for case in cases if all(case.item.trace.id in records for records in recorded)]
    if not scored:
        raise RunError("no trace has a record in every file of scores; give the traces that were scored")
    if len(scored) < len(cases):
        missing = len(cases) - len(scored)
        note(f"{missing} traces left out: not in every file of scores, by trace id")
    return scored


def read_pool(path: str, aggregate: str | None) -> tuple[list[a.AuditedScorer], list[ProblemTrace]]:
    """A pool's scorer, once for each rule unless one is given; outcomes are the file's verdicts."""
    pools = list(read_candidate_pool(path))
    dropped = sum(count for pool in pools for count in pool.dropped.values())
    note_count(dropped, "candidates skipped: not as many steps, cut at blank lines, as scores")
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
        a.AuditedScorer(
            name=f"{name} ({rule})", scorer=evaluation.StoredScores(records), rule=rule, stored=True
        )
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
