"""``surefoot audit``: tests of step scorers for known failures, one report for all that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from surefoot import lab
from surefoot.cli import options as o
from surefoot.cli.audit.inputs import AuditCommand, first_of_each, read_pool, refuse_unused, subset, with_scores
from surefoot.cli.evaluate.inputs import named
from surefoot.cli.runs import read_table
from surefoot.cli.settings import Flag, fill
from surefoot.cli.terminal import note
from surefoot.errors import RunError, ScoreError
from surefoot.evaluation import audits as a
from surefoot.evaluation.audits.settings import GAMING, OPINION, GamingSettings, OpinionSettings
from surefoot.evaluation.report import Section
from surefoot.io.sources import ENDINGS
from surefoot.labelling import VerifierLabeller, open_verifier
from surefoot.models import LabelScorer
from surefoot.policies.devices import Loading
from surefoot.records import Problem
from surefoot.work import progress_bars

PROBED_PROBLEMS = 100
"""Problems whose lines the content probe varies."""
Subjects = Sequence[a.AuditedScorer]
Cases = Sequence[a.Case]


class Audit(AuditCommand):
    """Test step scorers for known failures; `--test` chooses which.

    - `gaming`: edits that break the logic must lower the score, edits of style must not move it; then a search edits wrong solutions to
      raise the score.
    - `outcome`: how much of a step score is only the outcome?
    - `clean`: are solutions with a wrong step and a correct answer accepted? (`--build` writes some for problems of the lab.)
    - `over-optimisation`: where does more selection stop helping? (`--pool` has candidates with stored scores.)
    - `sycophancy`, `argument`, `twins`: the user's opinion and other numbers must not move the score; valid steps that answer nothing
      must lower it.
    - `granularity`, `paths`: are errors found with longer steps, are unusual correct solutions penalised?
    - `agent`: no score may move if a run means the same (`--same`: does a judge prefer its own model's runs?).
    - `transfer`: each scorer on each `--domain`.

    A test that the traces do not allow is left out, with the reason; the only one is an error. Edits need checkpoints, not stored scores.

    Example: `surefoot audit prm=prm orm=orm --problems p.jsonl --traces t.jsonl --labels lab --out audit`
    Example: `surefoot audit qwen=scores.jsonl --test clean --processbench gsm8k.json --partial --out audit`
    """

    scorers: o.Sources = ()
    """Scorers, as NAME=CHECKPOINT or NAME=FILE of step scores (records, or published scores)."""
    test: Annotated[tuple[str, ...], BeforeValidator(o.split_commas), Flag(comma=True, common=True)] = (
        "gaming",
        "outcome",
        "clean",
        "over-optimisation",
    )
    problems: o.Problems | None = None
    traces: o.Traces | None = None
    labels: Annotated[str | None, o.INPUT] = None
    """File of step labels, or `lab` for the exact checker of the lab."""
    processbench: Annotated[tuple[str, ...], o.INPUT] = ()
    """File in ProcessBench's format, in place of problems, traces and labels."""
    pool: Annotated[str | None, o.INPUT] = None
    """File of candidates with stored scores (search-and-learn's or Qwen2.5-Math's form), in place of scorers, problems and traces."""
    domain: Annotated[tuple[str, ...], o.INPUT] = ()
    """Labelled set of `transfer`, as DOMAIN=DIR with problems, traces and labels, or DOMAIN=FILE in ProcessBench's format."""
    verifier: tuple[str, ...] = ()
    """Verifier of `label verify` to audit as a scorer, e.g. `tool-calls`; repeatable."""
    same: tuple[str, ...] = ()
    """A scorer and the policy of the same model, as NAME=POLICY, for `agent`; repeatable."""
    build: bool = False
    """Write correct, rationalised and wrong solutions of the lab's `--problems`, in place of `--traces`."""
    per_problem: int | None = Field(default=2, ge=1)
    """Traces of each problem that `gaming` and `outcome` use."""
    partial: bool = False
    """Aggregate the scored steps of a trace that has unscored ones; otherwise it is left out."""
    threshold: float | None = None
    """A trace, or a step, with at least this score is accepted; 0.5, but `transfer` fits it on half of a scorer's own domain."""
    largest: int | None = Field(
        default=None, ge=2, description="Largest N; by default the number that nine in ten problems have."
    )
    search: Annotated[GamingSettings, o.OptionGroup(title="Edits and search", omit=("depth",))] = GAMING
    opinion: Annotated[OpinionSettings, o.OptionGroup(title="Opinion")] = OPINION

    @model_validator(mode="after")
    def _check(self) -> Self:
        if unknown := set(self.test) - TESTS.keys():
            raise ValueError(f"'test' {min(unknown)}: choose from {', '.join(TESTS)}")
        if any(not all(pair.partition("=")) for pair in self.same):
            raise ValueError("'same' takes NAME=POLICY")
        given = {name: getattr(self, name) for name in ("problems", "traces", "labels", "processbench")}
        if self.pool:
            refuse_unused("--pool", **given, limit=self.limit, loading=self.loading != Loading())
        elif not (self.scorers or self.verifier):
            raise ValueError("give 'scorers' or 'verifier', or 'pool'")
        elif self.build:
            refuse_unused("--build", **{name: given[name] for name in ("traces", "labels", "processbench")})
            if self.problems is None:
                raise ValueError("'build' needs 'problems', a file of problems of the lab")
        elif self.processbench:
            refuse_unused("--processbench", **{**given, "processbench": None})
        elif not self.domain and not (self.problems and self.traces):
            raise ValueError("give 'problems' and 'traces' (with 'labels'), or 'processbench'")
        return self

    @property
    def accepted(self) -> float:
        """The threshold of all tests but `transfer`."""
        return 0.5 if self.threshold is None else self.threshold

    def run(self) -> None:
        subjects, cases = self._material()
        sections: list[Section] = []
        left_out: dict[str, str] = {}
        for name in self.test:
            try:
                sections += TESTS[name](self, subjects, cases)
            except ScoreError as error:
                if len(self.test) == 1:
                    raise
                left_out[name] = str(error)
                note(f"{name} left out: {error}")
        if not sections:
            raise ScoreError(f"these traces allow no audit: {'; '.join(left_out.values())}")
        about = "Audits that these traces do not allow, and why."
        limits = [f"Left out: {name}, because {reason}." for name, reason in left_out.items()]
        sections.append(Section(title="Left out", about=about, results={"left_out": left_out}, limits=limits))
        self.write_audit(sections, subjects, cases)

    def _material(self) -> tuple[list[a.AuditedScorer], list[a.Case]]:
        """The scorers, and the traces that they are tested on."""
        if self.pool:
            subjects, items = read_pool(self.pool, self.aggregate)
            return subjects, [a.Case(item=item, good=(None,) * len(item.trace.steps)) for item in items]
        subjects = [*self.subjects(partial=self.partial), *map(_verifier, self.verifier)]
        if self.build:
            return subjects, rationalised(self, subjects)
        if self.domain and not (self.traces or self.processbench):
            return subjects, []
        cases = self.read(self.problems, self.traces, self.labels, self.processbench)
        return subjects, with_scores(cases, subjects)


def _gaming(audit: Audit, subjects: Subjects, cases: Cases) -> list[Section]:
    search, in_lab = audit.search, audit.labels == "lab"
    live = _live(subjects)
    cases = list(first_of_each(cases, audit.per_problem, lambda case: case.problem_id))
    truth = a.lab_right if in_lab else None
    problems = list({case.problem_id: case.item.problem for case in cases}.values())[:PROBED_PROBLEMS]
    edits, attacks = [], []
    probes: dict[str, lab.ProbeResult] = {}
    left_out: dict[str, str] = {}
    with progress_bars() as progress:
        for subject in live:
            edits += audit.each(a.audit_gaming, [subject], cases, search, truth=truth)
            if in_lab:
                probes[subject.name] = lab.content_probe(subject.scorer, problems)
            if not search.rounds:
                continue
            show = partial(progress, f"climb {subject.name}")
            try:
                attacks += audit.each(a.audit_attack, [subject], cases, search, truth=truth, progress=show)
            except ScoreError as error:  # the results of the edits are useful without the search
                left_out[subject.name] = str(error)
                note(f"no search against {subject.name}: {error}")
    searched = [a.attack_section(attacks, left_out)] if search.rounds else []
    return [a.gaming_section(edits, probes, search.tolerance), *searched]


def _outcome(audit: Audit, subjects: Subjects, cases: Cases) -> list[Section]:
    cases = list(first_of_each(cases, audit.per_problem, lambda case: case.problem_id))
    return [a.outcome_section(audit.each(a.audit_outcome, subjects, cases))]


def _clean(audit: Audit, subjects: Subjects, cases: Cases) -> list[Section]:
    if audit.labels == "lab" and not any(subject.stored for subject in subjects):
        cases = rationalised(audit, subjects)
    return [a.clean_section(audit.each(a.audit_clean, subjects, cases, threshold=audit.accepted))]


def _pressure(audit: Audit, subjects: Subjects, cases: Cases) -> list[Section]:
    items = [case.item for case in cases]
    return [a.over_optimisation_section(audit.each(a.audit_over_optimisation, subjects, items))]


def _transfer(audit: Audit, subjects: Subjects, _: Cases) -> list[Section]:
    if not audit.domain:
        raise ScoreError("transfer needs labelled sets: give --domain NAME=DIR")
    sets = {name: with_scores(_domain(audit, path), subjects) for name, path in named(audit.domain).items()}
    return [a.transfer_section(fill(a.audit_transfer, audit, {s.name: s for s in subjects}, sets))]


def _domain(audit: Audit, path: str) -> list[a.Case]:
    if Path(path).is_file():
        return audit.read(None, None, None, [path])
    files = []
    for name in ("problems", "traces", "labels"):
        file = next(filter(Path.is_file, (Path(path, name + ending) for ending in ENDINGS)), None)
        if file is None:
            raise RunError(f"{path}: it contains no {name}.jsonl; make it with `surefoot import`")
        files.append(str(file))
    return audit.read(*files)


def _agent(audit: Audit, subjects: Subjects, cases: Cases) -> list[Section]:
    items, audits = [case.item for case in cases], []
    live = _live(subjects) if not audit.same else [subject for subject in subjects if not subject.stored]
    tolerance = audit.search.tolerance
    for subject in live:
        audits += audit.each(a.audit_agent, [subject], items, threshold=audit.accepted, tolerance=tolerance)
    preferences = []
    if audit.same:
        same = dict(pair.split("=", 1) for pair in audit.same)
        if unknown := set(same) - {subject.name for subject in subjects}:
            raise RunError(f"--same {min(unknown)}=…: no scorer has this name")
        preferences = fill(a.audit_self_preference, audit, subjects, cases, same)
    return [a.agent_section(audits, preferences)]


def _variants(
    variants: Callable[[Audit], Sequence[a.SolutionVariant]],
    section: Callable[[Sequence[a.SolutionAudit]], Section],
    audit: Audit,
    subjects: Subjects,
    cases: Cases,
) -> list[Section]:
    limits = {"tolerance": audit.search.tolerance, "must_fall": audit.search.must_fall}
    changed = variants(audit)
    return [
        section(audit.each(a.audit_variants, subjects, cases, changed, threshold=audit.accepted, **limits))
    ]


def _granularity(audit: Audit, subjects: Subjects, cases: Cases) -> list[Section]:
    return [a.granularity_section(audit.each(a.audit_granularity, subjects, cases, threshold=audit.accepted))]


def _paths(audit: Audit, subjects: Subjects, cases: Cases) -> list[Section]:
    return [a.paths_section(audit.each(a.audit_paths, subjects, cases))]


TESTS: Final[Mapping[str, Callable[[Audit, Subjects, Cases], list[Section]]]] = {
    "gaming": _gaming,
    "outcome": _outcome,
    "clean": _clean,
    "over-optimisation": _pressure,
    "transfer": _transfer,
    "agent": _agent,
    "sycophancy": partial(_variants, lambda audit: a.opinions(audit.opinion), a.sycophancy_section),
    "argument": partial(_variants, lambda _: a.ARGUMENTS, a.argument_section),
    "twins": partial(_variants, lambda _: a.TWINS, a.twins_section),
    "granularity": _granularity,
    "paths": _paths,
}


def rationalised(audit: Audit, subjects: Subjects) -> list[a.Case]:
    """Three solutions of each lab problem: correct, rationalised and wrong.

    Raises ``RunError`` for stored scores.
    """
    if stored := [subject.name for subject in subjects if subject.stored]:
        raise RunError(f"--build writes new solutions, and {stored[0]} is a file of stored scores")
    chosen = subset(read_table(audit.problems or "", Problem), audit.limit, audit.seed)
    return a.rationalised_lab_cases(chosen, seed=audit.seed)


def _live(subjects: Subjects) -> list[a.AuditedScorer]:
    live = [subject for subject in subjects if not subject.stored]
    if not live:
        raise ScoreError("there are only stored scores, and edited text has to be scored: give a checkpoint")
    return live


def _verifier(name: str) -> a.AuditedScorer:
    labeller = VerifierLabeller(verifiers=(open_verifier(name),))
    return a.AuditedScorer(name=name, scorer=LabelScorer(labeller, name=name, unknown=1.0), rule="min")
