"""The commands of ``surefoot audit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.audit.inputs import (
    AuditCommand,
    CaseAudit,
    CaseChoice,
    PartialAudit,
    first_of_each,
    read_cases,
    read_folder,
    read_pool,
    refuse_unused,
    subset,
    with_scores,
)
from surefoot.cli.terminal import echo
from surefoot.errors import RunError, ScoreError
from surefoot.policies.devices import Loading

if TYPE_CHECKING:
    from surefoot.evaluation.audits import AuditedScorer, Case
    from surefoot.evaluation.report import Section
    from surefoot.lab.probe import ProbeResult
    from surefoot.protocols import ProblemTrace

Results = tuple[list["Section"], dict[str, Any]]
"""Sections of the report, and the audits' records by name."""

PROBED_PROBLEMS = 100
"""Problems whose lines the content probe varies."""


class AttackSettings(o.SettingsGroup):
    """Edits, and the search against the scorer."""

    tolerance: float = Field(
        default=0.05, ge=0, description="How far an edit of style may move the mean trace score."
    )
    must_fall: float = Field(
        default=0.9, ge=0, le=1, description="Share of correct traces that broken logic must lower."
    )
    rounds: int = Field(
        default=12, ge=0, description="Rounds of hill climbing against the scorer; 0 = no search."
    )
    proposals: int = Field(default=8, ge=1, description="Edits proposed for each incorrect trace in a round.")
    versions: int = Field(
        default=64, ge=1, description="Random versions of each incorrect trace for best-of-N."
    )
    attacked: int = Field(
        default=100, ge=1, description="Incorrect traces that the search starts from, at most."
    )


class AuditGaming(CaseAudit):
    """Edit solutions and see whether the score follows the logic or the looks.

    Correct traces are broken (number swapped, premise deleted, steps reordered, answer pasted after
    nonsense): the score must fall. Correct and incorrect ones get empty steps, filler, repetition, merged and
    split steps, confident words, words to the verifier: it must not move. Then incorrect traces are edited
    again and again, and what scores higher survives: proxy and gold are reported by round. Needs checkpoints
    and labels; with the lab's traces (`--labels lab`) every edit is checked by the exact truth and the
    content probe is run.

    Example: `surefoot audit gaming prm=prm orm=orm --problems problems.jsonl --traces traces.jsonl --labels
    lab --out audit`
    """

    report_name: ClassVar[str] = "gaming"

    per_problem: int | None = Field(
        default=2, ge=1, description="Use the first so many traces of each problem."
    )
    search: AttackSettings = AttackSettings()

    def run(self) -> None:
        """Audit, print and write the report."""
        cases = self.cases(per_problem=self.per_problem)
        self.leave(*audit_edits(self, self.search, self.subjects(), cases))


class AuditOutcome(PartialAudit):
    """See how much of a step scorer is only the outcome.

    Reports how often the lowest step is the last; how far the score drops at the first error where the answer
    is correct all the same, and where it is not; and how well the outcome can be predicted from the last step
    alone, and from the steps in random order. Traces need outcomes; stored scores serve for all but the
    altered texts.

    Example: `surefoot audit outcome prm=prm orm=orm --problems problems.jsonl --traces traces.jsonl --labels
    lab --out audit`
    """

    report_name: ClassVar[str] = "outcome"

    def run(self) -> None:
        """Audit, print and write the report."""
        subjects = self.subjects(partial=self.partial)
        cases = with_scores(self.cases(per_problem=self.per_problem), subjects)
        self.leave(*audit_outcomes(self, subjects, cases))


class AuditClean(PartialAudit):
    """Compare correct solutions with rationalised ones: a wrong step, and yet the correct answer.

    A scorer of outcomes cannot distinguish them, a scorer of steps can. Groups come from outcomes and labels
    (ProcessBench: the correct answer and a labelled error), or are built for problems of the lab.

    Example: `surefoot audit clean qwen=scores.jsonl --processbench gsm8k.json --partial --out audit`
    Example: `surefoot audit clean prm=prm orm=orm --problems problems.jsonl --build --out audit`
    """

    report_name: ClassVar[str] = "clean"

    build: bool = Field(
        default=False,
        description="Write correct, rationalised and wrong solutions of the lab's `--problems`, in place of "
        "`--traces`.",
    )
    threshold: float = Field(
        default=0.5, description="A trace with at least this score is taken to be correct."
    )

    def _check_source(self) -> None:
        if not self.build:
            super()._check_source()
            return
        refuse_unused(
            "--build",
            traces=self.traces,
            labels=self.labels,
            processbench=self.processbench,
            per_problem=self.per_problem,
        )
        if self.problems is None:
            raise ValueError("'build' needs 'problems', a file of problems of the lab")

    def run(self) -> None:
        """Audit, print and write the report."""
        subjects = self.subjects(partial=self.partial)
        if self.build:
            cases = rationalised(self, self.problems or "", subjects)
        else:
            cases = self.cases(per_problem=self.per_problem)
        self.leave(*audit_clean_traces(self, subjects, with_scores(cases, subjects), self.threshold))


class AuditTransfer(AuditCommand):
    """Measure each scorer on each domain: AUC of steps, and F1 of the first error.

    A scorer's NAME is the domain it was trained on, a set's the domain it comes from; where the two are
    equal, a threshold is fitted. A file of stored scores must have those of all sets.

    Example: `surefoot audit transfer gsm8k=prm-gsm8k math=prm-math --domain gsm8k=gsm8k.json
    --domain math=math/ --out audit`
    """

    report_name: ClassVar[str] = "transfer"

    aggregate: str | None = Field(
        default="min",
        description="How step scores become one number: `min`, `product`, `last`, `mean` or `sum`.",
    )
    domain: Annotated[tuple[str, ...], o.INPUT] = Field(
        min_length=1,
        description="Labelled set, as DOMAIN=DIR with problems, traces and labels (as `convert` writes), "
        "or DOMAIN=FILE in ProcessBench's format.",
    )
    threshold: float | None = Field(
        default=None,
        description="A step below this is an error; if not given, fitted on half of the scorer's own domain, "
        "and that half of every set is not reported.",
    )

    def run(self) -> None:
        """Audit, print and write the report."""
        from surefoot.evaluation.audits import audit_transfer, transfer_section

        subjects = self.subjects(partial=True)
        choice = CaseChoice(problems=self.limit, seed=self.seed)
        audit = audit_transfer(
            {subject.name: subject for subject in subjects},
            {
                name: with_scores(read_folder(path, choice), subjects)
                for name, path in self._domains().items()
            },
            threshold=self.threshold,
            draws=self.draws,
            seed=self.seed,
        )
        self.leave([transfer_section(audit)], {"transfer": audit})

    def _domains(self) -> dict[str, str]:
        paths: dict[str, str] = {}
        for text in self.domain:
            name, equals, path = text.partition("=")
            if not (name and equals and path) or name in paths:
                raise RunError(f"--domain {text}: give DOMAIN=DIR or DOMAIN=FILE, each domain once")
            paths[name] = path
        return paths


class AuditOverOptimisation(AuditCommand):
    """Show where more pressure on the score stops buying correct answers.

    From stored traces with outcomes: expected score (proxy) and share of correct answers (gold) for best of
    N, without bias, against N and the square root of KL; the N where gold is highest, and what is lost beyond
    it.

    Example: `surefoot audit over-optimisation prm=scores.jsonl --problems problems.jsonl --traces
    traces.jsonl --out audit`
    Example: `surefoot audit over-optimisation --pool pool.jsonl.gz --aggregate last --out audit`
    """

    report_name: ClassVar[str] = "over-optimisation"

    scorers: o.Sources = Field(
        default=(),
        description="Scorers, as NAME=CHECKPOINT or NAME=FILE of step scores; none with `--pool`.",
    )
    problems: o.Problems | None = None
    traces: o.Traces | None = None
    pool: Annotated[str | None, o.INPUT] = Field(
        default=None,
        description="File of candidates with stored scores (search-and-learn's or Qwen2.5-Math's form), in "
        "place of scorers, problems and traces.",
    )
    largest: int | None = Field(
        default=None, ge=2, description="Largest N; if not given, the one that nine in ten problems have."
    )
    draws: o.Draws = 2000

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.pool) == bool(self.scorers):
            raise ValueError("give scorers with 'problems' and 'traces', or 'pool'")
        if self.pool:
            refuse_unused(
                "--pool",
                problems=self.problems,
                traces=self.traces,
                limit=self.limit,
                loading=self.loading != Loading(),
            )
        elif not (self.problems and self.traces):
            raise ValueError("scorers need 'problems' and 'traces'")
        return self

    def run(self) -> None:
        """Audit, print and write the report."""
        if self.pool:
            subjects, items = read_pool(self.pool, self.aggregate)
        else:
            subjects = self.subjects()
            choice = CaseChoice(problems=self.limit, seed=self.seed)
            cases = read_cases(self.problems or "", self.traces or "", None, choice)
            items = [case.item for case in with_scores(cases, subjects)]
        self.leave(*audit_pressure(self, subjects, items, self.largest))


class AuditAgent(CaseAudit):
    """Write agents' runs otherwise, though they say the same, and see which scores move.

    Tools are declared in another order, results written otherwise, advice without content and neutral text
    put in: no score may move. Instructions are put behind results: none may rise. Needs checkpoints, or
    verifiers (`--verifier tool-calls`), for which a step that breaks no rule scores 1.

    With `--same NAME=POLICY` and labels: does the scorer NAME overrate the runs of POLICY, an agent that is
    the same model, more than other scorers do? Stored scores serve for that.

    Example: `surefoot audit agent prm=prm --verifier tool-calls --problems tasks.jsonl --traces runs.jsonl
    --out audit`
    Example: `surefoot audit agent gpt=gpt.jsonl qwen=qwen.jsonl --same gpt=gpt-5 --problems tasks.jsonl
    --traces runs.jsonl --labels labels.jsonl --out audit`
    """

    report_name: ClassVar[str] = "agent"

    scorers: o.Sources = Field(
        default=(), description="Scorers, as NAME=CHECKPOINT, or NAME=FILE of step scores for `--same`."
    )
    verifier: tuple[str, ...] = Field(
        default=(),
        description="Verifier of `label verify` to audit as a scorer, e.g. `tool-calls`; repeatable.",
    )
    same: tuple[str, ...] = Field(
        default=(), description="A scorer and the policy of the same model, as NAME=POLICY; repeatable."
    )
    threshold: float = Field(default=0.5, description="A step with at least this score is taken to be good.")
    tolerance: float = Field(
        default=0.05, ge=0, description="How far a variant may move the mean score of a step."
    )

    @model_validator(mode="after")
    def _check_agent(self) -> Self:
        if not (self.scorers or self.verifier):
            raise ValueError("give 'scorers' or 'verifier'")
        if any(not all(one.partition("=")) for one in self.same):
            raise ValueError("'same' takes NAME=POLICY")
        return self

    def run(self) -> None:
        """Audit, print and write the report."""
        from surefoot.evaluation.audits import agent_section, audit_agent, audit_self_preference
        from surefoot.work import progress_bars

        subjects = [*self.subjects(), *map(_rules, self.verifier)]
        cases = with_scores(self.cases(per_problem=self.per_problem), subjects)
        live = [subject for subject in subjects if not subject.stored]
        if not (live or self.same):
            raise RunError("stored scores cannot score a varied run: give checkpoints, or --same NAME=POLICY")
        items, audits = [case.item for case in cases], []
        with progress_bars() as progress:
            for number, subject in enumerate(live):
                progress("audit", number, len(live))
                audits.append(
                    audit_agent(
                        subject,
                        items,
                        threshold=self.threshold,
                        tolerance=self.tolerance,
                        draws=self.draws,
                        seed=self.seed,
                    )
                )
        preferences = []
        if self.same:
            same = dict(one.split("=", 1) for one in self.same)
            if strange := set(same) - {subject.name for subject in subjects}:
                raise RunError(f"--same {min(strange)}=…: no scorer has this name")
            preferences = audit_self_preference(subjects, cases, same, draws=self.draws, seed=self.seed)
        results = {"agent": audits, "self_preference": preferences}
        self.leave([agent_section(audits, preferences)], results)


def _rules(name: str) -> AuditedScorer:
    from surefoot.evaluation.audits import AuditedScorer
    from surefoot.labelling import VerifierLabeller, open_verifier
    from surefoot.models import LabelScorer

    labeller = VerifierLabeller(verifiers=(open_verifier(name),))
    return AuditedScorer(name=name, scorer=LabelScorer(labeller, name=name, unknown=1.0), rule="min")


class AuditAll(PartialAudit):
    """Run gaming, outcome, clean and over-optimisation on the same traces.

    What cannot be done with them is reported and left out: gaming needs checkpoints, clean needs outcomes and
    labels, over-optimisation several traces per problem. With `--labels lab` the rationalised solutions are
    built. Transfer needs several sets: see its own command.

    Example: `surefoot audit all prm=prm orm=orm --problems problems.jsonl --traces traces.jsonl --labels lab
    --out audit`
    """

    report_name: ClassVar[str] = "all"

    per_problem: int | None = Field(
        default=2,
        ge=1,
        description="Traces per problem for gaming and outcome; the others use all of them.",
    )
    threshold: float = Field(
        default=0.5, description="A trace with at least this score is taken to be correct."
    )
    largest: int | None = Field(
        default=None, ge=2, description="Largest N; if not given, the one that nine in ten problems have."
    )
    search: AttackSettings = AttackSettings()

    def run(self) -> None:
        """Audit, print and write the report."""
        subjects = self.subjects(partial=self.partial)
        live = [subject for subject in subjects if not subject.stored]
        cases = with_scores(self.cases(), subjects)
        few = list(first_of_each(cases, self.per_problem, lambda case: case.problem_id))

        def edits() -> Results:
            if not live:
                raise ScoreError("there are only stored scores, and edited text has to be scored")
            return audit_edits(self, self.search, live, few)

        def clean() -> Results:
            built = self.in_lab and live == subjects
            material = rationalised(self, self.problems or "", subjects) if built else cases
            return audit_clean_traces(self, subjects, material, self.threshold)

        sections, results, left_out = _possible(
            {
                "gaming": edits,
                "outcome": lambda: audit_outcomes(self, subjects, few),
                "clean": clean,
                "over-optimisation": lambda: audit_pressure(
                    self, subjects, [case.item for case in cases], self.largest
                ),
            }
        )
        self.leave(sections, {**results, "left_out": left_out})


def audit_edits(
    settings: CaseAudit, search: AttackSettings, subjects: Sequence[AuditedScorer], cases: Sequence[Case]
) -> Results:
    """Edits, content probe and search for each scorer."""
    from surefoot.evaluation.audits import (
        attack_section,
        audit_attack,
        audit_gaming,
        gaming_section,
        lab_right,
    )
    from surefoot.work import progress_bars

    truth = lab_right if settings.in_lab else None
    edits, attacks = [], []
    probes: dict[str, ProbeResult] = {}
    left_out: dict[str, str] = {}
    with progress_bars() as progress:
        for subject in subjects:
            edits.append(
                audit_gaming(
                    subject,
                    cases,
                    truth=truth,
                    tolerance=search.tolerance,
                    must_fall=search.must_fall,
                    draws=settings.draws,
                    seed=settings.seed,
                )
            )
            if settings.in_lab:
                probes[subject.name] = _probe(subject, cases)
            if not search.rounds:
                continue
            try:
                attacks.append(
                    audit_attack(
                        subject,
                        cases,
                        truth=truth,
                        attacked=search.attacked,
                        rounds=search.rounds,
                        proposals=search.proposals,
                        versions=search.versions,
                        draws=settings.draws,
                        seed=settings.seed,
                        progress=lambda done, of, name=subject.name: progress(f"climb {name}", done, of),  # type: ignore[misc]
                    )
                )
            except ScoreError as error:  # the edits' results are worth having without the search
                left_out[subject.name] = str(error)
                echo(f"no search against {subject.name}: {error}", err=True)
    sections = [gaming_section(edits, probes)] + ([attack_section(attacks)] if attacks else [])
    return sections, {"gaming": edits, "probe": probes, "attack": attacks, "attack_left_out": left_out}


def audit_outcomes(
    settings: AuditCommand, subjects: Sequence[AuditedScorer], cases: Sequence[Case]
) -> Results:
    """The outcome audit of each scorer."""
    from surefoot.evaluation.audits import audit_outcome, outcome_section

    audits = [audit_outcome(one, cases, draws=settings.draws, seed=settings.seed) for one in subjects]
    return [outcome_section(audits)], {"outcome": audits}


def audit_clean_traces(
    settings: AuditCommand, subjects: Sequence[AuditedScorer], cases: Sequence[Case], threshold: float
) -> Results:
    """The audit of clean-looking false process for each scorer."""
    from surefoot.evaluation.audits import audit_clean, clean_section

    audits = [
        audit_clean(one, cases, threshold=threshold, draws=settings.draws, seed=settings.seed)
        for one in subjects
    ]
    return [clean_section(audits)], {"clean": audits}


def audit_pressure(
    settings: AuditCommand,
    subjects: Sequence[AuditedScorer],
    items: Sequence[ProblemTrace],
    largest: int | None,
) -> Results:
    """The over-optimisation audit of each scorer."""
    from surefoot.evaluation.audits import audit_over_optimisation, over_optimisation_section

    audits = [
        audit_over_optimisation(one, items, largest=largest, draws=settings.draws, seed=settings.seed)
        for one in subjects
    ]
    return [over_optimisation_section(audits)], {"over_optimisation": audits}


def rationalised(settings: AuditCommand, problems: str, subjects: Sequence[AuditedScorer]) -> list[Case]:
    """Three solutions of each lab problem: correct, rationalised and wrong.

    Raises ``RunError`` for stored scores.
    """
    from surefoot.cli.runs import read_table
    from surefoot.evaluation.audits import rationalised_lab_cases
    from surefoot.records import Problem

    if stored := [subject.name for subject in subjects if subject.stored]:
        raise RunError(f"--build writes new solutions, and {stored[0]} is a file of stored scores")
    chosen = subset(read_table(problems, Problem), settings.limit, settings.seed)
    return rationalised_lab_cases(chosen, seed=settings.seed)


def _probe(subject: AuditedScorer, cases: Sequence[Case]) -> ProbeResult:
    from surefoot.lab.probe import content_probe

    problems = {case.problem_id: case.item.problem for case in cases}
    return content_probe(subject.scorer, list(problems.values())[:PROBED_PROBLEMS])


def _possible(
    audits: dict[str, Callable[[], Results]],
) -> tuple[list[Section], dict[str, Any], dict[str, str]]:
    """Every audit that its material allows; the others with the reason.

    Raises ``ScoreError`` if none is left.
    """
    sections: list[Section] = []
    results: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, audit in audits.items():
        try:
            parts, records = audit()
        except ScoreError as error:
            left_out[name] = str(error)
            echo(f"{name} left out: {error}", err=True)
            continue
        sections += parts
        results |= records
    if not sections:
        raise ScoreError(f"no audit can be run on these traces: {'; '.join(left_out.values())}")
    return sections, results, left_out
