"""The queue: which item comes next, and why. Administrators choose the policy and recompute priorities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.annotation.database import Database, Item, QueuePolicy
from surefoot.annotation.pages.access import Place, SignedIn, enter, pages_of
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


@twin(router, "/projects/{project_id:int}/queue")
def queue_page(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """The policy, its control share, and the items at the head of the queue."""
    place = enter(request, visitor, project_id, "admin")
    db, protocol = pages_of(request).db, place.project.protocol
    values = db.items.priorities(project_id, protocol.queue) if _rule(protocol.queue) else {}
    head = sorted(values, key=lambda item: (-values[item], item))[:_SHOWN]
    data = {
        "project": {"id": project_id, "name": place.project.name, "version": place.project.version},
        "policy": protocol.queue,
        "random_share": protocol.random_share,
        "control_share": protocol.control_share,
        "scorers": db.traces.scorers(project_id),
        "ranked": len(values),
        "head": [_head_row(db, project_id, item, values[item]) for item in head],
    }
    return show(request, visitor, "queue.html", data, place=place, extra={"policies": POLICIES})


@router.post("/projects/{project_id:int}/queue")
def choose_policy(request: Request, visitor: SignedIn, project_id: int, form: CheckedForm) -> Response:
    """Set the policy and the shares, and compute the priorities that the policy needs."""
    place = enter(request, visitor, project_id, "admin")
    db = pages_of(request).db
    policy, scorer = _policy(form.text("policy")), form.optional("scorer")
    protocol = protocol_with(
        place.project.protocol,
        queue=policy,
        random_share=form.share("random_share", default=0.0),
        control_share=form.share("control_share", default=0.0),
    )
    rule, ranked = _rule(policy), None
    if rule is not None:
        ranked = recompute(db, project_id, rule, scorer=scorer)
    db.projects.update(project_id, form.whole("version"), protocol=protocol)
    _note(place, db, policy, ranked)
    counts = None if ranked is None else {"ranked": len(ranked.values), "left_out": dict(ranked.left_out)}
    return done(request, f"/projects/{project_id}/queue", {"policy": policy, "priorities": counts})


def recompute(db: Database, project_id: int, rule: QueueRule, *, scorer: str | None = None) -> Priorities:
    """Compute and store the priorities of all active normal items from the stored scores."""
    if scorer is not None and scorer not in db.traces.scorers(project_id):
        raise StoreError(f"'scorer': there are no scores by {scorer!r} in this project")
    ranked = priorities(rule, [_candidate(db, item) for item in _items(db, project_id)], scorer=scorer)
    db.items.set_priorities(project_id, rule, ranked.values)
    return ranked


def _items(db: Database, project_id: int) -> Iterator[Item]:
    after = 0
    while rows := db.items.list(project_id, role="normal", after=after, limit=500):
        yield from (row for row in rows if row.active)
        after = rows[-1].id


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


def _note(place: Place, db: Database, policy: QueuePolicy, ranked: Priorities | None) -> None:
    counted = {} if ranked is None else {"ranked": len(ranked.values), "left_out": dict(ranked.left_out)}
    db.projects.audit("queue", place.visitor.user_id, place.project.id, policy=policy, **counted)


def _policy(text: str) -> QueuePolicy:
    for policy in POLICIES:
        if policy == text:
            return policy
    raise StoreError(f"'policy' must be one of {', '.join(POLICIES)}")


def _rule(policy: QueuePolicy) -> QueueRule | None:
    rules: tuple[QueueRule, ...] = get_args(QueueRule)
    return next((rule for rule in rules if rule == policy), None)
