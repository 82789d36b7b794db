"""Labels as the two signs that most file formats know, and a count of what they cannot express."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from surefoot.protocols import LabelledTrace
from surefoot.records import StepLabel

Neutral = Literal["positive", "negative", "drop"]
"""What becomes of a neutral (0) label where a format has two signs; published readers disagree."""


@dataclass(kw_only=True)
class WriteReport:
    """What a writer wrote and what the format had no place for."""

    written: int = 0
    """Rows in the file."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Count for each reason; the reason says whether it counts traces, steps or labels."""

    def summary(self) -> str:
        """One sentence: ``12 rows written; dropped: 3 steps: neutral, 1 traces: chat trace``."""
        lost = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.written} rows written; dropped: {lost or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class Sign:
    """One step's sign, or ``None`` with the reason."""

    positive: bool | None
    reason: str = ""


def step_signs(item: LabelledTrace, *, neutral: Neutral, threshold: float | None) -> list[Sign]:
    """One sign a step of ``item``'s trace.

    Labels of a step that have no sign (unknown, dropped neutral, advantage, and value labels when
    ``threshold`` is ``None``) are passed over if others have one; those left must agree. A value label is
    positive if it lies above ``threshold``; 0 is the hard estimate of Math-Shepherd (arXiv 2312.08935).
    """
    by_step: list[list[Sign]] = [[] for _ in item.trace.steps]
    for label in item.labels:
        if label.step < len(by_step):
            by_step[label.step].append(_sign(label, neutral, threshold))
    return [_agreed(signs) for signs in by_step]


def _sign(label: StepLabel, neutral: Neutral, threshold: float | None) -> Sign:
    if label.value is None:
        return Sign(positive=None, reason="label without a value")
    if label.kind == "value" and threshold is not None:
        return Sign(positive=label.value > threshold)
    if label.kind != "correctness":
        return Sign(positive=None, reason=f"label of kind '{label.kind}'")
    if label.value == 0.0:
        if neutral == "drop":
            return Sign(positive=None, reason="neutral")
        return Sign(positive=neutral == "positive")
    return Sign(positive=label.value > 0)


def _agreed(signs: list[Sign]) -> Sign:
    known = {sign.positive for sign in signs if sign.positive is not None}
    if len(known) == 1:
        return Sign(positive=known.pop())
    if known:
        return Sign(positive=None, reason="labels disagree")
    return signs[0] if signs else Sign(positive=None, reason="no label")
