"""Items out of records: alternatives that part at one step, and known answers of control items."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from surefoot.annotation.database import KnownAnswer, NewItem
from surefoot.errors import StoreError
from surefoot.records import StepLabel, Trace

_SIGNS: dict[float | None, Literal[-1, 0, 1]] = {-1.0: -1, 0.0: 0, 1.0: 1}


def alternatives_of(traces: Iterable[Trace]) -> tuple[list[NewItem], int]:
    """Groups of traces of one problem that are equal up to their last step, which differs (PRM800K phase 1).

    Also the number of traces left out: without a step, or with no other to stand beside.
    """
    groups: dict[tuple[object, ...], list[Trace]] = defaultdict(list)
    left_out = 0
    for trace in traces:
        if trace.steps:
            groups[_before_last(trace)].append(trace)
        else:
            left_out += 1
    items = []
    for group in groups.values():
        if len(group) < 2:
            left_out += len(group)
            continue
        step = len(group[0].steps) - 1
        items.append(NewItem(trace_ids=tuple(trace.id for trace in group), kind="alternatives", step=step))
    return items, left_out


def known_answers(labels: Iterable[StepLabel]) -> dict[str, tuple[KnownAnswer, ...]]:
    """Answers by trace. Raises ``StoreError`` for labels that are no answers."""
    found: dict[str, list[KnownAnswer]] = defaultdict(list)
    for label in labels:
        value = _SIGNS.get(label.value)
        if label.kind != "correctness" or value is None:
            where = f"step {label.step} of trace '{label.trace_id}'"
            raise StoreError(f"the known answer of {where} must be a correctness label of -1, 0 or 1")
        found[label.trace_id].append(KnownAnswer(trace_id=label.trace_id, step=label.step, value=value))
    return {trace: tuple(answers) for trace, answers in found.items()}


def _before_last(trace: Trace) -> tuple[object, ...]:
    """What traces must share to be alternatives of their last step."""
    count, last = len(trace.steps), trace.steps[-1]
    if trace.text is not None:
        return trace.problem_id, count, trace.text[: last.start]
    return trace.problem_id, count, trace.messages[: last.message or 0]
