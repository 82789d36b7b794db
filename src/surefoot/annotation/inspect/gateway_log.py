"""What the gateway wrote down: requests, and the chosen and the rejected candidates of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.annotation.database import GatewayRow
from surefoot.annotation.inspect.access import (
    asked,
    choice,
    identity,
    needed,
    require_reader,
    settings_of,
    whole,
)
from surefoot.annotation.inspect.figures import strip
from surefoot.annotation.inspect.tree_pages import show_tree
from surefoot.annotation.pages.context import pages_of
from surefoot.annotation.pages.render import show, twin
from surefoot.annotation.pages.visitors import SignedIn
from surefoot.errors import NotFoundError, StoreError
from surefoot.gateway.records import GatewayCandidate
from surefoot.records import Trace
from surefoot.search.saved_tree import SavedTree

router = APIRouter()


@twin(router, "/requests")
def request_list(request: Request, visitor: SignedIn) -> Response:
    """Requests, newest first; the filters are in the address."""
    require_reader(visitor)
    db, limit = pages_of(request).db, settings_of(request).page
    asked_for = {
        **{name: asked(request, name) for name in ("model", "strategy", "policy", "scorer")},
        "failed": choice(request, "failed", ("yes", "no")),
        "project": asked(request, "project", most=9),
    }
    found = db.gateway.find(**request_filters(asked_for), before=_before(request), limit=limit + 1)
    kept = {name: value for name, value in asked_for.items() if value is not None}
    query = urlencode(kept)
    projects = db.projects.list() if visitor.admin else []
    data = {
        "filters": asked_for,
        "requests": [
            {**vars(row), "link": f"/request?{urlencode({'id': row.request_id})}"} for row in found[:limit]
        ],
        "next": f"?{urlencode({**kept, **_after(found[limit - 1])})}" if len(found) > limit else None,
    }
    extra = {"query": query, "projects": projects}
    return show(request, visitor, "inspect/requests.html", data, extra=extra)


def request_filters(asked_for: Mapping[str, str | None]) -> dict[str, Any]:
    """What ``find`` takes, of fields as they were asked for. Raises ``StoreError`` for a project's number."""
    project, failed = asked_for.get("project"), asked_for.get("failed")
    if project is not None and not (project.isascii() and project.isdigit() and len(project) < 10):
        raise StoreError(f"'project' must be a whole number, not {project!r}")
    return {
        **{name: asked_for.get(name) for name in ("model", "strategy", "policy", "scorer")},
        "project_id": None if project is None else int(project),
        "failed": None if failed is None else failed == "yes",
    }


@twin(router, "/request")
def request_page(request: Request, visitor: SignedIn) -> Response:
    """One request with everything that was considered for it."""
    require_reader(visitor)
    record = pages_of(request).db.gateway.get(needed(request, "id"))
    extra = {
        "query": urlencode({"id": record.request_id}),
        "candidates": [_shown(one) for one in _in_order(record.candidates)],
        "trees": sorted(record.trees),
    }
    return show(request, visitor, "inspect/request.html", {"request": record}, extra=extra)


@twin(router, "/request-tree")
def request_tree(request: Request, visitor: SignedIn) -> Response:
    """All steps that were drawn for one answer (``choice``) of a request."""
    require_reader(visitor)
    record = pages_of(request).db.gateway.get(needed(request, "id"))
    number = whole(request, "choice")
    if number not in record.trees:
        raise NotFoundError(f"there is no tree of choice {number}: its search gave no step up")
    about = {"id": record.request_id, "choice": number}
    link = f"/request?{urlencode({'id': record.request_id})}"
    tree = SavedTree.model_validate(record.trees[number])
    return show_tree(request, visitor, tree, about, back=(link, "the request"))


def _in_order(candidates: Sequence[GatewayCandidate]) -> list[GatewayCandidate]:
    """What the client gave, then choice by choice the chosen one and the others in the order found."""
    return sorted(candidates, key=lambda one: (-1 if one.choice is None else one.choice, not one.chosen))


def _shown(one: GatewayCandidate) -> dict[str, Any]:
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
        or [_all_of(one.trace)],
    }


def _all_of(trace: Trace) -> str:
    if trace.text is not None:
        return trace.text
    return "\n".join(message.content or "" for message in trace.messages)


def _after(row: GatewayRow) -> dict[str, str]:
    return {"before": row.created.isoformat(), "before_id": row.request_id}


def _before(request: Request) -> tuple[datetime, str] | None:
    moment = asked(request, "before")
    if moment is None:
        return None
    try:
        at = datetime.fromisoformat(moment)
    except ValueError as error:
        raise StoreError(f"'before' must be a time, not {moment!r}") from error
    if at.tzinfo is None:
        raise StoreError("'before' must name its time zone")
    return at, identity(request, "before_id") or ""
