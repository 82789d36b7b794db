"""Labels of sources: aligned with the steps of traces, compared with the truth, and audited side by side.

Labels are appended, never overwritten, so a step may have several from one source. The last one in the file
that is good or bad by the label rule counts; the others are superseded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.errors import LabelError, counted
from surefoot.evaluation.columns import (
    BAD,
    GOOD,
    LABEL_KINDS,
    UNLABELLED,
    UNREAD,
    BoolArray,
    CodeArray,
    LabelColumns,
    LabelFile,
    StepLayout,
    StepRows,
    as_numbers,
    label_columns,
)
from surefoot.evaluation.measures import Measured, Ratios
from surefoot.evaluation.report import Section
from surefoot.evaluation.verdict import Conclusion, Counts, detected
from surefoot.io.tables import facts_in
from surefoot.labels import LabelRule
from surefoot.records import StepLabel, Trace
from surefoot.stats.bootstrap import Bootstrap, FloatArray, group_numbers
from surefoot.stats.calibration import Binning, reliability
from surefoot.stats.intervals import UNKNOWN, Interval
from surefoot.stats.rater_agreement import agreement, alpha_of, cohens_kappa
from surefoot.stats.roc import roc_auc, roc_auc_within

Labels = Iterable[StepLabel] | LabelFile
"""Records, or a file that is read as columns."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelSet:
    """Labels of one source, 10 bytes per step.

    Arrays are [steps] of all traces and hold the label that counts.
    """

    name: str
    layout: StepLayout
    codes: CodeArray
    """Good, bad, unknown or unlabelled (:mod:`surefoot.evaluation.columns`)."""
    values: FloatArray
    """The label's value; NaN if no label counts."""
    is_value: BoolArray
    """Whether the label is of kind ``value``; otherwise it is of kind ``correctness``."""
    mentioned: BoolArray
    """[traces]: whether any label names the trace, including labels of unknown steps."""
    counts: Measured
    """Every label and step: labels of other traces and of steps beyond the last one, those for which another
    label of the step counts (``superseded``) and those that are neither good nor bad, by reason (``unread``)
    are not ``used``; ``kinds`` and ``sources`` of the labels of known steps; steps and traces without any."""
    cost: Measured
    """Tokens and calls of the labels of known traces, superseded and unknown ones included; per label that
    counts, and per trace with a label. NaN for 0/0."""

    raters: tuple[str, ...]
    """Those that the labels name, or their source."""

    @property
    def good(self) -> StepRows[bool]:
        """Lists [traces][steps]; ``None`` is unknown."""
        return StepRows(self.codes, self.layout)


def label_set(
    name: str, labels: Labels, traces: Sequence[Trace], reading: LabelRule | None = None
) -> LabelSet:
    """Align ``labels`` with the steps of ``traces``, whose ids must differ.

    Labels are streamed. Raises ``LabelError`` if no label belongs to a step of the traces.
    """
    return label_sets(name, labels, StepLayout.of(traces), reading)[0]


def label_sets(
    name: str,
    labels: Labels,
    layout: StepLayout,
    reading: LabelRule | None = None,
    *,
    by_rater: bool | None = False,
) -> list[LabelSet]:
    """The labels of one source, or with ``by_rater`` of each of its raters, as ``name/rater``.

    ``by_rater=None`` splits by rater only if two raters labelled the same step; the name of a missing rater
    is the label's source, and raters without labels of these traces are dropped. Raises ``LabelError`` as
    ``label_set``, and with true ``by_rater`` for a label without ``evidence.rater``.
    """
    sets: dict[str, _LabelArrays] = {}
    for columns in label_columns(labels):
        for key, part in _parts(name, columns, by_rater):
            if key not in sets:
                sets[key] = _LabelArrays(key, layout, reading or LabelRule(neutral="good"), part.trace_ids[0])
            sets[key].add(part)
    if not sets:
        raise _no_label(name, 0, "")
    if by_rater is None:
        merged = sets.pop(name)
        raters = {key: arrays for key, arrays in sets.items() if arrays.labelled}
        overlap = sum(arrays.labelled for arrays in raters.values()) > merged.labelled
        sets = raters if overlap else {name: merged}
    return [arrays.label_set() for arrays in sets.values()]


def _parts(name: str, labels: LabelColumns, by_rater: bool | None) -> Iterator[tuple[str, LabelColumns]]:
    if not by_rater:
        yield name, labels
    if by_rater is False:
        return
    if by_rater and None in labels.raters:
        at = labels.raters.index(None)
        raise LabelError(
            f"{name}: the label of step {labels.steps[at]} of trace {labels.trace_ids[at]} lacks "
            "'evidence.rater'; it cannot be split by rater"
        )
    raters = [rater or source for rater, source in zip(labels.raters, labels.sources, strict=True)]
    numbers = group_numbers(raters)
    for number, rater in enumerate(dict.fromkeys(raters)):
        yield f"{name}/{rater}", labels.where(numbers == number)


class _LabelArrays:
    def __init__(self, name: str, layout: StepLayout, rule: LabelRule, first: str) -> None:
        self._name, self._layout, self._rule, self._first = name, layout, rule, first
        self._codes: CodeArray = np.full(layout.steps, UNLABELLED, dtype=np.int8)
        self._values = np.full(layout.steps, math.nan)
        self._is_value: BoolArray = np.zeros(layout.steps, dtype=bool)
        self._mentioned: BoolArray = np.zeros(layout.traces, dtype=bool)
        self._labels = self._unknown_traces = self._unknown_steps = 0
        self._policy_tokens = self._verifier_tokens = self._calls = 0
        self._unread, self._kinds, self._sources = Counter[str](), Counter[str](), Counter[str]()
        self._raters: dict[str, None] = {}
        examples = [StepLabel(trace_id="", step=0, kind=kind, value=0, source="") for kind in LABEL_KINDS]
        self._why = {label.kind: rule.why_unknown(label) for label in examples}

    def add(self, labels: LabelColumns) -> None:
        self._labels += len(labels)
        raters = dict.fromkeys(zip(labels.raters, labels.sources, strict=True))
        self._raters |= dict.fromkeys(rater or source for rater, source in raters)
        positions, number = self._layout.positions(labels.trace_ids, labels.steps)
        self._mentioned[number[number >= 0]] = True
        self._unknown_traces += int((number < 0).sum())
        self._unknown_steps += int(((number >= 0) & (positions < 0)).sum())
        labels, positions = labels.where(positions >= 0), positions[positions >= 0]
        self._kinds.update(labels.kinds)
        self._sources.update(labels.sources)
        self._policy_tokens += int(labels.policy_tokens.sum())
        self._verifier_tokens += int(labels.verifier_tokens.sum())
        self._calls += int(labels.calls.sum())
        codes = label_codes(self._rule, labels)
        read, unread = codes >= BAD, codes < BAD
        for at in np.flatnonzero(unread).tolist():
            is_open = math.isnan(labels.values[at])
            self._unread[labels.reasons[at] or "" if is_open else self._why[labels.kinds[at]]] += 1
        hidden = positions[unread]
        self._codes[hidden[self._codes[hidden] == UNLABELLED]] = UNREAD
        # of several labels of a step the last is assigned last
        self._codes[positions[read]] = codes[read]
        self._values[positions[read]] = labels.values[read]
        self._is_value[positions[read]] = labels.are("value")[read]

    @property
    def labelled(self) -> int:
        """Steps with a label, also an unknown one."""
        return int(np.count_nonzero(self._codes != UNLABELLED))

    def label_set(self) -> LabelSet:
        """The result. Raises ``LabelError`` if no label belongs to a known step."""
        if not self._kinds:
            raise _no_label(self._name, self._labels, self._first)
        used = int((self._codes >= 0).sum())
        labelled = self._codes != UNLABELLED
        number = np.searchsorted(self._layout.starts, np.flatnonzero(labelled), "right")
        traces = 1 + int(np.count_nonzero(np.diff(number)))
        counts = Measured(
            labels=self._labels,
            unknown_traces=self._unknown_traces,
            unknown_steps=self._unknown_steps,
            superseded=self._kinds.total() - self._unread.total() - used,
            unread=dict(self._unread.most_common()),
            used=used,
            kinds=dict(self._kinds),
            sources=dict(self._sources),
            steps=self._layout.steps,
            steps_without_label=int((~labelled).sum()),
            traces=self._layout.traces,
            traces_without_label=self._layout.traces - traces,
        )
        policy, verifier = self._policy_tokens, self._verifier_tokens
        return LabelSet(
            name=self._name,
            layout=self._layout,
            codes=self._codes,
            values=self._values,
            is_value=self._is_value,
            mentioned=self._mentioned,
            counts=counts,
            raters=tuple(self._raters),
            cost=Measured(
                policy_tokens=policy,
                verifier_tokens=verifier,
                calls=self._calls,
                policy_tokens_per_label=policy / used if used else math.nan,
                verifier_tokens_per_label=verifier / used if used else math.nan,
                policy_tokens_per_trace=policy / traces if traces else math.nan,
            ),
        )


def _no_label(name: str, labels: int, first: str) -> LabelError:
    return LabelError(
        f"{name}: none of its {labels} labels belongs to a step of the traces, by 'trace_id'"
        f"{f' (first {first})' if labels else ''}; give the traces that were labelled"
    )


def label_codes(rule: LabelRule, labels: LabelColumns) -> CodeArray:
    """[labels]: good or bad as :meth:`surefoot.labels.LabelRule.good` says, or ``UNREAD``."""
    values, correctness = labels.values, labels.are("correctness")
    neutral = {"good": GOOD, "bad": BAD, "drop": UNREAD}[rule.neutral]
    # a comparison with NaN is never true, so that an unknown value and no threshold decide nothing
    above = math.nan if rule.good_above is None else rule.good_above
    conditions = [
        correctness & (values == 0),
        correctness & (values > 0) | labels.are("value") & (values > above),
        correctness & (values < 0) | labels.are("value") & (values <= above),
    ]
    return np.select(conditions, [neutral, GOOD, BAD], UNREAD).astype(np.int8)


def confusion(tp: int = 0, fp: int = 0, fn: int = 0, tn: int = 0) -> Measured:
    """Steps by their predicted and true labels; the positive class is the *bad* step. Shares are NaN for 0/0.

    ``precision`` is the share of the steps predicted bad that are bad, ``recall`` that of the bad steps that
    are predicted bad.
    """
    steps = tp + fp + fn + tn
    return Measured(
        tp=tp,
        fp=fp,
        fn=fn,
        tn=tn,
        steps=steps,
        precision=_share(tp, tp + fp),
        recall=_share(tp, tp + fn),
        f1=_share(2 * tp, 2 * tp + fp + fn),
        accuracy=_share(tp + tn, steps),
    )


def tables_by(
    group: NDArray[np.integer], predicted: CodeArray, truth: CodeArray, groups: int = 0
) -> NDArray[np.int64]:
    """[groups, 4]: steps of each group by 2 * predicted good + truly good, if both are known."""
    cells = np.where((predicted < 0) | (truth < 0), np.int8(4), 2 * predicted + truth)
    groups = groups or int(group.max(initial=-1)) + 1
    flat = np.bincount(5 * group.astype(np.int64) + cells, minlength=5 * groups)
    return flat.reshape(groups, 5)[:, :4]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


PARTS = 5
"""Relative position: the fifth of its trace in which a step lies."""


def against_truth(
    source: LabelSet,
    truth: LabelSet,
    *,
    bins: int = 10,
    binning: Binning = "equal-mass",
    bootstrap: Bootstrap,
) -> Measured:
    """Compare two label sets of the same layout; the positive class is the bad step.

    Intervals are 95 % over problems. ``by_step`` is by index of the step, ``by_fifth`` by fifth of the trace:
    step i of T is in fifth floor(5 i / T), both from 0.
    """
    layout = source.layout
    codes = source.codes, truth.codes
    by_problem = tables_by(layout.of_step(layout.problem), *codes, groups=len(layout.problem_ids))
    precision, recall, f1 = bootstrap.totals([by_problem], _shares)
    predicted, true = layout.first_errors(source.codes), layout.first_errors(truth.codes)
    by_step = tables_by(layout.step_numbers(), *codes).tolist()
    by_fifth = tables_by(layout.parts(PARTS), *codes, groups=PARTS).tolist()
    return Measured(
        confusion=confusion(*by_problem.sum(axis=0).tolist()),
        precision=precision,
        recall=recall,
        f1=f1,
        by_step={number: confusion(*row) for number, row in enumerate(by_step) if any(row)},
        by_fifth={number: confusion(*row) for number, row in enumerate(by_fifth)},
        first_error=_first_error(predicted, true, layout, bootstrap),
        soft=_soft(source, truth, bins, binning),
    )


def _shares(totals: FloatArray) -> FloatArray:
    """Precision, recall and F1 [n, 3] of totals [n, 1, 4] of tp, fp, fn and tn."""
    tp, fp, fn, _ = totals[:, 0].T
    parts, wholes = np.stack([tp, tp, 2 * tp]), np.stack([tp + fp, tp + fn, 2 * tp + fp + fn])
    shares: FloatArray = np.divide(parts, wholes, out=np.full_like(parts, math.nan), where=wholes > 0)
    return shares.T


def _first_error(
    predicted: FloatArray, truth: FloatArray, layout: StepLayout, bootstrap: Bootstrap
) -> Measured:
    """Agreement on first errors [traces]; ``dropped`` are those that an unlabelled step hides.

    ``accuracy`` is the share of traces with the same first bad step or none on both sides, ``f1`` the
    harmonic mean of that on traces with and without an error, as in ProcessBench (arXiv 2412.06559).
    """
    usable = ~(np.isnan(predicted) | np.isnan(truth))
    counts = first_error_counts(predicted[usable], truth[usable])
    exact, wrong, none_on_both, right, early, late, missed, _ = counts.sum(axis=0).astype(int).tolist()
    on_wrong, on_right = _share(exact, wrong), _share(none_on_both, right)
    accuracy = _EXACT.row(bootstrap, counts, layout.problem[usable])["accuracy"] if len(counts) else UNKNOWN
    return Measured(
        accuracy=accuracy,
        accuracy_on_wrong=on_wrong,
        accuracy_on_right=on_right,
        f1=0.0 if on_wrong + on_right == 0 else 2 * on_wrong * on_right / (on_wrong + on_right),
        exact=exact,
        none_on_both=none_on_both,
        early=early,
        late=late,
        missed=missed,
        false_alarm=right - none_on_both,
        traces=len(counts),
        dropped=layout.traces - len(counts),
    )


def first_error_counts(predicted: Sequence[int | None] | FloatArray, labels: ArrayLike) -> FloatArray:
    """[traces, 8]: error found, error, correct without report, correct, early, late, missed, unparsed.

    Both are indices of first errors, -1 for none; ``None`` or NaN is no prediction.
    """
    index, truth = np.array(predicted, dtype=float), np.asarray(labels)
    wrong, hit = truth >= 0, index == truth
    columns = [wrong & hit, wrong, ~wrong & hit, ~wrong, wrong & (index >= 0) & (index < truth)]
    columns += [wrong & (index > truth), wrong & (index == -1), np.isnan(index)]
    return np.stack(columns, axis=1).astype(float)


_EXACT = Ratios(names=("accuracy",), of=lambda t: [(t[:, 0, 0] + t[:, 0, 2]) / (t[:, 0, 1] + t[:, 0, 3])])
"""Of :func:`first_error_counts`."""


def _soft(source: LabelSet, truth: LabelSet, bins: int, binning: Binning) -> Measured | None:
    """Value labels as scores of correctness: the AUC, also for steps of equal index, and the reliability.

    A value is the chance of a correct answer from a prefix, for one policy; correctness is another quantity.
    Ranks can be compared. Reliability measures a value as a chance of being correct, not as a value: a
    perfect value differs from it if correct steps often fail later. Steps without truth count as dropped.
    """
    valued = source.is_value
    if not valued.any():
        return None
    scores, good = source.values[valued], as_numbers(truth.codes[valued])
    return Measured(
        auc=roc_auc(scores, good),
        auc_within_position=roc_auc_within(scores, good, source.layout.step_numbers()[valued]),
        calibration=reliability(scores, good, bins=bins, binning=binning),
    )


TRUTH = "truth"
"""The name of the reference in the agreement matrix."""

SIGNS = (-1.0, 1.0)


def audit_labels(
    traces: Sequence[Trace] | StepLayout,
    sources: Mapping[str, Labels],
    *,
    truth: Labels | None = None,
    reading: LabelRule | None = None,
    by_rater: bool = False,
    bins: int = 10,
    binning: Binning = "equal-mass",
    draws: int = 1000,
    seed: int = 0,
) -> Measured:
    """Audit label sets by name. ``reading`` defines which labels are good or bad.

    ``pairs`` are all pairs of sources, and of a source with the truth, which comes last; ``overall`` is
    ``None`` with fewer than two sources. Traces and labels are streamed: memory grows by 10 bytes per step
    and source. ``by_rater`` makes each rater of a source a separate source, ``name/rater``. The truth's name
    is "truth". Intervals are 95 % percentile bootstraps over problems (``Trace.problem_id``). Raises
    ``LabelError`` without sources, for a source called "truth", duplicate trace ids, with ``by_rater`` for a
    label without rater, and for label sets that share no step with the traces.
    """
    if not sources:
        raise LabelError("'sources' is empty; give at least one set of labels")
    if TRUTH in sources:
        raise LabelError(f"a source is called {TRUTH!r}, the name of the reference; give it another name")
    layout = traces if isinstance(traces, StepLayout) else StepLayout(facts_in(traces), with_steps=True)
    if layout.repeated:
        twice = {first for first, _ in layout.repeated}
        first = next(name for name, number in layout.numbers.items() if number == min(twice))
        raise LabelError(f"{len(twice)} trace ids occur twice, first {first}; keep one trace of each id")
    rule = reading or LabelRule(neutral="good")
    groups = (label_sets(name, rows, layout, rule, by_rater=by_rater) for name, rows in sources.items())
    sets = {source.name: source for group in groups for source in group}
    reference = label_sets(TRUTH, truth, layout, rule)[0] if truth is not None else None
    bootstrap = Bootstrap(draws=draws, seed=seed)
    everyone = [*sets.values(), *([reference] if reference else [])]

    def source(labels: LabelSet) -> Measured:
        compared = None
        if reference and labels is not reference:
            compared = against_truth(labels, reference, bins=bins, binning=binning, bootstrap=bootstrap)
        return Measured(
            name=labels.name, reading=rule, counts=labels.counts, cost=labels.cost, against_truth=compared
        )

    return Measured(
        traces=layout.traces,
        problems=len(layout.problem_ids),
        steps=layout.steps,
        steps_with_true_label=reference.counts.used if reference else None,
        traces_without_steps=layout.left_out,
        sources=list(map(source, sets.values())),
        truth=source(reference) if reference else None,
        pairs=[_pair(layout, bootstrap, *two) for two in combinations(everyone, 2)],
        overall=_overall(layout, bootstrap, list(sets.values())) if len(sets) > 1 else None,
    )


def _pair(layout: StepLayout, bootstrap: Bootstrap, first: LabelSet, second: LabelSet) -> Measured:
    """Agreement step by step and on the first bad step of traces, -1 for none, over what both label.

    Kappa's interval comes from each problem's table of bad and good, [problems, 4].
    """
    codes = first.codes, second.codes
    tables = tables_by(layout.of_step(layout.problem), *codes, groups=len(layout.problem_ids))
    return Measured(
        first=first.name,
        second=second.name,
        steps=agreement(_signs([first, second]), categories=SIGNS),
        kappa=_interval(bootstrap, tables, lambda row: cohens_kappa(row.reshape(2, 2))),
        first_error=agreement(list(map(layout.first_errors, codes))),
    )


def _overall(layout: StepLayout, bootstrap: Bootstrap, sets: Sequence[LabelSet]) -> Measured:
    """Agreement of all sources.

    Alpha's interval comes from each problem's bad labels, good labels and disagreement: [problems, 3].
    """
    votes = np.zeros((2, layout.steps), dtype=np.int32)
    for source in sets:
        for code in (BAD, GOOD):
            votes[code] += source.codes == code
    paired = votes.sum(axis=0) >= 2
    bad, good = votes[:, paired]
    problem = layout.of_step(layout.problem)[paired]
    cells = (bad, good, 2 * bad * good / (bad + good - 1))
    counts = [np.bincount(problem, weights=cell, minlength=len(layout.problem_ids)) for cell in cells]
    return Measured(
        steps=agreement(_signs(sets), categories=SIGNS),
        alpha=_interval(bootstrap, np.stack(counts, axis=1), lambda row: alpha_of(row[:2], float(row[2]))),
        first_error=agreement([layout.first_errors(source.codes) for source in sets]),
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


def _agreement(audit: Measured) -> str:
    text = "No true labels were given, so nothing says whether the labels are right"
    if audit.overall is None:
        return f"{text}."
    return f"{text}; the {len(audit.sources)} sources agree with an alpha of {audit.overall.alpha:.2f}."


def _verdicts(audit: Measured, source: Measured) -> list[Conclusion]:
    """What it finds of the wrong steps, against chance."""
    truth = source.against_truth
    kappa = next((p.kappa for p in audit.pairs if (p.first, p.second) == (source.name, TRUTH)), UNKNOWN)
    if truth is None or audit.truth is None:
        return []
    table = truth.confusion
    counts = Counts(
        found=table.tp,
        wrong=table.tp + table.fn,
        alarms=table.fp,
        right=table.fp + table.tn,
        of=audit.truth.counts.used,
        what="wrong step",
        unit="step",
    )
    text = "is Cohen's kappa with the true labels of these steps."
    return [detected(counts, kappa, text, audit.problems, rival="chance", smallest=0.1)]


def _advice(audit: Measured) -> Iterator[str]:
    """What the best source lacks."""
    compared = [(source, source.against_truth) for source in audit.sources if source.against_truth]
    if not compared:
        return
    best, truth = max(compared, key=lambda pair: (pair[1].f1.value == pair[1].f1.value, pair[1].f1.value))
    silent = audit.truth.counts.used - truth.confusion.steps
    tail = f", and it leaves {counted(silent, 'step')} open" if silent else ""
    if truth.recall.value < 0.8:
        yield (
            "Before you train on these labels, let a second source (`surefoot label FILE consensus`) or more "
            f"rollouts check them: {best.name} misses {1 - truth.recall.value:.0%} of the wrong steps{tail}."
        )
    if truth.precision.value < 0.8:
        yield f"Let people check the alarms of {best.name}: {1 - truth.precision.value:.0%} are false{tail}."


def label_section(audit: Measured) -> Section:
    """Counts and cost, accuracy against the truth, agreement of sources."""
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
        verdicts={source.name: _verdicts(audit, source) for source in audit.sources},
        advice=list(_advice(audit)),
        sentence="" if audit.truth else _agreement(audit),
        limits=[
            f"{counted(audit.traces, 'trace')} of {counted(audit.problems, 'problem')}; "
            f"{audit.traces_without_steps} without steps left out.",
            *["No true labels were given, so accuracy is not measured."] * (audit.truth is None),
        ],
    )
