"""The gateway's request log: requests with all their candidates, and import into a project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import NotFoundError, StoreError
from surefoot.records import Problem, StepScores, Trace
from surefoot.search.saved_tree import SavedTree
from surefoot.segment import segment_trace
from surefoot.server.gateway.records import GatewayCandidate, GatewayRecord
from surefoot.server.pages.access import (
    SiteAdmin,
    SiteReader,
    enter,
    pages_of,
)
from surefoot.server.pages.forms import (
    CheckedForm,
    query_of,
)
from surefoot.server.pages.render import show, twin
from surefoot.server.pages.score_strip import strip
from surefoot.server.pages.traces import whole_text
from surefoot.server.pages.trees import show_tree
from surefoot.server.store.database import Database
from surefoot.server.store.gateway_log import GatewayRow

router = APIRouter()
_NAMES = ("model", "strategy", "policy", "scorer", "session")
"""Filters of requests that are texts."""


@twin(router, "/requests")
def request_list(request: Request, visitor: SiteReader) -> Response:
    """Requests, newest first; the filters are in the URL."""
    db, limit = pages_of(request).db, pages_of(request).settings.rows
    query = query_of(request)
    filters = {
        **{name: query.optional(name, most=500) for name in _NAMES},
        "failed": query.optional("failed") and query.choice("failed", ("yes", "no")),
        "project": query.optional("project", most=9),
    }
    rows = db.gateway.find(**request_filters(filters), before=_before(request), limit=limit + 1)
    query_fields = {name: value for name, value in filters.items() if value is not None}
    projects = db.projects.list() if visitor.admin else []
    data = {
        "filters": filters,
        "requests": [
            {**vars(row), "link": f"/request?{urlencode({'id': row.request_id})}"} for row in rows[:limit]
        ],
        "next": f"?{urlencode({**query_fields, **_after(rows[limit - 1])})}" if len(rows) > limit else None,
    }
    extra = {"query": urlencode(query_fields), "projects": projects}
    return show(request, visitor, "requests.html", data, extra=extra)


def request_filters(fields: Mapping[str, str | None]) -> dict[str, Any]:
    """Arguments of ``find`` from query or form fields. Raises ``StoreError`` for a bad project number."""
    project, failed = fields.get("project"), fields.get("failed")
    if project is not None and not (project.isascii() and project.isdigit() and len(project) < 10):
        raise StoreError(f"'project' must be a whole number, not {project!r}")
    return {
        **{name: fields.get(name) for name in _NAMES},
        "project_id": None if project is None else int(project),
        "failed": None if failed is None else failed == "yes",
    }


@twin(router, "/request")
def request_page(request: Request, visitor: SiteReader) -> Response:
    """One request with all its candidates."""
    record = pages_of(request).db.gateway.get(query_of(request).required_id("id"))
    extra = {
        "query": urlencode({"id": record.request_id}),
        "candidates": [_candidate(candidate) for candidate in _in_order(record.candidates)],
        "trees": sorted(record.trees),
    }
    return show(request, visitor, "request.html", {"request": record}, extra=extra)


@twin(router, "/request-tree")
def request_tree(request: Request, visitor: SiteReader) -> Response:
    """All steps that the search sampled for one answer (``choice``) of a request."""
    record = pages_of(request).db.gateway.get(query_of(request).required_id("id"))
    number = query_of(request).natural("choice")
    if number not in record.trees:
        raise NotFoundError(f"choice {number} does not have a tree: its search discarded nothing")
    about = {"id": record.request_id, "choice": number}
    link = f"/request?{urlencode({'id': record.request_id})}"
    tree = SavedTree.model_validate(record.trees[number])
    return show_tree(request, visitor, tree, about, back=(link, "the request"))


def _in_order(candidates: Sequence[GatewayCandidate]) -> list[GatewayCandidate]:
    """The client's own solutions, then choice by choice the chosen candidate and the others."""
    return sorted(candidates, key=lambda one: (-1 if one.choice is None else one.choice, not one.chosen))


def _candidate(one: GatewayCandidate) -> dict[str, Any]:
    scores = one.scores.scores if one.scores else ()
    return {
        "chosen": one.chosen,
        "choice": one.choice,
        "weight": one.weight,
        "score": one.score,
        "reason": one.reason,
        "scorer": one.scores.scorer if one.scores else None,
        "strip": strip(scores),
        "answer": one.trace.answer,
        "outcome": one.trace.outcome,
        "error": one.trace.error,
        "steps": [one.trace.step_text(index) for index in range(len(one.trace.steps))]
        or [whole_text(one.trace)],
    }


def _after(row: GatewayRow) -> dict[str, str]:
    return {"before": row.created.isoformat(), "before_id": row.request_id}


def _before(request: Request) -> tuple[datetime, str] | None:
    query = query_of(request)
    moment = query.optional("before", most=500)
    if moment is None:
        return None
    try:
        at = datetime.fromisoformat(moment)
    except ValueError as error:
        raise StoreError(f"'before' must be a time, not {moment!r}") from error
    if at.tzinfo is None:
        raise StoreError("'before' needs a time zone")
    return at, query.id("before_id") or ""


_MOST = 500
"""Requests imported at once."""


@dataclass(frozen=True, kw_only=True)
class _Import:
    """Records of one request."""

    problem: Problem
    solutions: tuple[tuple[Trace, StepScores | None], ...]


@router.post("/requests/import")
def import_answers(request: Request, visitor: SiteAdmin, form: CheckedForm) -> Response:
    """Import the latest answered requests that match the filters into a project, an item for each solution.

    Scores replace older ones of the same scorer and solution. They are left out if the project has the
    solution with other steps.
    """
    which = form.choice("which", ("chosen", "all"))
    destination = enter(request, visitor, form.whole("into"), "admin")
    db, project = pages_of(request).db, destination.project.id
    filters = {name: form.optional(name, most=500) for name in (*_NAMES, "project")}
    rows = db.gateway.find(**{**request_filters(filters), "failed": False}, limit=_MOST + 1)
    imports = [
        records
        for row in reversed(rows[:_MOST])
        if (records := _importable(db.gateway.get(row.request_id), every=which == "all")) is not None
    ]
    report = {
        "problems": db.traces.add_problems(project, (entry.problem for entry in imports)),
        "traces": db.traces.add_traces(project, (trace for entry in imports for trace, _ in entry.solutions)),
    }
    present = _present(db, project, (trace.id for entry in imports for trace, _ in entry.solutions))
    scores, left_out = _fitting(imports, present)
    report["scores"] = db.traces.add_scores(project, scores)
    items = db.items.add_solutions(project, list(present))
    db.projects.audit("answers imported", visitor.user_id, project, requests=len(imports), items=len(items))
    data = {
        "requests": len(imports),
        "without_solution": len(rows[:_MOST]) - len(imports),
        "more": len(rows) > _MOST,
        "report": report,
        "scores_left_out": left_out,
        "items": len(items),
    }
    return show(request, destination, "requests_imported.html", data)


def _importable(record: GatewayRecord, *, every: bool) -> _Import | None:
    """The solutions of a request that can be labelled; ``None`` if there are none."""
    candidates = [
        candidate for candidate in record.candidates if every or candidate.chosen or candidate.choice is None
    ]
    solutions: dict[str, tuple[Trace, StepScores | None]] = {}
    for candidate in candidates:
        trace = _cut(candidate.trace)
        if trace.steps and trace.id not in solutions:
            matches = candidate.scores is not None and candidate.scores.trace_id == trace.id
            solutions[trace.id] = (trace, candidate.scores if matches else None)
    if record.problem is None or not solutions:
        return None
    return _Import(problem=record.problem, solutions=tuple(solutions.values()))


def _cut(trace: Trace) -> Trace:
    """The trace with steps; plain answers have none yet."""
    if trace.steps or not (trace.text or "").strip():
        return trace
    return segment_trace(trace)


def _present(db: Database, project: int, trace_ids: Iterable[str]) -> dict[str, Trace]:
    """Those that the project has now; refused ones are counted in the report."""
    present = {}
    for trace_id in dict.fromkeys(trace_ids):
        with suppress(NotFoundError):
            present[trace_id] = db.traces.trace(project, trace_id)
    return present


def _fitting(
    imports: Iterable[_Import], present: Mapping[str, Trace]
) -> tuple[list[StepScores], dict[str, int]]:
    """The latest scores of each scorer for the steps that the project has, and how many others there were.

    ``imports`` is sorted oldest first.
    """
    latest: dict[tuple[str, str], StepScores] = {}
    left_out = {"other_steps": 0, "older": 0}
    for trace, scores in (solution for entry in imports for solution in entry.solutions):
        if scores is None:
            continue
        stored = present.get(trace.id)
        if stored is None or not _same_steps(stored, trace):
            left_out["other_steps"] += 1
            continue
        key = (trace.id, scores.scorer)
        left_out["older"] += key in latest
        latest[key] = scores
    return list(latest.values()), left_out


def _same_steps(one: Trace, other: Trace) -> bool:
    return (one.text, one.messages, one.steps) == (other.text, other.messages, other.steps)
