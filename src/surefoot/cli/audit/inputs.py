"""What the tests of ``surefoot audit`` share: settings, traces with labels, scorers under audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any, TypeVar

from pydantic import Field, field_validator

from surefoot import evaluation, models
from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import ReportCommand, named, read_scores, unlabelled
from surefoot.cli.runs import labelled, pair, read_table
from surefoot.cli.settings import Flag
from surefoot.cli.terminal import note
from surefoot.errors import RunError, ScoreError
from surefoot.evaluation import audits as a
from surefoot.evaluation.report import Section
from surefoot.evaluation.step_scores import scorer_tables
from surefoot.formats import read_processbench
from surefoot.io.sources import names_files
from surefoot.labelling import VerifierLabeller, open_verifier
from surefoot.models import LabelScorer
from surefoot.policies.devices import Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Sampling
from surefoot.records import FrozenModel, Problem, StepLabel, Trace
from surefoot.scores import AGGREGATORS, Aggregator

T = TypeVar("T")


class AuditCommand(ReportCommand):
    """Scorers or a policy, and the material that they are tested on."""

    scorers: o.Sources = ()
    """Scorers, as NAME=CHECKPOINT or NAME=FILE of step scores (records, or published scores)."""
    problems: o.Problems | None = None
    traces: o.Traces | None = None
    labels: Annotated[str | None, o.INPUT] = None
    """File of step labels, or `lab` for the exact checker of the lab."""
    processbench: Annotated[tuple[str, ...], o.INPUT] = ()
    """File in ProcessBench's format, in place of problems, traces and labels."""
    verifier: Annotated[tuple[str, ...], Flag(scorer=True)] = ()
    """Verifier of `label FILE verify` to audit as a scorer, e.g. `tool-calls`."""
    aggregate: str | None = None
    """How step scores become one number: `min`, `product`, `last`, `mean` or `sum`. By default the rule of
    each checkpoint, and `min` for stored scores. `NAME=RULE` sets it for one scorer; separate several with
    commas."""
    partial: bool = False
    """Aggregate the scored steps of a trace that has unscored ones; otherwise it is left out."""
    threshold: float = 0.5
    """A trace, or a step, with at least this score is accepted."""
    limit: Annotated[int | None, Flag(common=True)] = Field(default=None, ge=1)
    """Number of problems, chosen at random with `--seed`; all by default."""
    policy: Annotated[
        o.PolicySettings | None,
        o.OptionGroup(names={"base_url": "--base-url"}, omit=("dialect", "concurrency")),
    ] = None
    prompt: Annotated[PromptFormat, o.OptionGroup(title="Policy", omit=("template", "system"))] = (
        PromptFormat()
    )
    sampling: Annotated[Sampling, o.OptionGroup(omit=("*",))] = Sampling(temperature=0.0)
    grading: Annotated[o.GradingSettings, o.OptionGroup(omit=("*",))] = o.GradingSettings()
    loading: o.Models = Loading()
    retry_failed: o.RetryFailed = False

    @field_validator("aggregate")
    @classmethod
    def _check_aggregate(cls, value: str | None) -> str | None:
        _rules(value)
        return value

    @property
    def in_lab(self) -> bool:
        """Whether the lab's exact checker labels every solution."""
        return self.labels == "lab"

    @cached_property
    def subjects(self) -> list[a.AuditedScorer]:
        """The scorers and verifiers, in order; a file with several scorers gives one each, ``name/scorer``.

        Raises ``RunError`` for an unknown name in ``aggregate``.
        """
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
        subjects += map(_verifier, self.verifier)
        names = [subject.name for subject in subjects]
        if unknown := set(rules) - {"", *names, *named(self.scorers)}:
            raise RunError(
                f"--aggregate {min(unknown)}=…: no scorer has this name; there are {', '.join(names)}"
            )
        return [replace(subject, partial=self.partial) for subject in subjects]

    @property
    def live(self) -> list[a.AuditedScorer]:
        """The scorers that can score new text. Raises ``ScoreError`` if there is none."""
        live = [subject for subject in self.subjects if not subject.stored]
        if not live:
            raise ScoreError(
                "there are only stored scores, and edited text has to be scored: give a checkpoint"
            )
        return live

    def each(self, test: Callable[..., T], *material: Any, **options: Any) -> list[T]:
        """The results of a test for each scorer."""
        return [test(s, *material, draws=self.draws, seed=self.seed, **options) for s in self.subjects]

    def effects(
        self, changes: Sequence[a.Perturbation], cases: Sequence[a.Case] | None = None, **options: Any
    ) -> list[evaluation.Measured]:
        """The effects of changes on each scorer that can score new text."""
        audit = partial(a.audit_changes, threshold=self.threshold, draws=self.draws, seed=self.seed)
        cases = self.cases if cases is None else cases
        return [audit(subject, cases, changes, **options) for subject in self.live]

    @cached_property
    def cases(self) -> list[a.Case]:
        """The traces with their step labels; with stored scores, those that have a score."""
        return with_scores(self._read(), self.subjects)

    def _read(self) -> list[a.Case]:
        """The traces of ``limit`` random problems, with their labels; without labels every step is unknown.

        Only the chosen traces are in memory.
        """
        chosen: Any
        if self.processbench:
            rows = [row for file in self.processbench for row in read_processbench(file)]
            ids = subset(list(dict.fromkeys(row.problem.id for row in rows)), self.limit, self.seed)
            chosen = [row for row in rows if row.problem.id in set(ids)]
        else:
            records = read_table(self.problems or "", Problem), read_table(self.traces or "", Trace)
            file = None if self.in_lab else self.labels
            joined = labelled(*records, read_table(file, StepLabel)) if file else pair(*records)
            ids = subset(list(dict.fromkeys(joined.problem_ids())), self.limit, self.seed)
            chosen = joined.of_problems(set(ids).__contains__)
        rows = list(chosen)
        items = unlabelled(rows)
        if self.in_lab:
            return a.lab_cases(items)
        if self.labels or self.processbench:
            return a.labelled_cases(items, [label for row in rows for label in row.labels])
        return [a.Case(item=item, good=(None,) * len(item.trace.steps)) for item in items]


class AuditTest(FrozenModel):
    """One test of ``surefoot audit``, with its settings."""

    def check(self, audit: AuditCommand) -> None:
        """Raise ``ValueError`` if the command lacks an input that the test needs, or has an unused one."""
        if not (audit.scorers or audit.verifier):
            raise ValueError("give 'scorers' or 'verifier'")
        if bool(audit.processbench) == bool(audit.problems and audit.traces):
            raise ValueError("give 'problems' and 'traces' (with 'labels'), or 'processbench'")

    def sections(self, audit: AuditCommand) -> list[Section]:
        """Run the test. Raises ``ScoreError`` if the traces do not allow it."""
        raise NotImplementedError


def first_of_each(cases: Iterable[a.Case], most: int | None) -> list[a.Case]:
    """The first ``most`` cases of each problem; ``None`` = all."""
    counts: Counter[str] = Counter()
    chosen = []
    for case in cases:
        counts[case.problem_id] += 1
        if most is None or counts[case.problem_id] <= most:
            chosen.append(case)
    return chosen


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


def _rules(aggregate: str | None) -> dict[str, Aggregator]:
    """Rule by scorer's name; the default rule is under the empty name."""
    rules: dict[str, Aggregator] = {}
    for part in aggregate.split(",") if aggregate else []:
        name, _, rule = part.rpartition("=")
        if rule not in AGGREGATORS:
            raise ValueError(f"'aggregate' {part}: choose from {', '.join(AGGREGATORS)}")
        rules[name] = rule
    return rules


def _verifier(name: str) -> a.AuditedScorer:
    labeller = VerifierLabeller(verifiers=(open_verifier(name),))
    return a.AuditedScorer(name=name, scorer=LabelScorer(labeller, name=name, unknown=1.0), rule="min")
