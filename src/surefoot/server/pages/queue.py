"""The queue: which item comes next, and why. Administrators choose the policy and recompute priorities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import StoreError
from surefoot.labelling.queueing import Priorities, QueueCandidate, QueueRule, priorities
from surefoot.server.pages.access import AdminPlace
from surefoot.server.pages.forms import CheckedForm, protocol_with
from surefoot.server.pages.render import done, show, twin
from surefoot.server.store.accounts import QueuePolicy
from surefoot.server.store.database import Database

router = APIRouter()

POLICIES: dict[QueuePolicy, str] = {
    "order": "As added",
    "random": "At random",
    "convincing-wrong": "Most convincing wrong answers first",
    "uncertainty": "Most uncertain position of the first error first",
    "disagreement": "Largest disagreement between scorers first",
}
_SHOWN = 50
_BATCH = 500


@twin(router, "/projects/{project_id:number}/queue")
def queue_page(request: Request, place: AdminPlace) -> Response:
    """The policy, its control share, and the items at the head of the queue."""
    db, protocol = place.db, place.project.protocol
    values = (
        db.items.priorities(place.id, protocol.queue) if protocol.queue not in ("order", "random") else {}
    )
    head = sorted(values, key=lambda item: (-values[item], item))[:_SHOWN]
    data = {
        "project": place.project,
        "scorers": db.traces.scorers(place.id),
        "ranked": len(values),
        "head": _head(db, place.id, {item: values[item] for item in head}),
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
        raise StoreError(f"'scorer': this project does not have scores by {scorer!r}")
    ranked = priorities(rule, list(_candidates(db, project_id)), scorer=scorer)
    db.items.set_priorities(project_id, rule, ranked.values)
    return ranked


def _candidates(db: Database, project_id: int) -> Iterator[QueueCandidate]:
    """All active normal items, read by the hundred."""
    items = (item for item in db.items.all(project_id, role="normal") if item.active)
    while part := list(islice(items, _BATCH)):
        names = [item.trace_id for item in part]
        outcomes, scores = db.traces.outcomes_of(project_id, names), db.traces.scores_of(project_id, names)
        for item in part:
            yield QueueCandidate(
                item_id=item.id,
                outcomes=(outcomes[item.trace_id],),
                scores=({row.scorer: row.scores for row in scores[item.trace_id]},),
            )


def _head(db: Database, project_id: int, ranked: Mapping[int, float]) -> list[dict[str, Any]]:
    """A row for each item, in the order of ``ranked``."""
    items = db.items.of_ids(project_id, ranked)
    traces = db.traces.traces_of(project_id, [item.trace_id for item in items.values()])
    problems = db.traces.problems_of(project_id, {item.problem_id for item in items.values()})
    return [
        {
            "item": item_id,
            "priority": priority,
            "problem": problems[items[item_id].problem_id].text,
            "outcome": traces[items[item_id].trace_id].outcome,
            "answer": traces[items[item_id].trace_id].answer,
        }
        for item_id, priority in ranked.items()
    ]
