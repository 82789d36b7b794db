"""Calibration of step scores, and the effect of a fitted map on unseen problems.

Reliability, expected calibration error (ECE) and Brier score, overall and by the step's position, against
labels of correctness. Platt and isotonic maps are fitted on one half of the problems and
evaluated on the other, before and after. Sources: ``surefoot.stats.calibration`` and
``surefoot.models.kinds.derived``.

A judge's labels against a small gold set: corrected rate and agreement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError, counted
from surefoot.evaluation.columns import BAD, BoolArray, StepLayout, as_numbers
from surefoot.evaluation.labels import PARTS, Labels, LabelSet, label_sets, tables_by
from surefoot.evaluation.measures import Measured, Ratios
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.step_scores import System
from surefoot.evaluation.verdict import Conclusion, Counts, detected, measured
from surefoot.extras import installed
from surefoot.io.tables import facts_in
from surefoot.labels import LabelRule
from surefoot.models.kinds.derived import fit_calibration
from surefoot.records import Trace
from surefoot.stats.bootstrap import Bootstrap, FloatArray, group_numbers
from surefoot.stats.calibration import MAP_KINDS, Binning, MapKind, Reliability, reliability
from surefoot.stats.intervals import UNKNOWN, Interval
from surefoot.stats.prediction_powered import prediction_powered_mean
from surefoot.stats.rater_agreement import cohens_kappa
from surefoot.stats.reading import Reading, StepFacts, reading_gate, rival_scores

_UNJUDGED = 0.1
"""Share of steps without a verdict beyond which a judge's rate of wrong steps says little about all."""


def audit_calibration(
    systems: Sequence[System],
    truth: LabelSet,
    *,
    facts: Sequence[StepFacts] = (),
    fits: Sequence[MapKind] = MAP_KINDS,
    bins: int = 10,
    binning: Binning = "equal-mass",
    draws: int = 1000,
    seed: int = 0,
) -> Measured:
    """Measure the calibration of ``systems`` against the labels of ``truth``.

    For each of the ``scorers``: ``overall`` reliability with intervals over problems, where every draw uses
    the bins of the data (noise raises the ECE, in a resample more than in the data); ``auc``, the share of
    (good, bad) pairs in which the good step scores higher; ``reading``, whether it knows more than its
    rivals, ``None`` without the steps' texts or scikit-learn; reliability by fifth of the trace;
    ``fits``, the maps before and after, with the change by the same draws of problems; ``unfitted`` with the
    reasons.

    Memory grows by arrays of steps for one scorer at a time, and by ``facts`` of the good and bad steps in
    the order of the layout, which say whether a scorer knows more than its rivals. A step without
    score or label is dropped and counted. Maps are fitted on half 0 of the problems (by the hash of the id)
    and reported on half 1. Raises ``ScoreError`` with the scorer's name for scores outside [0, 1], for labels
    instead of scores, and if no step has a score and a label.
    """
    used = _recorded(systems)
    measured = partial(reliability, bins=bins, binning=binning)
    study = _CalibrationStudy(truth, used, facts, measured, Bootstrap(draws=draws, seed=seed))
    good = study.good
    return Measured(
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
        scorers=[study.scorer(system, fits) for system in systems],
    )


class _CalibrationStudy:
    """The steps of the traces that are ``used``. Arrays are [steps]."""

    def __init__(
        self,
        truth: LabelSet,
        used: BoolArray,
        facts: Sequence[StepFacts],
        calibration: Callable[[FloatArray, FloatArray], Reliability],
        bootstrap: Bootstrap,
    ) -> None:
        self._calibration, self._bootstrap = calibration, bootstrap
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
        self._facts = list(compress(facts, self._in_use[truth.codes >= BAD]))
        self._problem = np.repeat(number.astype(np.int32), layout.lengths[used])
        self._part = layout.parts(PARTS).astype(np.int8)[self._in_use]

    def scorer(self, system: System, fits: Sequence[MapKind]) -> Measured:
        score = system.scores.flat[self._in_use]
        usable = ~(np.isnan(score) | np.isnan(self.good))
        if not usable.any():
            raise ScoreError(f"{system.name}: no step has both a score and a good or bad label")
        try:
            overall = self._measured(score, np.ones(len(score), dtype=bool))
        except ScoreError as error:
            raise ScoreError(f"{system.name}: {error}") from error
        results: list[Measured] = []
        unfitted: dict[str, str] = {}
        for kind in fits:
            try:
                results.append(self._fit(kind, score))
            except ScoreError as error:
                unfitted[kind] = str(error)
        without_record = int((self._used & ~system.recorded).sum())
        return Measured(
            name=system.name,
            system=Measured(system.summary(), traces_without_record=without_record),
            overall=overall,
            auc=self._bootstrap.auc(score[usable], self.good[usable], self._problem[usable]),
            reading=self._reading(score, usable) if self._facts and installed("sklearn") else None,
            by_part={str(part + 1): row for part, row in self._by(score, self._part).items()},
            fits=results,
            unfitted=unfitted,
        )

    def _reading(self, score: FloatArray, usable: BoolArray) -> Reading:
        facts = list(compress(self._facts, usable[~np.isnan(self.good)]))
        good, problems = self.good[usable] == 1, [str(number) for number in self._problem[usable]]
        return reading_gate(
            score[usable],
            rival_scores(facts, problems, good),
            good,
            problems=problems,
            prefixes=[item.prefix for item in facts],
            characters=[item.characters for item in facts],
            draws=self._bootstrap.draws,
        )

    def _fit(self, kind: MapKind, score: FloatArray) -> Measured:
        fitting, reported = self._fitting, ~self._fitting
        fitted = fit_calibration(
            kind,
            score[fitting],
            self.good[fitting],
            split="half 0 of the problems, by hash of the id",
            trace_ids=self._fitted_traces,
        )
        if np.isnan(score[reported] + self.good[reported]).all():
            raise ScoreError("half 1 of the problems lacks steps to report on")
        mapped = fitted.map.apply(score)
        raw, calibrated = self._totals(score, reported), self._totals(mapped, reported)
        width = raw.shape[1]

        def changes(totals: FloatArray) -> FloatArray:
            return _ece_and_brier(totals[..., width:]) - _ece_and_brier(totals[..., :width])

        ece_change, brier_change = self._bootstrap.totals(
            [np.concatenate([raw, calibrated], axis=1)], changes
        )
        return Measured(
            kind=kind,
            fitted=fitted,
            before=self._measured(score, reported),
            after=self._measured(mapped, reported),
            ece_change=ece_change,
            brier_change=brier_change,
        )

    def _measured(self, score: FloatArray, members: BoolArray) -> Measured:
        ece, brier = self._bootstrap.totals([self._totals(score, members)], _ece_and_brier)
        calibration = self._calibration(score[members], self.good[members])
        return Measured(calibration=calibration, ece=ece, brier=brier)

    def _by(self, score: FloatArray, groups: NDArray[np.int8]) -> dict[int, Reliability]:
        """By group in rising order, without groups that lack a usable step."""
        rows = {
            group: self._calibration(score[groups == group], self.good[groups == group])
            for group in np.unique(groups).tolist()
        }
        return {group: row for group, row in rows.items() if row.steps}

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


def calibration_section(audit: Measured) -> Section:
    """Reliability overall, by position, and before and after each fitted map."""
    return Section(
        title="Reliability of step scores",
        tested="calibration of scores",
        about=f"The ECE is over {audit.scorers[0].overall.calibration.binning} bins. Bias is the mean score "
        "less the share of good steps. Maps are fitted on half 0 of the problems "
        f"({audit.fit_problems} of {audit.problems}) and evaluated on the others. Intervals are 95 %, over "
        "problems.",
        results=audit,
        verdicts={
            scorer.name: [
                _ranks(scorer, audit.problems),
                measured(
                    "calibrated",
                    scorer.overall.ece,
                    "is the expected calibration error; noise alone raises it.",
                    units=audit.problems,
                    harm=True,
                ),
            ]
            for scorer in audit.scorers
        },
        advice=[text for scorer in audit.scorers for text in _fit_advice(scorer)],
        limits=[
            f"{counted(audit.steps, 'step')} of {counted(audit.traces, 'trace')}, from "
            f"{counted(audit.problems, 'problem')}."
        ],
        plots=[
            Plot(
                "scorers.overall.calibration.bins",
                "Share of good steps against mean score, by bins of the scores; calibrated ones lie on "
                "the diagonal",
                x="mean_score",
                y=("good",),
                diagonal=True,
            ),
        ],
    )


def _ranks(scorer: Measured, problems: int) -> Conclusion:
    """Good only if the reading gate says so: an AUC above 0.5 shows no reading."""
    if scorer.reading is None:
        rival = "rivals that do not read, which need texts and scikit-learn (the extra `evaluation`)"
        return measured("ranks", UNKNOWN, "", problems, rival=rival)
    where = "continuations of one prefix" if scorer.reading.within_prefix else "steps of one problem"
    text = f"is the AUC among {where} minus its AUC."
    estimate = scorer.reading.interval or UNKNOWN
    return measured("ranks", estimate, text, scorer.reading.problems, rival=scorer.reading.rival)


def _fit_advice(scorer: Measured) -> Iterator[str]:
    """The map that lowers the error most, if one does."""
    better = [fit for fit in scorer.fits if fit.ece_change.high < 0]
    for best in sorted(better, key=lambda fit: fit.after.ece.value)[:1]:
        yield (
            f"{scorer.name}: `calibration:fit={best.kind},store=true` lowers the calibration error on other "
            f"problems from {best.before.ece.value:.3f} to {best.after.ece.value:.3f}."
        )


def calibrate_judge(
    traces: Sequence[Trace] | StepLayout,
    gold: Labels,
    judges: Mapping[str, Labels],
    *,
    reading: LabelRule | None = None,
    by_rater: bool = False,
    draws: int = 1000,
    seed: int = 0,
) -> Measured:
    """Calibrate ``judges`` by the ``gold`` labels of a random part of the problems.

    ``rates`` are shares of wrong steps: ``corrected`` by gold labels, by these alone, as ``judged``; ``bias``
    is judged minus gold share on the steps with both; ``tuning`` is λ of prediction-powered inference, 0 if
    the judge's labels are of no use; ``unjudged`` steps count with the mean of the others. ``quality`` has
    kappa (compare it only at the same base rate), and the shares of wrong and of good steps that the judge
    calls so. ``raters`` are those named in the labels; a
    judge's name ends with the hash of its instructions.

    ``by_rater`` makes each rater a judge. Intervals are over problems: by linearisation for the corrected
    rate (:mod:`surefoot.stats.prediction_powered`), else percentile bootstraps. Raises ``LabelError`` without
    usable labels.
    """
    layout = traces if isinstance(traces, StepLayout) else StepLayout(facts_in(traces), with_steps=True)
    [truth] = label_sets("gold", gold, layout, reading)
    parts = {
        name: label_sets(name, rows, layout, reading, by_rater=by_rater) for name, rows in judges.items()
    }
    systems = [part for sets in parts.values() for part in sets]
    raters = {name: (rater for part in sets for rater in part.raters) for name, sets in parts.items()}
    study = _Study(layout, truth, Bootstrap(draws=draws, seed=seed))
    return Measured(
        rates=list(map(study.rate, systems)),
        quality=[row for judge in systems for row in study.quality(judge)],
        raters={name: tuple(dict.fromkeys(names)) for name, names in raters.items()},
        problems=len(layout.problem_ids),
    )


class _Study:
    """Statistics of the steps of ``layout``; wrong is 1, good 0, unknown NaN."""

    def __init__(self, layout: StepLayout, truth: LabelSet, bootstrap: Bootstrap) -> None:
        self.layout, self.truth, self.bootstrap = layout, truth, bootstrap
        self.problem = layout.of_step(layout.problem).astype(np.int64)
        self.gold = as_numbers(truth.codes, good=0.0, bad=1.0)

    def rate(self, judge: LabelSet) -> Measured:
        verdict = as_numbers(judge.codes, good=0.0, bad=1.0)
        mean = prediction_powered_mean(verdict, self.gold, self.problem, rate=True)
        return Measured(
            judge=judge.name,
            corrected=mean.corrected,
            gold_only=mean.gold_only,
            judged=self._mean(verdict),
            bias=self._mean(verdict - self.gold),
            tuning=mean.tuning,
            steps=self.layout.steps,
            unjudged=int(np.isnan(verdict).sum()),
            gold_steps=mean.gold_items,
            gold_problems=mean.gold_problems,
        )

    def quality(self, judge: LabelSet) -> Iterator[Measured]:
        """The row of a judge, if it judged a step with a gold label."""
        codes = judge.codes, self.truth.codes
        tables = tables_by(self.problem, *codes, groups=len(self.layout.problem_ids))
        if not tables.any():
            return
        kappa, sensitivity, specificity = self.bootstrap.totals([tables], _agreement)
        found, alarms, missed, passed = tables.sum(axis=0).tolist()
        yield Measured(
            judge=judge.name,
            kappa=kappa,
            base_rate=(found + missed) / int(tables.sum()),
            sensitivity=sensitivity,
            specificity=specificity,
            steps=int(tables.sum()),
            found=found,
            wrong=found + missed,
            alarms=alarms,
            right=alarms + passed,
        )

    def _mean(self, values: FloatArray) -> Interval:
        """The mean of values [steps] that are known."""
        is_known = ~np.isnan(values)
        counts = np.stack([np.where(is_known, values, 0.0), is_known], axis=1)
        mean: Interval = _MEAN.row(self.bootstrap, counts, self.problem)["mean"]
        return mean


_MEAN = Ratios(names=("mean",), of=lambda totals: [totals[:, 0, 0] / totals[:, 0, 1]])


def _agreement(totals: FloatArray) -> FloatArray:
    """[n, 1, 4] counts by 2 * judged good + good → [n, 3]: kappa, sensitivity, specificity."""
    caught, false_alarm, missed, good_good = np.moveaxis(totals[:, 0], -1, 0)
    kappas = np.array([cohens_kappa(row.reshape(2, 2)) for row in totals[:, 0]])
    with np.errstate(invalid="ignore"):
        return np.stack([kappas, caught / (caught + missed), good_good / (good_good + false_alarm)], axis=1)


def judge_section(result: Measured) -> Section:
    """The calibration as a report: does the judge read the steps, and is its rate right?"""
    verdicts, advice = {}, []
    for rate in result.rates:
        quality = next((row for row in result.quality if row.judge == rate.judge), None)
        numbers = {name: quality[name] if quality else 0 for name in ("found", "wrong", "alarms", "right")}
        counts = Counts(**numbers, of=rate.gold_steps, what="wrong step", unit="step")
        kappa = f"is kappa with the gold labels, {quality.base_rate:.0%} of them wrong." if quality else ""
        verdicts[rate.judge] = [
            detected(
                counts,
                quality.kappa if quality else UNKNOWN,
                kappa,
                rate.gold_problems,
                rival="chance",
                smallest=0.1,
            )
        ]
        if counts.judged and rate.unjudged <= _UNJUDGED * rate.steps:
            sign = math.copysign(1, rate.bias.value)
            text = (
                f"more or fewer; it calls {rate.judged.value:.1%} of the steps wrong, and corrected by "
                f"{counted(rate.gold_steps, 'gold label')} {rate.corrected:.1%} are."
            )
            side = "more" if sign > 0 else "fewer"
            bias = sign * rate.bias
            verdicts[rate.judge].append(
                measured("rate", bias, text, rate.gold_problems, harm=True, spec=".1%", side=side)
            )
            if counts.wrong and 2 * counts.found < counts.wrong:
                advice.append(
                    f"{rate.judge} finds {counts.found} of {counted(counts.wrong, 'wrong step')}: "
                    "change its instructions or its model before it labels more."
                )
    first = result.rates[0]
    return Section(
        title="Judge",
        tested="judge against people",
        about="A judge's labels, corrected by a small gold set (prediction-powered inference). The corrected "
        "rate holds for traces like these if the problems with gold labels were chosen at random.",
        results=result,
        verdicts=verdicts,
        advice=advice,
        limits=[
            f"Gold labels of {first.gold_steps} of {counted(first.steps, 'step')}, from "
            f"{first.gold_problems} of {counted(result.problems, 'problem')}; {first.unjudged} without "
            f"{first.judge}'s verdict.",
            "Problems with gold labels must be a random part of all; kappa holds at this base rate only.",
        ],
    )
