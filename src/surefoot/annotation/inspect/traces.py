"""Traces: the list with its filters, and one trace with scores and labels of every source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.annotation.database import Adjudication, Database, TraceRow
from surefoot.annotation.inspect.access import asked, choice, identity, needed, number, settings_of
from surefoot.annotation.inspect.evidence import decided, marked_error, sources
from surefoot.annotation.inspect.figures import scorer_strips, strip
from surefoot.annotation.pages.context import enter, pages_of
from surefoot.annotation.pages.render import show, twin
from surefoot.annotation.pages.visitors import SignedIn
from surefoot.errors import StoreError
from surefoot.records import Message, Step, Trace

router = APIRouter()

_OUTCOMES = ("right", "wrong")
_SCAN = 500
"""Traces looked through for one page where a filter needs more than the database's columns."""


@dataclass(frozen=True, kw_only=True)
class _Filters:
    """What the list is narrowed to; empty fields narrow nothing."""

    policy: str | None
    outcome: str | None
    scorer: str | None
    low: float | None
    high: float | None
    text: str | None
    solution: str | None
    error: str | None
    """``any``, ``none``, or the number of the step, from 1."""

    def query(self) -> str:
        """As the address has it."""
        return urlencode({name: value for name, value in vars(self).items() if value is not None})


@twin(router, "/projects/{project_id:int}/traces")
def trace_list(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """Traces by id; the filters are in the address, so a list can be passed on."""
    place = enter(request, visitor, project_id, "admin", "viewer")
    db, filters = pages_of(request).db, _filters(request)
    scorers = db.traces.scorers(project_id)
    rows, last, seen = _found(
        db, project_id, filters, identity(request, "after") or "", settings_of(request).page
    )
    shown = filters.scorer or (scorers[0] if scorers else None)
    query = filters.query()
    data = {
        "project": {"id": project_id, "name": place.project.name},
        "filters": vars(filters),
        "scorers": scorers,
        "scorer": shown,
        "traces": [_row(db, project_id, row, error, shown) for row, error in rows],
        "looked_at": seen,
        "next": None if last is None else "?" + "&".join(filter(None, (query, urlencode({"after": last})))),
    }
    return show(request, visitor, "inspect/traces.html", data, place=place, extra={"query": query})


@twin(router, "/projects/{project_id:int}/trace")
def trace_page(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """One trace: ``?id=`` keeps any id that a data set may have, so the link is stable."""
    place = enter(request, visitor, project_id, "admin", "viewer")
    db = pages_of(request).db
    trace = db.traces.trace(project_id, needed(request, "id"))
    labels = db.labels.of_trace(project_id, trace.id)
    decisions = decided(labels, db.reviews.adjudications(project_id), trace.id)
    error = marked_error(labels, decisions)
    groups = sources(labels)
    strips = scorer_strips(db.traces.scores(project_id, trace.id), error)
    data = {
        "project": {"id": project_id, "name": place.project.name},
        "problem": db.traces.problem(project_id, trace.problem_id),
        "trace": trace,
        "first_error": error,
        "strips": strips,
        "sources": groups,
        "decisions": decisions,
    }
    extra = {"parts": _parts(trace, groups, strips), "query": urlencode({"id": trace.id})}
    return show(request, visitor, "inspect/trace.html", data, place=place, extra=extra)


def _filters(request: Request) -> _Filters:
    found = _Filters(
        policy=asked(request, "policy"),
        outcome=choice(request, "outcome", _OUTCOMES),
        scorer=asked(request, "scorer"),
        low=number(request, "low"),
        high=number(request, "high"),
        text=asked(request, "text"),
        solution=asked(request, "solution"),
        error=asked(request, "error", most=9),
    )
    positive = (found.error or "").isascii() and (found.error or "").isdigit() and int(found.error or 0) > 0
    if found.error not in (None, "any", "none") and not positive:
        raise StoreError("'error' must be 'any', 'none' or the number of a step, from 1")
    return found


def _found(
    db: Database, project_id: int, filters: _Filters, after: str, limit: int
) -> tuple[list[tuple[TraceRow, int | None]], str | None, int]:
    """Rows with their first error, the id to go on after (``None`` = all seen), and how many were seen."""
    decisions = db.reviews.adjudications(project_id)
    rows: list[tuple[TraceRow, int | None]] = []
    seen = 0
    while seen < _SCAN:
        batch = _batch(db, project_id, filters, after, limit + 1)
        for row in batch[:limit]:
            after, seen = row.trace.id, seen + 1
            error = _error_of(db, project_id, row, decisions)
            if _fits(row, error, filters):
                rows.append((row, error))
        if len(batch) <= limit:
            return rows, None, seen
        if len(rows) >= limit or not _scans(filters):
            return rows, after, seen
    return rows, after, seen


def _batch(db: Database, project_id: int, filters: _Filters, after: str, limit: int) -> list[TraceRow]:
    return db.traces.find(
        project_id,
        policy=filters.policy,
        outcome=None if filters.outcome is None else filters.outcome == "right",
        scorer=filters.scorer,
        min_score=filters.low,
        max_score=filters.high,
        text=filters.text,
        after=after,
        limit=limit,
    )


def _scans(filters: _Filters) -> bool:
    return filters.solution is not None or filters.error is not None


def _error_of(db: Database, project_id: int, row: TraceRow, decisions: list[Adjudication]) -> int | None:
    if not row.labels:
        return None
    labels = db.labels.of_trace(project_id, row.trace.id)
    return marked_error(labels, decided(labels, decisions, row.trace.id))


def _fits(row: TraceRow, error: int | None, filters: _Filters) -> bool:
    if filters.solution is not None and filters.solution.casefold() not in _whole_text(row.trace).casefold():
        return False
    if filters.error is None:
        return True
    if filters.error in ("any", "none"):
        return (error is None) == (filters.error == "none")
    return error == int(filters.error) - 1


def _whole_text(trace: Trace) -> str:
    if trace.text is not None:
        return trace.text
    return "\n".join(message.content or "" for message in trace.messages)


def _row(
    db: Database, project_id: int, row: TraceRow, error: int | None, scorer: str | None
) -> dict[str, Any]:
    trace = row.trace
    scores = [one for one in db.traces.scores(project_id, trace.id) if one.scorer == scorer] if scorer else []
    return {
        "id": trace.id,
        "link": f"/projects/{project_id}/trace?{urlencode({'id': trace.id})}",
        "problem_id": trace.problem_id,
        "problem": row.problem[:200],
        "policy": trace.policy,
        "answer": trace.answer,
        "outcome": trace.outcome,
        "steps": len(trace.steps),
        "labels": row.labels,
        "first_error": error,
        "strip": strip(scores[0].scores, error) if scores else None,
    }


def _parts(trace: Trace, groups: list[dict[str, Any]], strips: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trace in order: steps with all that is said of them, and what stands between them."""
    parts: list[dict[str, Any]] = []
    if trace.text is not None:
        _spans(parts, trace.text, list(enumerate(trace.steps)), None)
    for place, message in enumerate(trace.messages):
        steps = [(index, step) for index, step in enumerate(trace.steps) if step.message == place]
        if steps:
            _spans(parts, message.content or "", steps, message.role)
        parts += _rest(message, with_text=not steps)
    for part in parts:
        if part["kind"] == "step":
            part["labels"] = _of_step(groups, part["step"])
            part["scores"] = [{"scorer": one["scorer"], **one["cells"][part["step"]]} for one in strips]
    return parts


def _spans(parts: list[dict[str, Any]], text: str, steps: list[tuple[int, Step]], role: str | None) -> None:
    end = 0
    for index, step in steps:
        if text[end : step.start].strip():
            parts.append({"kind": "between", "text": text[end : step.start]})
        parts.append({"kind": "step", "step": index, "text": text[step.start : step.end], "role": role})
        end = step.end
    if text[end:].strip():
        parts.append({"kind": "between", "text": text[end:]})


def _rest(message: Message, *, with_text: bool) -> list[dict[str, Any]]:
    """A message without steps, and tool calls: folded."""
    found: list[dict[str, Any]] = []
    if with_text and message.content:
        found.append({"kind": "message", "role": message.role, "text": message.content})
    found += [{"kind": "call", "name": call.name, "text": call.arguments} for call in message.tool_calls]
    return found


def _of_step(groups: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    return [
        {"source": group["source"], "rater": group["rater"], **label}
        for group in groups
        for label in group["labels"]
        if label["step"] == step
    ]
