"""The meaning of step labels: good or bad, neutral ratings, and the first error.

Published code treats neutral ratings (PRM800K's 0) in different ways, so every caller names its rule. A list
with one entry per step holds ``True`` for a good step, ``False`` for a bad one and ``None`` if unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from surefoot.records import StepLabel

Neutral = Literal["good", "bad", "drop"]
"""How to treat a correctness label of 0; ``drop`` makes it unknown."""

NO_ERROR: Final = -1
"""The index of the first error of a trace without errors, as in ProcessBench."""

AFTER_FIRST_ERROR: Final = "after the first error"
"""Reason of a label that is unknown because raters and rollouts stop at the first error."""

FEW: Final = 10
"""Values from which on it is hardly an accident that all are equal."""


@dataclass
class Information:
    """What the values of traces, labels or scores, have to teach."""

    steps: int = 0
    with_value: int = 0
    zeros: int = 0
    traces: int = 0
    """Traces with two values or more."""
    varied: int = 0
    """The subset whose values differ."""
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Sequence[float | None]) -> None:
        """Add the values of a trace's steps; ``None`` = unknown."""
        numbers = [value for value in values if value is not None]
        self.steps, self.with_value = self.steps + len(values), self.with_value + len(numbers)
        self.zeros += numbers.count(0)
        self.traces += len(numbers) > 1
        self.varied += len(set(numbers)) > 1
        self.low, self.high = min([self.low, *numbers]), max([self.high, *numbers])

    @property
    def is_flat(self) -> bool:
        """Whether all of several values are equal, so that they teach nothing."""
        return self.with_value >= FEW and self.low == self.high

    def __str__(self) -> str:
        share = f"a value on {self.with_value} of {self.steps} steps"
        return f"{share}; values differ within {self.varied} of {self.traces} traces"


@dataclass(frozen=True, kw_only=True)
class LabelRule:
    """Decides whether a label means that its step is good."""

    neutral: Neutral
    good_above: float | None = 0.0
    """A value label above this is good; 0 is Math-Shepherd's hard estimate (arXiv 2312.08935, equation 3).
    ``None``: a value label does not decide."""

    def good(self, label: StepLabel) -> bool | None:
        """Whether the step is good; ``None`` if unknown, for the reason that :meth:`why_unknown` gives.

        An advantage label never decides: a step that helped may still be incorrect.
        """
        if label.value is None or label.kind == "advantage":
            return None
        if label.kind == "value":
            return None if self.good_above is None else label.value > self.good_above
        if is_neutral(label):
            return {"good": True, "bad": False, "drop": None}[self.neutral]
        return label.value > 0

    def why_unknown(self, label: StepLabel) -> str:
        """The reason why :meth:`good` is ``None``, as one of a few texts; otherwise empty."""
        if label.value is None:
            return "label without a value"
        if self.good(label) is not None:
            return ""
        return "neutral" if label.kind == "correctness" else f"label of kind '{label.kind}'"


@dataclass(frozen=True, kw_only=True)
class BinaryLabel:
    """The combined labels of one step: good, bad, or ``None`` with the reason."""

    good: bool | None
    reason: str = ""


def binary_labels(labels: Iterable[StepLabel], steps: int, rule: LabelRule) -> list[BinaryLabel]:
    """One binary label for each of a trace's ``steps``.

    If ``rule`` decides some labels of a step, these must agree, and the others are ignored. Labels of steps
    that the trace does not have are ignored, too.
    """
    by_step: list[list[BinaryLabel]] = [[] for _ in range(steps)]
    for label in labels:
        if label.step < steps:
            by_step[label.step].append(BinaryLabel(good=rule.good(label), reason=rule.why_unknown(label)))
    return [_agreed(row) for row in by_step]


def is_neutral(label: StepLabel) -> bool:
    """Whether a rater called the step neither correct nor wrong."""
    return label.kind == "correctness" and label.value == 0


def improves(label: StepLabel) -> bool | None:
    """Whether the step raised the chance of success; ``None`` if the label is not an advantage."""
    return None if label.kind != "advantage" or label.value is None else label.value > 0


def as_target(label: StepLabel, *, neutral: float | None, hard: bool = False) -> float | None:
    """The label as a number in [0, 1], as a training target or a score; ``None`` without a value.

    Correctness +1 becomes 1, -1 becomes 0 and 0 becomes ``neutral``. A value stays as it is, or with ``hard``
    becomes 1[value > 0]. An advantage A becomes (1 + A) / 2, so that ½ means no change.
    """
    if label.value is None:
        return None
    if is_neutral(label):
        return neutral
    if label.kind == "advantage":
        return (1 + label.value) / 2
    return float(label.value > 0) if hard or label.kind == "correctness" else label.value


def target_is_good(target: float, *, neutral: Literal["good", "bad"] = "good") -> bool:
    """Whether a target of :func:`as_target` means a good step; ``neutral`` decides at ½."""
    return target >= 0.5 if neutral == "good" else target > 0.5


def first_error(good: Sequence[bool | None]) -> int | None:
    """Index of the first bad step; ``NO_ERROR`` if all are good; ``None`` if an unknown step hides it."""
    for step, value in enumerate(good):
        if value is None:
            return None
        if not value:
            return step
    return NO_ERROR


def all_good(good: Sequence[bool | None]) -> bool | None:
    """Whether every step is good; ``None`` if none is bad but one is unknown, and without steps."""
    if False in good:
        return False
    return None if None in good or not good else True


def up_to_first_error(error: int, steps: int) -> list[float | None]:
    """Correctness of each of ``steps`` steps: +1 before the first ``error``, -1 there, unknown after it."""
    if error == NO_ERROR:
        return [1.0] * steps
    return [1.0] * error + [-1.0] + [None] * (steps - error - 1)


def _agreed(labels: Sequence[BinaryLabel]) -> BinaryLabel:
    decided = {label.good for label in labels if label.good is not None}
    if len(decided) == 1:
        return BinaryLabel(good=decided.pop())
    if decided:
        return BinaryLabel(good=None, reason="labels disagree")
    return labels[0] if labels else BinaryLabel(good=None, reason="no label")
