"""A trace that is a program: its lines with steps and labels, and its run next to the reference's.

Nothing is run here: the run is the evidence of a label (:class:`surefoot.records.Execution`). It holds calls
of hidden tests, and the reference's values, so it is for those who may see the reference answer:
administrators and viewers of the project.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from surefoot.labelling.verifiers.programs import TraceProgram, reference_program
from surefoot.printable import printable
from surefoot.records import CodeTask, ComparedCall, ExecutedLine, Execution, Problem, Trace
from surefoot.server.store.labelling import StoredLabel

_LINES, _WIDTH, _CHARACTERS = 400, 300, 100_000
"""Most lines of a program, characters of a line, and characters of a program that is shown by lines."""


def program_view(
    problem: Problem, trace: Trace, labels: Sequence[StoredLabel], number: int
) -> dict[str, Any] | None:
    """What the page shows; ``number``: the call chosen, from 1; 0: the first that differs.

    ``None`` if the trace is not a program, or is too long.
    """
    try:
        task = CodeTask.of(problem)
    except ValueError:
        return None  # without a valid task it is shown as an ordinary trace
    if task is None or trace.text is None or len(trace.text) + len(task.prompt) > _CHARACTERS:
        return None
    program = TraceProgram.of(trace, task)
    lines, reference = _lines(program.text), _lines(reference_program(task))
    label = next((label for label in reversed(labels) if label.record.evidence.execution), None)
    execution = label.record.evidence.execution if label else None
    call = _chosen(execution, number)
    blamed = _blamed(execution, call)
    return {
        "lines": [
            {"line": at, "text": text, "step": program.step(at), "first": at == blamed}
            for at, text in enumerate(lines[:_LINES], start=1)
        ],
        "more": max(0, len(lines) - _LINES),
        "labels": _labels_by_step(labels),
        "source": label.record.source if label else None,
        "raised": printable(execution.raised) if execution and execution.raised else None,
        "calls": [_summary(call, at) for at, call in enumerate(execution.calls, start=1)]
        if execution
        else [],
        "call": call
        and {
            **_summary(call, execution.calls.index(call) + 1 if execution else 0),
            "rows": [_row(row, other, program, lines, reference) for row, other in call.rows],
            "first": call.first,
            "before": call.before,
            "after": call.after,
            "compared": any(other for _, other in call.rows),
        },
    }


def _lines(text: str) -> list[str]:
    """Lines as Python counts them, with what changes the direction of writing escaped."""
    return [printable(line[:_WIDTH]) for line in text.removesuffix("\n").split("\n")]


def _chosen(execution: Execution | None, number: int) -> ComparedCall | None:
    if execution is None or not execution.calls:
        return None
    if 0 < number <= len(execution.calls):
        return execution.calls[number - 1]
    return next((call for call in execution.calls if call.first is not None), execution.calls[0])


def _blamed(execution: Execution | None, call: ComparedCall | None) -> int | None:
    """The program's line at which the call parts from the reference's, or that could not be loaded."""
    if call is None:
        return execution.line if execution else None
    if call.first is None or not 0 <= call.first < len(call.rows):
        return None
    row = call.rows[call.first][0]
    return row.line if row else None


def _labels_by_step(labels: Iterable[StoredLabel]) -> dict[int, list[dict[str, Any]]]:
    """The latest label of correctness of each source, by step."""
    latest: dict[int, dict[str, Any]] = {}
    for label in labels:
        if label.record.kind == "correctness":
            row = {"source": label.record.source, "value": label.record.value}
            latest.setdefault(label.record.step, {})[label.record.source] = row
    return {step: list(rows.values()) for step, rows in latest.items()}


def _summary(call: ComparedCall, number: int) -> dict[str, Any]:
    return {
        "number": number,
        "test": printable(call.test),
        "visibility": call.visibility,
        "call": printable(call.call),
        "result": _said(call.result, call.raised),
        "reference": _said(call.reference_result, call.reference_raised),
    }


def _said(result: str | None, raised: str | None) -> str:
    if raised is not None:
        return f"raised {printable(raised)}"
    return "cut off" if result is None else f"returned {printable(result)}"


def _row(
    own: ExecutedLine | None,
    other: ExecutedLine | None,
    program: TraceProgram,
    lines: Sequence[str],
    reference: Sequence[str],
) -> dict[str, Any]:
    mine, theirs = dict(own.changed) if own else {}, dict(other.changed) if other else {}
    return {
        "step": program.step(own.line) if own else None,
        "own": own and _side(own, lines, theirs if other else mine),
        "reference": other and _side(other, reference, mine if own else theirs),
    }


def _side(one: ExecutedLine, lines: Sequence[str], opposite: dict[str, str]) -> dict[str, Any]:
    return {
        "line": one.line,
        "event": one.event,
        "text": lines[one.line - 1].strip() if 0 < one.line <= len(lines) else "",
        "value": printable(one.said),
        "changed": [
            {"name": printable(name), "value": printable(value), "differs": opposite.get(name) != value}
            for name, value in one.changed
        ],
    }
