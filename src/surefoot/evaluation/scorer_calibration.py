"""Calibration of step scores, and the effect of a fitted map on unseen problems.

Reliability, expected calibration error (ECE) and Brier score, overall and by the step's position, against
labels of correctness. Temperature, Platt and isotonic maps are fitted on one half of the problems and
evaluated on the other, before and after. Sources: ``surefoot.stats.calibration`` and
``surefoot.models.kinds.calibrated``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError
from surefoot.evaluation.label_sets import LabelSet
from surefoot.evaluation.plots import position_figure, reliability_figure
from surefoot.evaluation.report import JSONResult, Report, Row
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.step_layout import BoolArray, FloatArray, as_numbers
from surefoot.evaluation.step_scores import System, SystemCounts
from surefoot.models.kinds.calibrated import Calibration as Fitted
from surefoot.models.kinds.calibrated import PlattMap, TemperatureMap, fit_calibration
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.calibration import MAP_KINDS, Binning, MapKind, Reliability, reliability, reliability_by
from surefoot.stats.groups import group_numbers
from surefoot.stats.intervals import Cell, Interval

LAST_SHOWN = 9
"""Steps from this index on are reported together."""
PARTS = 5
"""Step i of T lies in part floor(5 i / T)."""


@dataclass(frozen=True, kw_only=True)
class CalibrationEstimate:
    """Reliability with 95 % intervals over problems; every draw uses the bins of the data.

    Noise raises the ECE, in a resample more than in the data, so its interval is biased upwards.
    """

    calibration: Reliability
    ece: Interval
    brier: Interval


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """One map, fitted on one half of the problems, on the steps of the other half."""

    kind: MapKind
    fitted: Fitted
    """The map and its training data: the content of ``calibration.json``."""
    before: CalibrationEstimate
    after: CalibrationEstimate
    ece_change: Interval
    """After minus before, the same draws of problems for both; below 0 the map helps."""
    brier_change: Interval


@dataclass(frozen=True, kw_only=True)
class ScorerCalibration:
    """One scorer."""

    name: str
    system: SystemCounts
    overall: CalibrationEstimate
    auc: Interval
    """Share of (good, bad) pairs in which the good step scores higher, with a 95 % interval over problems."""
    by_step: Mapping[str, Reliability]
    """By index of the step from 0; ``9+`` holds all later ones."""
    by_part: Mapping[str, Reliability]
    """By fifth of the trace, ``1`` to ``5``."""
    fits: tuple[FitResult, ...]
    unfitted: Mapping[str, str]
    """Map → the reason why it could not be fitted."""


@dataclass(frozen=True, kw_only=True)
class CalibrationAudit(JSONResult):
    """Any number of scorers against the same labels."""

    problems: int
    traces: int
    traces_without_record: int
    """Traces without a record of any scorer; left out of all other numbers."""
    steps: int
    labels: Mapping[str, int]
    """Steps by label: good, bad, unknown."""
    fit_problems: int
    """Problems in the half that the maps are fitted on."""
    scorers: tuple[ScorerCalibration, ...]
    settings: Mapping[str, Any]


def audit_calibration(
    systems: Sequence[System],
    truth: LabelSet,
    *,
    fits: Sequence[MapKind] = MAP_KINDS,
    bins: int = 10,
    binning: Binning = "equal-mass",
    draws: int = 1000,
    seed: int = 0,
) -> CalibrationAudit:
    """Measure the calibration of ``systems`` against the labels of ``truth``.

    Memory grows by arrays of steps for one scorer at a time. A step without score or label is dropped and
    counted. Maps are fitted on half 0 of the problems (by the hash of the id) and reported on
    half 1. Raises ``ScoreError`` with the scorer's name for scores outside [0, 1], for labels instead of
    scores, and if no step has a score and a label.
    """
    used = _recorded(systems)
    study = _CalibrationStudy(truth, used, bins=bins, binning=binning, draws=draws, seed=seed)
    good = study.good
    return CalibrationAudit(
        problems=len(study.fits_problem),
        traces=int(used.sum()),
        traces_without_record=int((~used).sum()),
        steps=len(good),
        labels={
            "good": int((good == 1).sum()),
            "bad": int((good == 0).sum()),
            "unknown": int(np.isnan(good).sum()),
        },
        fit_problems=int(study.fits_problem.sum()),
        scorers=tuple(study.scorer(system, fits) for system in systems),
        settings={"bins": bins, "binning": binning, "draws": draws, "seed": seed},
    )


class _CalibrationStudy:
    """The steps of the traces that are ``used``. Arrays are [steps]."""

    def __init__(
        self, truth: LabelSet, used: BoolArray, *, bins: int, binning: Binning, draws: int, seed: int
    ) -> None:
        self._bins, self._binning, self._bootstrap = bins, binning, Bootstrap(draws=draws, seed=seed)
        layout = truth.layout
        self._used, self._in_use = used, layout.of_step(used)
        self.good = as_numbers(truth.codes[self._in_use])
        """NaN is unknown."""
        number = group_numbers(layout.problem[used])
        first = np.unique(number, return_index=True)[1]
        ids = [layout.problem_ids[problem] for problem in layout.problem[used][first]]
        self.fits_problem: BoolArray = np.array([half_of(problem) == 0 for problem in ids])
        """[problems]: whether it is in the half for fitting."""
        fits_trace = np.zeros(layout.traces, dtype=bool)
        fits_trace[used] = self.fits_problem[number]
        self._fitting = layout.of_step(fits_trace)[self._in_use]
        self._fitted_traces = [
            trace for trace, at in layout.numbers.items() if fits_trace[at] and layout.lengths[at]
        ]
        self._problem = np.repeat(number.astype(np.int32), layout.lengths[used])
        self._step = np.minimum(layout.step_numbers(), LAST_SHOWN).astype(np.int8)[self._in_use]
        self._part = layout.parts(PARTS).astype(np.int8)[self._in_use]

    def scorer(self, system: System, fits: Sequence[MapKind]) -> ScorerCalibration:
        score = system.scores.flat[self._in_use]
        usable = ~(np.isnan(score) | np.isnan(self.good))
        if not usable.any():
            raise ScoreError(f"{system.name}: no step has both a score and a good or bad label")
        try:
            overall = self._measured(score, np.ones(len(score), dtype=bool))
        except ScoreError as error:
            raise ScoreError(f"{system.name}: {error}") from error
        by_step, by_part = self._by(score, self._step), self._by(score, self._part)
        results: list[FitResult] = []
        unfitted: dict[str, str] = {}
        for kind in fits:
            try:
                results.append(self._fit(kind, score))
            except ScoreError as error:
                unfitted[kind] = str(error)
        without_record = int((self._used & ~system.recorded).sum())
        return ScorerCalibration(
            name=system.name,
            system=replace(system.summary(), traces_without_record=without_record),
            overall=overall,
            auc=self._bootstrap.auc(score[usable], self.good[usable], self._problem[usable]),
            by_step={f"{step}{'+' * (step == LAST_SHOWN)}": row for step, row in by_step.items()},
            by_part={str(part + 1): row for part, row in by_part.items()},
            fits=tuple(results),
            unfitted=unfitted,
        )

    def _fit(self, kind: MapKind, score: FloatArray) -> FitResult:
        fitting, reported = self._fitting, ~self._fitting
        fitted = fit_calibration(
            kind,
            score[fitting],
            self.good[fitting],
            split="half 0 of the problems, by hash of the id",
            trace_ids=self._fitted_traces,
        )
        if np.isnan(score[reported] + self.good[reported]).all():
            raise ScoreError("half 1 of the problems has no step to report on")
        mapped = fitted.map.apply(score)
        raw, calibrated = self._totals(score, reported), self._totals(mapped, reported)
        width = raw.shape[1]

        def changes(totals: FloatArray) -> FloatArray:
            return _ece_and_brier(totals[..., width:]) - _ece_and_brier(totals[..., :width])

        ece_change, brier_change = self._bootstrap.totals(
            [np.concatenate([raw, calibrated], axis=1)], changes
        )
        return FitResult(
            kind=kind,
            fitted=fitted,
            before=self._measured(score, reported),
            after=self._measured(mapped, reported),
            ece_change=ece_change,
            brier_change=brier_change,
        )

    def _measured(self, score: FloatArray, members: BoolArray) -> CalibrationEstimate:
        ece, brier = self._bootstrap.totals([self._totals(score, members)], _ece_and_brier)
        calibration = self._calibration(score[members], self.good[members])
        return CalibrationEstimate(calibration=calibration, ece=ece, brier=brier)

    def _by(self, score: FloatArray, groups: NDArray[np.int8]) -> dict[int, Reliability]:
        """By group in rising order, without groups that lack a usable step."""
        rows = reliability_by(score, self.good, groups, bins=self._bins, binning=self._binning)
        return {group: rows[group] for group in np.unique(groups).tolist() if rows[group].steps}

    def _calibration(self, score: FloatArray, good: FloatArray) -> Reliability:
        return reliability(score, good, bins=self._bins, binning=self._binning)

    def _totals(self, score: FloatArray, members: BoolArray) -> FloatArray:
        """For each problem with a member: steps, sum of squared errors, and good - score per bin."""
        rows = self._calibration(score[members], self.good[members]).bins
        used = members & ~(np.isnan(score) | np.isnan(self.good))
        bin_of = np.searchsorted([row.low for row in rows], score[used], "right") - 1
        gap = self.good[used] - score[used]
        counts = np.zeros((self._problem.max() + 1, 2 + len(rows)))
        np.add.at(counts[:, 0], self._problem[used], 1)
        np.add.at(counts[:, 1], self._problem[used], gap**2)
        np.add.at(counts, (self._problem[used], 2 + bin_of), gap)
        return counts[counts[:, 0] > 0]


def _recorded(systems: Sequence[System]) -> BoolArray:
    """[traces]: whether at least one scorer has a record."""
    for system in systems:
        if system.kind != "scores":
            raise ScoreError(f"{system.name} holds labels, not scores; calibration needs step scores")
    used: BoolArray = np.any([system.recorded for system in systems], axis=0)
    if not used.any():
        raise ScoreError("no source has a record of one of the traces, by 'trace_id'")
    return used


def _ece_and_brier(totals: FloatArray) -> FloatArray:
    """[n, 1, 2 + bins] → [n, 2]: sum over bins of |good - score|, and of squared errors, per step."""
    steps, squares, gaps = totals[:, 0, 0], totals[:, 0, 1], totals[:, 0, 2:]
    return np.stack([np.abs(gaps).sum(axis=1) / steps, squares / steps], axis=1)


def findings(audit: CalibrationAudit) -> list[str]:
    """For each scorer the direction of its error, and the effect of each map on unseen problems."""
    return [_finding(scorer) for scorer in audit.scorers]


def write_calibration_report(audit: CalibrationAudit, path: Path) -> Report:
    """One page: overall, by position, and before and after each fitted map."""
    report = Report("Reliability of step scores")
    for sentence in findings(audit):
        report.text(sentence)
    if audit.traces_without_record:
        report.text(
            f"{audit.traces_without_record} traces left out: no scorer has a record of them.", printed=True
        )
    labelled = audit.labels["good"] + audit.labels["bad"]
    report.heading("All labelled steps")
    report.figure(
        reliability_figure({s.name: {"scores": s.overall.calibration} for s in audit.scorers}),
        "Share of good steps against mean score, by bins of the scores; calibrated ones lie on the diagonal",
    )
    report.records(
        f"{audit.traces} traces of {audit.problems} problems, {labelled} of {audit.steps} steps labelled; "
        "95 % intervals over problems; bias is the mean score less the share of good steps; dropped are "
        "steps without score or label",
        [Row(scorer=s.name, auc=s.auc, o=s.overall, c=s.overall.calibration) for s in audit.scorers],
        ("scorer", "c.steps", "o.ece", "c.bias", "auc", "o.brier", "c.brier_constant", "c.dropped"),
        spec=".3f",
        printed=7,
    )
    report.heading("By position of the step")
    biases = {s.name: {step: row.bias for step, row in s.by_step.items()} for s in audit.scorers}
    report.figure(
        position_figure(biases, "mean score less share of good steps"),
        "Above 0 the scores are too high at this step, counted from 0",
    )
    for title, positions in (("step", "by_step"), ("fifth of the trace", "by_part")):
        rows = [
            Row(scorer=s.name, position=position, c=c)
            for s in audit.scorers
            for position, c in getattr(s, positions).items()
        ]
        columns = ("scorer", "position", "c.steps", "c.ece", "c.bias", "c.brier", "c.brier_constant")
        report.records(f"Reliability by {title}", rows, columns)
    _fits(report, audit)
    _counts(report, audit)
    return report.write(path)


def _finding(scorer: ScorerCalibration) -> str:
    overall = scorer.overall.calibration
    way = "too high" if overall.bias > 0 else "too low"
    worth = "below" if overall.brier < overall.brier_constant else "above"
    sentences = [
        f"{scorer.name}: on {overall.steps} steps the ECE is {scorer.overall.ece:.3f}; scores are on "
        f"average {abs(overall.bias):.3f} {way}; the Brier score {scorer.overall.brier:.3f} is {worth} "
        f"the {overall.brier_constant:.3f} of a constant; the AUC is {scorer.auc:.3f}."
    ]
    if scorer.auc.high < 0.5:
        sentences.append("It ranks bad steps above good ones.")
    for fit in scorer.fits:
        sentences.append(
            f"{fit.kind.capitalize()} {_changes(fit.ece_change)} the ECE on unseen problems, from "
            f"{fit.before.ece.value:.3f} to {fit.after.ece.value:.3f}, and {_changes(fit.brier_change)} the "
            f"Brier score, from {fit.before.brier.value:.3f} to {fit.after.brier.value:.3f}."
        )
    return " ".join(sentences)


def _changes(change: Interval) -> str:
    if change.high < 0:
        return "lowers"
    return "raises" if change.low > 0 else "does not measurably change"


def _fits(report: Report, audit: CalibrationAudit) -> None:
    fitted = [scorer for scorer in audit.scorers if scorer.fits]
    report.heading("Fitted on one half of the problems, evaluated on the other")
    if fitted:
        panels = {
            scorer.name: {"before": scorer.fits[0].before.calibration}
            | {fit.kind: fit.after.calibration for fit in scorer.fits}
            for scorer in fitted
        }
        report.figure(reliability_figure(panels), "Half 1 of the problems, before and after each map")
        report.records(
            f"Maps fitted on {audit.fit_problems} of {audit.problems} problems, evaluated on the others",
            [
                Row(scorer=scorer.name, map=_map_text(fit), fit=fit)
                for scorer in fitted
                for fit in scorer.fits
            ],
            {
                "scorer": "scorer",
                "map": "map",
                "ECE before": "fit.before.ece.value",
                "ECE after": "fit.after.ece.value",
                "ECE change": "fit.ece_change",
                "Brier before": "fit.before.brier.value",
                "Brier after": "fit.after.brier.value",
                "Brier change": "fit.brier_change",
                "steps": "fit.after.calibration.steps",
            },
            spec=".3f",
            printed=8,
        )
    for scorer in audit.scorers:
        for kind, reason in scorer.unfitted.items():
            report.text(f"{scorer.name}: no {kind} map; {reason}.", printed=True)


def _map_text(fit: FitResult) -> str:
    fitted = fit.fitted.map
    if isinstance(fitted, TemperatureMap):
        return f"temperature {fitted.temperature:.3g}"
    if isinstance(fitted, PlattMap):
        return f"platt {fitted.slope:.3g} · logit {fitted.intercept:+.3g}"
    return fit.kind


def _counts(report: Report, audit: CalibrationAudit) -> None:
    report.heading("Counts")
    rows: list[list[Cell]] = [["problems", audit.problems], ["traces", audit.traces], ["steps", audit.steps]]
    rows.append(["traces without a record of any scorer, left out", audit.traces_without_record])
    rows += [[f"steps labelled {name}", count] for name, count in audit.labels.items()]
    for scorer in audit.scorers:
        rows.append([f"{scorer.name}: traces without record", scorer.system.traces_without_record])
        rows.append([f"{scorer.name}: records of other traces", scorer.system.counts.foreign])
        rows.append([f"{scorer.name}: unscored steps with a record", scorer.system.counts.without_value])
    report.table(["item", "count"], rows)
