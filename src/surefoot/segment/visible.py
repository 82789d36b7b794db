"""A trace without its hidden reasoning: all that a reward may read unless it is asked to read more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from surefoot.records import Step, Trace
from surefoot.segment.spans import Span
from surefoot.segment.traces import reasoning_spans


@dataclass(frozen=True, kw_only=True)
class VisibleTrace:
    """What is left of a trace, under the same id."""

    trace: Trace
    steps: tuple[int, ...]
    """Number in the whole trace of each step that is left."""


def visible_part(trace: Trace, *, opened: bool = False) -> VisibleTrace:
    """The trace without fields of reasoning and without what stands between ``<think>`` and ``</think>``.

    Steps of reasoning are left out, the others keep their texts. With ``opened`` the prompt began the
    reasoning: a text or message that never ends it is nothing else. A trace without reasoning is returned
    unchanged.
    """
    update: dict[str, Any]
    hidden: Mapping[int | None, Sequence[Span]]
    if trace.text is not None:
        hidden = {None: _hidden_spans(trace.text, opened)}
        update = {"text": _without(trace.text, hidden[None]), "reasoning": None}
        reasons = bool(hidden[None]) or trace.reasoning is not None
    else:
        answers = {n: row for n, row in enumerate(trace.messages) if row.role == "assistant"}
        hidden = {number: _hidden_spans(row.content or "", opened) for number, row in answers.items()}
        reasons = any(hidden.values()) or any(row.reasoning is not None for row in answers.values())
        changed = {
            number: row.model_copy(
                update={"reasoning": None, "content": row.content and _without(row.content, hidden[number])}
            )
            for number, row in answers.items()
        }
        update = {"messages": tuple(changed.get(n, row) for n, row in enumerate(trace.messages))}
    if not reasons:
        return VisibleTrace(trace=trace, steps=tuple(range(len(trace.steps))))
    steps = {
        number: _moved(step, hidden.get(step.message, ()))
        for number, step in enumerate(trace.steps)
        if not _is_hidden(step, hidden.get(step.message, ()))
    }
    visible = trace.model_copy(update=update | {"steps": tuple(steps.values())})
    return VisibleTrace(trace=visible, steps=tuple(steps))


def _hidden_spans(text: str, opened: bool) -> list[Span]:
    unclosed = opened and text and "</think>" not in text
    return [(0, len(text))] if unclosed else reasoning_spans(text)


def _without(text: str, hidden: Sequence[Span]) -> str:
    """The text between the spans."""
    borders = [(0, 0), *hidden, (len(text), len(text))]
    return "".join(text[end:start] for (_, end), (start, _) in pairwise(borders))


def _is_hidden(step: Step, hidden: Sequence[Span]) -> bool:
    inside = any(first <= step.start and step.end <= last for first, last in hidden)
    return step.part == "reasoning" or (step.part == "content" and inside)


def _moved(step: Step, hidden: Sequence[Span]) -> Step:
    if step.part == "tool_call":
        return step
    start, end = (
        at - sum(min(last, at) - first for first, last in hidden if first < at)
        for at in (step.start, step.end)
    )
    return step.model_copy(update={"start": start, "end": end})
