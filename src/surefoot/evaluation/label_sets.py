"""Labels of one source laid beside the steps of traces: which are good or bad, what is missing, what it cost.

Labels are appended, never overwritten, so a step may have several from one source. The last one in the file
that can be read as good or bad counts; the others are counted as superseded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import LabelError
from surefoot.evaluation.step_layout import (
    BAD,
    GOOD,
    UNLABELLED,
    UNREAD,
    BoolArray,
    CodeArray,
    FloatArray,
    StepLayout,
    StepRows,
    good_rows,
)
from surefoot.labels import LabelRule
from surefoot.records import StepLabel, Trace


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


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelSet:
    """Labels of one source for some traces, 10 bytes a step (26 where labels have intervals).

    Arrays are [steps] of all traces, of the label that counts.
    """

    name: str
    layout: StepLayout
    codes: CodeArray
    """Good, bad, unknown or unlabelled (:mod:`surefoot.evaluation.step_layout`)."""
    values: FloatArray
    """The label's own number; NaN where none counts."""
    is_value: BoolArray
    """Whether the label is of kind ``value``; it is of kind ``correctness`` where not."""
    intervals: FloatArray | None
    """[steps, 2]: bounds of ``evidence.interval``, or NaN; ``None`` if no label has any."""
    mentioned: BoolArray
    """[traces]: whether any label is of the trace, be it of a step that the trace does not have."""
    counts: LabelCounts
    cost: LabelCost

    @property
    def good(self) -> StepRows[bool]:
        """Lists [traces][steps]; ``None`` where nothing is known."""
        return good_rows(self.codes, self.layout)


def label_set(
    name: str, labels: Iterable[StepLabel], traces: Sequence[Trace], reading: LabelRule | None = None
) -> LabelSet:
    """Lay ``labels`` beside the steps of ``traces``, whose ids must differ.

    Labels are read one after another, and not kept. Raises ``LabelError`` if not one belongs to a step of
    the traces.
    """
    [found] = label_sets(name, labels, StepLayout.of(traces), lambda _: reading)
    return found


def label_sets(
    name: str,
    labels: Iterable[StepLabel],
    layout: StepLayout,
    reading: Callable[[str], LabelRule | None],
    *,
    by_rater: bool = False,
) -> list[LabelSet]:
    """The labels of one source, or with ``by_rater`` of each of its raters, as ``name/rater``.

    ``reading`` gives the rule for each name. Raises ``LabelError`` as ``label_set``, and if a label names no
    rater (``evidence.rater``) where they are told apart.
    """
    made: dict[str, _LabelArrays] = {}
    for label in labels:
        own = _of_rater(name, label) if by_rater else name
        arrays = made.get(own)
        if arrays is None:
            arrays = made[own] = _LabelArrays(own, layout, reading(own) or LabelRule(neutral="good"), label)
        arrays.add(label)
    if not made:
        raise _nothing_known(name, 0, "")
    return [arrays.label_set() for arrays in made.values()]


class _LabelArrays:
    """What is known of the labels of one source so far."""

    def __init__(self, name: str, layout: StepLayout, rule: LabelRule, first: StepLabel) -> None:
        self._name, self._layout, self._rule, self._first = name, layout, rule, first.trace_id
        self._codes: CodeArray = np.full(layout.steps, UNLABELLED, dtype=np.int8)
        self._values = np.full(layout.steps, math.nan)
        self._is_value: BoolArray = np.zeros(layout.steps, dtype=bool)
        self._intervals: FloatArray | None = None
        self._mentioned: BoolArray = np.zeros(layout.traces, dtype=bool)
        self._labels = self._unknown_traces = self._unknown_steps = self._known = 0
        self._unread: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._usage = [0, 0, 0, 0]

    def add(self, label: StepLabel) -> None:
        self._labels += 1
        number = self._layout.numbers.get(label.trace_id)
        if number is None:
            self._unknown_traces += 1
            return
        self._mentioned[number] = True
        start, stop = self._layout.span(number)
        place = start + label.step
        if place >= stop:
            self._unknown_steps += 1
            return
        self._known += 1
        self._kinds[label.kind] += 1
        self._sources[label.source] += 1
        usage = label.evidence.usage
        self._usage[0] += usage.prompt_tokens
        self._usage[1] += usage.completion_tokens
        self._usage[2] += usage.verifier_tokens
        self._usage[3] += usage.calls
        good = self._rule.good(label)
        if good is None:
            self._unread[_why_unread(label, self._rule)] += 1
            if self._codes[place] == UNLABELLED:
                self._codes[place] = UNREAD
            return
        self._codes[place] = GOOD if good else BAD
        self._values[place] = label.value
        self._is_value[place] = label.kind == "value"
        bounds = label.evidence.interval
        if bounds is not None and self._intervals is None:
            self._intervals = np.full((self._layout.steps, 2), math.nan)
        if self._intervals is not None:
            self._intervals[place] = bounds or math.nan

    def label_set(self) -> LabelSet:
        """All of it. Raises ``LabelError`` if no label was of a known step."""
        if not self._known:
            raise _nothing_known(self._name, self._labels, self._first)
        used = int((self._codes >= 0).sum())
        labelled = self._codes != UNLABELLED
        number = np.searchsorted(self._layout.starts, np.flatnonzero(labelled), "right")
        traces = 1 + int(np.count_nonzero(np.diff(number)))
        counts = LabelCounts(
            labels=self._labels,
            unknown_traces=self._unknown_traces,
            unknown_steps=self._unknown_steps,
            superseded=self._known - self._unread.total() - used,
            unread=dict(self._unread.most_common()),
            used=used,
            kinds=dict(self._kinds),
            sources=dict(self._sources),
            steps=self._layout.steps,
            steps_without_label=int((~labelled).sum()),
            traces=self._layout.traces,
            traces_without_label=self._layout.traces - traces,
        )
        prompt_tokens, completion_tokens, verifier_tokens, calls = self._usage
        policy = prompt_tokens + completion_tokens
        return LabelSet(
            name=self._name,
            layout=self._layout,
            codes=self._codes,
            values=self._values,
            is_value=self._is_value,
            intervals=self._intervals,
            mentioned=self._mentioned,
            counts=counts,
            cost=LabelCost(
                policy_tokens=policy,
                verifier_tokens=verifier_tokens,
                calls=calls,
                policy_tokens_per_label=policy / used if used else math.nan,
                verifier_tokens_per_label=verifier_tokens / used if used else math.nan,
                policy_tokens_per_trace=policy / traces if traces else math.nan,
            ),
        )


def _of_rater(name: str, label: StepLabel) -> str:
    if label.evidence.rater is None:
        raise LabelError(
            f"{name}: the label of step {label.step} of trace {label.trace_id} has no 'evidence.rater'; "
            "it cannot be split by rater"
        )
    return f"{name}/{label.evidence.rater}"


def _nothing_known(name: str, labels: int, first: str) -> LabelError:
    return LabelError(
        f"{name}: none of its {labels} labels belongs to a step of the traces, by 'trace_id'"
        f"{f' (first {first})' if labels else ''}; give the traces that were labelled"
    )


def _why_unread(label: StepLabel, rule: LabelRule) -> str:
    return label.reason or "" if label.value is None else rule.why_unknown(label)
