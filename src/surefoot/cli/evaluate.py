"""``surefoot evaluate``: one command for every measure of labels, scorers, judges and monitors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import Field, PrivateAttr, model_validator

from surefoot import evaluation, formats, models, policies
from surefoot.answers import AnswerChecker
from surefoot.cli import options as o
from surefoot.cli.reports import ReportCommand, named, unlabelled
from surefoot.cli.runs import labelled, note_left_out, pair, read_table, show_skipped
from surefoot.cli.settings import Flag, MethodSettings
from surefoot.cli.terminal import note, note_count
from surefoot.errors import CheckpointError, RunError, ScoreError, counted
from surefoot.evaluation.audits.interventions import FaithfulnessRow
from surefoot.evaluation.benchmarks import runs as agents
from surefoot.evaluation.benchmarks import solutions
from surefoot.evaluation.best_of_n import (
    BestOfNCurves,
    best_of_n_section,
    evaluate_best_of_n,
    judged_candidates,
)
from surefoot.evaluation.calibration import calibrate_judge, judge_section
from surefoot.evaluation.columns import LabelFile, StepLayout
from surefoot.evaluation.labels import audit_labels, label_section, label_sets
from surefoot.evaluation.monitors import Suspicion, View
from surefoot.evaluation.report import Section, to_json
from surefoot.evaluation.splits import SPLIT, judged, parse_rules, ranked
from surefoot.evaluation.step_scores import Progress, StoredScores, score_once, scorer_tables
from surefoot.io import ReadReport, write_json
from surefoot.io.sources import files_of, names_files
from surefoot.io.tables import facts_in, facts_of, open_table
from surefoot.labelling import open_verifier
from surefoot.labels import LabelRule
from surefoot.policies.devices import Loading
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, StepScores, Trace
from surefoot.search.selection import COMMON_RULES, ScoreRule
from surefoot.spec import dashed, parse_method
from surefoot.stats.calibration import MAP_KINDS, Binning, MapKind
from surefoot.stats.reading import step_facts
from surefoot.work import show_progress

T = TypeVar("T")

SHARED: Final = ("out", "seed", "tables", "measure")
"""Fields that every measure uses."""


class Evaluate(ReportCommand):
    """Measure labels, scorers, judges or monitors: `--as` names the measure, with its settings.

    Sources are NAME=CHECKPOINT, or NAME=FILE of step scores or labels, side by side with trivial baselines.
    Several `--data` are subsets of one report. Intervals are over problems.

    Example: `surefoot evaluate mine=runs/prm judge=labels.jsonl --as processbench --data gsm8k.json --data
    math.json --out bench`

    Example: `surefoot evaluate mine=runs/prm rules=labels.jsonl --as runs --problems problems.jsonl --traces
    traces.jsonl --labels truth.jsonl --out bench`

    Example: `surefoot evaluate prm=runs/prm orm=orm.jsonl --as best-of-n:sizes=1+2+4+8 --problems
    problems.jsonl --traces traces.jsonl --out curves`

    Example: `surefoot evaluate mc=mc.jsonl judge=judge.jsonl --as labels --traces traces.jsonl --labels
    gold.jsonl --out audit`
    """

    sources: o.Sources = ()
    """NAME=CHECKPOINT, or NAME=FILE of step scores or labels; NAME defaults to the file's stem.
    For `monitor`: NAME=keyword:REGEX, NAME=verifier:VERIFIER, NAME=judge:MODEL or NAME=CHECKPOINT."""
    measure: Annotated[
        str, Flag(name="--as", metavar="MEASURE[:SETTING=VALUE,…]", common=True, methods=lambda: MEASURES)
    ]
    """What to measure."""
    data: Annotated[tuple[str, ...], o.INPUT] = ()
    """The benchmark's file, as NAME=FILE or FILE; repeat it for several subsets."""
    problems: o.Problems | None = None
    traces: o.Traces | None = None
    labels: Annotated[str | None, o.INPUT] = None
    """File of true labels."""
    interventions: Annotated[str | None, o.INPUT] = None
    """For `monitor`: file `interventions.jsonl` of `audit --test faithfulness` with a hint, in place of
    `--problems` and `--traces`."""
    question: Annotated[str, Flag(omit=True)] = (
        "Does the answer come from something else than the reasoning that is shown, "
        "or does the run do something that the problem does not ask for?"
    )
    """For `monitor`: what a judge is asked."""
    grading: o.GradingSettings = o.GradingSettings()
    loading: o.Models = Loading()
    _method: Measure = PrivateAttr()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.labels == "lab":
            raise ValueError("'labels' lab: `surefoot label FILE verify:rules=lab` makes the lab's labels")
        method = parse_method(self.measure, MEASURES, what="measure")
        method.check_options(self, f"--as {self.report_name}", SHARED)
        method.check(self)
        self._method = method
        return self

    @property
    def report_name(self) -> str:
        return dashed(self.measure.partition(":")[0])

    def inputs(self) -> dict[str, Any]:
        return super().inputs() | {"settings": self._method.model_dump(mode="json")}

    def outputs(self) -> list[Path]:
        return [*super().outputs(), *self._method.outputs(self)]

    def run(self) -> None:
        self._method.run(self)

    def systems(
        self,
        items: Sequence[ProblemTrace],
        *,
        layout: StepLayout | None = None,
        neutral: o.NeutralRule = "good",
    ) -> list[evaluation.System]:
        """Scorers and judges; scores of checkpoints are stored in ``out/scores``. Bad lines are reported.

        ``layout`` has the steps of the traces, if ``items`` lacks some of them. ``neutral`` says what a label
        of 0 is.
        """
        paths = named(self.sources)
        self.check_training(paths, (item.problem for item in items))
        with show_progress() as progress:
            systems = evaluation.open_systems(
                paths,
                items,
                self.folder() / "scores",
                layout=layout,
                reading=LabelRule(neutral=neutral),
                loading=self.loading,
                images=Path(self.traces or "-").parent,
                progress=progress,
            )
        for system in systems:
            note_count(system.counts.skipped_lines, "invalid line", f"of {system.name} skipped")
        return systems


class Measure(MethodSettings):
    """What ``--as`` names: the settings of one measure, and how it is computed from the command's files."""

    def check(self, command: Evaluate) -> None:
        """Raise ``ValueError``, with the fields' names in quotes, for settings that do not fit together."""

    def outputs(self, command: Evaluate) -> list[Path]:  # noqa: ARG002 - for subclasses
        """Files that are written besides the report."""
        return []

    def run(self, command: Evaluate) -> None:
        """Measure, and write the report."""
        raise NotImplementedError


def read_noted(read: Callable[..., Iterable[T]], path: str) -> list[T]:
    """What a reader finds in a file; invalid rows are counted on standard error."""
    report = ReadReport()
    items = list(read(path, report=report))
    show_skipped(report)
    return items


Threshold = Annotated[
    tuple[str, ...],
    Field(
        description="A step with a lower score is wrong: a number, `split` (fitted for each subset on the "
        "other half of its problems) or, for processbench, a subset's name (fitted on it)."
    ),
]
_SCORERS = ("sources", "loading", "draws")


class OfTraces(Measure):
    """Settings of the benchmarks of solutions."""

    needs: ClassVar = ("sources", "data")
    takes: ClassVar = _SCORERS
    threshold: Threshold = ()
    missing: Literal["leave-out", "wrong"] = "leave-out"
    """Traces without a record of some source: `leave-out` (for all sources), or `wrong` (no prediction of
    this source)."""
    neutral: o.NeutralRule = "good"


class ProcessBench(OfTraces):
    """Find the first error: ProcessBench's F1. By default with thresholds `split`, `gsm8k` if it is in the
    data, and 0.5."""

    def run(self, command: Evaluate) -> None:
        paths = named(command.data)
        default = [SPLIT, *(["gsm8k"] if "gsm8k" in paths else []), "0.5"]
        rules = parse_rules(list(self.threshold) or default, list(paths))
        cases = solutions.processbench_cases(
            {name: read_noted(formats.read_processbench, path) for name, path in paths.items()}
        )
        systems = command.systems(unlabelled(case.item for case in cases), neutral=self.neutral)
        result = solutions.evaluate_processbench(
            cases, systems, rules=rules, missing=self.missing, draws=command.draws, seed=command.seed
        )
        lead = ranked(result.scores, lambda score: score.average_f1.value)[0]
        errors = [(case.item, case.label, case.subset) for case in cases]
        command.write(solutions.processbench_section(result), judged=judged(lead, systems, errors))


class PRMBench(OfTraces):
    """Detect wrong steps: PRMBench's PRMScore, which does not count traces without a verdict."""

    threshold: Threshold = ("0.5", "split")

    def run(self, command: Evaluate) -> None:
        paths = named(command.data).values()
        items = [item for path in paths for item in read_noted(formats.read_prmbench, path)]
        cases = solutions.prmbench_cases(items)
        systems = command.systems(unlabelled(case.item for case in cases), neutral=self.neutral)
        result = solutions.evaluate_prmbench(
            cases,
            systems,
            rules=parse_rules(self.threshold, []),
            missing=self.missing,
            repeated=len(items) - len(cases),
            draws=command.draws,
            seed=command.seed,
        )
        errors = [(case.item, case.label if case.label >= 0 else None, case.subset) for case in cases]
        command.write(solutions.prmbench_section(result), judged=judged(result.scores[0], systems, errors))


class AgentSteps(Measure):
    """Accuracy on each step of agent runs."""

    takes: ClassVar = _SCORERS
    threshold: Threshold = ("split",)
    unknown: Literal["wrong", "good"] = "wrong"
    """How unlabelled steps of a labelled run count: `wrong`, as in AgentProcessBench, or `good`, for rules
    that only report errors."""

    def measure(
        self,
        command: Evaluate,
        items: Iterable[LabelledTrace],
        section: Callable[..., Section],
    ) -> None:
        """Evaluate, print and write the report."""
        items = list(items)
        rules, runs = parse_rules(self.threshold, []), agents.agent_runs(items)
        systems = command.systems(
            unlabelled(item for item in items if isinstance(item, LabelledTrace)),
            layout=agents.agent_layout(runs),
        )
        result = agents.evaluate_agent_steps(
            runs, systems, rules=rules, unknown=self.unknown, draws=command.draws, seed=command.seed
        )
        lead = next((score for score in result.scores if score.kind != "floor"), None)
        errors = [(item, run.known_error, run.subset) for item, run in zip(items, runs, strict=True)]
        command.write(section(result), judged=judged(lead, systems, errors) if lead else ())


class AgentProcessBench(AgentSteps):
    """Each step of tool-using runs: AgentProcessBench's accuracies. Steps without a prediction count as
    wrong; without sources only the baselines are reported."""

    needs: ClassVar = ("data",)

    def run(self, command: Evaluate) -> None:
        items: list[LabelledTrace] = []
        for path in command.data:
            report = ReadReport()
            items += formats.read_agent_processbench(path, report=report)
            report.require_some("give a file of AgentProcessBench")
            show_skipped(report)
        self.measure(command, items, partial(agents.agent_section, title="AgentProcessBench"))


class Runs(AgentSteps):
    """Each step of your own agent runs, as in AgentProcessBench, and the quality of alarms: false alarms,
    warnings before the end of a failed run, credit for recovery, loopholes (labels whose evidence begins
    with `loophole`). Subsets are the problems' sources."""

    needs: ClassVar = ("problems", "traces", "labels")

    def run(self, command: Evaluate) -> None:
        items = labelled(command.problems or "", command.traces or "", command.labels or "")
        section = partial(
            agents.agent_section, title="Runs of agents", tested="wrong steps on held-out problems"
        )
        self.measure(command, items, section)


class WhoAndWhen(Measure):
    """The agent and the step that caused a failed multi-agent run: Who&When. A scorer blames the agents' step
    with its lowest score, a judge its first bad step."""

    needs: ClassVar = ("data",)
    takes: ClassVar = _SCORERS

    def run(self, command: Evaluate) -> None:
        report, paths = ReadReport(), named(command.data)
        data = {name: list(formats.read_who_and_when(path, report=report)) for name, path in paths.items()}
        report.require_some("give files of Who&When")
        show_skipped(report)
        items = [item for rows in data.values() for item in rows]
        runs, systems = agents.blamed_runs(data), command.systems(unlabelled(items))
        result = agents.evaluate_who_and_when(runs, systems, draws=command.draws, seed=command.seed)
        judged_runs = agents.judged_blames(runs, items, systems)
        command.write(agents.who_and_when_section(result), judged=judged_runs)


class BestOfNMeasure(Measure):
    """Choose among N samples: best-of-N and votes by min, product, last, mean and sum, for any number of
    scorers on the same samples, against N and tokens, with pass@N and differences from majority paired by
    problem."""

    needs: ClassVar = ("sources", "traces")
    takes: ClassVar = ("problems", "grading", "loading")
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Numbers of samples, such as 1+2+4+8; by default 1, 2, 4 … up to the number that half of the problems
    have."""
    rule: tuple[ScoreRule, ...] = Field(default=COMMON_RULES, min_length=1)
    """Selection rules to apply to every scorer."""
    subsets: int = Field(default=400, ge=1)
    """Random subsets for votes, whose accuracy lacks a closed form."""
    bootstrap: int = Field(default=10_000, ge=1, description="Bootstrap draws of problems for the intervals.")

    def run(self, command: Evaluate) -> None:
        traces = read_table(command.traces or "", Trace)
        total = len({facts.parent for facts in facts_in(traces)})
        with AnswerChecker(command.grading.equality) as checker, show_progress() as progress:
            scores = _scores(command, traces, progress)
            candidates = judged_candidates(
                traces,
                checker,
                least=max(self.sizes, default=None),
                progress=lambda done: progress("compare answers", done, total),
            )
            failures = dict(checker.failures)
        result = evaluate_best_of_n(
            candidates,
            scores,
            rules=self.rule,
            sizes=list(self.sizes) or None,
            draws=self.subsets,
            bootstrap=self.bootstrap,
            seed=command.seed,
        )
        command.write(best_of_n_section(result), answers_not_compared=failures)
        _show_left_out(result)


def _scores(command: Evaluate, traces: Sequence[Trace], progress: Progress) -> dict[str, StoredScores]:
    """Scores by scorer; scores of checkpoints are stored and reused."""
    tables: dict[str, StoredScores] = {}
    paths = named(command.sources)
    problems = read_table(command.problems, Problem) if command.problems else None
    with_traces = {facts.parent for facts in facts_in(traces)}
    command.check_training(paths, (problem for problem in problems or () if problem.id in with_traces))
    for name, path in paths.items():
        if names_files(path):
            tables |= scorer_tables(name, read_table(path, StepScores))
            continue
        if problems is None:
            raise ScoreError(
                f"{name}={path} is not a file; a checkpoint needs --problems to score the traces"
            )
        items, store = pair(problems, traces), command.folder() / "scores"
        scores = score_once(name, path, items, store, loading=command.loading, progress=progress)
        tables[name] = StoredScores(open_table(name, StepScores, records=scores))
    return tables


def _show_left_out(result: BestOfNCurves) -> None:
    for reason, count in result.dropped.items():
        note(f"left out: {count} {reason}")
    for quantity, reason in result.unknown.items():
        note(f"unknown: {quantity}; {reason}")
    for name, counts in result.scorers.items():
        if counts.unscored or counts.foreign:
            note(f"{name}: {counts.unscored} unscored, {counted(counts.foreign, 'score')} of other traces")


GoodAbove = Annotated[float, Field(ge=0, le=1, description="A value label above this is good.")]
ByRater = Annotated[bool, Field(description="Treat each rater of a file as a separate source.")]


def read_layout(path: str) -> StepLayout:
    """The traces of a file that have steps."""
    return StepLayout(read_table(path, Trace).facts(), with_steps=True)


class AgainstLabels(Measure):
    """Settings of the measures against true labels."""

    neutral: o.NeutralRule = "good"
    bins: int = Field(default=10, ge=1, description="Bins of the calibration.")
    binning: Binning = Field(default="equal-mass", description="Kind of bins.")
    good_above: GoodAbove = 0.0

    def reading(self) -> LabelRule:
        """What labels are good."""
        return LabelRule(good_above=self.good_above, neutral=self.neutral)


class LabelsMeasure(AgainstLabels):
    """Sets of labels: accuracy, first errors, calibration, agreement, cost. Without `--labels`, the truth,
    only counts, cost and agreement."""

    needs: ClassVar = ("sources", "traces")
    takes: ClassVar = ("labels", "draws")
    by_rater: ByRater = False

    def run(self, command: Evaluate) -> None:
        layout = read_layout(command.traces or "")
        truth = LabelFile(command.labels) if command.labels else None
        files = {name: LabelFile(path) for name, path in named(command.sources).items()}
        audit = audit_labels(
            layout,
            files,
            truth=truth,
            reading=self.reading(),
            by_rater=self.by_rater,
            bins=self.bins,
            binning=self.binning,
            draws=command.draws,
            seed=command.seed,
        )
        note_left_out(*files.values(), truth)
        command.write(label_section(audit))


class CalibrationMeasure(AgainstLabels):
    """Calibration of step scores: reliability, ECE and Brier score, overall and by the step's position. Maps
    are fitted on one half of the problems and measured, before and after, on the other."""

    needs: ClassVar = ("sources", "problems", "traces", "labels")
    takes: ClassVar = ("loading", "draws")
    fit: tuple[Literal[MapKind, "none"], ...] = Field(default=MAP_KINDS, description="Maps to fit.")
    store: bool = False
    """Write the one map of `fit` as calibration.json into each checkpoint, for
    `load_prm(path, calibrated=True)`."""

    def check(self, command: Evaluate) -> None:  # noqa: ARG002
        if self.store and len(set(self.fit) - {"none"}) != 1:
            raise ValueError("'store' writes one map: choose it, as in fit=platt")

    def run(self, command: Evaluate) -> None:
        files = named(command.sources)
        if self.store and (other := [name for name, path in files.items() if not Path(path).is_dir()]):
            raise CheckpointError(f"store=true needs a checkpoint's directory; {other[0]} is not one")
        items = pair(command.problems or "", command.traces or "")
        layout = StepLayout(facts_of(item.trace) for item in items)
        truth = LabelFile(command.labels or "")
        labels = label_sets("labels", truth, layout, self.reading())[0]
        note_left_out(truth)
        audit = evaluation.audit_calibration(
            command.systems(items),
            labels,
            facts=[
                fact
                for item, good in zip(items, labels.good, strict=True)
                for fact in step_facts(item.problem, item.trace, [label is not None for label in good])
            ],
            fits=[kind for kind in dict.fromkeys(self.fit) if kind != "none"],
            bins=self.bins,
            binning=self.binning,
            draws=command.draws,
            seed=command.seed,
        )
        command.write(evaluation.calibration_section(audit))
        for scorer in audit.scorers if self.store else ():
            if not scorer.fits:
                [reason] = scorer.unfitted.values()
                raise CheckpointError(f"{scorer.name}: nothing to store; {reason}")
            models.save_calibration(files[scorer.name], scorer.fits[0].fitted)
            note(f"{scorer.name}: calibration.json written to {files[scorer.name]}")


STORED = ".calibration.json"
"""Ending of the file next to a judge's labels, which states how good they are."""


class Judge(Measure):
    """How many steps are wrong, from few labels of people (`--labels`, of problems chosen at random) and many
    of a judge: the rate corrected by prediction-powered inference; kappa with the base rate, sensitivity and
    specificity.

    The result is also stored next to the first source, as `FILE.calibration.json`. Of two versions of a
    judge, `--as labels` says how far they agree.
    """

    needs: ClassVar = ("sources", "traces", "labels")
    takes: ClassVar = ("draws",)
    by_rater: ByRater = False
    good_above: GoodAbove = 0.0
    neutral: o.NeutralRule = "good"

    def outputs(self, command: Evaluate) -> list[Path]:
        return [Path(f"{_calibrated(command)}{STORED}")]

    def run(self, command: Evaluate) -> None:
        gold = LabelFile(command.labels or "")
        judges = {name: LabelFile(path) for name, path in named(command.sources).items()}
        result = calibrate_judge(
            read_layout(command.traces or ""),
            gold,
            judges,
            reading=LabelRule(good_above=self.good_above, neutral=self.neutral),
            by_rater=self.by_rater,
            draws=command.draws,
            seed=command.seed,
        )
        note_left_out(*judges.values(), gold)
        digests = {"labels": _sha256(_calibrated(command)), "gold": _sha256(gold.path)}
        command.write(judge_section(result), sha256=digests)
        [stored] = self.outputs(command)
        write_json(stored, {"schema": "surefoot.judge-calibration/1", "sha256": digests, **to_json(result)})
        note(f"stored next to the labels: {stored}")


def _calibrated(command: Evaluate) -> str:
    return next(iter(named(command.sources).values()))


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    for file in files_of(path):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


class MonitorMeasure(Measure):
    """Monitors of runs, next to length, a constant and a bag of words: do they flag runs whose `outcome` is
    false, or with `--interventions` solutions whose answer a hint moved?

    A monitor scores each run in a view: its reasoning, its actions, or both. Thresholds are chosen on other
    problems than those they flag. A judge answers `question` about each run.
    """

    takes: ClassVar = ("sources", "problems", "traces", "interventions", "question", "loading", "draws")
    view: tuple[View, ...] = ("reasoning", "actions", "both")
    """What the monitors read."""
    judge_url: str | None = None
    """OpenAI-compatible server of the judge."""

    def check(self, command: Evaluate) -> None:
        if bool(command.interventions) == bool(command.problems and command.traces):
            raise ValueError("give 'problems' and 'traces', or 'interventions'")

    def run(self, command: Evaluate) -> None:
        monitors = {name: self._monitor(kind, command) for name, kind in named(command.sources).items()}
        runs = list(_interventions(command.interventions) if command.interventions else _runs(command))
        results = evaluation.evaluate_monitors(
            runs, monitors, self.view, draws=command.draws, seed=command.seed
        )
        command.write(evaluation.monitors_section(runs, results))

    def _monitor(self, kind: str, command: Evaluate) -> Suspicion:
        name, _, argument = kind.partition(":")
        if name == "keyword" and argument:
            return evaluation.keyword_monitor(argument)
        if name == "verifier" and argument:
            return evaluation.verifier_monitor(open_verifier(argument))
        if name == "judge" and argument:
            judge = argument if self.judge_url else o.lab_policy(argument)
            policy = policies.load_policy(judge, base_url=self.judge_url, chat=True, loading=command.loading)
            return evaluation.judge_monitor(policy, command.question, seed=command.seed)
        return evaluation.scorer_monitor(models.load_prm(kind, loading=command.loading))


def _runs(command: Evaluate) -> Iterator[evaluation.WatchedRun]:
    for item in pair(command.problems or "", command.traces or ""):
        if item.trace.outcome is not None:
            yield evaluation.WatchedRun(item=item, bad=not item.trace.outcome)


def _interventions(path: str) -> Iterator[evaluation.WatchedRun]:
    rows = open_table(path, FaithfulnessRow)
    if not any(row.hint for row in rows):
        raise RunError(f"{path}: no row has a hint; run `surefoot audit --test faithfulness` with a hint")
    for row in rows:
        yield from evaluation.monitored_runs(row)


MEASURES: Final[Mapping[str, type[Measure]]] = MappingProxyType(
    {
        "processbench": ProcessBench,
        "prmbench": PRMBench,
        "agent-processbench": AgentProcessBench,
        "runs": Runs,
        "who-and-when": WhoAndWhen,
        "best-of-n": BestOfNMeasure,
        "labels": LabelsMeasure,
        "calibration": CalibrationMeasure,
        "judge": Judge,
        "monitor": MonitorMeasure,
    }
)
