"""PRMBench's metric (Song et al., arXiv 2501.03124): steps kept or flagged, against steps valid or wrong.

The positive class is the valid step: TP valid and kept, FN valid but flagged, FP wrong but kept, TN wrong and
flagged. PRMScore = 0.5 F1 + 0.5 F1_neg, where F1_neg is the F1 of the wrong steps. Guards: F1 = 2 TP /
(2 TP + FP + FN), which is 0 without a hit and NaN for 0/0 (no such step, and none predicted); the published
script uses −1 for an undefined precision or recall, which can enter its F1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.evaluation.splits import POSITIONS, position_of, threshold_above
from surefoot.protocols import LabelledTrace
from surefoot.stats.bootstrap import Bootstrap, group_sums
from surefoot.stats.intervals import Interval

FloatArray = NDArray[np.float64]

TP, FP, FN, TN = range(4)
"""Columns of the counts."""


def count_flags(kept: Sequence[bool | None], good: Sequence[bool]) -> list[int]:
    """TP, FP, FN and TN of a trace's steps; both have shape [steps], steps of ``None`` are not counted.

    Raises ``LabelError`` if the lengths differ.
    """
    if len(kept) != len(good):
        raise LabelError(f"'kept' has {len(kept)} steps and 'good' has {len(good)}")
    counts = [0, 0, 0, 0]
    for keep, valid in zip(kept, good, strict=True):
        if keep is not None:
            counts[(TP if valid else FP) if keep else (FN if valid else TN)] += 1
    return counts


def f1(counts: FloatArray) -> FloatArray:
    """F1 of the valid steps; ``counts`` is [..., 4], the result [...]."""
    return _f1(counts[..., TP], counts[..., FP] + counts[..., FN])


def f1_negative(counts: FloatArray) -> FloatArray:
    """F1 of the wrong steps; ``counts`` is [..., 4], the result [...]."""
    return _f1(counts[..., TN], counts[..., FP] + counts[..., FN])


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


def _f1(hits: FloatArray, misses: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
        result: FloatArray = 2 * hits / (2 * hits + misses)
    return result


Verdicts = Sequence[Sequence[bool | None]]
"""[traces][steps]: kept (True), flagged (False), no verdict."""


@dataclass(frozen=True, kw_only=True)
class PRMBenchCase:
    """One trace of the benchmark."""

    item: LabelledTrace
    kind: str
    """Its class."""
    problem: str
    """The resampled unit: traces of one problem are correlated."""
    good: tuple[bool, ...]
    """Whether each step is valid."""


@dataclass(frozen=True, kw_only=True)
class ClassFlags:
    """Steps of one class, or of one position over all classes; 95 % intervals over problems."""

    score: Interval
    """PRMScore; for the class without wrong steps, F1."""
    f1: Interval
    f1_negative: Interval
    tp: int
    """Valid and kept."""
    fp: int
    fn: int
    tn: int
    """Wrong and flagged."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Verdicts against the truth over all traces without the controls."""

    total: ClassFlags
    classes: Mapping[str, ClassFlags]
    groups: Mapping[str, Interval]
    """Mean of the scores of the group's classes; NaN if one of them is."""
    positions: Mapping[str, ClassFlags]
    """By index of the step."""
    accuracy: Interval
    """Of all steps."""
    accuracy_good: Interval
    """Of valid steps."""
    accuracy_bad: Interval
    """Of wrong steps."""
    first_error: Interval
    """Share of traces with a wrong step whose first one is flagged."""
    similarity: float
    """Mean |share of steps kept - share kept of the control|, over traces with a control. As in the published
    script, a pair is left out if no step of its control is kept."""
    pairs: int
    """Pairs of trace and control in the similarity."""
    parsed: float
    """Share of traces with at least one verdict."""
    unparsed: int
    unjudged_steps: int
    """Steps without verdict, unparsed traces' included; not counted."""


class StepFlagEvaluator:
    """Compares any number of verdicts with the truth of the same traces, with the same bootstrap samples."""

    def __init__(
        self,
        cases: Sequence[PRMBenchCase],
        *,
        draws: int,
        seed: int,
        groups: Mapping[str, Mapping[str, str]],
        f1_alone: str,
        control: str,
    ) -> None:
        self.cases, self._bootstrap = cases, Bootstrap(draws=draws, seed=seed)
        self._groups, self._f1_alone, self._control = groups, f1_alone, control
        self._kinds = [kind for group in groups.values() for kind in group]
        self._blocks = ["", *self._kinds, *POSITIONS]
        """Blocks of four counts: the total, each class, each position."""
        self._tested = [t for t, case in enumerate(cases) if case.kind != control]
        self.classes: Mapping[str, int] = dict(Counter(cases[t].kind for t in self._tested))
        """Traces of each class."""

    def evaluate(self, verdicts: Verdicts) -> Flags:
        """All measures of one system's verdicts, one list per case."""
        rows = self._by_problem(verdicts)
        intervals = self._bootstrap.totals([rows], self._statistics)
        totals = rows.sum(axis=0)[:-2].reshape(-1, 4).astype(int).tolist()
        blocks = {}
        for at, (name, (tp, fp, fn, tn)) in enumerate(zip(self._blocks, totals, strict=True)):
            score, positive, negative = intervals[3 * at : 3 * at + 3]
            blocks[name] = ClassFlags(
                score=score, f1=positive, f1_negative=negative, tp=tp, fp=fp, fn=fn, tn=tn
            )
        accuracy, accuracy_good, accuracy_bad, first_error, *groups = intervals[3 * len(self._blocks) :]
        similarity, pairs = self._similarity(verdicts)
        judged = sum(any(keep is not None for keep in verdicts[t]) for t in self._tested)
        return Flags(
            total=blocks[""],
            classes={kind: blocks[kind] for kind in self._kinds},
            groups=dict(zip(self._groups, groups, strict=True)),
            positions={name: blocks[name] for name in POSITIONS},
            accuracy=accuracy,
            accuracy_good=accuracy_good,
            accuracy_bad=accuracy_bad,
            first_error=first_error,
            similarity=similarity,
            pairs=pairs,
            parsed=judged / len(self._tested),
            unparsed=len(self._tested) - judged,
            unjudged_steps=sum(keep is None for t in self._tested for keep in verdicts[t]),
        )

    def _by_problem(self, verdicts: Verdicts) -> FloatArray:
        """Counts of each problem: the blocks, then first errors flagged and first errors."""
        rows = np.zeros((len(self._tested), 4 * len(self._blocks) + 2))
        for row, t in zip(rows, self._tested, strict=True):
            case, verdict = self.cases[t], verdicts[t]
            blocks = row[:-2].reshape(-1, 4)
            for step, (keep, good) in enumerate(zip(verdict, case.good, strict=True)):
                names = ("", case.kind, position_of(step))
                blocks[[self._blocks.index(name) for name in names]] += count_flags([keep], [good])
            first = case.good.index(False) if False in case.good else None
            if first is not None and verdict[first] is not None:
                row[-2:] = (not verdict[first], 1)
        return group_sums(rows, [self.cases[t].problem for t in self._tested])

    def _statistics(self, totals_n1c: FloatArray) -> FloatArray:
        """Score, F1 and F1_neg of each block, four accuracies, the groups' scores: [n, K]."""
        totals = totals_n1c[:, 0]
        counts = totals[:, :-2].reshape(len(totals), -1, 4)
        positive, negative, score = f1(counts), f1_negative(counts), prm_score(counts)
        alone = self._blocks.index(self._f1_alone)
        score[:, alone] = positive[:, alone]
        blocks = np.stack([score, positive, negative], axis=2).reshape(len(totals), -1)
        total = counts[:, 0]
        good, bad = total[:, TP] + total[:, FN], total[:, TN] + total[:, FP]
        with np.errstate(invalid="ignore"):  # 0/0 is undefined, so NaN is intended
            shares = [
                (total[:, TP] + total[:, TN]) / (good + bad),
                total[:, TP] / good,
                total[:, TN] / bad,
                totals[:, -2] / totals[:, -1],
            ]
        groups = [
            score[:, [self._blocks.index(kind) for kind in group]].mean(axis=1)
            for group in self._groups.values()
        ]
        return np.concatenate([blocks, np.stack([*shares, *groups], axis=1)], axis=1)

    def _similarity(self, verdicts: Verdicts) -> tuple[float, int]:
        shares = {}
        for case, verdict in zip(self.cases, verdicts, strict=True):
            judged = [keep for keep in verdict if keep is not None]
            shares[case.kind, case.problem] = sum(judged) / len(judged) if judged else None
        gaps = []
        for t in self._tested:
            share = shares[self.cases[t].kind, self.cases[t].problem]
            control = shares.get((self._control, self.cases[t].problem))
            if share is not None and control:
                gaps.append(abs(share - control))
        return (sum(gaps) / len(gaps) if gaps else math.nan), len(gaps)
