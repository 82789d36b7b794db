"""An item as the annotator's page shows it: what has been seen so far, and the step that comes now.

Steps appear one at a time: what follows the present step is not in the page at all, so that it cannot sway
the label. Built from ``AnnotatorItem`` alone, which knows nobody else's labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from surefoot.annotation.database import AnnotatorItem, Protocol, StoredLabel
from surefoot.records import Trace


def work_view(item: AnnotatorItem, protocol: Protocol) -> dict[str, Any]:
    """Data of the page; JSON-ready but for times."""
    shared = {
        "item": item.item_id,
        "kind": item.kind,
        "state": item.state,
        "leased_until": item.leased_until,
        "problem": item.problem.text,
        "answer": item.problem.answer if protocol.show_answer else None,
        "show_answer": protocol.show_answer,
        "values": list(protocol.values),
        "last": item.last,
    }
    build = _solution if item.kind == "solution" else _alternatives
    return {**shared, **build(item)}


def next_step(item: AnnotatorItem) -> int | None:
    """First step without a label; ``None`` once all have one or an error was marked (phase 2 ends there)."""
    given = {label.record.step: label.record.value for label in item.labels}
    if -1.0 in given.values():
        return None
    return next((step for step in range(len(item.traces[0].steps)) if step not in given), None)


def ends_with(item: AnnotatorItem, step: int, value: int | None) -> bool:
    """Whether a label ends the work on a solution: the first error, or the last step."""
    return value == -1 or step == len(item.traces[0].steps) - 1


def _solution(item: AnnotatorItem) -> dict[str, Any]:
    trace = item.traces[0]
    labels = {label.record.step: label for label in item.labels}
    current = next_step(item) if item.state == "leased" else None
    seen = max(labels, default=-1) if current is None else current
    return {
        "trace": trace.id,
        "steps": len(trace.steps),
        "current": current,
        "labelled": len(labels),
        "blocks": list(_blocks(trace, seen, labels)),
    }


def _alternatives(item: AnnotatorItem) -> dict[str, Any]:
    step = item.step or 0
    given = {label.record.trace_id: label for label in item.labels}
    first = item.traces[0]
    return {
        "step": step,
        "blocks": list(_blocks(first, step - 1, {})),
        "alternatives": [
            {
                "trace": trace.id,
                **_step_fields(trace, step, given.get(trace.id)),
                "calls": _calls(trace, trace.steps[step].message),
            }
            for trace in item.traces
        ],
        "by_hand": first.text is not None,
        "chosen": item.choice.trace_id if item.choice and item.choice.text is None else None,
        "written": item.choice.text if item.choice else None,
    }


def _blocks(trace: Trace, seen: int, labels: Mapping[int, StoredLabel]) -> Iterator[dict[str, Any]]:
    """What stands on the page up to step ``seen``, in order: steps, and what lies between them."""
    if trace.text is not None:
        yield from _text_blocks(trace, seen, labels)
        return
    # all messages up to the one of the last step seen; what a tool answered to it comes with the next step
    until = trace.steps[seen].message if seen >= 0 else _before_first(trace)
    steps = {step.message: [] for step in trace.steps}  # type: dict[int | None, list[int]]
    for index, step in enumerate(trace.steps):
        steps[step.message].append(index)
    for number, message in enumerate(trace.messages[: (until if until is not None else -1) + 1]):
        inside = [index for index in steps.get(number, []) if index <= seen]
        calls = _calls(trace, number)
        if not inside:
            yield {"type": "message", "role": message.role, "text": message.content or "", "calls": calls}
        for index in inside:
            last = index == inside[-1]
            shown = labels.get(index)
            yield {
                "type": "step",
                "role": message.role,
                "calls": calls if last else [],
                **_step_fields(trace, index, shown),
            }


def _text_blocks(trace: Trace, seen: int, labels: Mapping[int, StoredLabel]) -> Iterator[dict[str, Any]]:
    text, end = trace.text or "", 0
    for index, step in enumerate(trace.steps[: seen + 1]):
        if text[end : step.start].strip():
            yield {"type": "message", "role": None, "text": text[end : step.start], "calls": []}
        yield {"type": "step", "role": None, "calls": [], **_step_fields(trace, index, labels.get(index))}
        end = step.end


def _before_first(trace: Trace) -> int:
    """Index of the last message before the first step; -1 if there is none."""
    first = trace.steps[0].message if trace.steps else None
    return (len(trace.messages) if first is None else first) - 1


def _step_fields(trace: Trace, index: int, label: StoredLabel | None) -> dict[str, Any]:
    return {
        "step": index,
        "text": trace.step_text(index),
        "labelled": label is not None,
        "value": None if label is None or label.record.value is None else int(label.record.value),
        "comment": None if label is None else label.record.evidence.message,
    }


def _calls(trace: Trace, message: int | None) -> list[dict[str, str]]:
    if message is None:
        return []
    return [{"name": call.name, "arguments": call.arguments} for call in trace.messages[message].tool_calls]
