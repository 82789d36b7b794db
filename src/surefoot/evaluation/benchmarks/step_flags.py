"""PRMBench's metric (Song et al., arXiv 2501.03124): steps kept or flagged, against steps valid or wrong.

The positive class is the valid step: TP valid and kept, FN valid but flagged, FP wrong but kept, TN wrong and
flagged. PRMScore = 0.5 F1 + 0.5 F1_neg, where F1_neg is the F1 of the wrong steps. Guards: F1 = 2 TP /
(2 TP + FP + FN), which is 0 without a hit and NaN for 0/0 (no such step, and none said to be); the published
script has −1 for an undefined precision or recall, which can get into its F1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.protocols import LabelledTrace
from surefoot.stats.bootstrap import bootstrap_totals
from surefoot.stats.intervals import Interval

FloatArray = NDArray[np.float64]

TP, FP, FN, TN = range(4)
"""Columns of the counts."""


def count_flags(kept: Sequence[bool | None], good: Sequence[bool]) -> list[int]:
    """TP, FP, FN and TN of a trace's steps; both have shape [steps], a step of ``None`` is not counted.

    Raises ``LabelError`` if the lengths differ.
    """
    if len(kept) != len(good):
        raise LabelError(f"'kept' has {len(kept)} steps and 'good' has {len(good)}")
    counts = [0, 0, 0, 0]
    for said, true in zip(kept, good, strict=True):
        if said is not None:
            counts[(TP if true else FP) if said else (FN if true else TN)] += 1
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
    """The threshold with the highest PRMScore, a step being kept if its score is above it; [steps] both.

    Cuts lie midway between neighbouring distinct scores; among equals the lowest wins. O(steps log steps).
    Raises ``LabelError`` if lengths differ or a class (valid, wrong) is absent: the score is then undefined
    or 0 at every cut.
    """
    if len(scores) != len(good):
        raise LabelError(f"'scores' has {len(scores)} steps and 'good' has {len(good)}")
    valid = np.array(good, dtype=bool)
    if not valid.any() or valid.all():
        raise LabelError("a threshold needs both valid and wrong steps")
    distinct, place = np.unique(np.array(scores, dtype=float), return_inverse=True)
    # flagged at cut j: the j lowest distinct scores
    flagged_good = np.r_[0, np.bincount(place[valid], minlength=len(distinct)).cumsum()]
    flagged_bad = np.r_[0, np.bincount(place[~valid], minlength=len(distinct)).cumsum()]
    counts = np.empty((len(distinct) + 1, 4))
    counts[:, TP], counts[:, FN] = valid.sum() - flagged_good, flagged_good
    counts[:, FP], counts[:, TN] = (~valid).sum() - flagged_bad, flagged_bad
    found = prm_score(counts)
    cut = int(np.flatnonzero(found >= np.nanmax(found) - 1e-12)[0])
    if cut == 0:
        return math.nextafter(float(distinct[0]), -math.inf)
    if cut == len(distinct):
        return float(distinct[-1])
    below, above = float(distinct[cut - 1]), float(distinct[cut])
    middle = below / 2 + above / 2
    return middle if below <= middle < above else below


def _f1(hits: FloatArray, misses: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):  # 0/0 is NaN here, and means it
        result: FloatArray = 2 * hits / (2 * hits + misses)
    return result


Verdicts = Sequence[Sequence[bool | None]]
"""[traces][steps]: kept (True), flagged (False), no verdict."""

_BINS = ("0", "1", "2", "3", "4", "5-6", "7-9", "10+")
_BIN_OF_STEP = (0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7)
"""Bin of a step by its index; later ones are in the last."""


@dataclass(frozen=True, kw_only=True)
class PRMBenchCase:
    """One trace of the benchmark."""

    item: LabelledTrace
    kind: str
    """Its class."""
    problem: str
    """What is resampled: traces of one problem stand or fall together."""
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
    """Verdicts against the truth over all traces that are no controls."""

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
    script, a pair is left out if nothing of its control is kept."""
    pairs: int
    """Pairs with their control that the similarity is over."""
    parsed: float
    """Share of traces with at least one verdict."""
    unparsed: int
    unjudged_steps: int
    """Steps without verdict, unparsed traces' included; not counted."""


class StepFlagEvaluator:
    """The traces, on which any number of verdicts are held against the truth, with the same draws."""

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
        self.cases, self._draws, self._seed = cases, draws, seed
        self._groups, self._f1_alone, self._control = groups, f1_alone, control
        self._kinds = [kind for group in groups.values() for kind in group]
        self._tested = [t for t, case in enumerate(cases) if case.kind != control]
        self.classes: Mapping[str, int] = dict(Counter(cases[t].kind for t in self._tested))
        """Traces of each class."""

    def evaluate(self, verdicts: Verdicts) -> Flags:
        """Everything about one system's verdicts, one list a case."""
        rows = self._by_problem(verdicts)
        rng = np.random.default_rng(self._seed)
        found = bootstrap_totals([rows], self._statistics, draws=self._draws, rng=rng)
        totals = rows.sum(axis=0)[: 4 * self._blocks].reshape(-1, 4).astype(int)
        names = ["", *self._kinds, *_BINS]
        blocks = {
            name: _class_flags(found[3 * block : 3 * block + 3], totals[block])
            for block, name in enumerate(names)
        }
        rest = found[3 * self._blocks :]
        similarity, pairs = self._similarity(verdicts)
        judged = [t for t in self._tested if any(said is not None for said in verdicts[t])]
        return Flags(
            total=blocks[""],
            classes={kind: blocks[kind] for kind in self._kinds},
            groups=dict(zip(self._groups, rest[4:], strict=True)),
            positions={name: blocks[name] for name in _BINS},
            accuracy=rest[0],
            accuracy_good=rest[1],
            accuracy_bad=rest[2],
            first_error=rest[3],
            similarity=similarity,
            pairs=pairs,
            parsed=len(judged) / len(self._tested),
            unparsed=len(self._tested) - len(judged),
            unjudged_steps=sum(said is None for t in self._tested for said in verdicts[t]),
        )

    @property
    def _blocks(self) -> int:
        """Blocks of four counts: the total, each class, each position."""
        return 1 + len(self._kinds) + len(_BINS)

    def _by_problem(self, verdicts: Verdicts) -> FloatArray:
        """Counts of each problem: the blocks, then first errors flagged and first errors."""
        index: dict[str, int] = {}
        places = [index.setdefault(self.cases[t].problem, len(index)) for t in self._tested]
        rows = np.zeros((len(index), 4 * self._blocks + 2))
        for place, t in zip(places, self._tested, strict=True):
            case, said = self.cases[t], verdicts[t]
            block = 1 + self._kinds.index(case.kind)
            counts = count_flags(said, case.good)
            rows[place, :4] += counts
            rows[place, 4 * block : 4 * block + 4] += counts
            for step in range(len(said)):
                block = 1 + len(self._kinds) + _BIN_OF_STEP[min(step, len(_BIN_OF_STEP) - 1)]
                rows[place, 4 * block : 4 * block + 4] += count_flags([said[step]], [case.good[step]])
            first = case.good.index(False) if False in case.good else None
            if first is not None and said[first] is not None:
                rows[place, -2:] += (not said[first], 1)
        return rows

    def _statistics(self, totals_n1c: FloatArray) -> FloatArray:
        """Score, F1 and F1_neg of each block, four accuracies, the groups' scores: [n, K]."""
        totals = totals_n1c[:, 0]
        counts = totals[:, : 4 * self._blocks].reshape(len(totals), self._blocks, 4)
        positive, negative, score = f1(counts), f1_negative(counts), prm_score(counts)
        alone = 1 + self._kinds.index(self._f1_alone)
        score[:, alone] = positive[:, alone]
        blocks = np.stack([score, positive, negative], axis=2).reshape(len(totals), -1)
        whole = counts[:, 0]
        good, bad = whole[:, TP] + whole[:, FN], whole[:, TN] + whole[:, FP]
        with np.errstate(invalid="ignore"):  # 0/0 is NaN here, and means it
            shares = [
                (whole[:, TP] + whole[:, TN]) / (good + bad),
                whole[:, TP] / good,
                whole[:, TN] / bad,
                totals[:, -2] / totals[:, -1],
            ]
        groups = [
            score[:, [1 + self._kinds.index(kind) for kind in group]].mean(axis=1)
            for group in self._groups.values()
        ]
        return np.concatenate([blocks, np.stack([*shares, *groups], axis=1)], axis=1)

    def _similarity(self, verdicts: Verdicts) -> tuple[float, int]:
        kept = {
            (case.kind, case.problem): _share(said) for case, said in zip(self.cases, verdicts, strict=True)
        }
        gaps = []
        for t in self._tested:
            own = kept[self.cases[t].kind, self.cases[t].problem]
            control = kept.get((self._control, self.cases[t].problem))
            if own is not None and control:
                gaps.append(abs(own - control))
        return (sum(gaps) / len(gaps) if gaps else math.nan), len(gaps)


def _class_flags(found: Sequence[Interval], counts: Sequence[int]) -> ClassFlags:
    score, positive, negative = found
    tp, fp, fn, tn = (int(count) for count in counts)
    return ClassFlags(score=score, f1=positive, f1_negative=negative, tp=tp, fp=fp, fn=fn, tn=tn)


def _share(said: Sequence[bool | None]) -> float | None:
    known = [value for value in said if value is not None]
    return sum(known) / len(known) if known else None
