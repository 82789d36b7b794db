"""The labelling interface of a Label Studio project, and what its labels are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from surefoot.records import LabelKind, StepLabel

LABELLING_CONFIG: Final = """<View>
  <Header value="$problem"/>
  <Paragraphs name="steps" value="$steps" layout="dialogue" nameKey="author" textKey="text"
              granularity="paragraph"/>
  <ParagraphLabels name="label" toName="steps" choice="single">
    <Label value="correct" background="#0072b2" hotkey="1"/>
    <Label value="neutral" background="#999999" hotkey="2"/>
    <Label value="wrong" background="#d55e00" hotkey="3"/>
    <Label value="unknown" background="#f0e442" hotkey="4"/>
    <Label value="value" background="#56b4e9"/>
    <Label value="advantage" background="#cc79a7"/>
  </ParagraphLabels>
  <Number name="number" toName="steps" perRegion="true" min="-1" max="1" step="any"/>
</View>
"""
"""Labelling interface of a Label Studio project into which these tasks are imported."""

OURS = "surefoot"
"""Where a task's ``data`` and a region's ``meta`` keep what Label Studio has no field for."""

_VALUES: Mapping[str, float | None] = {
    **dict.fromkeys(("correct", "right", "good", "positive", "+", "+1", "1"), 1.0),
    **dict.fromkeys(("neutral", "0"), 0.0),
    **dict.fromkeys(("wrong", "incorrect", "error", "bad", "negative", "-", "-1"), -1.0),
    "unknown": None,
}
"""Meaning of a label's name, case apart; the first name of each value is the one written."""
_WRITTEN: Mapping[float | None, str] = {1.0: "correct", 0.0: "neutral", -1.0: "wrong", None: "unknown"}
_MEASURES = ("value", "advantage")
"""Labels whose number stands in a result of type ``number`` for the same region."""


def meaning(name: object, number: object) -> tuple[LabelKind, float | None] | None:
    """Kind and value of a label called ``name`` with ``number`` beside it; ``None`` = it means nothing."""
    key = name.strip().casefold() if isinstance(name, str) else ""
    if key in _VALUES:
        return "correctness", _VALUES[key]
    low = {"value": 0.0, "advantage": -1.0}.get(key)
    if low is None or not isinstance(number, int | float) or not low <= number <= 1:
        return None
    return cast("LabelKind", key), float(number)


def is_measured(label: StepLabel) -> bool:
    """Whether the value stands in a result of type ``number``, beside the label's name."""
    return label.kind in _MEASURES and label.value is not None


def name_of(label: StepLabel) -> str:
    """The name that :func:`meaning` reads as the label's kind and value."""
    return label.kind if is_measured(label) else _WRITTEN[label.value]
