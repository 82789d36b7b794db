"""Annotators' flags and comments, each with its step and a button to resolve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.annotation.database import Comment, Database, Item
from surefoot.annotation.pages.access import SignedIn, enter, pages_of
from surefoot.annotation.pages.forms import CheckedForm
from surefoot.annotation.pages.render import done, show, twin
from surefoot.errors import StoreError
from surefoot.records import Trace

router = APIRouter()

STATES: Final = {"open": "open", "resolved": "resolved", "all": "open and resolved"}
KINDS: Final = {"flag": "flags", "comment": "comments", "all": "flags and comments"}
_PER_PAGE: Final = 50
"""Comments per page."""


@dataclass(frozen=True, kw_only=True)
class _Filters:
    """Filters of the list; the default is open flags and comments."""

    state: str
    kind: str

    @property
    def resolved(self) -> bool | None:
        return None if self.state == "all" else self.state == "resolved"

    @property
    def kinds(self) -> Literal["comment", "flag"] | None:
        if self.kind == "all":
            return None
        return "flag" if self.kind == "flag" else "comment"

    def query(self) -> str:
        """The filters as a query string; empty for the default."""
        default = _filters({})
        return urlencode({key: value for key, value in vars(self).items() if value != getattr(default, key)})


@twin(router, "/projects/{project_id:int}/flags")
def flag_list(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """Flags and comments, oldest first: ``?state=open|resolved|all``, ``?kind=flag|comment|all``."""
    place = enter(request, visitor, project_id, "admin")
    db, filters = pages_of(request).db, _filters(request.query_params)
    comments = db.comments.list(
        project_id,
        kind=filters.kinds,
        resolved=filters.resolved,
        after=_after(request.query_params.get("after", "")),
        limit=_PER_PAGE + 1,
    )
    query, more = filters.query(), None
    if len(comments) > _PER_PAGE:
        more = "?" + "&".join(filter(None, (query, urlencode({"after": comments[_PER_PAGE - 1].id}))))
    data = {
        "project": {"id": project_id, "name": place.project.name},
        "filters": vars(filters),
        "open_flags": db.comments.open_flags(project_id),
        "comments": _rows(db, project_id, comments[:_PER_PAGE]),
        "next": more,
    }
    extra = {"query": query, "states": STATES, "kinds": KINDS}
    return show(request, visitor, "flags.html", data, place=place, extra=extra)


@router.post("/projects/{project_id:int}/flags/{comment_id:int}")
def resolve(
    request: Request, visitor: SignedIn, project_id: int, comment_id: int, form: CheckedForm
) -> Response:
    """Resolve a flag or comment, and return to the list with its filters."""
    enter(request, visitor, project_id, "admin")
    db = pages_of(request).db
    filters = _filters({name: form.text(name, default="") for name in ("state", "kind")})
    db.comments.resolve(project_id, comment_id)
    db.projects.audit("comment resolved", visitor.user_id, project_id, comment=comment_id)
    query = filters.query()
    to = f"/projects/{project_id}/flags" + (f"?{query}" if query else "")
    return done(request, to, {"resolved": comment_id})


def _filters(query: Mapping[str, str]) -> _Filters:
    state, kind = query.get("state") or "open", query.get("kind") or "all"
    for name, value, options in (("state", state, STATES), ("kind", kind, KINDS)):
        if value not in options:
            raise StoreError(f"'{name}' must be one of {', '.join(options)}")
    return _Filters(state=state, kind=kind)


def _after(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise StoreError("'after' must be the id of a comment")
    return int(text)


def _rows(db: Database, project_id: int, comments: list[Comment]) -> list[dict[str, Any]]:
    """Comments with what they are about. Items and traces that several refer to are read once."""
    names = {member.user_id: member.pseudonym for member in db.projects.members(project_id)}
    disputed = (
        {one.item_id for one in db.reviews.disagreements(project_id, adjudicated=True)} if comments else set()
    )
    items = {number: db.items.get(project_id, number) for number in {one.item_id for one in comments}}
    traces = {
        name: db.traces.trace(project_id, name)
        for name in {_about(one, items[one.item_id]) for one in comments if one.step is not None}
    }
    problems = {
        name: db.traces.problem(project_id, name) for name in {item.problem_id for item in items.values()}
    }
    return [
        {
            "id": one.id,
            "kind": one.kind,
            "text": one.text,
            "by": names.get(one.user_id, "?"),
            "created": one.created,
            "resolved": one.resolved,
            "item": one.item_id,
            "problem": problems[items[one.item_id].problem_id].text,
            "traces": list(items[one.item_id].trace_ids) if one.trace_id is None else [one.trace_id],
            "step": one.step,
            "step_text": _step_text(one, items[one.item_id], traces),
            "disputed": one.item_id in disputed,
        }
        for one in comments
    ]


def _about(comment: Comment, item: Item) -> str:
    """The trace of a comment's step; a solution has only one."""
    return item.trace_ids[0] if comment.trace_id is None else comment.trace_id


def _step_text(comment: Comment, item: Item, traces: Mapping[str, Trace]) -> str | None:
    return None if comment.step is None else traces[_about(comment, item)].step_text(comment.step)
