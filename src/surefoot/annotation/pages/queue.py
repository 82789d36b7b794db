"""The queue: which item comes next, and why. Administrators choose the policy and recompute priorities."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.annotation.database.accounts import QueuePolicy
from surefoot.annotation.database.database import Database
from surefoot.annotation.database.labelling import Item
from surefoot.annotation.pages.access import AdminPlace
from surefoot.annotation.pages.forms import CheckedForm, protocol_with
from surefoot.annotation.pages.render import done, show, twin
from surefoot.errors import StoreError
from surefoot.labelling.queueing import Priorities, QueueCandidate, QueueRule, Scores, priorities

router = APIRouter()

POLICIES: dict[QueuePolicy, str] = {
    "order": "As added",
    "random": "At random",
    "convincing-wrong": "Most convincing wrong answers first",
    "uncertainty": "Most uncertain position of the first error first",
    "disagreement": "Largest disagreement between scorers first",
}
_SHOWN = 50


@twin(router, "/projects/{project_id:number}/queue")
def queue_page(request: Request, place: AdminPlace) -> Response:
    """The policy, its control share, and the items at the head of the queue."""
    db, protocol = place.db, place.project.protocol
    values = (
        db.items.priorities(place.id, protocol.queue) if protocol.queue not in ("order", "random") else {}
    )
    head = sorted(values, key=lambda item: (-values[item], item))[:_SHOWN]
    data = {
        "project": {"id": place.id, "name": place.project.name, "version": place.project.version},
        "policy": protocol.queue,
        "random_share": protocol.random_share,
        "control_share": protocol.control_share,
        "scorers": db.traces.scorers(place.id),
        "ranked": len(values),
        "head": [_head_row(db, place.id, item, values[item]) for item in head],
    }
    return show(request, place, "queue.html", data, extra={"policies": POLICIES})


@router.post("/projects/{project_id:number}/queue")
def choose_policy(request: Request, place: AdminPlace, form: CheckedForm) -> Response:
    """Set the policy and the shares, and compute the priorities that the policy needs."""
    db = place.db
    policy, scorer = form.choice("policy", POLICIES), form.optional("scorer")
    protocol = protocol_with(
        place.project.protocol,
        queue=policy,
        random_share=form.number("random_share") or 0.0,
        control_share=form.number("control_share") or 0.0,
    )
    counts: dict[str, Any] | None = None
    if policy != "order" and policy != "random":
        ranked = recompute(db, place.id, policy, scorer=scorer)
        counts = {"ranked": len(ranked.values), "left_out": dict(ranked.left_out)}
    db.projects.update(place.id, form.whole("version"), protocol=protocol)
    db.projects.audit("queue", place.visitor.user_id, place.id, policy=policy, **(counts or {}))
    return done(request, f"/projects/{place.id}/queue", {"policy": policy, "priorities": counts})


def recompute(db: Database, project_id: int, rule: QueueRule, *, scorer: str | None = None) -> Priorities:
    """Compute and store the priorities of all active normal items from the stored scores."""
    if scorer is not None and scorer not in db.traces.scorers(project_id):
        raise StoreError(f"'scorer': there are no scores by {scorer!r} in this project")
    ranked = priorities(
        rule,
        [_candidate(db, item) for item in db.items.all(project_id, role="normal") if item.active],
        scorer=scorer,
    )
    db.items.set_priorities(project_id, rule, ranked.values)
    return ranked


def _candidate(db: Database, item: Item) -> QueueCandidate:
    traces = [db.traces.trace(item.project_id, name) for name in item.trace_ids]
    scores: list[dict[str, Scores]] = []
    for trace in traces:
        rows = db.traces.scores(item.project_id, trace.id)
        # alternatives are compared by their own step only
        part = slice(None) if item.step is None else slice(item.step, item.step + 1)
        scores.append({row.scorer: row.scores[part] for row in rows})
    return QueueCandidate(
        item_id=item.id, outcomes=tuple(trace.outcome for trace in traces), scores=tuple(scores)
    )


def _head_row(db: Database, project_id: int, item_id: int, priority: float) -> dict[str, Any]:
    item = db.items.get(project_id, item_id)
    traces = [db.traces.trace(project_id, name) for name in item.trace_ids]
    problem = db.traces.problem(project_id, item.problem_id)
    return {
        "item": item_id,
        "priority": priority,
        "problem": problem.text,
        "outcomes": [trace.outcome for trace in traces],
        "answers": [trace.answer for trace in traces],
    }
