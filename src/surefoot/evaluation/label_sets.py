"""Labels of one source, aligned with the steps of traces: good, bad and missing ones, and their cost.

Labels are appended, never overwritten, so a step may have several from one source. The last one in the file
that is good or bad by the label rule counts; the others are superseded.
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
    """Labels of other traces; like all of the next four they are not used."""
    unknown_steps: int
    """Labels of a step beyond the trace's last one."""
    superseded: int
    """Labels of a step for which another label counts."""
    unread: Mapping[str, int]
    """Labels that are neither good nor bad, by reason: the label's reason if unknown, advantage, neutral."""
    used: int
    """Labels that count: at most one per step."""
    kinds: Mapping[str, int]
    """Kinds of the labels of known steps."""
    sources: Mapping[str, int]
    """Sources as named in the labels."""
    steps: int
    """Steps of the traces."""
    steps_without_label: int
    """Steps without any label, known or unknown."""
    traces: int
    traces_without_label: int


@dataclass(frozen=True, kw_only=True)
class LabelCost:
    """Cost of the labels of known traces, including superseded and unknown labels; NaN for 0/0."""

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
    """Labels of one source, 10 bytes per step (26 if labels have intervals).

    Arrays are [steps] of all traces and hold the label that counts.
    """

    name: str
    layout: StepLayout
    codes: CodeArray
    """Good, bad, unknown or unlabelled (:mod:`surefoot.evaluation.step_layout`)."""
    values: FloatArray
    """The label's value; NaN if no label counts."""
    is_value: BoolArray
    """Whether the label is of kind ``value``; otherwise it is of kind ``correctness``."""
    intervals: FloatArray | None
    """[steps, 2]: bounds of ``evidence.interval``, or NaN; ``None`` if no label has an interval."""
    mentioned: BoolArray
    """[traces]: whether any label names the trace, including labels of unknown steps."""
    counts: LabelCounts
    cost: LabelCost

    @property
    def is_known(self) -> BoolArray:
        """[steps]: whether the step is good or bad."""
        return self.codes >= BAD

    @property
    def good(self) -> StepRows[bool]:
        """Lists [traces][steps]; ``None`` is unknown."""
        return good_rows(self.codes, self.layout)


def label_set(
    name: str, labels: Iterable[StepLabel], traces: Sequence[Trace], reading: LabelRule | None = None
) -> LabelSet:
    """Align ``labels`` with the steps of ``traces``, whose ids must differ.

    Labels are streamed. Raises ``LabelError`` if no label belongs to a step of the traces.
    """
    return label_sets(name, labels, StepLayout.of(traces), lambda _: reading)[0]


def label_sets(
    name: str,
    labels: Iterable[StepLabel],
    layout: StepLayout,
    reading: Callable[[str], LabelRule | None],
    *,
    by_rater: bool = False,
) -> list[LabelSet]:
    """The labels of one source, or with ``by_rater`` of each of its raters, as ``name/rater``.

    ``reading`` gives the rule for each name. Raises ``LabelError`` as ``label_set``, and with ``by_rater``
    for a label without ``evidence.rater``.
    """
    sets: dict[str, _LabelArrays] = {}
    for label in labels:
        key = _of_rater(name, label) if by_rater else name
        arrays = sets.get(key)
        if arrays is None:
            arrays = sets[key] = _LabelArrays(key, layout, reading(key) or LabelRule(neutral="good"), label)
        arrays.add(label)
    if not sets:
        raise _no_label(name, 0, "")
    return [arrays.label_set() for arrays in sets.values()]


class _LabelArrays:
    """The labels of one source so far."""

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
        self._policy_tokens = self._verifier_tokens = self._calls = 0

    def add(self, label: StepLabel) -> None:
        self._labels += 1
        number = self._layout.numbers.get(label.trace_id)
        if number is None:
            self._unknown_traces += 1
            return
        self._mentioned[number] = True
        start, stop = self._layout.span(number)
        position = start + label.step
        if position >= stop:
            self._unknown_steps += 1
            return
        self._known += 1
        self._kinds[label.kind] += 1
        self._sources[label.source] += 1
        usage = label.evidence.usage
        self._policy_tokens += usage.prompt_tokens + usage.completion_tokens
        self._verifier_tokens += usage.verifier_tokens
        self._calls += usage.calls
        good = self._rule.good(label)
        if good is None:
            unknown = label.value is None
            self._unread[label.reason or "" if unknown else self._rule.why_unknown(label)] += 1
            if self._codes[position] == UNLABELLED:
                self._codes[position] = UNREAD
            return
        self._codes[position] = GOOD if good else BAD
        self._values[position] = label.value
        self._is_value[position] = label.kind == "value"
        bounds = label.evidence.interval
        if bounds is not None and self._intervals is None:
            self._intervals = np.full((self._layout.steps, 2), math.nan)
        if self._intervals is not None:
            self._intervals[position] = bounds or math.nan

    def label_set(self) -> LabelSet:
        """The result. Raises ``LabelError`` if no label belongs to a known step."""
        if not self._known:
            raise _no_label(self._name, self._labels, self._first)
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
        policy, verifier = self._policy_tokens, self._verifier_tokens
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
                verifier_tokens=verifier,
                calls=self._calls,
                policy_tokens_per_label=policy / used if used else math.nan,
                verifier_tokens_per_label=verifier / used if used else math.nan,
                policy_tokens_per_trace=policy / traces if traces else math.nan,
            ),
        )


def _of_rater(name: str, label: StepLabel) -> str:
    if label.evidence.rater is None:
        raise LabelError(
            f"{name}: the label of step {label.step} of trace {label.trace_id} lacks 'evidence.rater'; "
            "it cannot be split by rater"
        )
    return f"{name}/{label.evidence.rater}"


def _no_label(name: str, labels: int, first: str) -> LabelError:
    return LabelError(
        f"{name}: none of its {labels} labels belongs to a step of the traces, by 'trace_id'"
        f"{f' (first {first})' if labels else ''}; give the traces that were labelled"
    )
