"""Benchmarks of solutions, ProcessBench and PRMBench, for any number of scorers and judges, side by side.

ProcessBench (Zheng et al., arXiv 2412.06559) compares the first step below a threshold with the labelled
first error; the overall result is the unweighted mean of the subsets' F1s. Scores are "higher is better";
``None`` or NaN means "not scored" and is never read as a low score. Each result says how its threshold was
fitted (``surefoot.evaluation.splits``).

Figures of a group of traces, with 95 % intervals over problems: ``acc_error``, the share of erroneous traces
whose first error is found at exactly its step; ``acc_correct``, the share of correct traces in which none is
reported; ``f1``, their harmonic mean. Counts: ``errors``, ``corrects``; erroneous traces with a prediction
before the error (``early``), after it (``late``) or none (``missed``); traces without a prediction, which
count as wrong (``unparsed``). ``partial`` are partly scored traces, which are judged on the scored steps.

PRMBench (Song et al., arXiv 2501.03124): steps are kept or flagged, against steps valid or wrong. The
positive class is the valid step: TP valid and kept, FN valid but flagged, FP wrong but kept, TN wrong and
flagged. PRMScore = 0.5 F1 + 0.5 F1_neg, where F1_neg is the F1 of the wrong steps. F1 = 2 TP / (2 TP + FP +
FN) is 0 without a hit and NaN for 0/0 (no such step, and none predicted); the published script uses −1 for an
undefined precision or recall, which can enter its F1.

As in the published evaluation: a step is kept if its score is above the threshold (0.5); counts are pooled
over all steps of a class, and over all classes for the total; the score of a class group is the mean of its
classes; ``multi_solutions``, which has only valid steps, is scored by F1 alone; repeated rows are left out; a
trace without any verdict is left out, and ``parsed`` is the share of the others. The similarity to controls
(the unmodified processes) is not measured.

Figures, with 95 % intervals over problems and fixed thresholds: ``score``, ``f1``, ``f1_negative`` and the
four counts in ``total`` and each of ``classes``; ``groups``, NaN if a class is; ``accuracy`` of all, valid
(``_good``) and wrong (``_bad``) steps; ``first_error``, the share of traces with a wrong step whose first one
is flagged; ``unjudged_steps`` without a verdict, which are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from surefoot.errors import LabelError, counted
from surefoot.evaluation.labels import first_error_counts
from surefoot.evaluation.measures import Measured, Ratios, members_by
from surefoot.evaluation.report import Section
from surefoot.evaluation.splits import CHOSEN_HERE, SPLIT, Thresholds, ranked, readings, threshold_above
from surefoot.evaluation.step_scores import System, recorded_by_all
from surefoot.evaluation.verdict import Conclusion, Counts, detected, measured
from surefoot.labels import LabelRule, binary_labels, first_error
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.stats.bootstrap import Bootstrap, FloatArray

Missing = Literal["leave-out", "wrong"]
"""Traces without a record of some system are left out for all, or are wrong for this system."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkCase:
    """One trace of a benchmark."""

    item: LabelledTrace | ProblemTrace
    subset: str
    """Its file in ProcessBench, its class in PRMBench."""
    problem: str
    """The resampled unit: traces of one problem are correlated."""
    good: tuple[bool | None, ...]
    """Whether each step is good; ``None``, behind the first error alone, is unknown."""

    @property
    def label(self) -> int:
        """0-based index of the first error; -1 = none."""
        return self.good.index(False) if False in self.good else -1


class _Compared:
    """The traces that count, and what each system says of them."""

    def __init__(self, cases: Sequence[BenchmarkCase], systems: Sequence[System], missing: Missing) -> None:
        if not cases or not systems:
            raise LabelError("give at least one trace and one scorer or judge")
        self._systems = systems
        self._used = recorded_by_all(systems) if missing == "leave-out" else list(range(len(cases)))
        self.cases = [cases[at] for at in self._used]
        self.problems = [case.problem for case in self.cases]
        self.subsets = [case.subset for case in self.cases]
        self.left_out = len(cases) - len(self.cases)

    def readings(
        self, rules: Sequence[str | float], fit: Callable[[Sequence[FloatArray], list[int]], float]
    ) -> Iterator[tuple[System, list[FloatArray], Thresholds]]:
        """Each system with its numbers by trace (of a judge 1 good, 0 bad) under each rule.

        ``fit`` gets the numbers and the indices of some traces.
        """
        for system in self._systems:
            numbers = system.scores if system.kind == "scores" else system.good
            rows = [numbers.array(at) for at in self._used]

            def fitted(members: list[int], rows: Sequence[FloatArray] = rows) -> float:
                return fit([rows[at] for at in members], members)

            for applied in readings(system, rules, self.problems, self.subsets, fitted):
                yield system, rows, applied


StepScoreRow = Sequence[float | None] | FloatArray
"""The scores of a trace; ``None`` or NaN is not scored."""
StepScoreLists = Sequence[StepScoreRow]


def first_error_below(scores: StepScoreRow, threshold: float) -> int | None:
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
    totals = first_error_counts(predicted, labels).sum(axis=0)
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


def _hit_cuts(scores: StepScoreRow, label: int, distinct: FloatArray) -> tuple[int, int]:
    """Cuts [start, stop) at which the first flagged step is the labelled one."""
    values = np.array([math.inf if s is None or math.isnan(s) else s for s in scores], dtype=float)
    earlier = values[:label] if label >= 0 else values
    stop = int(np.searchsorted(distinct, earlier.min(initial=math.inf))) + 1
    start = int(np.searchsorted(distinct, values[label])) + 1 if label >= 0 else 0
    return min(start, stop), stop


def _scored(scores: StepScoreRow) -> int:
    return sum(score is not None and not math.isnan(score) for score in scores)


def _partial(step_scores: StepScoreLists) -> int:
    return sum(0 < _scored(row) < len(row) for row in step_scores)


def _check_labels(step_scores: StepScoreLists, labels: Sequence[int]) -> None:
    if len(step_scores) != len(labels):
        raise LabelError(f"'step_scores' has {len(step_scores)} traces and 'labels' has {len(labels)}")
    for trace, label in enumerate(labels):
        if label < -1:
            raise LabelError(f"labels[{trace}] is {label}; give the 0-based index of the first error, or -1")


def _harmonic(totals: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Both accuracies and their harmonic mean, each [n, strata]."""
    hit_error, errors, hit_correct, corrects = np.moveaxis(totals[..., :4], -1, 0)
    with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
        a, b = hit_error / errors, hit_correct / corrects
        return a, b, np.where(a + b == 0, 0.0, 2 * a * b / (a + b))


def _first_rates(totals: FloatArray) -> list[FloatArray]:
    return [rate[:, 0] for rate in _harmonic(totals)]


FIRST_ERRORS = Ratios(
    names=("acc_error", "acc_correct", "f1"),
    of=_first_rates,
    totals={"errors": 1, "corrects": 3, "early": 4, "late": 5, "missed": 6, "unparsed": 7},
)
AVERAGE_F1 = Ratios(names=("average_f1",), of=lambda totals: [_harmonic(totals)[2].mean(axis=1)])
DIFFERENCE = Ratios(
    names=("difference",), of=lambda t: [(_harmonic(t[..., :8])[2] - _harmonic(t[..., 8:])[2]).mean(axis=1)]
)


def processbench_cases(data: Mapping[str, Sequence[LabelledTrace]]) -> list[BenchmarkCase]:
    """Traces by subset with the index of their first error, from their correctness labels.

    Raises ``LabelError`` for a trace whose first error is unknown because of an unlabelled step, and for
    duplicate ids.
    """
    rule, cases = LabelRule(neutral="good", good_above=None), dict[str, BenchmarkCase]()
    for subset, items in data.items():
        for item in items:
            trace = item.trace
            if trace.id in cases:
                raise LabelError(f"trace {trace.id} occurs twice in the data; give each file once")
            case = _case(item, subset, trace.problem_id, rule)
            if first_error(case.good) is None:
                raise LabelError(
                    f"trace {trace.id}: a step without a correctness label hides its first error; "
                    "label every step up to the first error"
                )
            cases[trace.id] = case
    return list(cases.values())


def _case(item: LabelledTrace, subset: str, problem: str, rule: LabelRule) -> BenchmarkCase:
    labels = binary_labels(item.labels, len(item.trace.steps), rule)
    good = tuple(label.good for label in labels)
    return BenchmarkCase(item=item, subset=subset, problem=problem, good=good)


def evaluate_processbench(
    cases: Sequence[BenchmarkCase],
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
    compared, bootstrap = _Compared(cases, systems, missing), Bootstrap(draws=draws, seed=seed)
    labels, names = np.array([case.label for case in compared.cases]), compared.subsets
    owners, subsets = np.array(compared.problems), members_by(names)
    scores: list[Measured] = []
    first: dict[str, FloatArray] = {}

    def fit(rows: Sequence[FloatArray], members: list[int]) -> float:
        return float(best_threshold(rows, labels[members].tolist()).threshold)

    for system, rows, applied in compared.readings(rules, fit):
        predicted = (
            [first_error([None if math.isnan(good) else good > 0 for good in row]) for row in rows]
            if system.kind == "labels"
            else [first_error_below(row, cut) for row, cut in zip(rows, applied.of_trace, strict=True)]
        )
        counts = first_error_counts(predicted, labels)
        if is_first := system is systems[0]:
            first[applied.rule] = counts
        both = np.concatenate([counts, first.get(applied.rule, next(iter(first.values())))], axis=1)
        scores.append(
            applied.score(
                system,
                **AVERAGE_F1.row(bootstrap, counts, owners, names),
                **({"difference": None} if is_first else DIFFERENCE.row(bootstrap, both, owners, names)),
                subsets={
                    name: FIRST_ERRORS.row(bootstrap, counts[members], owners[members])
                    for name, members in subsets.items()
                },
                partial=_partial(rows) if system.kind == "scores" else 0,
            )
        )
    return Measured(
        traces=len(names),
        problems=len(set(compared.problems)),
        left_out=compared.left_out,
        subsets={name: len(members) for name, members in subsets.items()},
        position_f1={name: position_f1(labels[members].tolist()) for name, members in subsets.items()},
        systems=[system.summary() for system in systems],
        scores=scores,
    )


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


TP, FP, FN, TN = range(4)
"""Columns of the counts."""

GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "simplicity": {"redundency": "NR", "circular": "NCL"},
        "soundness": {
            "counterfactual": "ES",
            "step_contradiction": "SC",
            "domain_inconsistency": "DC",
            "confidence": "CI",
        },
        "sensitivity": {"missing_condition": "PS", "deception": "DR", "multi_solutions": "MS"},
    }
)
"""Classes by group, with the paper's abbreviations; ``redundency`` is spelt as in the data."""

F1_ALONE = "multi_solutions"
_KINDS = [kind for group in GROUPS.values() for kind in group]
_BLOCKS = ["", *_KINDS]
"""Blocks of four counts: the total, and each class."""


def f1(counts: FloatArray) -> FloatArray:
    """F1 of the valid steps; ``counts`` is [..., 4], the result [...]."""
    return _ratio(counts[..., TP], counts[..., FP] + counts[..., FN])


def f1_negative(counts: FloatArray) -> FloatArray:
    """F1 of the wrong steps; ``counts`` is [..., 4], the result [...]."""
    return _ratio(counts[..., TN], counts[..., FP] + counts[..., FN])


def prm_score(counts: FloatArray) -> FloatArray:
    """0.5 F1 + 0.5 F1_neg; ``counts`` is [..., 4], the result [...]."""
    return (f1(counts) + f1_negative(counts)) / 2


def best_flag_threshold(scores: Sequence[float], good: Sequence[bool]) -> float:
    """The threshold with the highest PRMScore if steps with a higher score are kept; both are [steps].

    Cuts lie midway between neighbouring distinct scores; the lowest of equally good ones wins.
    O(steps log steps). Raises ``LabelError`` if lengths differ or a class (valid, wrong) is absent: the score
    is then undefined or 0 at every cut.
    """
    if len(scores) != len(good):
        raise LabelError(f"'scores' has {len(scores)} steps and 'good' has {len(good)}")
    valid = np.array(good, dtype=bool)
    if not valid.any() or valid.all():
        raise LabelError("a threshold needs both valid and wrong steps")
    distinct, position = np.unique(np.array(scores, dtype=float), return_inverse=True)
    # cut j flags the j lowest distinct scores
    flagged_good = np.r_[0, np.bincount(position[valid], minlength=len(distinct)).cumsum()]
    flagged_bad = np.r_[0, np.bincount(position[~valid], minlength=len(distinct)).cumsum()]
    counts = np.empty((len(distinct) + 1, 4))
    counts[:, TP], counts[:, FN] = valid.sum() - flagged_good, flagged_good
    counts[:, FP], counts[:, TN] = (~valid).sum() - flagged_bad, flagged_bad
    score = prm_score(counts)
    cut = int(np.flatnonzero(score >= np.nanmax(score) - 1e-12)[0])
    # kept scores lie above the threshold, so negated ones lie below it
    return -threshold_above(-distinct[::-1], len(distinct) - cut)


def _ratio(hits: FloatArray, misses: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
        result: FloatArray = 2 * hits / (2 * hits + misses)
    return result


def _prm_scores(totals: FloatArray) -> list[FloatArray]:
    counts = totals[:, 0]
    return [prm_score(counts), f1(counts), f1_negative(counts)]


_CELLS = {"tp": TP, "fp": FP, "fn": FN, "tn": TN}
_FLAGS = Ratios(names=("score", "f1", "f1_negative"), of=_prm_scores, totals=_CELLS)
_F1_FLAGS = Ratios(names=_FLAGS.names, of=lambda t: [f1(t[:, 0]), *_prm_scores(t)[1:]], totals=_CELLS)


def _of_groups(totals: FloatArray) -> list[FloatArray]:
    """Of counts [n, 1, blocks x 4]: the mean score of each group's classes."""
    counts = totals[:, 0].reshape(len(totals), -1, 4)
    score = prm_score(counts)
    score[:, _BLOCKS.index(F1_ALONE)] = f1(counts[:, _BLOCKS.index(F1_ALONE)])
    return [score[:, [_BLOCKS.index(kind) for kind in group]].mean(axis=1) for group in GROUPS.values()]


def _accuracies(totals: FloatArray) -> list[FloatArray]:
    """Of the total's counts, first errors flagged, and first errors."""
    tp, fp, fn, tn, flagged, firsts = np.moveaxis(totals[:, 0], -1, 0)
    return [(tp + tn) / (tp + fp + fn + tn), tp / (tp + fn), tn / (tn + fp), flagged / firsts]


_GROUPS = Ratios(names=tuple(GROUPS), of=_of_groups)
_ACCURACY = Ratios(names=("accuracy", "accuracy_good", "accuracy_bad", "first_error"), of=_accuracies)


def _flags(cases: Sequence[BenchmarkCase], verdicts: Sequence[FloatArray], bootstrap: Bootstrap) -> Measured:
    """All figures of one system's verdicts [traces][steps]: 1 kept, 0 flagged, NaN without a verdict."""
    tested = list(zip(cases, verdicts, strict=True))
    blocks, firsts = np.zeros((len(tested), len(_BLOCKS), 4)), np.zeros((len(tested), 2))
    for row, first_row, (case, verdict) in zip(blocks, firsts, tested, strict=True):
        for step in np.flatnonzero(~np.isnan(verdict)).tolist():
            cell = (TP if case.good[step] else FP) if verdict[step] else (FN if case.good[step] else TN)
            row[[_BLOCKS.index(name) for name in ("", case.subset)], cell] += 1
        if (first := case.label) >= 0 and not np.isnan(verdict[first]):
            first_row[:] = not verdict[first], 1
    problems = [case.problem for case, _ in tested]

    def of(name: str) -> Measured:
        rates = _F1_FLAGS if name == F1_ALONE else _FLAGS
        return rates.row(bootstrap, blocks[:, _BLOCKS.index(name)], problems)

    unparsed = sum(bool(np.isnan(verdict).all()) for _, verdict in tested)
    return Measured(
        total=of(""),
        classes={kind: of(kind) for kind in _KINDS},
        groups=_GROUPS.row(bootstrap, blocks.reshape(len(tested), -1), problems),
        **_ACCURACY.row(bootstrap, np.concatenate([blocks[:, 0], firsts], axis=1), problems),
        parsed=1 - unparsed / len(tested),
        unparsed=unparsed,
        unjudged_steps=sum(int(np.isnan(verdict).sum()) for _, verdict in tested),
    )


def prmbench_cases(items: Iterable[LabelledTrace]) -> list[BenchmarkCase]:
    """Cases from what ``read_prmbench`` gives, without repeated rows.

    Raises ``LabelError`` for a trace without ``idx`` and a known class in its ``meta``, or with a step
    without a correctness label.
    """
    rule, cases = LabelRule(neutral="bad", good_above=None), dict[tuple[str, str], BenchmarkCase]()
    for item in items:
        trace = item.trace
        kind, problem = trace.meta.get("classification"), trace.meta.get("idx")
        if not isinstance(problem, str) or kind not in _KINDS:
            raise LabelError(
                f"trace {trace.id}: its 'meta' has class {kind!r} and idx {problem!r}; "
                "give PRMBench's own rows, with one of its classes"
            )
        case = _case(item, kind, problem, rule)
        if None in case.good:
            raise LabelError(f"trace {trace.id}: step {case.good.index(None) + 1} needs a correctness label")
        cases.setdefault((kind, problem), case)
    return list(cases.values())


def evaluate_prmbench(
    cases: Sequence[BenchmarkCase],
    systems: Sequence[System],
    *,
    rules: Sequence[str | float] = (0.5, SPLIT),
    missing: Missing = "leave-out",
    repeated: int = 0,
    draws: int = 1000,
    seed: int = 0,
) -> Measured:
    """Compare ``systems`` (aligned with the traces of the cases) with the truth under each rule.

    A trace without a record of some system is left out for every system, or, if ``missing`` is ``wrong``,
    stays without a verdict for this system. ``repeated`` rows of the data were left out.

    Raises ``LabelError`` for no cases or systems, and where a threshold cannot be fitted; ``ScoreError`` if
    no trace has a record of every system.
    """
    compared, bootstrap = _Compared(cases, systems, missing), Bootstrap(draws=draws, seed=seed)

    def fit(rows: Sequence[FloatArray], members: list[int]) -> float:
        values = np.concatenate([np.empty(0), *rows])
        good = np.array([step for at in members for step in compared.cases[at].good], dtype=bool)
        scored = ~np.isnan(values)
        return best_flag_threshold(values[scored].tolist(), good[scored].tolist())

    scores = []
    for system, rows, applied in compared.readings(rules, fit):
        cuts = applied.of_trace or (0.5,) * len(rows)
        verdicts = [np.where(np.isnan(row), np.nan, row > cut) for row, cut in zip(rows, cuts, strict=True)]
        scores.append(applied.score(system, flags=_flags(compared.cases, verdicts, bootstrap)))
    return Measured(
        traces=len(compared.cases),
        repeated=repeated,
        left_out=compared.left_out,
        classes=dict(Counter(compared.subsets)),
        systems=[system.summary() for system in systems],
        scores=scores,
    )


def blind_prm_score(flags: Measured) -> float:
    """The highest PRMScore of verdicts that do not depend on the step, over the share of steps kept."""
    valid, wrong = flags.tp + flags.fn, flags.fp + flags.tn
    share = np.linspace(0, 1, 1001)[:, None]
    counts = np.concatenate([valid * share, wrong * share, valid * (1 - share), wrong * (1 - share)], axis=1)
    return float(np.nanmax(prm_score(counts)))


def _prm_verdicts(score: Measured, traces: int) -> Iterator[Conclusion]:
    """PRMScore overall, and in the weakest group."""
    flags, total = score.flags, score.flags.total
    blind = blind_prm_score(total)
    counts = Counts(
        found=total.tn,
        wrong=total.tn + total.fp,
        alarms=total.fn,
        right=total.tp + total.fn,
        of=total.tp + total.fp + total.tn + total.fn + flags.unjudged_steps,
        what="wrong step",
        unit="step",
    )
    rival = "verdicts that do not read"
    text = f"(rule {score.rule}); verdicts that do not read the step reach {blind:.2f}."
    overall = f"is the PRMScore over all steps {text}"
    yield detected(counts, total.score, overall, traces, rival=rival, null=blind)
    groups = {name: group for name, group in flags.groups.items() if not math.isnan(group.value)}
    if groups:
        weakest = min(groups, key=lambda name: groups[name].value)
        text = f"is the PRMScore of {weakest}, its weakest group {text}"
        rival += f" on {weakest}"
        yield measured("single steps", groups[weakest], text, traces, "traces", null=blind, rival=rival)


def prmbench_section(result: Measured) -> Section:
    """PRMScore overall, by group and class."""
    order = ranked(result.scores, lambda score: score.flags.total.score.value)
    size = counted(result.traces, "trace")
    return Section(
        title="PRMBench",
        tested="wrong steps on public benchmarks",
        about=f"{size}; {result.left_out} left out because a source lacks them, "
        f"{result.repeated} as repeated rows. PRMScore is 0.5 F1 + 0.5 F1_neg over all steps: F1 of the "
        "valid steps and F1_neg of the wrong ones; a group's score is the mean of its classes. "
        "multi_solutions has valid steps only and is scored by F1 alone. Rule 'split': the threshold was "
        "fitted on the other half of the problems. Intervals are 95 %, by bootstrap over problems, with "
        "fixed thresholds.",
        results=result,
        verdicts={score.system: list(_prm_verdicts(score, result.traces)) for score in order},
        limits=[f"{size} of mathematics; {result.left_out} that a source lacks left out."],
    )
