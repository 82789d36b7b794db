"""Disagreements, and the decisions that settle them; the annotators' labels stay."""

from __future__ import annotations

from itertools import groupby, islice
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import NotFoundError, StoreError
from surefoot.server.pages.access import AdminPlace
from surefoot.server.pages.forms import CheckedForm
from surefoot.server.pages.render import done, show, twin
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import Disagreement

router = APIRouter()

_SHOWN = 100
"""Items of a list: those that follow move up when these are decided."""


@twin(router, "/projects/{project_id:number}/adjudicate")
def disagreements(request: Request, place: AdminPlace) -> Response:
    """Items that annotators who finished labelled differently: the first open ones and the first decided."""
    db = place.db
    all_disagreements = db.reviews.disagreements(place.id, adjudicated=True)
    undecided = [disagreement for disagreement in all_disagreements if disagreement.adjudication is None]
    decided = [disagreement for disagreement in all_disagreements if disagreement.adjudication is not None]
    data = {
        "open": _by_item(db, place.id, undecided),
        "open_items": len({disagreement.item_id for disagreement in undecided}),
        "decided": _by_item(db, place.id, decided),
        "decided_items": len({disagreement.item_id for disagreement in decided}),
    }
    return show(request, place, "disagreements.html", data)


@twin(router, "/projects/{project_id:number}/adjudicate/{item_id:number}")
def disagreement(request: Request, place: AdminPlace, item_id: int) -> Response:
    """One item: its steps with everybody's labels, and a form for each disputed step."""
    db = place.db
    item = db.items.get(place.id, item_id)
    disputes = _of_item(db, place.id, item_id)
    problem = db.traces.problem(place.id, item.problem_id)
    comments = db.comments.list(place.id, item_id=item_id)
    names = {member.user_id: member.pseudonym for member in db.projects.members(place.id)}
    data = {
        "item": item_id,
        "problem": problem.text,
        "answer": problem.answer,
        "values": list(place.project.protocol.values),
        "traces": [_trace_view(db, place.id, name, item.step, item_id, disputes) for name in item.trace_ids],
        "comments": [
            {
                "kind": r.kind,
                "text": r.text,
                "step": r.step,
                "by": names.get(r.user_id, "?"),
                "resolved": r.resolved,
            }
            for r in comments
        ],
        "next": _next_open(db, place.id, item_id),
    }
    return show(request, place, "adjudicate.html", data)


@router.post("/projects/{project_id:number}/adjudicate/{item_id:number}")
def decide(request: Request, place: AdminPlace, item_id: int, form: CheckedForm) -> Response:
    """Append a decision for one step. ``after`` is the decision that the form showed, 0 if none."""
    db = place.db
    trace, step, value = form.text("trace"), form.whole("step"), form.value("value")
    if value not in place.project.protocol.values:
        raise StoreError(f"'value': this project's labels are {list(place.project.protocol.values)}")
    seen = form.whole("after")
    adjudication = db.reviews.adjudicate(
        place.id, item_id, place.user_id, trace, step, value,
        note=form.text("note", default="", most=5000), after=seen,
    )  # fmt: skip
    return done(request, f"/projects/{place.id}/adjudicate/{item_id}", {"adjudication": adjudication})


def _trace_view(
    db: Database, project_id: int, name: str, step: int | None, item_id: int, disputes: list[Disagreement]
) -> dict[str, Any]:
    trace = db.traces.trace(project_id, name)
    disputed = {dispute.step: dispute for dispute in disputes if dispute.trace_id == name}
    labels: dict[int, list[dict[str, Any]]] = {}
    for label in db.labels.of_trace(project_id, name):
        if label.item_id == item_id:
            evidence = label.record.evidence
            row = {"rater": evidence.rater, "value": label.record.value, "comment": evidence.message}
            labels.setdefault(label.record.step, []).append(row)
    last = len(trace.steps) if step is None else step + 1
    return {
        "trace": name,
        "answer": trace.answer,
        "steps": [
            {
                "step": index,
                "text": trace.step_text(index),
                "labels": labels.get(index, []),
                "dispute": _dispute(disputed.get(index)),
            }
            for index in range(last)
        ],
    }


def _dispute(one: Disagreement | None) -> dict[str, Any] | None:
    if one is None:
        return None
    decided = one.adjudication
    return {
        "values": [{"rater": rater, "value": value} for rater, value in one.values],
        "decided": None if decided is None else {"value": decided.value, "note": decided.note},
        "after": 0 if decided is None else decided.id,
    }


def _of_item(db: Database, project_id: int, item_id: int) -> list[Disagreement]:
    of_item = db.reviews.disagreements(project_id, item_id=item_id, adjudicated=True)
    if not of_item:
        raise NotFoundError(f"annotators do not disagree about item {item_id}")
    return of_item


def _next_open(db: Database, project_id: int, item_id: int) -> int | None:
    """Another item with an open disagreement."""
    return next(
        (
            disagreement.item_id
            for disagreement in db.reviews.disagreements(project_id)
            if disagreement.item_id != item_id
        ),
        None,
    )


def _by_item(db: Database, project_id: int, disagreements: list[Disagreement]) -> list[dict[str, Any]]:
    by_item = groupby(sorted(disagreements, key=lambda one: one.item_id), key=lambda one: one.item_id)
    groups = [(item_id, list(group)) for item_id, group in islice(by_item, _SHOWN)]
    items = db.items.of_ids(project_id, (item_id for item_id, _ in groups))
    problems = db.traces.problems_of(project_id, (item.problem_id for item in items.values()))
    return [
        {
            "item": item_id,
            "problem": problems[items[item_id].problem_id].text,
            "steps": [
                {"trace": dispute.trace_id, "step": dispute.step, **(_dispute(dispute) or {})}
                for dispute in disputes
            ],
        }
        for item_id, disputes in groups
    ]
