"""How far labels from a labeller agree with the truth, step by step and at the first error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import LabelError

LabelLists = Sequence[Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class LabelNoise:
    """Agreement of predicted with true labels; fractions in [0, 1], NaN where undefined (0/0)."""

    precision_error: float
    """Among steps called bad, the share that are bad."""
    recall_error: float
    """Among bad steps, the share called bad."""
    f1_error: float
    precision_good: float
    """Among steps called good, the share that are good."""
    recall_good: float
    f1_good: float
    accuracy: float
    first_error_accuracy: float
    """Share of ``traces`` with the same first bad step in both, "none" being equal to "none"."""
    steps: int
    """Steps labelled on both sides; all but ``first_error_accuracy`` are over these."""
    dropped: int
    """Steps without a label on one side or both."""
    traces: int
    """Traces whose first bad step is known on both sides."""
    dropped_traces: int
    """Traces where it is not: a step before it (or, if no step is bad, any step) has no label."""


def label_noise(
    predicted: LabelLists,
    truth: LabelLists,
    *,
    predicted_good_above: float = 0.0,
    truth_good_above: float = 0.0,
) -> LabelNoise:
    """Compare two sets of labels of the same steps: one list a trace, one value a step.

    A step is good if its value is above the cut, bad otherwise; ``None`` or NaN is unknown. The cut at 0
    reads -1/+1 and 0/1 as they are meant, and a Monte Carlo value as Math-Shepherd's hard estimate (good if
    any completion got there). A neutral 0 of PRM800K counts as bad with it; with -0.5 it counts as good.
    Raises ``LabelError`` if the traces or the steps of one trace differ in number.
    """
    _check(predicted, truth)
    claims = [_good(labels, predicted_good_above) for labels in predicted]
    facts = [_good(labels, truth_good_above) for labels in truth]
    counts = np.zeros((2, 2), dtype=int)  # [claimed good, truly good]
    for claim, fact in zip(claims, facts, strict=True):
        for said, meant in zip(claim, fact, strict=True):
            if said is not None and meant is not None:
                counts[int(said), int(meant)] += 1
    pairs = [(_first_bad(c), _first_bad(f)) for c, f in zip(claims, facts, strict=True)]
    known = [(c, f) for c, f in pairs if c is not None and f is not None]
    steps = int(counts.sum())
    bad_bad, bad_good, good_bad, good_good = (int(count) for count in counts.ravel())
    return LabelNoise(
        precision_error=_share(bad_bad, bad_bad + bad_good),
        recall_error=_share(bad_bad, bad_bad + good_bad),
        f1_error=_share(2 * bad_bad, 2 * bad_bad + bad_good + good_bad),
        precision_good=_share(good_good, good_good + good_bad),
        recall_good=_share(good_good, good_good + bad_good),
        f1_good=_share(2 * good_good, 2 * good_good + bad_good + good_bad),
        accuracy=_share(bad_bad + good_good, steps),
        first_error_accuracy=_share(sum(c == f for c, f in known), len(known)),
        steps=steps,
        dropped=sum(len(labels) for labels in truth) - steps,
        traces=len(known),
        dropped_traces=len(pairs) - len(known),
    )


def _good(labels: Sequence[float | None], above: float) -> list[bool | None]:
    return [None if value is None or math.isnan(value) else value > above for value in labels]


def _first_bad(good: Sequence[bool | None]) -> int | None:
    """Index of the first bad step, -1 if all are good, ``None`` if an unknown step leaves it open."""
    for step, value in enumerate(good):
        if value is None:
            return None
        if not value:
            return step
    return -1


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _check(predicted: LabelLists, truth: LabelLists) -> None:
    if len(predicted) != len(truth):
        raise LabelError(f"'predicted' has {len(predicted)} traces and 'truth' has {len(truth)}")
    for trace, (claim, fact) in enumerate(zip(predicted, truth, strict=True)):
        if len(claim) != len(fact):
            raise LabelError(
                f"predicted[{trace}] has {len(claim)} steps and truth[{trace}] has {len(fact)}; "
                "give one value a step on both sides, None where there is no label"
            )
