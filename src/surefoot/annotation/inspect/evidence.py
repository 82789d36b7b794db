"""Labels of a trace from every source beside each other, and where each says that the first error is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from surefoot.annotation.database import Adjudication, StoredLabel
from surefoot.labels import LabelRule
from surefoot.records import StepLabel

DECIDED = "human:adjudicated"


def decided(found: Sequence[StoredLabel], decisions: Iterable[Adjudication], trace_id: str) -> dict[int, Any]:
    """What stands after a disagreement, by step; the latest decision counts."""
    by_label = {one.id: one.record.evidence.rater for one in found}
    return {
        one.step: {
            "value": one.value,
            "note": one.note,
            "created": one.created,
            "chosen_rater": by_label.get(one.label_id or 0),
        }
        for one in sorted(decisions, key=lambda one: one.id)
        if one.trace_id == trace_id
    }


def sources(found: Sequence[StoredLabel]) -> list[dict[str, Any]]:
    """One entry a source and rater, in order of name: its labels by step, and its first error."""
    groups: dict[tuple[str, str], list[StoredLabel]] = {}
    for one in found:
        groups.setdefault((one.record.source, one.record.evidence.rater or ""), []).append(one)
    return [
        {
            "source": source,
            "rater": rater or None,
            "first_error": first_error(one.record for one in group),
            "labels": [_shown(one) for one in sorted(group, key=lambda one: (one.record.step, one.id))],
        }
        for (source, rater), group in sorted(groups.items())
    ]


def first_error(labels: Iterable[StepLabel]) -> int | None:
    """The earliest step that a label calls wrong: correctness −1, or no success in any trial.

    The second is the hard estimate of Math-Shepherd (Wang et al., arXiv 2312.08935).
    """
    return min((label.step for label in labels if _wrong(label)), default=None)


def marked_error(found: Sequence[StoredLabel], decisions: dict[int, Any]) -> int | None:
    """The step to mark: the earliest that a correctness label calls wrong; a decision stands for its step."""
    steps = {
        one.record.step
        for one in found
        if one.record.kind == "correctness" and _wrong(one.record) and one.record.step not in decisions
    }
    steps |= {step for step, one in decisions.items() if one["value"] == -1}
    return min(steps, default=None)


def _wrong(label: StepLabel) -> bool:
    return LabelRule(neutral="good").good(label) is False


def _shown(one: StoredLabel) -> dict[str, Any]:
    record = one.record
    evidence = record.evidence
    return {
        "id": one.id,
        "step": record.step,
        "kind": record.kind,
        "value": record.value,
        "reason": record.reason,
        "successes": evidence.successes,
        "trials": evidence.trials,
        "interval": evidence.interval,
        "message": evidence.message,
        "created": record.created,
        "chosen_by": one.chosen_by,
        "milliseconds": one.milliseconds,
    }
