"""Baselines for the steps of agent runs: predictions that do not read the run.

Some know a step's position only, others also whether the run failed, which a scorer that warns in time cannot
know. Baselines with a parameter fit it on the other half of the problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.evaluation.splits import HALVES, half_of
from surefoot.evaluation.step_layout import BAD, GOOD, UNREAD, BoolArray, FloatArray, StepLayout

SignArray = NDArray[np.int8]

MISSING = 2
"""In place of −1, 0 or +1: no prediction, or no label."""
FITTED = "fitted on the other half"
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Lengths of runs that a baseline tries: fixed, so that subsets do not change each other's baselines."""


def first_errors(signs: SignArray, layout: StepLayout) -> FloatArray:
    """[steps] → [runs]: the index of the first −1, −1 for none, NaN if a missing sign hides it."""
    codes = np.where(signs == MISSING, UNREAD, np.where(signs == -1, BAD, GOOD)).astype(np.int8)
    return layout.first_errors(codes)


@dataclass(frozen=True, kw_only=True)
class RunTruth:
    """The runs of a benchmark with their labels, in flat arrays."""

    layout: StepLayout
    signs: SignArray
    """[steps]: −1, 0, +1, or ``MISSING`` for a step without label."""
    subset: NDArray[np.intp]
    """[runs]: index of the run's subset."""
    failed: NDArray[np.int8]
    """[runs]: 1 failed, 0 succeeded, −1 not known."""

    def hits(self, predicted: SignArray) -> NDArray[np.int64]:
        """[runs, 4]: steps with the labelled sign, labelled steps, first error found, first errors known.

        A step without prediction is wrong; so is a first error that such a step hides.
        """
        labelled = self.signs != MISSING
        truth = first_errors(self.signs, self.layout)
        hit = first_errors(predicted, self.layout) == truth
        starts = self.layout.starts[:-1]
        columns = [
            np.add.reduceat((predicted == self.signs) & labelled, starts, dtype=np.int64),
            np.add.reduceat(labelled, starts, dtype=np.int64),
            hit.astype(np.int64),
            (~np.isnan(truth)).astype(np.int64),
        ]
        return np.stack(columns, axis=1)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Predictions of a rule that does not read the run."""

    name: str
    rule: str
    """How its parameter was chosen, if it has one."""
    uses_outcome: bool
    """Whether it knows if the run failed."""
    predicted: SignArray


@dataclass(frozen=True, kw_only=True)
class CrossFit:
    """The best predictions, chosen for each subset and half of the problems on the other half."""

    predicted: SignArray
    chosen: NDArray[np.intp]
    """[subsets, halves]: index of the option."""


def cross_fit(truth: RunTruth, options: Sequence[SignArray]) -> CrossFit | None:
    """Choose by the sum of both accuracies, the first of equals. ``None`` if a subset lacks one half."""
    halves = np.array([half_of(name) for name in truth.layout.problem_ids])[truth.layout.problem]
    subsets = int(truth.subset.max()) + 1
    chosen = np.zeros((subsets, HALVES), dtype=np.intp)
    hits = np.stack([truth.hits(option) for option in options])
    predicted = np.full(truth.layout.steps, MISSING, dtype=np.int8)
    for subset in range(subsets):
        for half in range(HALVES):
            fitted_on = (truth.subset == subset) & (halves != half)
            if not fitted_on.any():
                return None
            totals = hits[:, fitted_on].sum(axis=1)
            with np.errstate(invalid="ignore"):
                value = totals[:, 0] / totals[:, 1] + totals[:, 2] / totals[:, 3]
            best = int(np.nanargmax(value)) if not np.isnan(value).all() else 0
            chosen[subset, half] = best
            steps = truth.layout.of_step((truth.subset == subset) & (halves == half))
            predicted[steps] = options[best][steps]
    return CrossFit(predicted=predicted, chosen=chosen)


def baselines(truth: RunTruth) -> list[Baseline]:
    """All baselines; those with a parameter are left out if it cannot be fitted."""
    layout = truth.layout
    step, length = layout.step_numbers(), layout.of_step(layout.lengths)
    failed = layout.of_step(truth.failed == 1)
    last = step == length - 1
    starts = range(int(layout.lengths.max()) + 1)
    rules = [
        ("all good", False, [last & False]),
        ("last step wrong", False, [last]),
        ("wrong from step k on", False, [step >= k for k in starts]),
        (
            "wrong from step k on if longer than n",
            False,
            [(step >= k) & (length > n) for n in _LENGTHS for k in starts if k <= n],
        ),
        ("last step wrong iff the run failed", True, [last & failed]),
        ("wrong from step k on iff the run failed", True, [(step >= k) & failed for k in starts]),
    ]
    fitted = []
    for name, uses_outcome, wrong_steps in rules:
        options = [_signs(wrong) for wrong in wrong_steps]
        fit = cross_fit(truth, options) if len(options) > 1 else None
        if fit is not None or len(options) == 1:
            predicted = fit.predicted if fit else options[0]
            rule = FITTED if fit else "fixed"
            fitted.append(Baseline(name=name, rule=rule, uses_outcome=uses_outcome, predicted=predicted))
    return fitted


def _signs(wrong: BoolArray) -> SignArray:
    return np.where(wrong, -1, 1).astype(np.int8)
