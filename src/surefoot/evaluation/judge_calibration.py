"""A judge's labels against a small gold set: corrected rate, agreement, and changes between two versions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.evaluation.frame import card
from surefoot.evaluation.labels import LabelSet, label_sets, tables_by
from surefoot.evaluation.report import JSONResult, Section
from surefoot.evaluation.step_layout import BoolArray, FloatArray, StepLayout, as_numbers
from surefoot.io.tables import facts_in
from surefoot.labels import LabelRule
from surefoot.records import StepLabel, Trace
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.intervals import Interval, decide
from surefoot.stats.prediction_powered import prediction_powered_mean
from surefoot.stats.rater_agreement import cohens_kappa

_FIFTHS = 5


@dataclass(frozen=True, kw_only=True)
class JudgedRate:
    """Share of wrong steps: corrected by gold labels, by gold labels alone, and as the judge says."""

    judge: str
    corrected: Interval
    gold_only: Interval
    judged: Interval
    bias: Interval
    """Judged minus gold share, on the steps with both labels."""
    tuning: float
    """λ of prediction-powered inference: 0 = the judge's labels are of no use."""
    steps: int
    """Steps of the traces."""
    unjudged: int
    """Of them, steps without a verdict; they count with the mean of the others."""
    gold_steps: int
    gold_problems: int


@dataclass(frozen=True, kw_only=True)
class JudgeQuality:
    """A judge against gold labels; the positive class is the wrong step."""

    judge: str
    by: str
    """all, kind of step, or fifth of the trace."""
    value: str
    kappa: Interval
    """Cohen's; compare it only at the same base rate."""
    base_rate: float
    """Share of wrong steps by the gold labels."""
    sensitivity: Interval
    """Share of wrong steps that the judge calls wrong."""
    specificity: Interval
    """Share of good steps that the judge calls good."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class JudgeChange:
    """Two sets of a judge's labels: of two dates, or with and without a clause of the instructions."""

    first: str
    second: str
    steps: int
    """Labelled in both."""
    changed: Interval
    """Share of these with another verdict."""
    rate_change: Interval
    """Second minus first share of wrong steps, on the same steps."""
    agreement_change: Interval
    """Second minus first share of verdicts equal to gold, each over all its steps with gold labels."""
    bias_change: Interval
    """Second minus first bias, each over all its steps with gold labels."""


@dataclass(frozen=True, kw_only=True)
class JudgeCalibration(JSONResult):
    """The result of :func:`calibrate_judge`; the first judge is the calibrated one."""

    rates: tuple[JudgedRate, ...]
    quality: tuple[JudgeQuality, ...]
    changes: tuple[JudgeChange, ...]
    raters: Mapping[str, tuple[str, ...]]
    """Raters named in the labels; a judge's name ends with the hash of its instructions."""
    problems: int


def calibrate_judge(
    traces: Sequence[Trace],
    gold: Iterable[StepLabel],
    judges: Mapping[str, Iterable[StepLabel]],
    *,
    reading: LabelRule | None = None,
    by_rater: bool = False,
    since: datetime | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> JudgeCalibration:
    """Calibrate the first of ``judges`` by the ``gold`` labels of a random part of the problems.

    The others are compared with the first: other versions of its instructions, say. ``by_rater`` makes each
    rater a judge. With ``since`` the labels of the first judge before and from that time are compared; they
    are then read three times. Intervals are over problems: by linearisation for the corrected rate
    (:mod:`surefoot.stats.prediction_powered`), else percentile bootstraps. Raises ``LabelError`` without
    usable labels.
    """
    layout = StepLayout(trace for trace in facts_in(traces) if trace.size)
    rule = reading or LabelRule(neutral="good")
    raters: dict[str, dict[str, None]] = {}

    def sets(name: str, rows: Iterable[StepLabel], *, split: bool = False) -> list[LabelSet]:
        return label_sets(name, _noted(rows, raters, name), layout, lambda _: rule, by_rater=split)

    [truth] = label_sets("gold", gold, layout, lambda _: rule)
    systems = [part for name, rows in judges.items() for part in sets(name, rows, split=by_rater)]
    pairs = [(systems[0], other) for other in systems[1:]]
    if since is not None:
        name, rows = next(iter(judges.items()))
        halves = [(row for row in rows if row.created < since), (row for row in rows if row.created >= since)]
        names = (f"{name} before {since:%Y-%m-%d %H:%M}", f"{name} from {since:%Y-%m-%d %H:%M}")
        dated = [sets(half, part)[0] for half, part in zip(names, halves, strict=True)]
        pairs.append((dated[0], dated[1]))
    study = _Study(layout, truth, Bootstrap(draws=draws, seed=seed))
    kinds = np.array([step.kind for trace in traces for step in trace.steps])
    groups = {"all": np.full(layout.steps, "all"), "kind": kinds, "fifth": layout.parts(_FIFTHS) + 1}
    return JudgeCalibration(
        rates=tuple(map(study.rate, systems)),
        quality=tuple(row for judge in systems for row in study.quality(judge, groups)),
        changes=tuple(study.change(*pair) for pair in pairs),
        raters={name: tuple(names) for name, names in raters.items()},
        problems=len(layout.problem_ids),
    )


def _noted(rows: Iterable[StepLabel], raters: dict[str, dict[str, None]], name: str) -> Iterator[StepLabel]:
    for row in rows:
        raters.setdefault(name, {})[row.evidence.rater or row.source] = None
        yield row


class _Study:
    """Statistics of the steps of ``layout``; wrong is 1, good 0, unknown NaN."""

    def __init__(self, layout: StepLayout, truth: LabelSet, bootstrap: Bootstrap) -> None:
        self.layout, self.truth, self.bootstrap = layout, truth, bootstrap
        self.problem = layout.of_step(layout.problem).astype(np.int64)
        self.gold = as_numbers(truth.codes, good=0.0, bad=1.0)

    def rate(self, judge: LabelSet) -> JudgedRate:
        verdict = as_numbers(judge.codes, good=0.0, bad=1.0)
        mean = prediction_powered_mean(verdict, self.gold, self.problem)
        [judged] = self._ratios([(verdict, ~np.isnan(verdict))])
        [bias] = self._ratios([(verdict - self.gold, ~np.isnan(verdict - self.gold))])
        return JudgedRate(
            judge=judge.name,
            corrected=_as_rate(mean.corrected),
            gold_only=_as_rate(mean.gold_only),
            judged=judged,
            bias=bias,
            tuning=mean.tuning,
            steps=self.layout.steps,
            unjudged=int(np.isnan(verdict).sum()),
            gold_steps=mean.gold_items,
            gold_problems=mean.gold_problems,
        )

    def quality(self, judge: LabelSet, groups: Mapping[str, NDArray[Any]]) -> Iterator[JudgeQuality]:
        for by, values in groups.items():
            for value in np.unique(values):
                chosen = values == value
                tables = tables_by(
                    self.problem[chosen],
                    judge.codes[chosen],
                    self.truth.codes[chosen],
                    groups=len(self.layout.problem_ids),
                )
                if not tables.any():
                    continue
                kappa, sensitivity, specificity = self.bootstrap.totals([tables], _agreement)
                yield JudgeQuality(
                    judge=judge.name,
                    by=by,
                    value=str(value),
                    kappa=kappa,
                    base_rate=float(tables[:, [0, 2]].sum() / tables.sum()),
                    sensitivity=sensitivity,
                    specificity=specificity,
                    steps=int(tables.sum()),
                )

    def change(self, first: LabelSet, second: LabelSet) -> JudgeChange:
        a, b = (as_numbers(part.codes, good=0.0, bad=1.0) for part in (first, second))
        both = ~np.isnan(a + b)
        with_gold = [~np.isnan(side + self.gold) for side in (a, b)]
        [changed] = self._ratios([(a != b, both)])
        [rate] = self._ratios([(b - a, both)])
        [agreed] = self._ratios([(a == self.gold, with_gold[0]), (b == self.gold, with_gold[1])])
        [bias] = self._ratios([(a - self.gold, with_gold[0]), (b - self.gold, with_gold[1])])
        return JudgeChange(
            first=first.name,
            second=second.name,
            steps=int(both.sum()),
            changed=changed,
            rate_change=rate,
            agreement_change=agreed,
            bias_change=bias,
        )

    def _ratios(self, parts: Sequence[tuple[NDArray[Any], BoolArray]]) -> list[Interval]:
        """The mean of values [steps] where they count, or of two such parts the second minus the first."""
        columns = [
            np.bincount(self.problem, weights=column, minlength=len(self.layout.problem_ids))
            for values, counts in parts
            for column in (np.where(counts, values, 0.0), counts)
        ]

        def statistic(totals: FloatArray) -> FloatArray:
            with np.errstate(invalid="ignore", divide="ignore"):
                means = totals[:, 0, 0::2] / totals[:, 0, 1::2]
            return means[:, -1:] - (means[:, :1] if len(parts) == 2 else 0)

        return self.bootstrap.totals([np.stack(columns, axis=1)], statistic)


def _agreement(totals: FloatArray) -> FloatArray:
    """[n, 1, 4] counts by 2 * judged good + good → [n, 3]: kappa, sensitivity, specificity."""
    caught, false_alarm, missed, good_good = np.moveaxis(totals[:, 0], -1, 0)
    kappas = np.array([cohens_kappa(row.reshape(2, 2)) for row in totals[:, 0]])
    with np.errstate(invalid="ignore"):
        return np.stack([kappas, caught / (caught + missed), good_good / (good_good + false_alarm)], axis=1)


def _as_rate(estimate: Interval) -> Interval:
    value, low, high = (min(max(x, 0.0), 1.0) for x in (estimate.value, *estimate.bounds))
    return Interval(value=value, low=low, high=high)


def judge_section(result: JudgeCalibration) -> Section:
    """The calibration as a report: does the judge read the steps, and is its rate right?"""
    cards = {}
    for rate in result.rates:
        quality = next(row for row in result.quality if row.judge == rate.judge and row.by == "all")
        kappa = (
            f"is kappa with the gold labels at a base rate of {quality.base_rate:.0%} wrong steps; "
            f"sensitivity {quality.sensitivity:.2f}, specificity {quality.specificity:.2f}."
        )
        sign = math.copysign(1, rate.bias.value)
        side = "more" if sign > 0 else "fewer"
        cards[rate.judge] = [
            card("reads", quality.kappa, kappa, rate.gold_problems, smallest=0.1),
            card(
                "trust",
                sign * rate.bias,
                f"of the steps are called wrong {side} than people call wrong; use the corrected rate.",
                rate.gold_problems,
                harm=True,
                spec=".3f",
                claims={"yes": "states the rate of wrong steps", "no": "misstates the rate of wrong steps"},
            ),
        ]
    first = result.rates[0]
    sentence = (
        f"{first.judge} calls {first.judged.value:.1%} of {first.steps} steps wrong; corrected by "
        f"{first.gold_steps} gold labels of {first.gold_problems} problems, {first.corrected:.1%} are."
    )
    return Section(
        title="Judge",
        tested="judge against people",
        about="A judge's labels, corrected by a small gold set (prediction-powered inference). The corrected "
        "rate holds for traces like these if the problems with gold labels were chosen at random.",
        results=result,
        findings=[_finding(change, first.gold_problems) for change in result.changes],
        cards=cards,
        sentence=sentence,
        limits=[
            f"Gold labels of {first.gold_steps} of {first.steps} steps, from {first.gold_problems} of "
            f"{result.problems} problems; {first.unjudged} steps lack a verdict of {first.judge}.",
            "Problems with gold labels must be a random part of all; kappa holds at this base rate only.",
        ],
    )


def _finding(change: JudgeChange, problems: int) -> str:
    verdicts = {decide(sign * change.bias_change, problems, smallest=0.05) for sign in (1, -1)}
    moved = {"yes": "the bias changed", "no": "the bias did not change by 5 points"}
    verdict = "yes" if "yes" in verdicts else "no" if verdicts == {"no"} else ""
    bias = moved.get(verdict, "too few gold labels to tell whether the bias changed by 5 points")
    paired = f"{change.changed:.1%} of {change.steps} verdicts differ, " if change.steps else ""
    return (
        f"{change.first} → {change.second}: {paired}wrong steps {change.rate_change:+.1p}, agreement with "
        f"gold {change.agreement_change:+.1p}; {bias} ({change.bias_change:+.1p})."
    )
