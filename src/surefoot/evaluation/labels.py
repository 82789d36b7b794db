"""How far labels from a labeller agree with the truth, step by step and at the first error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.errors import LabelError
from surefoot.labels import first_error

LabelLists = Sequence[Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Steps counted by what was said of them and what is true; the positive class is the *bad* step."""

    tp: int = 0
    """Called bad and bad."""
    fp: int = 0
    """Called bad but good."""
    fn: int = 0
    """Called good but bad."""
    tn: int = 0
    """Called good and good."""

    @property
    def steps(self) -> int:
        return self.tp + self.fp + self.fn + self.tn

    @property
    def precision(self) -> float:
        """Among steps called bad, the share that are bad; as all shares here NaN for 0/0."""
        return _share(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        """Among bad steps, the share called bad."""
        return _share(self.tp, self.tp + self.fn)

    @property
    def f1(self) -> float:
        return _share(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def accuracy(self) -> float:
        return _share(self.tp + self.tn, self.steps)

    @property
    def of_good(self) -> Confusion:
        """The same steps with the good step as the positive class."""
        return Confusion(tp=self.tn, fp=self.fn, fn=self.fp, tn=self.tp)

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(
            tp=self.tp + other.tp, fp=self.fp + other.fp, fn=self.fn + other.fn, tn=self.tn + other.tn
        )


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
    counts = sum((confusion(c, f) for c, f in zip(claims, facts, strict=True)), Confusion())
    pairs = [(first_error(c), first_error(f)) for c, f in zip(claims, facts, strict=True)]
    known = [(c, f) for c, f in pairs if c is not None and f is not None]
    return LabelNoise(
        precision_error=counts.precision,
        recall_error=counts.recall,
        f1_error=counts.f1,
        precision_good=counts.of_good.precision,
        recall_good=counts.of_good.recall,
        f1_good=counts.of_good.f1,
        accuracy=counts.accuracy,
        first_error_accuracy=_share(sum(c == f for c, f in known), len(known)),
        steps=counts.steps,
        dropped=sum(len(labels) for labels in truth) - counts.steps,
        traces=len(known),
        dropped_traces=len(pairs) - len(known),
    )


def confusion(claims: Sequence[bool | None], facts: Sequence[bool | None]) -> Confusion:
    """Count steps that are known on both sides; both have shape [steps], True is good, ``None`` unknown."""
    counts = [0, 0, 0, 0]  # 2 * claimed good + truly good
    for said, meant in zip(claims, facts, strict=True):
        if said is not None and meant is not None:
            counts[2 * said + meant] += 1
    return Confusion(tp=counts[0], fp=counts[1], fn=counts[2], tn=counts[3])


def _good(labels: Sequence[float | None], above: float) -> list[bool | None]:
    return [None if value is None or math.isnan(value) else value > above for value in labels]


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
