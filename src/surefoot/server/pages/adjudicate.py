"""Lists of disagreements, of the decisions that settle them, and of annotators' flags and comments."""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.server.pages.access import AdminPlace
from surefoot.server.pages.forms import CheckedForm, query_of
from surefoot.server.pages.render import done, next_page, show, twin
from surefoot.server.pages.run import with_names
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import Disagreement

router = APIRouter()

_SHOWN = 100
"""Items of a list: those that follow move up when these are decided."""
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


def _by_item(db: Database, project_id: int, disagreements: list[Disagreement]) -> list[dict[str, Any]]:
    # disagreements are sorted by item
    by_item = groupby(disagreements, key=lambda dispute: dispute.item_id)
    groups = {item_id: list(group) for item_id, group in by_item}
    items = db.items.of_ids(project_id, groups)
    problems = db.traces.problems_of(project_id, {item.problem_id for item in items.values()})
    return [
        {
            "item": item_id,
            "link": f"run?{urlencode({'id': items[item_id].trace_id, 'disagreement': 1})}",
            "problem": problems[items[item_id].problem_id].text,
            "steps": [
                {
                    "step": dispute.step,
                    "values": [{"rater": rater, "value": value} for rater, value in dispute.values],
                    "decided": dispute.adjudication,
                }
                for dispute in disputes
            ],
        }
        for item_id, disputes in groups.items()
    ]


@twin(router, "/projects/{project_id:number}/flags")
def flag_list(request: Request, place: AdminPlace) -> Response:
    """Open flags and comments, oldest first; with ``?all=1`` also resolved ones."""
    db, query = place.db, query_of(request)
    resolved = None if query.ticked("all") else False
    comments = db.comments.list(
        place.id, resolved=resolved, after=query.natural("after"), limit=_PER_PAGE + 1
    )
    items = db.items.of_ids(place.id, {comment.item_id for comment in comments})
    fields, more = "" if resolved is False else "all=1", len(comments) > _PER_PAGE
    data = {
        "comments": [
            {**comment, "trace": items[comment["item_id"]].trace_id}
            for comment in with_names(place, comments[:_PER_PAGE])
        ],
        "next": next_page(fields, after=comments[_PER_PAGE - 1].id) if more else None,
    }
    return show(request, place, "flags.html", data, extra={"query": fields})


@router.post("/projects/{project_id:number}/flags/{comment_id:number}")
def resolve(request: Request, place: AdminPlace, comment_id: int, form: CheckedForm) -> Response:  # noqa: ARG001
    """Resolve a flag or comment, and return to the list."""
    place.db.comments.resolve(place.id, comment_id)
    place.db.projects.audit("comment resolved", place.visitor.user_id, place.id, comment=comment_id)
    return done(request, f"/projects/{place.id}/flags", {"resolved": comment_id})
