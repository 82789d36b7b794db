"""Annotators' flags and comments, each with its step and a button to resolve it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.server.pages.access import AdminPlace
from surefoot.server.pages.forms import CheckedForm, Form, query_of
from surefoot.server.pages.render import done, next_page, show, twin
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import Comment

router = APIRouter()

STATES: Final = {"open": "open", "resolved": "resolved", "all": "open and resolved"}
KINDS: Final = {"flag": "flags", "comment": "comments", "all": "flags and comments"}
_DEFAULT: Final = {"state": "open", "kind": "all"}
_PER_PAGE: Final = 50
"""Comments per page."""


@twin(router, "/projects/{project_id:number}/flags")
def flag_list(request: Request, place: AdminPlace) -> Response:
    """Flags and comments, oldest first: ``?state=open|resolved|all``, ``?kind=flag|comment|all``."""
    db, filters = place.db, _filters(query_of(request))
    state, kind = filters["state"], filters["kind"]
    comments = db.comments.list(
        place.id,
        kind="flag" if kind == "flag" else "comment" if kind == "comment" else None,
        resolved=None if state == "all" else state == "resolved",
        after=query_of(request).natural("after"),
        limit=_PER_PAGE + 1,
    )
    query, more = _query(filters), len(comments) > _PER_PAGE
    data = {
        "filters": filters,
        "open_flags": db.comments.open_flags(place.id),
        "comments": _rows(db, place.id, comments[:_PER_PAGE]),
        "next": next_page(query, after=comments[_PER_PAGE - 1].id) if more else None,
    }
    extra = {"query": query, "states": STATES, "kinds": KINDS}
    return show(request, place, "flags.html", data, extra=extra)


@router.post("/projects/{project_id:number}/flags/{comment_id:number}")
def resolve(request: Request, place: AdminPlace, comment_id: int, form: CheckedForm) -> Response:
    """Resolve a flag or comment, and return to the list with its filters."""
    db = place.db
    query = _query(_filters(form))
    db.comments.resolve(place.id, comment_id)
    db.projects.audit("comment resolved", place.visitor.user_id, place.id, comment=comment_id)
    to = f"/projects/{place.id}/flags" + (f"?{query}" if query else "")
    return done(request, to, {"resolved": comment_id})


def _filters(form: Form) -> dict[str, str]:
    """Filters of the list; the default is open flags and comments."""
    return {
        "state": form.choice("state", STATES, default=_DEFAULT["state"]),
        "kind": form.choice("kind", KINDS, default=_DEFAULT["kind"]),
    }


def _query(filters: Mapping[str, str]) -> str:
    """The filters as a query string; empty for the default."""
    return urlencode({name: value for name, value in filters.items() if value != _DEFAULT[name]})


def _rows(db: Database, project_id: int, comments: list[Comment]) -> list[dict[str, Any]]:
    """Comments with the items and traces that they refer to, each of which is read once."""
    names = {member.user_id: member.pseudonym for member in db.projects.members(project_id)}
    disputed = {dispute.item_id for dispute in db.reviews.disagreements(project_id, adjudicated=True)}
    items = db.items.of_ids(project_id, {comment.item_id for comment in comments})
    traces = db.traces.traces_of(project_id, {item.trace_id for item in items.values()})
    problems = db.traces.problems_of(project_id, {item.problem_id for item in items.values()})
    rows = []
    for comment in comments:
        item = items[comment.item_id]
        trace, step = traces[item.trace_id], comment.step
        rows.append(
            {
                **vars(comment),
                "by": names.get(comment.user_id, "?"),
                "problem": problems[item.problem_id].text,
                "trace": trace.id,
                "step_text": None if step is None else trace.step_text(step),
                "disputed": item.id in disputed,
            }
        )
    return rows
