"""Predicted against true first errors of traces, in all and in parts, with intervals over problems.

The metric is ProcessBench's (Zheng et al., arXiv 2412.06559): the share of erroneous traces whose first error
is found at its very step, the share of correct traces in which none is reported, and their harmonic mean F1.
Guards: a share of nothing is NaN, F1 is 0 where both shares are 0 and NaN where one is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.records import Trace
from surefoot.stats.bootstrap import bootstrap_totals
from surefoot.stats.intervals import Interval

FloatArray = NDArray[np.float64]

Predicted = Sequence[int | None]
"""0-based index of the first error of each trace, -1 = none, ``None`` = no prediction."""

_BINS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 9), (10, None))
"""Numbers, from and to, that are shown together."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One trace of the benchmark."""

    trace: Trace
    subset: str
    label: int
    """0-based index of the first error; -1 = none."""


@dataclass(frozen=True, kw_only=True)
class FirstErrors:
    """How well first errors were found in some traces; 95 % intervals over problems."""

    acc_error: Interval
    """Exact index, among erroneous traces."""
    acc_correct: Interval
    """None reported, among correct traces."""
    f1: Interval
    errors: int
    corrects: int
    early: int
    """Erroneous traces in which an earlier step is reported."""
    late: int
    missed: int
    """Erroneous traces in which none is reported."""
    unparsed: int
    """Traces without a prediction; they count as wrong."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the traces, over all subsets."""

    by: str
    value: str
    found: FirstErrors


class Board:
    """The traces, on which any number of predictions are held against the truth.

    All predictions get the same bootstrap draws of problems, so that differences are paired.
    """

    def __init__(self, cases: Sequence[Case], *, draws: int, seed: int) -> None:
        self._cases, self._draws, self._seed = cases, draws, seed
        self.subsets: Mapping[str, Sequence[int]] = _groups([case.subset for case in cases])
        """Indices of the traces of each subset."""
        self._parts = _parts(cases)

    def found(self, predicted: Predicted, members: Sequence[int]) -> FirstErrors:
        """Over the traces of these indices, which must not be none."""
        counts = [_by_problem(self._counts(predicted), self._problems(), members)]
        rng = np.random.default_rng(self._seed)
        intervals = bootstrap_totals(counts, _rates, draws=self._draws, rng=rng)
        wrong = [(self._cases[t].label, predicted[t]) for t in members if self._cases[t].label >= 0]
        return FirstErrors(
            acc_error=intervals[0],
            acc_correct=intervals[1],
            f1=intervals[2],
            errors=len(wrong),
            corrects=len(members) - len(wrong),
            early=sum(said is not None and 0 <= said < label for label, said in wrong),
            late=sum(said is not None and said > label for label, said in wrong),
            missed=sum(said == -1 for _, said in wrong),
            unparsed=sum(predicted[t] is None for t in members),
        )

    def parts(self, predicted: Predicted) -> tuple[Part, ...]:
        """By generator, place of the first error, length without one, and final answer."""
        return tuple(
            Part(by=by, value=value, found=self.found(predicted, members))
            for by, values in self._parts.items()
            for value, members in values.items()
        )

    def average_f1(self, predicted: Predicted) -> Interval:
        """Unweighted mean of the subsets' F1s."""
        return self._interval(self._counts(predicted), _average_f1)

    def difference(self, predicted: Predicted, other: Predicted) -> Interval:
        """Mean F1 of ``predicted`` less that of ``other``, paired by problem."""
        both = np.concatenate([self._counts(predicted), self._counts(other)], axis=1)
        return self._interval(both, lambda t: _average_f1(t[..., :4]) - _average_f1(t[..., 4:]))

    def _counts(self, predicted: Predicted) -> FloatArray:
        """Errors found, errors, correct traces left alone, correct traces: [traces, 4], ones and zeros."""
        labels = np.array([case.label for case in self._cases])
        said = np.array([-2 if index is None else index for index in predicted])
        wrong, right = labels >= 0, said == labels
        return np.stack([wrong & right, wrong, ~wrong & right, ~wrong], axis=1).astype(float)

    def _interval(self, counts: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> Interval:
        """Over all subsets, problems drawn within each."""
        strata = [_by_problem(counts, self._problems(), members) for members in self.subsets.values()]
        rng = np.random.default_rng(self._seed)
        return bootstrap_totals(strata, statistic, draws=self._draws, rng=rng)[0]

    def _problems(self) -> list[str]:
        return [case.trace.problem_id for case in self._cases]


def _by_problem(counts: FloatArray, problems: Sequence[str], members: Sequence[int]) -> FloatArray:
    """Sums over the traces of each problem: [problems, columns]."""
    index: dict[str, int] = {}
    rows = [index.setdefault(problems[t], len(index)) for t in members]
    sums = np.zeros((len(index), counts.shape[1]))
    np.add.at(sums, rows, counts[list(members)])
    return sums


def _rates(totals_ns4: FloatArray) -> FloatArray:
    """Accuracy on errors, on correct traces, and F1 of the first stratum: [n, 3]."""
    return np.stack([rate[:, 0] for rate in _f1(totals_ns4)], axis=1)


def _average_f1(totals_ns4: FloatArray) -> FloatArray:
    """[n, 1]."""
    average: FloatArray = _f1(totals_ns4)[2].mean(axis=1, keepdims=True)
    return average


def _f1(totals_ns4: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Both accuracies and F1, each [n, strata]."""
    hit_error, errors, hit_correct, corrects = np.moveaxis(totals_ns4, -1, 0)
    with np.errstate(invalid="ignore"):  # 0/0 is NaN here, and means it
        a, b = hit_error / errors, hit_correct / corrects
        return a, b, np.where(a + b == 0, 0.0, 2 * a * b / (a + b))


def _parts(cases: Sequence[Case]) -> dict[str, dict[str, list[int]]]:
    """Members of the parts; an empty part is left out."""
    errors = [t for t, case in enumerate(cases) if case.label >= 0]
    corrects = [t for t, case in enumerate(cases) if case.label < 0]
    answers = [(t, cases[t].trace.outcome) for t in errors]
    parts = {
        "generator": _groups([case.trace.policy or "unknown" for case in cases]),
        "first error at step": _binned(errors, [cases[t].label for t in errors]),
        "steps of a correct trace": _binned(corrects, [len(cases[t].trace.steps) for t in corrects]),
        "answer of an erroneous trace": {
            name: [t for t, outcome in answers if outcome is wanted]
            for name, wanted in (("right", True), ("wrong", False), ("unknown", None))
        },
    }
    return {by: {value: own for value, own in values.items() if own} for by, values in parts.items()}


def _binned(members: Sequence[int], numbers: Sequence[int]) -> dict[str, list[int]]:
    bins: dict[str, list[int]] = {}
    for low, high in _BINS:
        name = f"{low}+" if high is None else f"{low}" if high == low else f"{low}-{high}"
        top = math.inf if high is None else high
        bins[name] = [t for t, number in zip(members, numbers, strict=True) if low <= number <= top]
    return bins


def _groups(keys: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return groups
