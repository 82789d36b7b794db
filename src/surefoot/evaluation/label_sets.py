"""Labels of one source laid beside the steps of traces: which are good or bad, what is missing, what it cost.

Labels are appended, never overwritten, so a step may have several from one source. The last one in the file
that can be read as good or bad counts; the others are counted as superseded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from surefoot.errors import LabelError
from surefoot.labels import LabelRule
from surefoot.records import StepLabel, Trace, Usage


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """Every label of a source, and every step of the traces, accounted for."""

    labels: int
    unknown_traces: int
    """Labels whose trace is not among the traces; like all of the next four they are not used."""
    unknown_steps: int
    """Labels of a step that the trace does not have."""
    superseded: int
    """Labels of a step that has another one which counts."""
    unread: Mapping[str, int]
    """Labels that are neither good nor bad, by reason: unknown ones by their own, advantage, neutral."""
    used: int
    """Labels that count: at most one per step."""
    kinds: Mapping[str, int]
    """Kinds of the labels of known steps."""
    sources: Mapping[str, int]
    """What the labels themselves call their source."""
    steps: int
    """Steps of the traces."""
    steps_without_label: int
    """Steps without any label, not even an unknown one."""
    traces: int
    traces_without_label: int


@dataclass(frozen=True, kw_only=True)
class LabelCost:
    """What the labels of known traces cost, superseded and unknown ones included; NaN per nothing."""

    policy_tokens: int
    """Read and written by the policy, prompts included."""
    verifier_tokens: int
    """Through a judge or reward model."""
    calls: int
    policy_tokens_per_label: float
    """Over the labels that count."""
    verifier_tokens_per_label: float
    policy_tokens_per_trace: float
    """Over the traces with a label."""


@dataclass(frozen=True, kw_only=True)
class LabelSet:
    """Labels of one source for some traces; lists are [traces][steps], ``None`` where nothing is known."""

    name: str
    labels: list[list[StepLabel | None]]
    """The label that counts."""
    good: list[list[bool | None]]
    counts: LabelCounts
    cost: LabelCost


def label_set(
    name: str, labels: Sequence[StepLabel], traces: Sequence[Trace], reading: LabelRule | None = None
) -> LabelSet:
    """Lay ``labels`` beside the steps of ``traces``, whose ids must differ.

    Raises ``LabelError`` if not one label belongs to a step of the traces.
    """
    rule = reading or LabelRule(neutral="good")
    of_step: dict[tuple[str, int], list[StepLabel]] = {}
    for label in labels:
        of_step.setdefault((label.trace_id, label.step), []).append(label)
    rows = [[of_step.pop((t.id, step), []) for step in range(len(t.steps))] for t in traces]
    known = [label for row in rows for found in row for label in found]
    if not known:
        raise LabelError(
            f"{name}: none of its {len(labels)} labels belongs to a step of the traces, "
            f"by 'trace_id'{f' (first {labels[0].trace_id})' if labels else ''}; "
            "give the traces that were labelled"
        )
    readable = [[[x for x in found if rule.good(x) is not None] for found in row] for row in rows]
    chosen = [[found[-1] if found else None for found in row] for row in readable]
    used = sum(label is not None for row in chosen for label in row)
    ids = {trace.id for trace in traces}
    orphans = sum(len(found) for (trace, _), found in of_step.items() if trace not in ids)
    unread = Counter(_why_unread(label, rule) for label in known if rule.good(label) is None)
    counts = LabelCounts(
        labels=len(labels),
        unknown_traces=orphans,
        unknown_steps=sum(map(len, of_step.values())) - orphans,
        superseded=len(known) - unread.total() - used,
        unread=dict(unread.most_common()),
        used=used,
        kinds=dict(Counter(label.kind for label in known)),
        sources=dict(Counter(label.source for label in known)),
        steps=sum(map(len, rows)),
        steps_without_label=sum(not found for row in rows for found in row),
        traces=len(traces),
        traces_without_label=sum(not any(row) for row in rows),
    )
    return LabelSet(
        name=name,
        labels=chosen,
        good=[[None if label is None else rule.good(label) for label in row] for row in chosen],
        counts=counts,
        cost=_cost(known, used, counts.traces - counts.traces_without_label),
    )


def by_rater(name: str, labels: Sequence[StepLabel]) -> dict[str, list[StepLabel]]:
    """Split the labels of one source by who gave them, as ``name/rater`` (``evidence.rater``).

    Raises ``LabelError`` if a label names no rater.
    """
    split: dict[str, list[StepLabel]] = {}
    for label in labels:
        if label.evidence.rater is None:
            raise LabelError(
                f"{name}: the label of step {label.step} of trace {label.trace_id} has no 'evidence.rater'; "
                "it cannot be split by rater"
            )
        split.setdefault(f"{name}/{label.evidence.rater}", []).append(label)
    return split


def _why_unread(label: StepLabel, rule: LabelRule) -> str:
    return label.reason or "" if label.value is None else rule.why_unknown(label)


def _cost(labels: Sequence[StepLabel], used: int, traces: int) -> LabelCost:
    usage = sum((label.evidence.usage for label in labels), Usage())
    policy = usage.prompt_tokens + usage.completion_tokens
    return LabelCost(
        policy_tokens=policy,
        verifier_tokens=usage.verifier_tokens,
        calls=usage.calls,
        policy_tokens_per_label=policy / used if used else math.nan,
        verifier_tokens_per_label=usage.verifier_tokens / used if used else math.nan,
        policy_tokens_per_trace=policy / traces if traces else math.nan,
    )
