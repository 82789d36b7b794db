"""Tool calls that wait for a person: what came before, what the guard found, and two buttons."""

from __future__ import annotations

from typing import Any, Final, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.server.gateway.records import HeldCall
from surefoot.server.pages.access import SiteAdmin, SiteReader, pages_of
from surefoot.server.pages.forms import CheckedForm, query_of
from surefoot.server.pages.render import done, next_page, show, twin
from surefoot.server.store.held_calls import HeldRow, HeldState

router = APIRouter()

STATES: Final[tuple[HeldState, ...]] = get_args(HeldState)
_PER_PAGE: Final = 20
_SHOWN: Final = 6
"""Latest messages of the run that are shown."""


@twin(router, "/held")
def held_list(request: Request, visitor: SiteReader) -> Response:
    """Held calls, newest first: ``?state=waiting|approved|denied|abandoned|all``."""
    calls = pages_of(request).db.held_calls
    query = query_of(request)
    state = query.choice("state", (*STATES, "all"), default="waiting")
    before = query.natural("before") or None
    rows = calls.find(
        state=next((known for known in STATES if known == state), None), before=before, limit=_PER_PAGE + 1
    )
    data = {
        "state": state,
        "counts": calls.count(),
        "calls": [_shown(row, calls.get(row.id)[0]) for row in rows[:_PER_PAGE]],
        "next": next_page(f"state={state}", before=rows[_PER_PAGE - 1].id) if len(rows) > _PER_PAGE else None,
    }
    return show(
        request, visitor, "held.html", data, extra={"query": f"state={state}", "states": (*STATES, "all")}
    )


@router.post("/held/{number:number}")
def decide(request: Request, visitor: SiteAdmin, number: int, form: CheckedForm) -> Response:
    """Approve or deny a call; the comment goes to the model if it is denied."""
    db = pages_of(request).db
    decision = form.choice("decision", ("approve", "deny"))
    comment = form.optional("comment", most=2000) or ""
    approved = decision == "approve"
    db.held_calls.decide(number, visitor.user_id, approved=approved, comment=comment)
    db.projects.audit(f"held call {'approved' if approved else 'denied'}", visitor.user_id, held=number)
    return done(request, "/held", {"held": number, "approved": approved})


def _shown(row: HeldRow, held: HeldCall) -> dict[str, Any]:
    return {
        **vars(row),
        "request_id": held.request_id,
        "reason": held.decision.reason,
        "before": len(held.run[:-_SHOWN]),
        "run": [
            {
                "role": message.role,
                "text": "\n".join(filter(None, (message.content, *map(str, message.tool_calls)))),
            }
            for message in held.run[-_SHOWN:]
        ],
        "text": held.reply.content,
        "calls": held.decision.calls,
    }
