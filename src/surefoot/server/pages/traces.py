"""Traces: the list with its filters, and one trace with the scores and labels of every source.

Nothing is run here: the run of a program is the evidence of a label (:class:`surefoot.records.Execution`). It
holds calls of hidden tests, and the reference's values, so it is for those who may see the reference answer:
administrators and viewers of the project.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.labelling.verifiers.programs import TraceProgram, reference_program
from surefoot.labels import LabelRule
from surefoot.printable import printable
from surefoot.records import (
    CodeTask,
    ComparedCall,
    ExecutedLine,
    Execution,
    Problem,
    StepLabel,
    StepScores,
    Trace,
)
from surefoot.scores import AGGREGATORS
from surefoot.segment import trace_blocks
from surefoot.server.gateway.score import value_of
from surefoot.server.pages.access import ReaderPlace, pages_of
from surefoot.server.pages.forms import query_of
from surefoot.server.pages.render import next_page, show, twin
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import Adjudication, StoredLabel
from surefoot.server.store.traces import TraceRow

router = APIRouter()

BUCKETS: Final = 10
"""Colours of scores: they also differ in brightness, and the number is always there."""

_OUTCOMES = ("correct", "wrong")
_WIDTH, _CHARACTERS = 300, 100_000
"""Most characters of a line, and of a program whose run is shown."""


@twin(router, "/projects/{project_id:number}/runs")
def trace_list(request: Request, place: ReaderPlace) -> Response:
    """Traces by id; the filters are in the URL, so a list can be shared."""
    db, fields, limit = place.db, query_of(request), pages_of(request).settings.rows
    filters: dict[str, Any] = {
        "problem": fields.id("problem"),
        "policy": fields.optional("policy", most=500),
        "outcome": fields.optional("outcome") and fields.choice("outcome", _OUTCOMES),
        "scorer": fields.optional("scorer", most=500),
        "low": fields.number("low"),
        "high": fields.number("high"),
        "text": fields.optional("text", most=500),
    }
    query = urlencode({name: value for name, value in filters.items() if value is not None})
    rows = db.traces.find(
        place.id,
        problem_id=filters["problem"],
        policy=filters["policy"],
        outcome=None if filters["outcome"] is None else filters["outcome"] == "correct",
        scorer=filters["scorer"],
        min_score=filters["low"],
        max_score=filters["high"],
        text=filters["text"],
        after=fields.id("after") or "",
        limit=limit + 1,
    )
    scorers = db.traces.scorers(place.id)
    scorer = filters["scorer"] or next(iter(scorers), None)
    data = {
        "filters": filters,
        "scorers": scorers,
        "scorer": scorer,
        "traces": _rows(db, place.id, rows[:limit], scorer),
        "next": next_page(query, after=rows[limit - 1].trace.id) if len(rows) > limit else None,
    }
    return show(request, place, "traces.html", data, extra={"query": query})


@twin(router, "/projects/{project_id:number}/run")
def trace_page(request: Request, place: ReaderPlace) -> Response:
    """One trace; ``?id=`` takes any id of a data set, ``&call=`` the number of a call of a program."""
    db = place.db
    trace = db.traces.trace(place.id, query_of(request).required_id("id"))
    labels = db.labels.of_trace(place.id, trace.id)
    decisions = _decisions(db, place.id).get(trace.id, {})
    error = marked_error(labels, decisions)
    groups = sources(labels)
    strips = scorer_strips(db.traces.scores(place.id, trace.id), error)
    problem = db.traces.problem(place.id, trace.problem_id)
    data = {
        "problem": problem,
        "trace": trace,
        "first_error": error,
        "strips": strips,
        "sources": groups,
        "decisions": {
            step: {"value": decision.value, "note": decision.note, "created": decision.created}
            for step, decision in decisions.items()
        },
        "program": program_view(problem, trace, labels, query_of(request).natural("call")),
    }
    extra = {"blocks": _parts(trace, groups, strips), "query": urlencode({"id": trace.id})}
    return show(request, place, "trace.html", data, extra=extra)


def whole_text(trace: Trace) -> str:
    """The text of a trace, or all that its messages say: reasoning, contents and calls."""
    return trace.text if trace.text is not None else "\n".join(map(str, trace_blocks(trace)))


def _rows(
    db: Database, project_id: int, rows: Sequence[TraceRow], scorer: str | None
) -> list[dict[str, Any]]:
    ids = [row.trace.id for row in rows]
    labels, decisions = db.labels.of_traces(project_id, ids), _decisions(db, project_id)
    scores = db.traces.scores_of(project_id, ids, scorer=scorer) if scorer else {}
    listed = []
    for row in rows:
        trace = row.trace
        error = marked_error(labels[trace.id], decisions.get(trace.id, {}))
        own_scores = scores.get(trace.id)
        listed.append(
            {
                "id": trace.id,
                "link": f"/projects/{project_id}/run?{urlencode({'id': trace.id})}",
                "problem_id": trace.problem_id,
                "problem": row.problem[:200],
                "policy": trace.policy,
                "answer": trace.answer,
                "outcome": trace.outcome,
                "steps": len(trace.steps),
                "labels": row.labels,
                "first_error": error,
                "strip": strip(own_scores[0].scores, error) if own_scores else None,
            }
        )
    return listed


def _parts(trace: Trace, groups: list[dict[str, Any]], strips: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trace in order: steps with their scores and labels, and what stands between them."""
    parts: list[dict[str, Any]] = []
    for block in trace_blocks(trace):
        content = {"text": block.text, "role": block.role}
        if block.step is None:
            kind = "message" if block.kind in ("instruction", "observation") else "between"
            parts += [{"kind": kind, **content}] if block.text else []
            parts += [{"kind": "call", "name": call.name, "text": call.arguments} for call in block.calls]
            continue
        parts.append(
            {
                "kind": "step",
                "step": block.step,
                "type": block.kind,
                **content,
                "calls": block.calls,
                "labels": _of_step(groups, block.step),
                "scores": [{"scorer": strip["scorer"], **strip["cells"][block.step]} for strip in strips],
            }
        )
    return parts


def _of_step(groups: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    return [
        {"source": group["source"], "rater": group["rater"], **label}
        for group in groups
        for label in group["labels"]
        if label["step"] == step
    ]


def _decisions(db: Database, project_id: int) -> dict[str, dict[int, Adjudication]]:
    """Decisions on disagreements, by trace and step."""
    by_trace = defaultdict[str, dict[int, Adjudication]](dict)
    for decision in db.reviews.adjudications(project_id):
        by_trace[decision.trace_id][decision.step] = decision
    return by_trace


def sources(labels: Sequence[StoredLabel]) -> list[dict[str, Any]]:
    """One entry per source and rater, sorted by name: its labels by step, and its first error."""
    groups: dict[tuple[str, str], list[StoredLabel]] = {}
    for label in labels:
        groups.setdefault((label.record.source, label.record.evidence.rater or ""), []).append(label)
    return [
        {
            "source": source,
            "rater": rater or None,
            "first_error": first_error(label.record for label in group),
            "labels": [
                _label_row(label) for label in sorted(group, key=lambda label: (label.record.step, label.id))
            ],
        }
        for (source, rater), group in sorted(groups.items())
    ]


def first_error(labels: Iterable[StepLabel]) -> int | None:
    """The earliest step that a label calls wrong: correctness −1, or no success in any trial.

    The second is the hard estimate of Math-Shepherd (Wang et al., arXiv 2312.08935).
    """
    return min((label.step for label in labels if _wrong(label)), default=None)


def marked_error(labels: Sequence[StoredLabel], decisions: Mapping[int, Adjudication]) -> int | None:
    """The step to mark: the earliest with a correctness label of "wrong"; decisions replace labels."""
    steps = {
        label.record.step
        for label in labels
        if label.record.kind == "correctness" and _wrong(label.record) and label.record.step not in decisions
    }
    steps |= {step for step, decision in decisions.items() if decision.value == -1}
    return min(steps, default=None)


def _wrong(label: StepLabel) -> bool:
    return LabelRule(neutral="good").good(label) is False


def _label_row(label: StoredLabel) -> dict[str, Any]:
    record = label.record
    return {
        "id": label.id,
        **record.model_dump(include={"step", "kind", "value", "reason", "created"}),
        **record.evidence.model_dump(include={"successes", "trials", "interval", "message"}),
        "chosen_by": label.chosen_by,
        "milliseconds": label.milliseconds,
    }


def strip(scores: Sequence[float | None], first_error: int | None = None) -> list[dict[str, Any]]:
    """Cells of a strip, one per step: score, colour class 0 (low) to 9 (high), whether the first error.

    Scores that are not probabilities (one is below 0 or above 1) are coloured over [-1, 1].
    """
    numbers = [score for score in scores if score is not None]
    signed = any(score < 0 or score > 1 for score in numbers)
    return [
        {
            "step": step,
            "score": score,
            "bucket": None if score is None else _bucket((score + 1) / 2 if signed else score),
            "first_error": step == first_error,
        }
        for step, score in enumerate(scores)
    ]


def aggregates(scores: Sequence[float | None]) -> dict[str, float | None]:
    """The step scores aggregated by every rule; ``None`` where a rule does not apply."""
    return {how: value_of(scores, how) for how in AGGREGATORS}


def scorer_strips(scores: Sequence[StepScores], first_error: int | None) -> list[dict[str, Any]]:
    """One strip per scorer, with its aggregated scores."""
    return [
        {
            "scorer": record.scorer,
            "cells": strip(record.scores, first_error),
            "aggregates": aggregates(record.scores),
            "unscored_reason": record.unscored_reason,
        }
        for record in scores
    ]


def _bucket(share: float) -> int:
    if share != share:
        return 0
    return min(BUCKETS - 1, max(0, int(share * BUCKETS)))


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
    label = next((label for label in reversed(labels) if label.record.evidence.execution), None)
    execution = label.record.evidence.execution if label else None
    call = _chosen(execution, number)
    passing = execution.reference if execution else None
    lines, reference = _program_lines(program.text), _program_lines(passing or reference_program(task))
    return {
        "source": label.record.source if label else None,
        "raised": printable(execution.raised) if execution and execution.raised else None,
        "calls": [_summary(call, at) for at, call in enumerate(execution.calls, start=1)]
        if execution
        else [],
        "call": call
        and {
            **_summary(call, execution.calls.index(call) + 1 if execution else 0),
            "rows": [_run_row(row, other, program, lines, reference) for row, other in call.rows],
            "first": call.first,
            "before": call.before,
            "after": call.after,
            "compared": any(other for _, other in call.rows),
        },
    }


def _program_lines(text: str) -> list[str]:
    """Lines as Python counts them, with what changes the direction of writing escaped."""
    return [printable(line[:_WIDTH]) for line in text.removesuffix("\n").split("\n")]


def _chosen(execution: Execution | None, number: int) -> ComparedCall | None:
    if execution is None or not execution.calls:
        return None
    if 0 < number <= len(execution.calls):
        return execution.calls[number - 1]
    return next((call for call in execution.calls if call.first is not None), execution.calls[0])


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


def _run_row(
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
