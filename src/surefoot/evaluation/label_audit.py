"""The label audit: cost, agreement and accuracy of each source of labels, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.evaluation.frame import Card, card
from surefoot.evaluation.label_sets import LabelCost, LabelCounts, LabelSet, label_sets
from surefoot.evaluation.label_truth import AgainstTruth, against_truth
from surefoot.evaluation.report import JSONResult, Plot, Section
from surefoot.evaluation.step_layout import BAD, GOOD, FloatArray, StepLayout, as_numbers
from surefoot.io.tables import facts_in
from surefoot.labels import LabelRule
from surefoot.records import StepLabel, Trace
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.calibration import Binning
from surefoot.stats.intervals import Interval
from surefoot.stats.rater_agreement import Agreement, Level, agreement, alpha_of, cohens_kappa

TRUTH = "truth"
"""The name of the reference in the agreement matrix."""

SIGNS = (-1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source of labels; ``against_truth`` is ``None`` without truth, and for the truth itself."""

    name: str
    reading: LabelRule
    counts: LabelCounts
    cost: LabelCost
    against_truth: AgainstTruth | None = None


@dataclass(frozen=True, kw_only=True)
class PairAgreement:
    """Two sources, over the steps and traces labelled by both."""

    first: str
    second: str
    steps: Agreement
    """Good or bad, step by step."""
    kappa: Interval
    """Cohen's kappa of the steps with its 95 % interval over problems."""
    first_error: Agreement
    """Units are traces; the value is the index of the first bad step, -1 for none."""


@dataclass(frozen=True, kw_only=True)
class OverallAgreement:
    """All sources together, without the truth."""

    steps: Agreement
    alpha: Interval
    """Krippendorff's alpha of the steps with its 95 % interval over problems."""
    first_error: Agreement
    graded: Agreement | None
    """The labels' numbers: ordinal if all sources label correctness (-1, 0, 1), interval if all label values;
    ``None`` if sources differ in kind."""
    graded_level: Level | None


@dataclass(frozen=True, kw_only=True)
class LabelAudit(JSONResult):
    """The result of ``audit_labels``."""

    traces: int
    problems: int
    steps: int
    traces_without_steps: int
    """Left out."""
    sources: tuple[Source, ...]
    truth: Source | None
    pairs: tuple[PairAgreement, ...]
    """All pairs of sources, and of a source with the truth, which comes last."""
    overall: OverallAgreement | None
    """``None`` with fewer than two sources."""


def audit_labels(
    traces: Sequence[Trace],
    sources: Mapping[str, Iterable[StepLabel]],
    *,
    truth: Iterable[StepLabel] | None = None,
    readings: Mapping[str, LabelRule] | None = None,
    reading: LabelRule | None = None,
    by_rater: bool = False,
    bins: int = 10,
    binning: Binning = "equal-mass",
    draws: int = 1000,
    seed: int = 0,
) -> LabelAudit:
    """Audit label sets by name. ``reading`` defines which labels are good or bad, ``readings`` for one name.

    Traces and labels are streamed: memory grows by 10 bytes per step and source. ``by_rater`` makes each
    rater of a source a separate source, ``name/rater``. The truth's name is "truth". Intervals are 95 %
    percentile bootstraps over problems (``Trace.problem_id``). Raises ``LabelError`` without sources, for a
    source called "truth", a reading for an unknown name, duplicate trace ids, with ``by_rater`` for a label
    without rater, and for label sets that share no step with the traces.
    """
    if not sources:
        raise LabelError("'sources' is empty; give at least one set of labels")
    if TRUTH in sources:
        raise LabelError(f"a source is called {TRUTH!r}, the name of the reference; give it another name")
    layout = StepLayout(trace for trace in facts_in(traces) if trace.size)
    _check_ids(layout)

    def rule(name: str) -> LabelRule:
        return (readings or {}).get(name, reading or LabelRule(neutral="good"))

    groups = (label_sets(name, rows, layout, rule, by_rater=by_rater) for name, rows in sources.items())
    sets = {source.name: source for group in groups for source in group}
    reference = label_sets(TRUTH, truth, layout, rule)[0] if truth is not None else None
    names = sorted([*sets, *([TRUTH] if reference else [])])
    if foreign := sorted(set(readings or {}) - set(names)):
        raise LabelError(f"a reading is given for {foreign[0]!r}; the names are {', '.join(names)}")
    bootstrap = Bootstrap(draws=draws, seed=seed)
    everyone = [*sets.values(), *([reference] if reference else [])]

    def source(labels: LabelSet, against: AgainstTruth | None) -> Source:
        return Source(
            name=labels.name,
            reading=rule(labels.name),
            counts=labels.counts,
            cost=labels.cost,
            against_truth=against,
        )

    def compared(labels: LabelSet) -> AgainstTruth | None:
        if reference is None:
            return None
        return against_truth(labels, reference, bins=bins, binning=binning, draws=draws, seed=seed)

    return LabelAudit(
        traces=layout.traces,
        problems=len(layout.problem_ids),
        steps=layout.steps,
        traces_without_steps=len(traces) - layout.traces,
        sources=tuple(source(labels, compared(labels)) for labels in sets.values()),
        truth=source(reference, None) if reference else None,
        pairs=tuple(_pair(layout, bootstrap, *two) for two in combinations(everyone, 2)),
        overall=_overall(layout, bootstrap, list(sets.values())) if len(sets) > 1 else None,
    )


def _pair(layout: StepLayout, bootstrap: Bootstrap, first: LabelSet, second: LabelSet) -> PairAgreement:
    """Kappa's interval comes from each problem's table of bad and good, [problems, 4]."""
    both = (first.codes >= 0) & (second.codes >= 0)
    problem = layout.of_step(layout.problem)[both].astype(np.int64)
    cells = 4 * problem + 2 * first.codes[both] + second.codes[both]
    tables = np.bincount(cells, minlength=4 * len(layout.problem_ids)).reshape(-1, 4)
    return PairAgreement(
        first=first.name,
        second=second.name,
        steps=agreement(_signs([first, second]), categories=SIGNS),
        kappa=_interval(bootstrap, tables, lambda row: cohens_kappa(row.reshape(2, 2))),
        first_error=agreement([layout.first_errors(source.codes) for source in (first, second)]),
    )


def _overall(layout: StepLayout, bootstrap: Bootstrap, sets: Sequence[LabelSet]) -> OverallAgreement:
    """Alpha's interval comes from each problem's bad labels, good labels and disagreement: [problems, 3]."""
    votes = np.zeros((2, layout.steps), dtype=np.int32)
    for source in sets:
        for code in (BAD, GOOD):
            votes[code] += source.codes == code
    paired = votes.sum(axis=0) >= 2
    bad, good = votes[:, paired]
    problem = layout.of_step(layout.problem)[paired]
    cells = (bad, good, 2 * bad * good / (bad + good - 1))
    counts = [np.bincount(problem, weights=cell, minlength=len(layout.problem_ids)) for cell in cells]
    level = _common_level(sets)
    return OverallAgreement(
        steps=agreement(_signs(sets), categories=SIGNS),
        alpha=_interval(
            bootstrap, np.stack(counts, axis=1), lambda row: alpha_of(row[:2], float(row[2]), SIGNS)
        ),
        first_error=agreement([layout.first_errors(source.codes) for source in sets]),
        graded=agreement([source.values for source in sets], level=level) if level else None,
        graded_level=level,
    )


def _interval(
    bootstrap: Bootstrap, counts: NDArray[Any], statistic: Callable[[FloatArray], float]
) -> Interval:
    """``statistic`` of the totals of ``counts`` [problems, C]."""
    [interval] = bootstrap.totals(
        [counts], lambda totals: np.array([[statistic(row)] for row in totals[:, 0]])
    )
    return interval


def _signs(sets: Sequence[LabelSet]) -> Iterator[FloatArray]:
    """One [steps] for each source: 1 good, -1 bad, NaN unknown, in the smallest numbers that have a NaN."""
    return (as_numbers(source.codes, bad=-1.0).astype(np.float16) for source in sets)


def _common_level(sets: Sequence[LabelSet]) -> Level | None:
    valued = [bool(source.is_value.any()) for source in sets]
    other = [bool(((source.codes >= 0) & ~source.is_value).any()) for source in sets]
    if any(valued) == any(other):
        return None
    return "interval" if any(valued) else "ordinal"


def _check_ids(layout: StepLayout) -> None:
    if layout.repeated:
        twice = {first for first, _ in layout.repeated}
        first = next(name for name, number in layout.numbers.items() if number == min(twice))
        raise LabelError(f"{len(twice)} trace ids occur twice, first {first}; keep one trace of each id")


def _agreement(audit: LabelAudit) -> str:
    text = "No true labels were given, so nothing says whether the labels are right"
    if audit.overall is None:
        return f"{text}."
    return f"{text}; the {len(audit.sources)} sources agree with an alpha of {audit.overall.alpha:.2f}."


def _cards(audit: LabelAudit, source: Source) -> list[Card]:
    """Agreement with the truth beyond chance, and the precision of its wrong steps."""
    precisions = [source.against_truth.precision] if source.against_truth else []
    kappas = [pair.kappa for pair in audit.pairs if (pair.first, pair.second) == (source.name, TRUTH)]
    kappa = "is Cohen's kappa with the true labels of steps; chance is 0."
    wrong = "of the steps that it calls wrong are wrong; below 0.5 most of its alarms are false."
    claims = {
        "yes": "is mostly right when it calls a step wrong",
        "no": "raises too many false alarms",
    }
    return [
        *(card("reads", value, kappa, audit.problems, smallest=0.1) for value in kappas),
        *(card("trust", value, wrong, audit.problems, null=0.5, claims=claims) for value in precisions),
    ]


def label_section(audit: LabelAudit) -> Section:
    """Counts and cost, accuracy against the truth, agreement of sources."""
    truth = "sources.against_truth"
    return Section(
        title="Label audit",
        tested="label noise",
        about="The last label of a step that is good or bad counts. The positive class is the bad step, by "
        "the truth. Intervals are 95 %, by bootstrap over problems. A "
        "value is the chance of a correct answer from a prefix, for one policy; it is measured as the "
        "chance that the step is correct, which is another quantity. If nearly all steps are good, kappa "
        "and alpha are low even for sources that nearly always agree; AC1 is not. None of them says which "
        "source is correct.",
        results=audit,
        cards={source.name: _cards(audit, source) for source in audit.sources},
        sentence="" if audit.truth else _agreement(audit),
        limits=[
            f"{audit.traces} traces of {audit.problems} problems; {audit.traces_without_steps} without steps "
            "left out.",
            *["No true labels were given, so accuracy is not measured."] * (audit.truth is None),
        ],
        plots=[
            Plot(
                f"{truth}.by_fifth",
                "Precision (solid) and recall (dashed) of bad steps by fifth of the trace.",
                x="by_fifth",
                y=("precision", "recall"),
            ),
            Plot(
                f"{truth}.first_error.offsets",
                "Traces by predicted minus true index of the first error, if both have one.",
            ),
            Plot(
                f"{truth}.soft.calibration.bins",
                "Reliability of the values.",
                x="mean_score",
                y=("good",),
                diagonal=True,
            ),
            Plot("pairs", "Cohen's kappa of good and bad steps.", y=("kappa",)),
        ],
    )
