"""ProcessBench (Zheng et al., arXiv 2412.06559) for any number of scorers and judges, side by side.

The metric compares the first step below a threshold with the labelled first error; the overall result is the
unweighted mean of the subsets' F1s. Scores are "higher is better"; ``None`` or NaN means "not scored" and is
never read as a low score. Each result says how its threshold was fitted (``surefoot.evaluation.splits``).

Figures of a group of traces, with 95 % intervals over problems: ``acc_error``, the share of erroneous traces
whose first error is found at exactly its step; ``acc_correct``, the share of correct traces in which none is
reported; ``f1``, their harmonic mean. Counts: ``errors``, ``corrects``; erroneous traces with a prediction
before the error (``early``), after it (``late``) or none (``missed``); traces without a prediction, which
count as wrong (``unparsed``). ``partial`` are partly scored traces, which are judged on the scored steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from surefoot.errors import LabelError, counted
from surefoot.evaluation.measures import Measured, Ratios, members_by
from surefoot.evaluation.report import Section
from surefoot.evaluation.splits import CHOSEN_HERE, SPLIT, ranked, readings, threshold_above
from surefoot.evaluation.step_scores import System, recorded_by_all
from surefoot.evaluation.verdict import Conclusion, Counts, detected, measured
from surefoot.labels import LabelRule, binary_labels, first_error
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Trace
from surefoot.stats.bootstrap import Bootstrap, FloatArray

Missing = Literal["leave-out", "wrong"]

StepScoreLists = Sequence[Sequence[float | None]]

Predicted = Sequence[int | None]
"""0-based index of the first error of each trace, -1 = none, ``None`` = no prediction."""


def first_error_below(scores: Sequence[float | None], threshold: float) -> int | None:
    """0-based index of the first step scored below ``threshold``; -1 if there is none (ProcessBench).

    Unscored steps are skipped; ``None`` without any score.
    """
    scored = [(step, score) for step, score in enumerate(scores) if score is not None and score == score]
    return next((step for step, score in scored if score < threshold), -1) if scored else None


def processbench_f1(step_scores: StepScoreLists, labels: Sequence[int], threshold: float) -> Measured:
    """ProcessBench's F1 (arXiv 2412.06559): harmonic mean of the accuracies on wrong and on correct traces.

    ``step_scores`` has one list per trace; ``labels`` has the 0-based index of its first error, or -1. A
    trace without any score is an unparsed prediction and wrong, as in the paper (``unscored``); a partly
    scored one (published score files stop at the first error) is judged on its scores (``partial``). An
    accuracy is NaN without such traces; F1 is 0 if both are 0, NaN if one is NaN. Raises ``LabelError`` if
    lengths differ or a label is below -1.
    """
    _check_labels(step_scores, labels)
    predicted = [first_error_below(row, threshold) for row in step_scores]
    totals = _counts(predicted, labels).sum(axis=0)
    return Measured(
        zip(FIRST_ERRORS.names, (float(rate) for [rate] in _first_rates(totals[None, None])), strict=True),
        errors=int(totals[1]),
        corrects=int(totals[3]),
        unscored=predicted.count(None),
        partial=_partial(step_scores),
    )


def best_threshold(step_scores: StepScoreLists, labels: Sequence[int]) -> Measured:
    """The ``threshold`` with the highest ProcessBench F1, over every cut that separates two scores; and its
    ``f1``. A step is bad if its score is below the threshold.

    Cuts lie midway between neighbouring distinct scores; the lowest of equally good ones wins (fewest steps
    flagged). F1 and the flagged steps do not change under a strictly increasing transform of the scores.
    The F1 is optimistic: apply the threshold to other traces. O(steps log steps). Raises ``LabelError`` if
    lengths differ or one class (correct, wrong) is absent, since F1 is then undefined at every cut.
    """
    _check_labels(step_scores, labels)
    corrects = sum(label < 0 for label in labels)
    if not 0 < corrects < len(labels):
        raise LabelError("a threshold needs both erroneous traces (label >= 0) and correct ones (label -1)")
    finite = [s for scores in step_scores for s in scores if s is not None and s < math.inf]
    distinct = np.unique(np.array(finite, dtype=float))
    # cut j flags the j lowest distinct scores; a trace is judged correctly on one range of cuts
    gain = np.zeros((2, len(distinct) + 2), dtype=int)
    for scores, label in zip(step_scores, labels, strict=True):
        if _scored(scores) and label < len(scores):
            start, stop = _hit_cuts(scores, label, distinct)
            gain[int(label < 0), start] += 1
            gain[int(label < 0), stop] -= 1
    a, b = gain.cumsum(axis=1)[:, :-1] / [[len(labels) - corrects], [corrects]]
    f1 = np.divide(2 * a * b, a + b, out=np.zeros_like(a), where=(a + b) > 0)
    # equal F1 may differ in the last bit; the choice must not depend on it
    cut = int(np.flatnonzero(f1 >= f1.max() - 1e-12)[0])
    return Measured(threshold=threshold_above(distinct, cut), f1=float(f1[cut]))


def _hit_cuts(scores: Sequence[float | None], label: int, distinct: FloatArray) -> tuple[int, int]:
    """Cuts [start, stop) at which the first flagged step is the labelled one."""
    values = np.array([math.inf if s is None or math.isnan(s) else s for s in scores], dtype=float)
    earlier = values[:label] if label >= 0 else values
    stop = int(np.searchsorted(distinct, earlier.min(initial=math.inf))) + 1
    start = int(np.searchsorted(distinct, values[label])) + 1 if label >= 0 else 0
    return min(start, stop), stop


def _scored(scores: Sequence[float | None]) -> int:
    return sum(score is not None and not math.isnan(score) for score in scores)


def _partial(step_scores: StepScoreLists) -> int:
    return sum(0 < _scored(row) < len(row) for row in step_scores)


def _check_labels(step_scores: StepScoreLists, labels: Sequence[int]) -> None:
    if len(step_scores) != len(labels):
        raise LabelError(f"'step_scores' has {len(step_scores)} traces and 'labels' has {len(labels)}")
    for trace, label in enumerate(labels):
        if label < -1:
            raise LabelError(f"labels[{trace}] is {label}; give the 0-based index of the first error, or -1")


@dataclass(frozen=True, kw_only=True)
class ProcessBenchCase:
    """One trace of the benchmark."""

    item: LabelledTrace | ProblemTrace
    subset: str
    label: int
    """0-based index of the first error; -1 = none."""

    @property
    def trace(self) -> Trace:
        return self.item.trace


def _counts(predicted: Predicted, labels: ArrayLike) -> FloatArray:
    """[traces, 8]: error found, error, correct without report, correct, early, late, missed, unparsed."""
    index = np.array([math.nan if step is None else step for step in predicted])
    truth = np.asarray(labels)
    wrong, hit = truth >= 0, index == truth
    columns = [wrong & hit, wrong, ~wrong & hit, ~wrong, wrong & (index >= 0) & (index < truth)]
    columns += [wrong & (index > truth), wrong & (index == -1), np.isnan(index)]
    return np.stack(columns, axis=1).astype(float)


def _f1(totals: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Both accuracies and their harmonic mean, each [n, strata]."""
    hit_error, errors, hit_correct, corrects = np.moveaxis(totals[..., :4], -1, 0)
    with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
        a, b = hit_error / errors, hit_correct / corrects
        return a, b, np.where(a + b == 0, 0.0, 2 * a * b / (a + b))


def _first_rates(totals: FloatArray) -> list[FloatArray]:
    return [rate[:, 0] for rate in _f1(totals)]


FIRST_ERRORS = Ratios(
    names=("acc_error", "acc_correct", "f1"),
    of=_first_rates,
    totals={"errors": 1, "corrects": 3, "early": 4, "late": 5, "missed": 6, "unparsed": 7},
)
AVERAGE_F1 = Ratios(names=("average_f1",), of=lambda totals: [_f1(totals)[2].mean(axis=1)])
DIFFERENCE = Ratios(
    names=("difference",), of=lambda t: [(_f1(t[..., :8])[2] - _f1(t[..., 8:])[2]).mean(axis=1)]
)


def processbench_cases(data: Mapping[str, Sequence[LabelledTrace]]) -> list[ProcessBenchCase]:
    """Traces by subset with the index of their first error, from their correctness labels.

    Raises ``LabelError`` for a trace whose first error is unknown because of an unlabelled step, and for
    duplicate ids.
    """
    cases: dict[str, ProcessBenchCase] = {}
    for subset, items in data.items():
        for item in items:
            if item.trace.id in cases:
                raise LabelError(f"trace {item.trace.id} occurs twice in the data; give each file once")
            cases[item.trace.id] = ProcessBenchCase(item=item, subset=subset, label=_label(item))
    return list(cases.values())


def evaluate_processbench(
    cases: Sequence[ProcessBenchCase],
    systems: Sequence[System],
    *,
    rules: Sequence[str | float] = (SPLIT, 0.5),
    missing: Missing = "leave-out",
    draws: int = 1000,
    seed: int = 0,
) -> Measured:
    """Compare ``systems`` (aligned with the traces of ``cases``) with the truth under each rule.

    A judge predicts its first bad step; an earlier step without verdict makes the prediction unparsed, as
    does a trace without any score for a scorer. Both count as wrong, as in the paper. A trace without a
    record of some system is left out for every system, or counts as wrong, by ``missing``. Thresholds stay
    fixed while problems are resampled, all in the same samples. Of each score: ``average_f1``, the unweighted
    mean of the subsets' F1s; ``difference``, this less the first system's (same rule, if it has it), paired
    by problem; figures by subset, optimistic for the one that a threshold was fitted on. ``position_f1`` is
    the result of the function of this name, by subset.

    Raises ``LabelError`` for no cases or systems, and where a threshold cannot be fitted; ``ScoreError`` if
    no trace has a record of every system.
    """
    if not cases or not systems:
        raise LabelError("give at least one trace and one scorer or judge")
    used = recorded_by_all(systems) if missing == "leave-out" else list(range(len(cases)))
    evaluated = [cases[t] for t in used]
    labels, names = np.array([case.label for case in evaluated]), [case.subset for case in evaluated]
    problems = [case.trace.problem_id for case in evaluated]
    owners, bootstrap = np.array(problems), Bootstrap(draws=draws, seed=seed)
    subsets = members_by(names)
    scores: list[Measured] = []
    first: dict[str, FloatArray] = {}

    for system in systems:
        rows = [system.scores[t] if system.kind == "scores" else [] for t in used]

        def fit(members: list[int], rows: StepScoreLists = rows) -> float:
            return float(best_threshold([rows[t] for t in members], labels[members].tolist()).threshold)

        for applied in readings(system, rules, problems, names, fit):
            predicted = (
                [first_error(system.good[t]) for t in used]
                if system.kind == "labels"
                else [first_error_below(row, cut) for row, cut in zip(rows, applied.of_trace, strict=True)]
            )
            counts = _counts(predicted, labels)
            if is_first := system is systems[0]:
                first[applied.rule] = counts
            both = np.concatenate([counts, first.get(applied.rule, next(iter(first.values())))], axis=1)

            def row(members: list[int], counts: FloatArray = counts) -> Measured:
                return FIRST_ERRORS.row(bootstrap, counts[members], owners[members])

            scores.append(
                applied.score(
                    system,
                    **AVERAGE_F1.row(bootstrap, counts, owners, names),
                    **({"difference": None} if is_first else DIFFERENCE.row(bootstrap, both, owners, names)),
                    subsets={name: row(members) for name, members in subsets.items()},
                    partial=_partial(rows),
                )
            )
    return Measured(
        traces=len(evaluated),
        problems=len(set(problems)),
        left_out=len(cases) - len(evaluated),
        subsets={name: len(members) for name, members in subsets.items()},
        position_f1={name: position_f1(labels[members].tolist()) for name, members in subsets.items()},
        systems=[system.summary() for system in systems],
        scores=scores,
    )


def _label(item: LabelledTrace) -> int:
    rule = LabelRule(neutral="good", good_above=None)
    first = first_error([label.good for label in binary_labels(item.labels, len(item.trace.steps), rule)])
    if first is None:
        raise LabelError(
            f"trace {item.trace.id}: a step without a correctness label hides its first error; "
            "label every step up to the first error"
        )
    return first


def position_f1(labels: Sequence[int]) -> float:
    """The highest F1 of a predictor that does not read the trace: a fixed step, at random, or none.

    With q, the largest share of erroneous traces whose first error is at one step, it reports this step with
    chance 1 - p and no error with chance p. F1 is highest, 2q / (1 + sqrt(q))^2, at
    p = sqrt(q) / (1 + sqrt(q)). NaN without erroneous traces.
    """
    errors = Counter(label for label in labels if label >= 0)
    if not errors:
        return math.nan
    share = max(errors.values()) / errors.total()
    return 2 * share / (1 + math.sqrt(share)) ** 2


def _counted(parts: Iterable[Measured]) -> Counts:
    """The figures of the subsets as counts of solutions with a prediction."""
    hits = wrong = alarms = right = traces = 0
    for part in parts:
        located = round(part.acc_error.value * part.errors) if part.errors else 0
        accepted = round(part.acc_correct.value * part.corrects) if part.corrects else 0
        judged = located + part.early + part.late + part.missed
        silent = part.unparsed - (part.errors - judged)
        hits, wrong, right = hits + located, wrong + judged, right + part.corrects - silent
        alarms, traces = alarms + part.corrects - silent - accepted, traces + part.errors + part.corrects
    return Counts(found=hits, wrong=wrong, alarms=alarms, right=right, of=traces)


def processbench_section(result: Measured) -> Section:
    """F1 by subset and rule."""
    position = math.fsum(result.position_f1.values()) / len(result.position_f1)
    verdicts: dict[str, list[Conclusion]] = {}
    for score in ranked(result.scores, lambda score: score.average_f1.value):
        verdicts[score.system] = [
            detected(
                _counted(score.subsets.values()),
                score.average_f1,
                f"is the mean F1 (rule {score.rule}); a fixed step reaches {position:.2f}.",
                result.problems,
                rival="a fixed step",
                null=position,
                silence_counts=True,
            )
        ]
        gains = {name: part.f1.value - result.position_f1[name] for name, part in score.subsets.items()}
        hardest = min(gains, key=lambda name: gains[name])
        if len(gains) > 1 and not any(part.unparsed for part in score.subsets.values()):
            blind, units = result.position_f1[hardest], result.subsets[hardest]
            text = f"is the F1 on {hardest}, its weakest subset; a fixed step reaches {blind:.2f}."
            rival = f"a fixed step on {hardest}"
            f1 = score.subsets[hardest].f1
            verdicts[score.system].append(
                measured("first errors", f1, text, units, "traces", null=blind, rival=rival)
            )
    return Section(
        title="ProcessBench",
        tested="wrong steps on public benchmarks",
        about=f"{counted(result.traces, 'trace')} of {counted(result.problems, 'problem')}; "
        f"{result.left_out} left out: a source lacks a record of them. F1 is the harmonic mean of the "
        "accuracy on erroneous traces (exact index of the first error) and on correct ones (none reported); "
        "a trace without a prediction counts as wrong. Rule 'split': the threshold was fitted on the other "
        "half of the problems. A subset's name: it was fitted on this subset, where the result is "
        "optimistic, and applied to all. Intervals are 95 %, by bootstrap over problems within each subset, "
        "with fixed thresholds.",
        results=result,
        verdicts=verdicts,
        limits=[
            f"{counted(result.traces, 'trace')} of {counted(result.problems, 'problem')} of mathematics; "
            f"{result.left_out} left out because a source lacks a record of them.",
            *[CHOSEN_HERE] * (len(verdicts) > 1),
        ],
    )
