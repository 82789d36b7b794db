"""Benchmarks of agent runs, with baselines: every step, or the one that caused the failure.

Every step, as in AgentProcessBench (arXiv 2603.14465): step accuracy is the share of labelled steps with the
correct sign (−1, 0, +1). First-error accuracy is the share of runs whose first −1 is predicted at its step,
or that have none and none is predicted. Missing predictions count as wrong.

Baselines do not read the run. Some know a step's position only, others also whether the run failed, which a
scorer that warns in time cannot know. Baselines with a parameter fit it on the other half of the problems.

An alarm is a step that a monitor calls wrong: one scored below its threshold, or labelled −1. Measured of
alarms, with 95 % intervals over problems: ``false_alarms``, alarms at steps labelled 0 or +1, per run;
``warned``, the share of the failed runs with a wrong step (``warnable``) in which a wrong step gives an
alarm; ``lead_time``, the steps from the first such alarm to the end of the run, mean over the warned runs;
``recovery_credit``, the share of recoveries (the first +1 after a −1) scored above the wrong step before
them, where a tie counts one half and a missing score none; ``loopholes_found``, the share of the steps that
exploit a loophole that give an alarm.

Figures of accuracy: ``step``, ``first_error``, both less the best baseline that does not know the outcome,
paired by problem (``_less_floor``); ``lenient_first_error`` as in the benchmark's script, where a run without
prediction counts as "no error predicted"; ``macro_f1``, the mean F1 of wrong and right steps without the
neutral ones, which is VisualProcessBench's score (arXiv 2503.10291); ``missing_steps``, and ``missing_runs``
without any prediction.

Who&When (arXiv 2505.00212): the agent and step that caused a failed run. A prediction is a step; its agent is
the speaker of that step. As in the paper all runs count, so a run without a prediction is wrong. The paper's
script searches for the true step within the digits of the predicted one ("1" in "12") and for the true name
within the predicted one; here both must be equal, names in any case.

Figures, with 95 % intervals over problems: ``agent``, the share of runs whose agent is found; ``within``, by
steps, the share whose true step is at most so far away (0 is the step accuracy); ``missing`` runs without a
prediction, which are wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError, counted
from surefoot.evaluation.columns import BAD, GOOD, UNREAD, BoolArray, StepLayout
from surefoot.evaluation.labels import first_error_counts
from surefoot.evaluation.measures import Measured, Ratios, members_by
from surefoot.evaluation.report import JudgedTrace, Section, Tested
from surefoot.evaluation.splits import AS_LABELLED, CHOSEN_HERE, HALVES, SPLIT, half_of, ranked
from surefoot.evaluation.step_scores import System
from surefoot.evaluation.verdict import Conclusion, Counts, detected, measured
from surefoot.formats.who_and_when import agent_name
from surefoot.io.tables import Facts
from surefoot.protocols import LabelledTrace
from surefoot.stats.bootstrap import Bootstrap, FloatArray

SignArray = NDArray[np.int8]

Unknown = Literal["wrong", "good"]
"""Meaning of an unlabelled step in a run that has labels: ``good`` is for rules that only report errors."""
Kind = Literal["floor", "scores", "labels"]

ALL = "all"
"""All subsets pooled, as in the benchmark's average."""
LOOPHOLE = "loophole"
"""Prefix of the evidence of a label that marks a loophole."""
MISSING = 2
"""In place of −1, 0 or +1: no prediction, or no label."""
_CUTS = 256
"""Thresholds to try, at most."""


def _alarm_rates(totals: FloatArray) -> list[FloatArray]:
    false, runs, warned, warnable, lead, credit, recoveries, caught, loopholes = totals[:, 0].T
    return [false / runs, warned / warnable, lead / warned, credit / recoveries, caught / loopholes]


ALARMS = Ratios(
    names=("false_alarms", "warned", "lead_time", "recovery_credit", "loopholes_found"),
    of=_alarm_rates,
    totals={"runs": 1, "warnable": 3, "recoveries": 6, "loopholes": 8},
)
"""Of :func:`alarm_counts`."""


@dataclass(frozen=True, kw_only=True)
class AgentRun:
    """A run with its true labels."""

    trace_id: str
    problem_id: str
    subset: str
    signs: tuple[int | None, ...]
    """[steps]: −1, 0, +1; ``None`` = not labelled."""
    outcome: bool | None
    loopholes: tuple[bool, ...] = ()
    """[steps]: whether the step exploits a loophole; empty if no label marks one."""

    @property
    def first_error(self) -> int | None:
        """The first step labelled −1."""
        return self.signs.index(-1) if -1 in self.signs else None

    @property
    def known_error(self) -> int | None:
        """The first step labelled −1; -1 if every step has another label, ``None`` if some has none."""
        first = self.first_error
        return -1 if first is None and None not in self.signs else first


def alarm_counts(run: AgentRun, alarms: BoolArray, scores: FloatArray) -> list[float]:
    """Of a run with ``alarms`` and ``scores`` [steps], NaN for none: false alarms, runs, warned runs,
    warnable runs, lead time, credit, recoveries, loopholes found, loopholes."""
    labels, loopholes = np.array(run.signs, dtype=float), np.array(run.loopholes, dtype=bool)  # NaN for None
    warnings = np.flatnonzero(alarms & (labels < 0))
    warnable = run.outcome is False and bool((labels < 0).any())
    warned = bool(warnable and len(warnings))
    credit = recoveries = 0.0
    error: int | None = None
    for step in np.flatnonzero(~np.isnan(labels)).tolist():
        if labels[step] < 0:
            error = step
        elif labels[step] > 0 and error is not None:
            recoveries += 1
            credit += 0.5 * (float(scores[step] > scores[error]) + float(scores[step] >= scores[error]))
            error = None
    lead = len(labels) - 1 - int(warnings[0]) if warned else 0
    caught = int((alarms[: len(loopholes)] & loopholes).sum())
    false_alarms = int((alarms & (labels >= 0)).sum())
    return [false_alarms, 1, warned, warnable, lead, credit, recoveries, caught, int(loopholes.sum())]


def agent_runs(items: Iterable[LabelledTrace]) -> list[AgentRun]:
    """Runs with the correctness labels of their steps; the last label of a step counts.

    Raises ``LabelError`` for a run without steps, and for duplicate ids.
    """
    runs: dict[str, AgentRun] = {}
    for item in items:
        trace, steps = item.trace, len(item.trace.steps)
        if not steps:
            raise LabelError(f"run {trace.id} lacks steps; leave it out")
        if trace.id in runs:
            raise LabelError(f"run {trace.id} occurs twice in the data; give each file once")
        labels = [label for label in item.labels if label.kind == "correctness" and label.value is not None]
        signs = {label.step: int(label.value or 0) for label in labels}
        marked = {label.step for label in item.labels if (label.evidence.message or "").startswith(LOOPHOLE)}
        runs[trace.id] = AgentRun(
            trace_id=trace.id,
            problem_id=trace.problem_id,
            subset=item.problem.source or "unknown",
            signs=tuple(signs.get(step) for step in range(steps)),
            outcome=trace.outcome,
            loopholes=tuple(step in marked for step in range(steps)) if marked else (),
        )
    return list(runs.values())


def agent_layout(runs: Iterable[AgentRun]) -> StepLayout:
    """The steps of ``runs``, with which :func:`surefoot.evaluation.open_systems` aligns scores and labels."""
    return StepLayout(Facts(run.trace_id, run.problem_id, len(run.signs)) for run in runs)


def first_errors(signs: SignArray, layout: StepLayout) -> FloatArray:
    """[steps] → [runs]: the index of the first −1, −1 for none, NaN if a missing sign hides it."""
    codes = np.where(signs == MISSING, UNREAD, np.where(signs == -1, BAD, GOOD)).astype(np.int8)
    return layout.first_errors(codes)


@dataclass(frozen=True, kw_only=True)
class RunTruth:
    """The runs of a benchmark with their labels, in flat arrays."""

    layout: StepLayout
    signs: SignArray
    """[steps]: −1, 0, +1, or ``MISSING`` for a step without label."""
    subset: NDArray[np.intp]
    """[runs]: index of the run's subset."""
    failed: NDArray[np.int8]
    """[runs]: 1 failed, 0 succeeded, −1 not known."""

    def hits(self, predicted: SignArray) -> NDArray[np.int64]:
        """[runs, 4]: steps with the labelled sign, labelled steps, first error found, first errors known.

        A step without prediction is wrong; so is a first error that such a step hides.
        """
        labelled = self.signs != MISSING
        truth = first_errors(self.signs, self.layout)
        hit = first_errors(predicted, self.layout) == truth
        starts = self.layout.starts[:-1]
        columns = [
            np.add.reduceat((predicted == self.signs) & labelled, starts, dtype=np.int64),
            np.add.reduceat(labelled, starts, dtype=np.int64),
            hit.astype(np.int64),
            (~np.isnan(truth)).astype(np.int64),
        ]
        return np.stack(columns, axis=1)

    def classes(self, predicted: SignArray) -> NDArray[np.int64]:
        """[runs, 6]: hits, predictions and labels of −1, then of +1; neutral steps do not count."""
        decided = (self.signs == -1) | (self.signs == 1)
        columns = [
            np.add.reduceat(members & decided, self.layout.starts[:-1], dtype=np.int64)
            for sign in (-1, 1)
            for members in ((predicted == sign) & (self.signs == sign), predicted == sign, self.signs == sign)
        ]
        return np.stack(columns, axis=1)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predicted signs of one system under one rule, or of a baseline, which does not read the run."""

    system: str
    kind: Kind = "floor"
    rule: str
    """How its threshold or parameter was chosen."""
    predicted: SignArray
    recorded: BoolArray
    """[runs]: whether the source has a record of the run, with or without values."""
    scores: FloatArray | None = None
    """[steps]; NaN = none. If ``None``, the predictions are the scores."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    uses_outcome: bool = False
    """Whether it knows if the run failed."""

    def score(self, **figures: Any) -> Measured:
        """The row of these predictions; ``name`` is for tables."""
        names = {"floor": f"baseline: {self.system}", "scores": f"{self.system}, {self.rule}"}
        return Measured(
            system=self.system,
            kind=self.kind,
            rule=self.rule,
            thresholds=dict(self.thresholds),
            name=names.get(self.kind, self.system),
            uses_outcome=self.uses_outcome,
            **figures,
        )


def cross_fit(truth: RunTruth, options: Sequence[SignArray]) -> tuple[SignArray, NDArray[np.intp]] | None:
    """The best option for each subset and half of the problems, chosen on the other half: the predictions,
    and the index of the option [subsets, halves].

    Chosen by the sum of both accuracies, the first of equals. ``None`` if a subset lacks one half.
    """
    halves = np.array([half_of(name) for name in truth.layout.problem_ids])[truth.layout.problem]
    chosen = np.zeros((int(truth.subset.max()) + 1, HALVES), dtype=np.intp)
    hits = np.stack([truth.hits(option) for option in options])
    predicted = np.full(truth.layout.steps, MISSING, dtype=np.int8)
    for subset, half in np.ndindex(chosen.shape):
        fitted_on = (truth.subset == subset) & (halves != half)
        if not fitted_on.any():
            return None
        totals = hits[:, fitted_on].sum(axis=1)
        with np.errstate(invalid="ignore"):
            value = totals[:, 0] / totals[:, 1] + totals[:, 2] / totals[:, 3]
        best = int(np.nanargmax(value)) if not np.isnan(value).all() else 0
        chosen[subset, half] = best
        steps = truth.layout.of_step((truth.subset == subset) & (halves == half))
        predicted[steps] = options[best][steps]
    return predicted, chosen


def baselines(truth: RunTruth) -> list[Predictions]:
    """All baselines; those with a parameter are left out if it cannot be fitted."""
    layout = truth.layout
    step, length = layout.step_numbers(), layout.of_step(layout.lengths)
    failed = layout.of_step(truth.failed == 1)
    last = step == length - 1
    starts = range(int(layout.lengths.max()) + 1)
    rules = {
        "all good": [last & False],
        "last step wrong": [last],
        "wrong from step k on": [step >= k for k in starts],
        "last step wrong iff the run failed": [last & failed],
        "wrong from step k on iff the run failed": [(step >= k) & failed for k in starts],
    }
    fitted = []
    for name, wrong_steps in rules.items():
        options = [np.where(wrong, -1, 1).astype(np.int8) for wrong in wrong_steps]
        fit = cross_fit(truth, options) if len(options) > 1 else (options[0], None)
        if fit is not None:
            fitted.append(
                Predictions(
                    system=name,
                    rule="fixed" if len(options) == 1 else "fitted on the other half",
                    predicted=fit[0],
                    recorded=np.ones(layout.traces, dtype=bool),
                    uses_outcome=name.endswith("iff the run failed"),
                )
            )
    return fitted


def evaluate_agent_steps(
    runs: Sequence[AgentRun],
    systems: Sequence[System],
    *,
    rules: Sequence[str | float] = (SPLIT,),
    unknown: Unknown = "wrong",
    draws: int = 1000,
    seed: int = 0,
) -> Measured:
    """Compare baselines and ``systems`` (aligned with ``runs``) with the labels.

    A score below the threshold predicts −1, any other +1. ``split`` fits the threshold for each subset on the
    other half of its problems, by the sum of both accuracies, like the parameters of baselines; a number
    applies to all. A judge's labels are its predictions. Missing predictions count as wrong; a subset without
    any record of a system is left out for it. Raises ``LabelError`` without runs, and if a threshold cannot
    be fitted.
    """
    if not runs:
        raise LabelError("give at least one run")
    names = list(dict.fromkeys(run.subset for run in runs))
    signs = [MISSING if sign is None else sign for run in runs for sign in run.signs]
    truth = RunTruth(
        layout=agent_layout(runs),
        signs=np.array(signs, dtype=np.int8),
        subset=np.array([names.index(run.subset) for run in runs], dtype=np.intp),
        failed=np.array([-1 if run.outcome is None else not run.outcome for run in runs], dtype=np.int8),
    )
    entries = baselines(truth)
    entries += [entry for system in systems for entry in _predictions(system, truth, names, rules, unknown)]
    members = {name: truth.subset == number for number, name in enumerate(names)}
    groups = members | ({ALL: np.ones(len(runs), dtype=bool)} if len(names) > 1 else {})
    hits = [truth.hits(entry.predicted) for entry in entries]
    blind = [at for at, entry in enumerate(entries) if entry.kind == "floor" and not entry.uses_outcome]
    best = {
        name: [max(blind, key=lambda at: _accuracy(hits[at][group], metric)) for metric in range(2)]
        for name, group in groups.items()
    }
    bootstrap, scores = Bootstrap(draws=draws, seed=seed), []
    for entry, entry_hits in zip(entries, hits, strict=True):
        covered = np.isin(truth.subset, truth.subset[entry.recorded])
        missing = np.add.reduceat(entry.predicted == MISSING, truth.layout.starts[:-1], dtype=np.int64)
        filled = truth.hits(np.where(entry.predicted == MISSING, 1, entry.predicted).astype(np.int8))
        accuracies = {}
        for name, group in groups.items():
            if covered[group].all():
                floor = [hits[at][:, [column]] for at, column in zip(best[name], (0, 2), strict=True)]
                counts = np.concatenate([entry_hits, *floor], axis=1)[group]
                classes, owners = truth.classes(entry.predicted)[group], truth.layout.problem[group]
                accuracies[name] = Measured(
                    **_ACCURACY.row(bootstrap, counts, owners, truth.subset[group]),
                    **_MACRO.row(bootstrap, classes, owners),
                    lenient_first_error=_accuracy(filled[group], 1, math.nan),
                    missing_steps=int(missing[group].sum()),
                    missing_runs=int((missing == truth.layout.lengths)[group].sum()),
                )
        scores.append(
            entry.score(
                subsets=accuracies,
                monitoring=_monitoring(entry, covered, truth, runs, bootstrap),
                first_errors=_first_errors(entry.predicted, truth),
            )
        )
    return Measured(
        runs={name: int(group.sum()) for name, group in members.items()},
        steps={name: int(truth.layout.lengths[group].sum()) for name, group in members.items()},
        problems=len(truth.layout.problem_ids),
        unlabelled_steps=int((truth.signs == MISSING).sum()),
        outcome_unknown=int((truth.failed == -1).sum()),
        best_floor={
            name: {"step": entries[step].system, "first_error": entries[first].system}
            for name, (step, first) in best.items()
        },
        systems=[system.summary() for system in systems],
        scores=scores,
    )


def _first_errors(predicted: SignArray, truth: RunTruth) -> Measured:
    """Counts of runs with a prediction: their first errors, and alarms in the others."""
    layout = truth.layout
    judged = np.maximum.reduceat(predicted != MISSING, layout.starts[:-1])
    named, wrong = (
        layout.first_errors(np.where(signs == -1, BAD, GOOD).astype(np.int8))[judged]
        for signs in (predicted, truth.signs)
    )
    counts = first_error_counts(named, wrong).sum(axis=0).astype(int)
    hits, errors, passed, right = counts[:4].tolist()
    return Measured(found=hits, wrong=errors, alarms=right - passed, right=right, of=layout.traces)


def _predictions(
    system: System, truth: RunTruth, names: Sequence[str], rules: Sequence[str | float], unknown: Unknown
) -> Iterator[Predictions]:
    about: Any = {"system": system.name, "kind": system.kind, "recorded": system.recorded}
    if system.kind == "scores":
        for rule in rules:
            predicted, thresholds = _below(system.scores.flat, rule, truth, names)
            about |= {"predicted": predicted, "scores": system.scores.flat, "thresholds": thresholds}
            yield Predictions(rule=str(rule), **about)
        return
    good, values = system.good.flat, system.values.flat
    predicted = np.where(good == BAD, -1, np.where(good == GOOD, values != 0, MISSING)).astype(np.int8)
    if unknown == "good":
        predicted[(predicted == MISSING) & truth.layout.of_step(system.recorded)] = 1
    as_labelled = AS_LABELLED + ", unknown is good" * (unknown == "good")
    yield Predictions(rule=as_labelled, predicted=predicted, **about)


def _below(
    scores: FloatArray, rule: str | float, truth: RunTruth, names: Sequence[str]
) -> tuple[SignArray, dict[str, float]]:
    """−1 below the threshold, +1 elsewhere, missing without a score; and the thresholds by subset."""

    def signs(cut: float) -> SignArray:
        return np.where(np.isnan(scores), MISSING, np.where(scores < cut, -1, 1)).astype(np.int8)

    if not isinstance(rule, str):
        return signs(rule), {ALL: float(rule)}
    cuts = _cuts(scores[~np.isnan(scores)])
    fit = cross_fit(truth, [signs(cut) for cut in cuts])
    if fit is None:
        raise LabelError(
            "all problems of a subset are in one half, so no threshold can be fitted; give threshold=NUMBER"
        )
    predicted, chosen = fit
    return predicted, {
        f"{name}, half {half}": cuts[chosen[number, half]]
        for number, name in enumerate(names)
        for half in range(HALVES)
    }


def _cuts(scores: FloatArray) -> list[float]:
    """Thresholds: no step wrong, between neighbouring scores, all steps wrong."""
    if not len(scores):
        return [0.0]
    distinct = np.unique(scores)
    middles = (distinct[:-1] + distinct[1:]) / 2
    if len(middles) > _CUTS:
        middles = np.quantile(middles, np.linspace(0, 1, _CUTS), method="nearest")
    return [float(distinct[0]), *middles.tolist(), math.nextafter(float(distinct[-1]), math.inf)]


def _monitoring(
    entry: Predictions, covered: BoolArray, truth: RunTruth, runs: Sequence[AgentRun], bootstrap: Bootstrap
) -> Measured:
    """Figures of alarms, over the subsets with records of the system; an alarm is a step predicted −1."""
    layout, signs = truth.layout, entry.predicted
    scores = np.where(signs == MISSING, math.nan, signs) if entry.scores is None else entry.scores
    members, counts = np.flatnonzero(covered), []
    for number in members.tolist():
        steps = slice(*layout.span(number))
        counts.append(alarm_counts(runs[number], signs[steps] == -1, scores[steps]))
    return ALARMS.row(bootstrap, counts, layout.problem[members])


def _accuracy(hits: NDArray[np.int64], metric: int, undefined: float = 0.0) -> float:
    part, total = hits.sum(axis=0)[2 * metric : 2 * metric + 2]
    return float(part / total) if total else undefined


def _rates(totals: FloatArray) -> list[FloatArray]:
    """Both accuracies, and their differences to the baselines."""
    steps_hit, steps, firsts_hit, firsts, base_steps, base_firsts = np.moveaxis(totals.sum(axis=1), -1, 0)
    hits = (steps_hit, steps), (firsts_hit, firsts), (steps_hit - base_steps, steps)
    return [part / total for part, total in (*hits, (firsts_hit - base_firsts, firsts))]


_ACCURACY = Ratios(names=("step", "first_error", "step_less_floor", "first_error_less_floor"), of=_rates)


def _macro_f1(totals: FloatArray) -> list[FloatArray]:
    hits, predicted, labelled = np.moveaxis(totals[:, 0].reshape(-1, 2, 3), -1, 0)
    return [(2 * hits / (predicted + labelled)).mean(axis=1)]


_MACRO = Ratios(names=("macro_f1",), of=_macro_f1)


def _mean_first_error(score: Measured) -> float:
    values = [accuracy.first_error.value for name, accuracy in score.subsets.items() if name != ALL]
    return math.fsum(values) / len(values) if values else -1.0


def _verdicts(score: Measured, result: Measured) -> list[Conclusion]:
    """First errors and single steps less the best baseline's, over all subsets or the one that it has."""
    if not score.subsets:
        return []
    name = ALL if ALL in score.subsets else next(iter(score.subsets))
    accuracy, best = score.subsets[name], result.best_floor[name]
    less = "minus the best baseline that reads nothing,"
    firsts = f'of runs: first errors found ({accuracy.first_error.value:.1%}) {less} "{best["first_error"]}".'
    steps = (
        f'of steps: judged right ({accuracy.step.value:.1%}) {less} "{best["step"]}". It raises '
        f"{score.monitoring.false_alarms.value:.2f} false alarms per run."
    )
    counts, rival = Counts(**score.first_errors, unit="run"), f'"{best["first_error"]}"'
    difference = accuracy.first_error_less_floor
    options: Any = {"spec": "+.1p", "rival": rival}
    detection = detected(counts, difference, firsts, result.problems, silence_counts=True, **options)
    if counts.judged < counts.of:
        return [detection]
    options |= {"rival": f'"{best["step"]}"'}
    return [detection, measured("single steps", accuracy.step_less_floor, steps, result.problems, **options)]


def agent_section(
    result: Measured, title: str, tested: Tested = "wrong steps on public benchmarks"
) -> Section:
    """Accuracy by subset with the baselines first, and the quality of alarms."""
    systems = [score for score in result.scores if score.kind != "floor"]
    order = ranked(systems, _mean_first_error)
    verdicts = {score.system: parts for score in order if (parts := _verdicts(score, result))}
    floors = [score for score in result.scores if score.kind == "floor" and not score.uses_outcome]
    ceiling = max(floors, key=_mean_first_error)
    return Section(
        title=title,
        tested=tested,
        about=f"{counted(sum(result.runs.values()), 'run')} of {counted(result.problems, 'problem')}, "
        f"{counted(sum(result.steps.values()), 'step')} (not counted: {result.unlabelled_steps} "
        f"unlabelled); the outcome of {counted(result.outcome_unknown, 'run')} is unknown. Steps without a "
        "prediction count as wrong. Baselines do not read the run; those that use the outcome cannot warn "
        "in time. Your scorer has to beat the others. Parameters and thresholds are fitted for each subset "
        "on the other half of its problems, unless a rule is fixed. Intervals are 95 %, by bootstrap over "
        "problems, each with all its runs.",
        results=result,
        verdicts=verdicts,
        sentence=""
        if verdicts
        else "No scorer was given. The best baseline that does not read the run finds "
        f"{_mean_first_error(ceiling):.1%} of first errors: {ceiling.system}.",
        limits=[
            f"{counted(sum(result.runs.values()), 'run')} of {counted(result.problems, 'problem')} in "
            f"{', '.join(result.runs)}; {counted(result.unlabelled_steps, 'unlabelled step')} not counted.",
            *[CHOSEN_HERE] * (len(verdicts) > 1),
        ],
    )


TOLERANCES = (0, 1, 2, 3, 4, 5)
"""Maximum distances between predicted and true step."""


@dataclass(frozen=True, kw_only=True)
class BlamedRun:
    """One failed run with its decisive error."""

    trace_id: str
    problem_id: str
    subset: str
    step: int
    agent: str
    """The agent to blame, as written in :attr:`speakers`."""
    speakers: tuple[str | None, ...]
    """[steps]: the agent who speaks, in lower case; ``None`` for a person."""

    @property
    def agent_steps(self) -> list[int]:
        """Indices of the steps of agents."""
        return [step for step, speaker in enumerate(self.speakers) if speaker is not None]


BLAMES = Ratios(
    names=("agent", *map(str, TOLERANCES)),
    of=lambda totals: [totals[:, 0, column] / totals[:, 0, -1] for column in range(1, 2 + len(TOLERANCES))],
    totals={"missing": 0},
)
"""Of the columns of :func:`_all_hits`, and a column of ones."""


def blamed_runs(data: Mapping[str, Sequence[LabelledTrace]]) -> list[BlamedRun]:
    """Runs by subset, with their step labelled −1 and the agent named in the data set.

    Raises ``LabelError`` for a run without such a step or without agents, and for duplicate ids.
    """
    runs: dict[str, BlamedRun] = {}
    for subset, items in data.items():
        for item in items:
            trace = item.trace
            wrong = [label.step for label in item.labels if label.kind == "correctness" and label.value == -1]
            names = [agent_name(trace.messages[s.message]) for s in trace.steps if s.message is not None]
            speakers = tuple(None if name is None else name.casefold() for name in names)
            if not wrong or not any(speakers):
                raise LabelError(f"run {trace.id} lacks a step labelled −1, or names of agents; leave it out")
            if trace.id in runs:
                raise LabelError(f"run {trace.id} occurs twice in the data; give each file once")
            named = trace.meta.get("who_and_when", {}).get("mistake_agent") or speakers[min(wrong)] or ""
            runs[trace.id] = BlamedRun(
                trace_id=trace.id,
                problem_id=trace.problem_id,
                subset=subset,
                step=min(wrong),
                agent=named.casefold(),
                speakers=speakers,
            )
    return list(runs.values())


def evaluate_who_and_when(
    runs: Sequence[BlamedRun], systems: Sequence[System], *, draws: int = 1000, seed: int = 0
) -> Measured:
    """Compare baselines and ``systems`` (aligned with ``runs``) with the truth.

    A scorer blames the agents' step with its lowest score, the first of equals; a judge its first bad step.
    Raises ``LabelError`` without runs.
    """
    if not runs:
        raise LabelError("give at least one run")
    hits: list[tuple[str, Kind, FloatArray]] = [
        (name, "floor", rows) for name, rows in _blind_blames(runs).items()
    ]
    for system in systems:
        steps = [_blamed_step(system, number, run) for number, run in enumerate(runs)]
        hits.append((system.name, system.kind, _all_hits(runs, steps)))
    bootstrap, problems = Bootstrap(draws=draws, seed=seed), np.array([run.problem_id for run in runs])
    subsets = members_by([run.subset for run in runs])

    def figures(rows: FloatArray, members: list[int]) -> Measured:
        counts = np.column_stack([rows[members], np.ones(len(members))])
        row = BLAMES.row(bootstrap, counts, problems[members])
        within = {tolerance: row[str(tolerance)] for tolerance in TOLERANCES}
        return Measured(agent=row.agent, within=within, missing=row.missing)

    return Measured(
        runs={name: len(members) for name, members in subsets.items()},
        other_speaker=sum(run.speakers[run.step] != run.agent for run in runs),
        systems=[system.summary() for system in systems],
        scores=[
            Measured(
                system=name,
                kind=kind,
                subsets={label: figures(rows, members) for label, members in subsets.items()},
                name=f"baseline: {name}" if kind == "floor" else name,
            )
            for name, kind, rows in hits
        ],
    )


def _blamed_step(system: System, number: int, run: BlamedRun) -> int | None:
    if system.kind == "labels":
        return next((step for step, good in enumerate(system.good[number]) if good is False), None)
    scores = system.scores[number]
    scored = [(score, step) for step in run.agent_steps if (score := scores[step]) is not None]
    return min(scored)[1] if scored else None


def _all_hits(runs: Sequence[BlamedRun], steps: Sequence[int | None]) -> FloatArray:
    """[runs, 2 + tolerances] of predicted steps: missing, agent, then the step within each tolerance."""
    rows = []
    for run, step in zip(runs, steps, strict=True):
        if step is None:
            rows.append([1.0] + [0.0] * (1 + len(TOLERANCES)))
        else:
            near = [float(abs(step - run.step) <= tolerance) for tolerance in TOLERANCES]
            rows.append([0.0, float(run.speakers[step] == run.agent), *near])
    return np.array(rows)


def _blind_blames(runs: Sequence[BlamedRun]) -> dict[str, FloatArray]:
    """Hits of rules that do not read the messages; expected hits for the random rule."""

    def most_active(run: BlamedRun) -> int:
        agent = Counter(name for name in run.speakers if name is not None).most_common(1)[0][0]
        return run.speakers.index(agent)

    def first_of(run: BlamedRun, agents: Sequence[str]) -> int | None:
        return next((run.speakers.index(name) for name in agents if name in run.speakers), None)

    steps: dict[str, list[int | None]] = {
        "first step": [run.agent_steps[0] for run in runs],
        "last step": [run.agent_steps[-1] for run in runs],
        "first step of who speaks most": [most_active(run) for run in runs],
        "first step of who is blamed most elsewhere": [
            first_of(run, agents) for run, agents in zip(runs, _blamed_elsewhere(runs), strict=True)
        ],
    }
    hits = {name: _all_hits(runs, predicted) for name, predicted in steps.items()}
    hits["random agent, random step"] = np.array([_random_blame(run) for run in runs])
    return hits


def _blamed_elsewhere(runs: Sequence[BlamedRun]) -> list[list[str]]:
    """For each run the agents by how often they are blamed in the other half of its subset's problems."""
    halves = [half_of(run.problem_id) for run in runs]
    counts: dict[tuple[str, int], Counter[str]] = {}
    for run, half in zip(runs, halves, strict=True):
        counts.setdefault((run.subset, half), Counter())[run.agent] += 1
    empty: Counter[str] = Counter()
    return [
        [name for name, _ in counts.get((run.subset, HALVES - 1 - half), empty).most_common()]
        for run, half in zip(runs, halves, strict=True)
    ]


def _random_blame(run: BlamedRun) -> list[float]:
    """Expected hits of a random agent among the speakers, and of a random step of agents."""
    steps = run.agent_steps
    agents = {run.speakers[step] for step in steps}
    near = [sum(abs(step - run.step) <= tolerance for step in steps) / len(steps) for tolerance in TOLERANCES]
    return [0.0, (run.agent in agents) / len(agents), *near]


def judged_blames(
    runs: Sequence[BlamedRun], items: Sequence[LabelledTrace], systems: Sequence[System]
) -> Iterator[JudgedTrace]:
    """The runs with the step that the first system blames, for worked examples."""
    for number, (run, item) in enumerate(zip(runs, items, strict=True)):
        for system in systems[:1]:
            blamed = _blamed_step(system, number, run)
            scores = system.scores[number] if system.kind == "scores" else ()
            yield JudgedTrace(item=item, error=run.step, predicted=blamed, scores=scores)


def _blame_verdict(score: Measured, result: Measured) -> Conclusion:
    """The step accuracy in the largest subset, against its best baseline."""
    subset = max(result.runs, key=lambda name: result.runs[name])
    floors = [other for other in result.scores if other.kind == "floor"]
    best = max(floors, key=lambda other: other.subsets[subset].within[0].value)
    null = best.subsets[subset].within[0].value
    row = score.subsets[subset]
    runs = result.runs[subset]
    counts = Counts(
        found=round(row.within[0].value * runs),
        wrong=runs - row.missing,
        alarms=0,
        right=0,
        of=runs,
        what="step to blame",
        unit="run",
    )
    text = f"of {subset}'s runs: the step is found. The best baseline, {best.system}, finds {null:.2f}."
    rival = f'"{best.system}"'
    return detected(counts, row.within[0], text, runs, rival=rival, null=null, silence_counts=True)


def who_and_when_section(result: Measured) -> Section:
    """Accuracies by subset with the baselines first."""
    verdicts = {
        score.system: [_blame_verdict(score, result)] for score in result.scores if score.kind != "floor"
    }
    return Section(
        title="Who&When",
        tested="wrong steps on public benchmarks",
        about=f"{counted(sum(result.runs.values()), 'failed run')}. A prediction is a step and the agent "
        "that speaks there; a run without a prediction counts as wrong. Baselines do not read the messages. "
        f"In {counted(result.other_speaker, 'run')} the agent to blame does not speak at the step to blame, "
        "so no prediction can get both right. Intervals are 95 %, by bootstrap over problems.",
        results=result,
        verdicts=verdicts,
        sentence="" if verdicts else "No scorer was given: these are the baselines that it has to beat.",
        limits=[f"{', '.join(f'{name}: {count}' for name, count in result.runs.items())} (runs)."],
    )
