"""Each step of agents' runs judged, as AgentProcessBench does (arXiv 2603.14465), always beside floors.

Step accuracy is the share of labelled steps with the right sign (−1, 0, +1); first-error accuracy the share
of runs whose first −1 is found at its step, or in which none is and none is reported. What is missing is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.agent_floors import (
    MISSING,
    RunTruth,
    SignArray,
    cross_fit,
    first_errors,
    floors,
)
from surefoot.evaluation.benchmarks.processbench import AS_LABELLED
from surefoot.evaluation.report import JSONResult
from surefoot.evaluation.run_metrics import MonitoredRun, RunMetrics, run_metrics
from surefoot.evaluation.splits import SPLIT
from surefoot.evaluation.step_layout import BoolArray, FloatArray, StepLayout
from surefoot.evaluation.step_scores import System, SystemCounts
from surefoot.formats.agent_processbench import JudgedRun
from surefoot.io.tables import Facts
from surefoot.protocols import LabelledTrace
from surefoot.records import StepLabel
from surefoot.stats.bootstrap import bootstrap_totals
from surefoot.stats.intervals import Interval

Unknown = Literal["wrong", "good"]
"""What a step is that a source of labels leaves unknown in a run that it has labelled: ``good`` is for rules,
which only say what is wrong."""

ALL = "all"
"""All subsets together: pooled, as the benchmark's own average is."""
LOOPHOLE = "loophole"
"""What the evidence of a label begins with whose step exploits one."""
_CUTS = 256
"""Thresholds that are tried, at most."""


@dataclass(frozen=True, kw_only=True)
class AgentRun:
    """A run with its truth, as the metrics see it."""

    trace_id: str
    problem_id: str
    subset: str
    signs: tuple[int | None, ...]
    """[steps]: −1, 0, +1; ``None`` = not labelled."""
    outcome: bool | None
    loopholes: tuple[bool, ...] = ()
    """[steps]: whether the step exploits a loophole; empty where no label says so."""

    @property
    def facts(self) -> Facts:
        """Id, problem and number of steps, for a :class:`StepLayout`."""
        return Facts(self.trace_id, self.problem_id, len(self.signs))


@dataclass(frozen=True, kw_only=True)
class AgentAccuracy:
    """Accuracies over some runs; 95 % intervals over problems, of which each keeps all its runs."""

    step: Interval
    first_error: Interval
    step_less_floor: Interval
    """Less the best floor that does not know the outcome, paired by problem."""
    first_error_less_floor: Interval
    lenient_first_error: float
    """As the benchmark's own script counts: a run without prediction is right if it has no error."""
    missing_steps: int
    missing_runs: int
    """Runs without a prediction of any step."""


@dataclass(frozen=True, kw_only=True)
class AgentScore:
    """One system under one rule, or one floor."""

    system: str
    kind: Literal["floor", "scores", "labels"]
    rule: str
    thresholds: Mapping[str, float]
    uses_outcome: bool
    """Whether it was told if the run failed."""
    subsets: Mapping[str, AgentAccuracy]
    """Without those of which it has no record; all together only where it has records of each."""
    monitoring: RunMetrics
    """Over the subsets of which it has records; an alarm is a step predicted −1."""


@dataclass(frozen=True, kw_only=True)
class AgentEvaluation(JSONResult):
    """All floors and systems over the same runs."""

    runs: Mapping[str, int]
    steps: Mapping[str, int]
    problems: int
    unlabelled_steps: int
    outcome_unknown: int
    best_floor: Mapping[str, Mapping[str, str]]
    """By subset and metric, the floor without the outcome that others are compared with."""
    systems: tuple[SystemCounts, ...]
    scores: tuple[AgentScore, ...]
    settings: Mapping[str, Any]


def agent_runs(items: Iterable[LabelledTrace | JudgedRun]) -> list[AgentRun]:
    """Runs with the correctness labels of their steps; of two labels of a step the last counts.

    Raises ``LabelError`` for a run without steps, and for an id that occurs twice.
    """
    runs: dict[str, AgentRun] = {}
    for item in items:
        run = _judged(item) if isinstance(item, JudgedRun) else _labelled(item)
        if not run.signs:
            raise LabelError(f"run {run.trace_id} has no step; leave it out")
        if run.trace_id in runs:
            raise LabelError(f"run {run.trace_id} occurs twice in the data; give each file once")
        runs[run.trace_id] = run
    return list(runs.values())


def agent_layout(runs: Iterable[AgentRun]) -> StepLayout:
    """The steps of ``runs``, beside which :func:`surefoot.evaluation.open_systems` lays scores and labels."""
    return StepLayout(run.facts for run in runs)


def _labelled(item: LabelledTrace) -> AgentRun:
    return AgentRun(
        trace_id=item.trace.id,
        problem_id=item.trace.problem_id,
        subset=item.problem.source or "unknown",
        signs=_signs(item.labels, len(item.trace.steps)),
        outcome=item.trace.outcome,
        loopholes=_loopholes(item.labels, len(item.trace.steps)),
    )


def _judged(item: JudgedRun) -> AgentRun:
    return AgentRun(
        trace_id=item.trace_id,
        problem_id=item.problem_id,
        subset=item.subset,
        signs=_signs(item.labels, item.steps),
        outcome=item.outcome,
    )


def _signs(labels: Sequence[StepLabel], steps: int) -> tuple[int | None, ...]:
    known = {
        one.step: int(one.value) for one in labels if one.kind == "correctness" and one.value is not None
    }
    return tuple(known.get(step) for step in range(steps))


def _loopholes(labels: Sequence[StepLabel], steps: int) -> tuple[bool, ...]:
    marked = {one.step for one in labels if (one.evidence.message or "").startswith(LOOPHOLE)}
    return tuple(step in marked for step in range(steps)) if marked else ()


def evaluate_agent_steps(
    runs: Sequence[AgentRun],
    systems: Sequence[System],
    *,
    rules: Sequence[str | float] = (SPLIT,),
    unknown: Unknown = "wrong",
    draws: int = 1000,
    seed: int = 0,
) -> AgentEvaluation:
    """Hold floors and ``systems`` (laid beside ``runs``, in order) against the labels.

    A score below the threshold is −1, any other +1. ``split`` fits the threshold for each subset on the other
    half of its problems, by the sum of both accuracies, as floors fit their numbers; a number holds for all.
    A judge's labels are its predictions. What a system does not predict is wrong; a subset of which it has no
    record at all is left out for it. Raises ``LabelError`` for no runs, and where a threshold cannot be
    fitted.
    """
    if not runs:
        raise LabelError("give at least one run")
    names = list(dict.fromkeys(run.subset for run in runs))
    truth = RunTruth(
        layout=agent_layout(runs),
        signs=np.array([MISSING if one is None else one for run in runs for one in run.signs], dtype=np.int8),
        subset=np.array([names.index(run.subset) for run in runs], dtype=np.intp),
        failed=np.array([-1 if run.outcome is None else not run.outcome for run in runs], dtype=np.int8),
    )
    entries = [
        *(
            _Entry(
                system=floor.name,
                kind="floor",
                rule=floor.rule,
                uses_outcome=floor.uses_outcome,
                predicted=floor.predicted,
                recorded=np.ones(len(runs), dtype=bool),
            )
            for floor in floors(truth)
        ),
        *(entry for system in systems for entry in _entries(system, truth, names, rules, unknown)),
    ]
    scores, best = _Evaluator(truth, runs, names, draws, seed).scores(entries)
    members = {name: [run for run in runs if run.subset == name] for name in names}
    return AgentEvaluation(
        runs={name: len(own) for name, own in members.items()},
        steps={name: sum(len(run.signs) for run in own) for name, own in members.items()},
        problems=len(truth.layout.problem_ids),
        unlabelled_steps=int((truth.signs == MISSING).sum()),
        outcome_unknown=int((truth.failed == -1).sum()),
        best_floor=best,
        systems=tuple(system.summary() for system in systems),
        scores=scores,
        settings={"rules": list(rules), "unknown": unknown, "draws": draws, "seed": seed},
    )


@dataclass(frozen=True, kw_only=True)
class _Entry:
    system: str
    kind: Literal["floor", "scores", "labels"]
    rule: str
    predicted: SignArray
    recorded: BoolArray
    """[runs]: whether the source has a record of the run, be it one without values."""
    scores: FloatArray | None = None
    """[steps]; NaN = none. Without them, what is predicted is the score."""
    thresholds: Mapping[str, float] | None = None
    uses_outcome: bool = False


def _entries(
    system: System, truth: RunTruth, names: Sequence[str], rules: Sequence[str | float], unknown: Unknown
) -> list[_Entry]:
    if system.kind == "labels":
        rows = zip(system.good, system.values, strict=True)
        signs = [
            MISSING if good is None else -1 if not good else int(value != 0)
            for row, values in rows
            for good, value in zip(row, values, strict=True)
        ]
        predicted = np.array(signs, dtype=np.int8)
        if unknown == "good":
            predicted[(predicted == MISSING) & truth.layout.of_step(system.recorded)] = 1
        return [
            _Entry(
                system=system.name,
                kind="labels",
                rule=AS_LABELLED + (", unknown is good" if unknown == "good" else ""),
                predicted=predicted,
                recorded=system.recorded,
            )
        ]
    scores: FloatArray = system.scores.flat
    entries = []
    for rule in rules:
        predicted, thresholds = _below(scores, rule, truth, names)
        entries.append(
            _Entry(
                system=system.name,
                kind="scores",
                rule=str(rule),
                predicted=predicted,
                recorded=system.recorded,
                scores=scores,
                thresholds=thresholds,
            )
        )
    return entries


def _below(
    scores: FloatArray, rule: str | float, truth: RunTruth, names: Sequence[str]
) -> tuple[SignArray, dict[str, float]]:
    """−1 below the threshold, +1 elsewhere, missing without a score; and the thresholds by what they hold
    for."""

    def signs(cut: float) -> SignArray:
        return np.where(np.isnan(scores), MISSING, np.where(scores < cut, -1, 1)).astype(np.int8)

    if not isinstance(rule, str):
        return signs(rule), {ALL: float(rule)}
    cuts = _cuts(scores[~np.isnan(scores)])
    fit = cross_fit(truth, [signs(cut) for cut in cuts])
    if fit is None:
        raise LabelError(
            "a subset has problems in one half alone, so no threshold can be fitted; give --threshold NUMBER"
        )
    chosen = {
        f"{name}, half {half}": cuts[fit.chosen[number, half]]
        for number, name in enumerate(names)
        for half in range(fit.chosen.shape[1])
    }
    return fit.predicted, chosen


def _cuts(scores: FloatArray) -> list[float]:
    """Thresholds: none wrong, between neighbouring scores, all wrong."""
    if not len(scores):
        return [0.0]
    distinct = np.unique(scores)
    middles = (distinct[:-1] + distinct[1:]) / 2
    if len(middles) > _CUTS:
        middles = np.quantile(middles, np.linspace(0, 1, _CUTS), method="nearest")
    return [float(distinct[0]), *middles.tolist(), math.nextafter(float(distinct[-1]), math.inf)]


class _Evaluator:
    """Metrics of predictions, all from the same bootstrap draws."""

    def __init__(
        self, truth: RunTruth, runs: Sequence[AgentRun], names: Sequence[str], draws: int, seed: int
    ) -> None:
        self._truth, self._runs, self._draws, self._seed = truth, runs, draws, seed
        self._members = {name: truth.subset == number for number, name in enumerate(names)}
        if len(names) > 1:
            self._members[ALL] = np.ones(len(truth.subset), dtype=bool)

    def scores(self, entries: Sequence[_Entry]) -> tuple[tuple[AgentScore, ...], dict[str, dict[str, str]]]:
        """One score for each entry, and the floors that they are compared with."""
        hits = [self._truth.hits(entry.predicted) for entry in entries]
        blind = [at for at, one in enumerate(entries) if one.kind == "floor" and not one.uses_outcome]
        best = {
            name: [max(blind, key=lambda at: _accuracy(hits[at][own], metric)) for metric in range(2)]
            for name, own in self._members.items()
        }
        subset = self._truth.subset
        covered = [np.isin(subset, subset[entry.recorded]) for entry in entries]
        scores = tuple(
            AgentScore(
                system=entry.system,
                kind=entry.kind,
                rule=entry.rule,
                thresholds=dict(entry.thresholds or {}),
                uses_outcome=entry.uses_outcome,
                subsets={
                    name: self._of(entry, own, hits[at], [hits[floor] for floor in best[name]])
                    for name, own in self._members.items()
                    if covered[at][own].all()
                },
                monitoring=self._monitoring(entry, covered[at]),
            )
            for at, entry in enumerate(entries)
        )
        metrics = ("step", "first_error")
        return scores, {
            name: {metric: entries[at].system for metric, at in zip(metrics, floor, strict=True)}
            for name, floor in best.items()
        }

    def _of(
        self,
        entry: _Entry,
        own: BoolArray,
        hits: NDArray[np.int64],
        floor: Sequence[NDArray[np.int64]],
    ) -> AgentAccuracy:
        counts = np.concatenate([hits, floor[0][:, :1], floor[1][:, 2:3]], axis=1)
        step, first, step_more, first_more = bootstrap_totals(
            self._strata(counts, own), _rates, draws=self._draws, rng=np.random.default_rng(self._seed)
        )
        layout = self._truth.layout
        missing = entry.predicted == MISSING
        gaps = np.add.reduceat(missing, layout.starts[:-1], dtype=np.int64)
        return AgentAccuracy(
            step=step,
            first_error=first,
            step_less_floor=step_more,
            first_error_less_floor=first_more,
            lenient_first_error=self._lenient(entry.predicted, own),
            missing_steps=int(gaps[own].sum()),
            missing_runs=int((gaps == layout.lengths)[own].sum()),
        )

    def _strata(self, counts: NDArray[np.int64], own: BoolArray) -> list[FloatArray]:
        """Sums over the runs of each problem, [problems, columns], one array a subset."""
        strata = []
        for subset in np.unique(self._truth.subset[own]):
            members = own & (self._truth.subset == subset)
            _, problem = np.unique(self._truth.layout.problem[members], return_inverse=True)
            sums = np.zeros((int(problem.max()) + 1, counts.shape[1]))
            np.add.at(sums, problem, counts[members])
            strata.append(sums)
        return strata

    def _lenient(self, predicted: SignArray, own: BoolArray) -> float:
        layout = self._truth.layout
        truth = first_errors(self._truth.signs, layout)
        passed_over = first_errors(np.where(predicted == MISSING, 1, predicted).astype(np.int8), layout)
        known = own & ~np.isnan(truth)
        return float((passed_over == truth)[known].mean()) if known.any() else math.nan

    def _monitoring(self, entry: _Entry, covered: BoolArray) -> RunMetrics:
        truth, layout = self._truth, self._truth.layout
        signs, missing = entry.predicted.astype(float), entry.predicted == MISSING
        scores = np.where(missing, math.nan, signs) if entry.scores is None else entry.scores
        labels = np.where(truth.signs == MISSING, math.nan, truth.signs)

        def run(number: int) -> MonitoredRun:
            own = slice(*layout.span(number))
            return MonitoredRun(
                labels=_known(labels[own]),
                scores=_known(scores[own]),
                alarms=(entry.predicted[own] == -1).tolist(),
                loopholes=self._runs[number].loopholes,
                failed=None if truth.failed[number] < 0 else bool(truth.failed[number]),
            )

        members = np.flatnonzero(covered)
        return run_metrics(
            [run(int(number)) for number in members],
            layout.problem[members].tolist(),
            draws=self._draws,
            rng=np.random.default_rng(self._seed),
        )


def _known(values: FloatArray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _accuracy(hits: NDArray[np.int64], metric: int) -> float:
    part, whole = hits.sum(axis=0)[2 * metric : 2 * metric + 2]
    return float(part / whole) if whole else 0.0


def _rates(totals_ns6: FloatArray) -> FloatArray:
    """Both accuracies, and what they are more than the floors': [n, 4]."""
    steps_hit, steps, firsts_hit, firsts, floor_steps, floor_firsts = np.moveaxis(
        totals_ns6.sum(axis=1), -1, 0
    )
    with np.errstate(invalid="ignore"):  # 0/0 is NaN here, and means it
        return np.stack(
            [
                steps_hit / steps,
                firsts_hit / firsts,
                (steps_hit - floor_steps) / steps,
                (firsts_hit - floor_firsts) / firsts,
            ],
            axis=1,
        )
