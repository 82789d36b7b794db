"""Disagreements with the decisions that settle them, and annotators' flags and comments.

The annotators' labels stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, islice
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import NotFoundError
from surefoot.server.pages.access import AdminPlace
from surefoot.server.pages.forms import CheckedForm, Form, query_of
from surefoot.server.pages.render import done, next_page, show, twin
from surefoot.server.pages.run import comments_of, decide_step, sources, with_labels
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import Comment, Disagreement
from surefoot.server.store.traces import title_of

router = APIRouter()

_SHOWN = 100
"""Items of a list: those that follow move up when these are decided."""
STATES: Final = {"open": "open", "resolved": "resolved", "all": "open and resolved"}
KINDS: Final = {"flag": "flags", "comment": "comments", "all": "flags and comments"}
_DEFAULT: Final = {"state": "open", "kind": "all"}
_PER_PAGE: Final = 50
"""Comments per page."""


@twin(router, "/projects/{project_id:number}/adjudicate")
def disagreements(request: Request, place: AdminPlace) -> Response:
    """Items that annotators who finished labelled differently: the first open ones and the first decided."""
    reviews, data = place.db.reviews, dict[str, Any]()
    for name, decided in (("open", False), ("decided", True)):
        disputes = reviews.disagreements(place.id, decided=decided, most=_SHOWN)
        data[name] = _by_item(place.db, place.id, disputes)
        data[f"{name}_items"] = reviews.disputed_items(place.id, decided=decided)
    return show(request, place, "disagreements.html", data)


@twin(router, "/projects/{project_id:number}/adjudicate/{item_id:number}")
def disagreement(request: Request, place: AdminPlace, item_id: int) -> Response:
    """One item: its steps with everybody's labels, without scores, and a form for each disputed step."""
    db, item = place.db, place.db.items.get(place.id, item_id)
    disputes = {
        dispute.step: dispute
        for dispute in db.reviews.disagreements(place.id, item_ids=[item_id], decided=None)
    }
    if not disputes:
        raise NotFoundError(f"annotators do not disagree about item {item_id}")
    problem, trace = db.traces.problem(place.id, item.problem_id), db.traces.trace(place.id, item.trace_id)
    labels = [label for label in db.labels.of_trace(place.id, trace.id) if label.item_id == item_id]
    decisions = {
        step: dispute.adjudication for step, dispute in disputes.items() if dispute.adjudication is not None
    }
    still_open = (dispute.item_id for dispute in db.reviews.disagreements(place.id, most=2))
    data = {
        "item": item_id,
        "problem": problem.text,
        "answer": problem.answer,
        "trace": item.trace_id,
        "sources": sources(labels),
        "disputes": [{"step": step, **_dispute(dispute)} for step, dispute in disputes.items()],
        "comments": comments_of(place, item_id),
        "next": next((other for other in still_open if other != item_id), None),
    }
    extra = {
        "mode": "decide",
        "title": title_of(problem, trace),
        "disputed": next((step for step in disputes if step not in decisions), None),
        "disputes": disputes,
        "blocks": with_labels(trace, sources(labels), decisions),
    }
    return show(request, place, "run.html", data, extra=extra)


@router.post("/projects/{project_id:number}/adjudicate/{item_id:number}")
def decide(request: Request, place: AdminPlace, item_id: int, form: CheckedForm) -> Response:
    """Append a decision for one step of an item."""
    adjudication = decide_step(place, form, item_id)
    return done(request, f"/projects/{place.id}/adjudicate/{item_id}", {"adjudication": adjudication})


def _dispute(dispute: Disagreement) -> dict[str, Any]:
    decided = dispute.adjudication
    return {
        "values": [{"rater": rater, "value": value} for rater, value in dispute.values],
        "decided": None if decided is None else {"value": decided.value, "note": decided.note},
        "after": 0 if decided is None else decided.id,
    }


def _by_item(db: Database, project_id: int, disagreements: list[Disagreement]) -> list[dict[str, Any]]:
    # disagreements are sorted by item
    by_item = groupby(disagreements, key=lambda dispute: dispute.item_id)
    groups = {item_id: list(group) for item_id, group in islice(by_item, _SHOWN)}
    items = db.items.of_ids(project_id, groups)
    problems = db.traces.problems_of(project_id, {item.problem_id for item in items.values()})
    return [
        {
            "item": item_id,
            "problem": problems[items[item_id].problem_id].text,
            "steps": [{"step": dispute.step, **_dispute(dispute)} for dispute in disputes],
        }
        for item_id, disputes in groups.items()
    ]


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
    items = db.items.of_ids(project_id, {comment.item_id for comment in comments})
    disputes = db.reviews.disagreements(project_id, item_ids=items, decided=None)
    disputed = {dispute.item_id for dispute in disputes}
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
