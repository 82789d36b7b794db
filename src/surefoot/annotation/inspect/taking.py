"""Answers of the gateway into a project, where people label their steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.annotation.database import Database
from surefoot.annotation.inspect.gateway_log import request_filters
from surefoot.annotation.pages.context import enter, pages_of, require_admin
from surefoot.annotation.pages.forms import CheckedForm
from surefoot.annotation.pages.render import show
from surefoot.annotation.pages.visitors import SignedIn
from surefoot.errors import NotFoundError, StoreError
from surefoot.gateway.records import GatewayRecord
from surefoot.records import Problem, StepScores, Trace
from surefoot.segment import BlankLine, Line, segment_trace

router = APIRouter()

_MOST = 500
"""Requests taken at once."""


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """Records of one request."""

    problem: Problem
    solutions: tuple[tuple[Trace, StepScores | None], ...]


@router.post("/requests/take")
def take(request: Request, visitor: SignedIn, form: CheckedForm) -> Response:
    """Put the latest answered requests that fit the filters into a project, an item for each solution.

    Scores take the place of older ones of the same scorer and solution; those of a solution that the project
    has with other steps are left out.
    """
    require_admin(visitor)
    which = form.text("which")
    if which not in ("chosen", "all"):
        raise StoreError("'which' must be chosen or all")
    place = enter(request, visitor, form.whole("into"), "admin")
    db, project = pages_of(request).db, place.project.id
    filters = {
        name: form.optional(name, most=500) for name in ("model", "strategy", "policy", "scorer", "project")
    }
    rows = db.gateway.find(**{**request_filters(filters), "failed": False}, limit=_MOST + 1)
    taken = [
        found
        for row in reversed(rows[:_MOST])
        if (found := _records(db.gateway.get(row.request_id), every=which == "all")) is not None
    ]
    report = {
        "problems": db.traces.add_problems(project, (one.problem for one in taken)),
        "traces": db.traces.add_traces(project, (trace for one in taken for trace, _ in one.solutions)),
    }
    present = _present(db, project, (trace.id for one in taken for trace, _ in one.solutions))
    scores, left_out = _fitting(taken, present)
    report["scores"] = db.traces.add_scores(project, scores)
    items = db.items.add_solutions(project, list(present))
    db.projects.audit("take", visitor.user_id, project, requests=len(taken), items=len(items))
    data = {
        "project": {"id": project, "name": place.project.name},
        "requests": len(taken),
        "without_solution": len(rows[:_MOST]) - len(taken),
        "more": len(rows) > _MOST,
        "report": report,
        "scores_left_out": left_out,
        "items": len(items),
    }
    return show(request, visitor, "inspect/taken.html", data, place=place)


def _records(record: GatewayRecord, *, every: bool) -> _Taken | None:
    """What a request has to label; ``None`` = nothing."""
    candidates = [one for one in record.candidates if every or one.chosen or one.choice is None]
    solutions: dict[str, tuple[Trace, StepScores | None]] = {}
    for one in candidates:
        trace = _cut(one.trace)
        if trace.steps and trace.id not in solutions:
            its = one.scores is not None and one.scores.trace_id == trace.id
            solutions[trace.id] = (trace, one.scores if its else None)
    if record.problem is None or not solutions:
        return None
    return _Taken(problem=record.problem, solutions=tuple(solutions.values()))


def _cut(trace: Trace) -> Trace:
    """Plain answers have no steps yet."""
    if trace.steps or not (trace.text or "").strip():
        return trace
    return segment_trace(trace, BlankLine() if "\n\n" in (trace.text or "").strip() else Line())


def _present(db: Database, project: int, trace_ids: Iterable[str]) -> dict[str, Trace]:
    """Those that the project has now; one that was refused is counted in the report."""
    found = {}
    for trace_id in dict.fromkeys(trace_ids):
        with suppress(NotFoundError):
            found[trace_id] = db.traces.trace(project, trace_id)
    return found


def _fitting(
    taken: Iterable[_Taken], present: Mapping[str, Trace]
) -> tuple[list[StepScores], dict[str, int]]:
    """The latest scores of each scorer for the steps that the project has, and how many others there were.

    ``taken`` comes oldest first.
    """
    latest: dict[tuple[str, str], StepScores] = {}
    left_out = {"other_steps": 0, "older": 0}
    for trace, scores in (solution for one in taken for solution in one.solutions):
        if scores is None:
            continue
        kept = present.get(trace.id)
        if kept is None or not _same_steps(kept, trace):
            left_out["other_steps"] += 1
            continue
        key = (trace.id, scores.scorer)
        left_out["older"] += key in latest
        latest[key] = scores
    return list(latest.values()), left_out


def _same_steps(one: Trace, other: Trace) -> bool:
    return (one.text, one.messages, one.steps) == (other.text, other.messages, other.steps)
