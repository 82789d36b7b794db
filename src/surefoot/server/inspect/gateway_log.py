"""What the gateway wrote down: requests, and the chosen and the rejected candidates of each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import StoreError
from surefoot.records import Trace
from surefoot.server.inspect.access import asked, choice, identity, needed, require_reader, settings_of, whole
from surefoot.server.inspect.figures import strip
from surefoot.server.pages.context import pages_of
from surefoot.server.pages.render import show, twin
from surefoot.server.pages.visitors import SignedIn
from surefoot.store.database import GatewayCandidate, GatewayRow

router = APIRouter()


@twin(router, "/requests")
def request_list(request: Request, visitor: SignedIn) -> Response:
    """Requests, newest first; the filters are in the address."""
    require_reader(visitor)
    db, limit = pages_of(request).db, settings_of(request).page
    asked_for = {
        "model": asked(request, "model"),
        "strategy": asked(request, "strategy"),
        "failed": choice(request, "failed", ("yes", "no")),
        "project": asked(request, "project", most=9),
    }
    found = db.gateway.find(
        model=asked_for["model"],
        strategy=asked_for["strategy"],
        failed=None if asked_for["failed"] is None else asked_for["failed"] == "yes",
        project_id=whole(request, "project") if asked_for["project"] else None,
        before=_before(request),
        limit=limit + 1,
    )
    kept = {name: value for name, value in asked_for.items() if value is not None}
    query = urlencode(kept)
    data = {
        "filters": asked_for,
        "requests": [
            {**vars(row), "link": f"/request?{urlencode({'id': row.request_id})}"} for row in found[:limit]
        ],
        "next": f"?{urlencode({**kept, **_after(found[limit - 1])})}" if len(found) > limit else None,
    }
    return show(request, visitor, "inspect/requests.html", data, extra={"query": query})


@twin(router, "/request")
def request_page(request: Request, visitor: SignedIn) -> Response:
    """One request with everything that was considered for it."""
    require_reader(visitor)
    record = pages_of(request).db.gateway.get(needed(request, "id"))
    extra = {
        "query": urlencode({"id": record.request_id}),
        "candidates": [_shown(one) for one in _in_order(record.candidates)],
    }
    return show(request, visitor, "inspect/request.html", {"request": record}, extra=extra)


def _in_order(candidates: Sequence[GatewayCandidate]) -> list[GatewayCandidate]:
    """The chosen first, then the others, each in the order written."""
    return sorted(candidates, key=lambda one: not one.chosen)


def _shown(one: GatewayCandidate) -> dict[str, Any]:
    scores = one.scores.scores if one.scores else ()
    return {
        "chosen": one.chosen,
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
