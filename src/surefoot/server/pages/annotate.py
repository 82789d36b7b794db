"""The annotator's pages: the next item, one step at a time, undo, flags, comments, skipping, instructions.

Steps appear one at a time: the page does not contain what follows the current step, so that it cannot
influence the label. The view of an item is built from ``AnnotatorItem`` alone: no labels by others.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import ForbiddenError, NotFoundError, StoreError
from surefoot.server.pages.access import AnnotatorPlace, MemberPlace, Place, pages_of
from surefoot.server.pages.forms import CheckedForm, Form, new_key
from surefoot.server.pages.render import done, show, twin
from surefoot.server.pages.run import timeline
from surefoot.server.store.accounts import Protocol
from surefoot.server.store.labelling import AnnotatorItem, CommentKind, LabelInput
from surefoot.server.store.traces import title_of

router = APIRouter()

SKIP_REASONS = {
    "give_up": "I cannot judge it",
    "bad_problem": "The problem makes no sense",
    "unreadable": "The solution is unreadable",
    "other": "Another reason",
}
"""Why an item is skipped; the first two are PRM800K's ``finish_reason``."""
_KINDS: tuple[CommentKind, ...] = ("flag", "comment")


@twin(router, "/projects/{project_id:number}/annotate")
def next_item(request: Request, place: AnnotatorPlace) -> Response:
    """Lease the next item and redirect to it, or say why there is none."""
    pages = pages_of(request)
    offer = pages.db.assignments.next(place.id, place.user_id, pages.rng)
    if offer.assignment is not None:
        to = f"/projects/{place.id}/items/{offer.assignment.item_id}"
        return done(request, to, {"why": offer.why, "item": offer.assignment.item_id})
    return _work(request, place, offer.why)


@twin(router, "/projects/{project_id:number}/label")
def work_page(request: Request, place: MemberPlace) -> Response:
    """The visitor's work: the number of labels left, the instructions and the keys."""
    return _work(request, place, None)


def _work(request: Request, place: Place, why: str | None) -> Response:
    progress, protocol = place.db.assignments.progress(place.id, users=()), place.project.protocol
    user_id = place.visitor.user_id
    data = {
        "why": why,
        "item": None,
        "items": progress.items,
        "left": progress.needed - progress.done,
        "instructions": place.project.instructions,
        "values": list(protocol.values),
        "until": protocol.until,
        "show_answer": protocol.show_answer,
    }
    own_progress = user_id and place.db.assignments.progress_of_user(place.id, user_id)
    return show(request, place, "label.html", data, extra={"own": own_progress})


@twin(router, "/projects/{project_id:number}/items/{item_id:number}")
def item_page(request: Request, place: AnnotatorPlace, item_id: int) -> Response:
    """The item as far as it is labelled, and the current step."""
    db = place.db
    item = _own(place, item_id)
    view = item_view(item, place.project.protocol)
    data = {
        **view,
        "comments": db.comments.list(place.id, item_id=item_id, user_id=place.user_id),
    }
    extra = {
        "mode": "label",
        "title": title_of(item.problem, item.trace),
        "blocks": view["blocks"],
        "disputed": None,
        "key": new_key(),
        "skip_reasons": SKIP_REASONS,
    }
    return show(request, place, "run.html", data, extra=extra)


@router.post("/projects/{project_id:number}/items/{item_id:number}/label")
def label(request: Request, place: AnnotatorPlace, item_id: int, form: CheckedForm) -> Response:
    """Label one step; the last one, or the first error if the protocol ends there, finishes the item.

    Under whole-solution one form labels all steps up to the first wrong one.
    """
    db, item, until = place.db, _own(place, item_id), place.project.protocol.until
    value, time, last = form.value("value"), form.milliseconds(), len(item.trace.steps) - 1
    step = last if until == "whole-solution" and value == 1 else form.whole("step")
    labels = [LabelInput(step=step, value=value, milliseconds=time, comment=form.optional("comment"))]
    if until == "whole-solution":
        if value == 0:
            raise StoreError("'value' must be -1 for the first wrong step, or 1 if no step is wrong")
        labels = [*(LabelInput(step=earlier, value=1) for earlier in range(min(step, last))), *labels]
    finish = step == last or until == "whole-solution" or (value == -1 and until == "first-error")
    submission = db.labels.submit(
        place.id, item_id, place.user_id, labels, _key(form), after=form.whole("after"), finish=finish,
        milliseconds=_total(item, step, time) if finish else None,
    )  # fmt: skip
    return done(request, f"/projects/{place.id}/items/{item_id}", {"submission": submission})


@router.post("/projects/{project_id:number}/items/{item_id:number}/undo")
def undo(request: Request, place: AnnotatorPlace, item_id: int, form: CheckedForm) -> Response:
    """Retract the latest submission for the item."""
    submission = place.db.labels.undo(place.id, item_id, place.user_id, _key(form))
    return done(request, f"/projects/{place.id}/items/{item_id}", {"submission": submission})


@router.post("/projects/{project_id:number}/items/{item_id:number}/skip")
def skip(request: Request, place: AnnotatorPlace, item_id: int, form: CheckedForm) -> Response:
    """Skip the item with a reason, and go to the next."""
    reason = form.choice("reason", SKIP_REASONS)
    words = form.optional("words", most=2000)
    place.db.assignments.skip(place.id, item_id, place.user_id, f"{reason}: {words}" if words else reason)
    return done(request, f"/projects/{place.id}/annotate", {"skipped": item_id})


@router.post("/projects/{project_id:number}/items/{item_id:number}/comment")
def comment(request: Request, place: AnnotatorPlace, item_id: int, form: CheckedForm) -> Response:
    """A flag or a comment on the item or one of its steps."""
    kind, text = form.choice("kind", _KINDS), form.text("comment", default="", most=5000)
    if kind == "comment" and not text:
        raise StoreError("'comment' is empty; write something first")
    step = None if form.optional("step") is None else form.whole("step")
    added = place.db.comments.add(place.id, item_id, place.user_id, kind, text or "flagged", step=step)
    return done(request, f"/projects/{place.id}/items/{item_id}", {"comment": added})


def _own(place: Place, item_id: int) -> AnnotatorItem:
    """The visitor's item. Any other item is reported as missing."""
    try:
        return place.db.labels.item(place.project.id, item_id, place.user_id)
    except ForbiddenError as error:
        raise NotFoundError(f"item {item_id} is not assigned to you") from error


def _key(form: Form) -> str:
    return form.text("key", most=200)


def _total(item: AnnotatorItem, step: int, time: int | None) -> int | None:
    """Time for the whole item; ``None`` if the time of any step is unknown, as without scripts."""
    times = [stored.milliseconds for stored in item.labels if stored.record.step != step] + [time]
    measured = [value for value in times if value is not None]
    return sum(measured) if len(measured) == len(times) else None


def item_view(item: AnnotatorItem, protocol: Protocol) -> dict[str, Any]:
    """Data of the page."""
    labels = {label.record.step: label for label in item.labels}
    current = next_step(item, protocol) if item.state == "leased" else None
    visible = max(labels, default=-1) if current is None else current
    if current is not None and protocol.until == "whole-solution":
        visible = len(item.trace.steps) - 1
    return {
        "item": item.item_id,
        "state": item.state,
        "leased_until": item.leased_until,
        "problem": item.problem.text,
        "answer": item.problem.answer if protocol.show_answer else None,
        "show_answer": protocol.show_answer,
        "values": list(protocol.values),
        "last": item.last,
        "trace": item.trace.id,
        "steps": len(item.trace.steps),
        "until": protocol.until,
        "current": current,
        "labelled": len(labels),
        "blocks": [
            {
                **block,
                "labelled": label is not None,
                "value": label and label.record.value,
                "comment": label and label.record.evidence.message,
            }
            for block in timeline(item.trace, visible)
            for label in [labels.get(block["step"])]
        ],
    }


def next_step(item: AnnotatorItem, protocol: Protocol) -> int | None:
    """First step without a label; ``None`` once all have one, or at an error at which the protocol ends."""
    values = {label.record.step: label.record.value for label in item.labels}
    if -1.0 in values.values() and protocol.until != "every-step":
        return None
    return next((step for step in range(len(item.trace.steps)) if step not in values), None)
