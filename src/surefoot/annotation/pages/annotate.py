"""The annotator's pages: the next item, one step at a time, undo, flags, comments, skipping, instructions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.annotation.database import AnnotatorItem, AnnotatorProgress, ChoiceInput, LabelInput
from surefoot.annotation.pages.context import Place, enter, pages_of
from surefoot.annotation.pages.forms import CheckedForm, Form, new_key
from surefoot.annotation.pages.render import done, show, twin
from surefoot.annotation.pages.visitors import SignedIn
from surefoot.annotation.pages.work import ends_with, work_view
from surefoot.errors import ForbiddenError, NotFoundError, StoreError

router = APIRouter()

SKIP_REASONS = {
    "give_up": "I cannot judge it",
    "bad_problem": "The problem makes no sense",
    "unreadable": "The solution cannot be read",
    "other": "Something else",
}
"""Why an item is skipped; the first two are PRM800K's ``finish_reason``."""


@twin(router, "/projects/{project_id:int}/annotate")
def next_item(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """Lease the next item and go to it; or say why there is none."""
    place = _labelling(request, visitor, project_id)
    pages = pages_of(request)
    offer = pages.db.assignments.next(project_id, place.user_id, pages.rng)
    if offer.assignment is not None:
        to = f"/projects/{project_id}/items/{offer.assignment.item_id}"
        return done(request, to, {"why": offer.why, "item": offer.assignment.item_id})
    data = {"why": offer.why, "item": None, "mine": _mine(request, place)}
    return show(request, visitor, "no_item.html", data, place=place)


@twin(router, "/projects/{project_id:int}/items/{item_id:int}")
def item_page(request: Request, visitor: SignedIn, project_id: int, item_id: int) -> Response:
    """The item as far as it has been labelled, and the step that comes now."""
    place = _labelling(request, visitor, project_id)
    db = pages_of(request).db
    item = _own(request, place, item_id)
    comments = db.comments.list(project_id, item_id=item_id, user_id=place.user_id)
    data = {
        "project": {"id": project_id, "name": place.project.name},
        **work_view(item, place.project.protocol),
        "comments": [
            {"kind": r.kind, "text": r.text, "trace": r.trace_id, "step": r.step, "created": r.created}
            for r in comments
        ],
        "previous": _previous(request, place, item_id),
        "mine": _mine(request, place),
    }
    template = "annotate.html" if item.kind == "solution" else "alternatives.html"
    extra = {"key": new_key(), "skip_reasons": SKIP_REASONS}
    return show(request, visitor, template, data, place=place, extra=extra)


@router.post("/projects/{project_id:int}/items/{item_id:int}/label")
def label(request: Request, visitor: SignedIn, project_id: int, item_id: int, form: CheckedForm) -> Response:
    """One label of a solution's step; the first error or the last step finishes the item."""
    place = _labelling(request, visitor, project_id)
    db, item = pages_of(request).db, _own(request, place, item_id)
    if item.kind != "solution":
        raise StoreError("this item has alternatives; send them to .../alternatives")
    step, value, time = form.whole("step"), form.value("value"), form.milliseconds()
    finish = ends_with(item, step, value)
    given = LabelInput(
        trace_id=item.traces[0].id,
        step=step,
        value=value,
        milliseconds=time,
        comment=form.optional("comment"),
    )
    sent = db.labels.submit(
        project_id, item_id, place.user_id, [given], _key(form), after=form.whole("after"), finish=finish,
        milliseconds=_total(item, step, time) if finish else None,
    )  # fmt: skip
    return done(request, f"/projects/{project_id}/items/{item_id}", {"submission": sent})


@router.post("/projects/{project_id:int}/items/{item_id:int}/alternatives")
def label_alternatives(
    request: Request, visitor: SignedIn, project_id: int, item_id: int, form: CheckedForm
) -> Response:
    """Phase 1: a label for each alternative, and which one to go on with, or a step written by hand."""
    place = _labelling(request, visitor, project_id)
    db, item = pages_of(request).db, _own(request, place, item_id)
    if item.kind != "alternatives" or item.step is None:
        raise StoreError("this item is a solution; send its labels one by one to .../label")
    missing = [n for n in range(len(item.traces)) if not form.optional(f"value-{n}")]
    if missing:
        raise StoreError(f"alternative {missing[0] + 1} has no label yet; rate all of them")
    comment, time = form.optional("comment"), form.milliseconds()
    given = [
        LabelInput(trace_id=trace.id, step=item.step, value=form.value(f"value-{n}"), comment=comment)
        for n, trace in enumerate(item.traces)
    ]
    sent = db.labels.submit(
        project_id, item_id, place.user_id, given, _key(form), choice=_choice(form, item),
        after=form.whole("after"), finish=True, milliseconds=time,
    )  # fmt: skip
    return done(request, f"/projects/{project_id}/items/{item_id}", {"submission": sent})


@router.post("/projects/{project_id:int}/items/{item_id:int}/undo")
def undo(request: Request, visitor: SignedIn, project_id: int, item_id: int, form: CheckedForm) -> Response:
    """Take back the latest submission on the item."""
    place = _labelling(request, visitor, project_id)
    sent = pages_of(request).db.labels.undo(project_id, item_id, place.user_id, _key(form))
    return done(request, f"/projects/{project_id}/items/{item_id}", {"submission": sent})


@router.post("/projects/{project_id:int}/items/{item_id:int}/skip")
def skip(request: Request, visitor: SignedIn, project_id: int, item_id: int, form: CheckedForm) -> Response:
    """Give the item back with a reason, and go to the next."""
    place = _labelling(request, visitor, project_id)
    reason = form.text("reason")
    if reason not in SKIP_REASONS:
        raise StoreError(f"'reason' must be one of {', '.join(SKIP_REASONS)}")
    words = form.optional("words", most=2000)
    pages_of(request).db.assignments.skip(
        project_id, item_id, place.user_id, f"{reason}: {words}" if words else reason
    )
    return done(request, f"/projects/{project_id}/annotate", {"skipped": item_id})


@router.post("/projects/{project_id:int}/items/{item_id:int}/comment")
def comment(
    request: Request, visitor: SignedIn, project_id: int, item_id: int, form: CheckedForm
) -> Response:
    """A flag or a comment on the item or one of its steps."""
    place = _labelling(request, visitor, project_id)
    kind, text = form.text("kind"), form.text("comment", default="", most=5000)
    if kind not in ("flag", "comment"):
        raise StoreError("'kind' must be flag or comment")
    if kind == "comment" and not text:
        raise StoreError("'comment' is empty; write something first")
    trace, step = form.optional("trace"), form.optional("step")
    made = pages_of(request).db.comments.add(
        project_id,
        item_id,
        place.user_id,
        "flag" if kind == "flag" else "comment",
        text or "flagged",
        trace_id=trace,
        step=form.whole("step") if step is not None and trace is not None else None,
    )
    return done(request, f"/projects/{project_id}/items/{item_id}", {"comment": made})


@twin(router, "/projects/{project_id:int}/instructions")
def instructions(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """What the project asks of its annotators."""
    place = enter(request, visitor, project_id)
    protocol = place.project.protocol
    data = {
        "project": {"id": project_id, "name": place.project.name},
        "instructions": place.project.instructions,
        "phase": protocol.phase,
        "values": list(protocol.values),
        "show_answer": protocol.show_answer,
    }
    return show(request, visitor, "instructions.html", data, place=place)


def _labelling(request: Request, visitor: SignedIn, project_id: int) -> Place:
    return enter(request, visitor, project_id, "annotator", "admin")


def _own(request: Request, place: Place, item_id: int) -> AnnotatorItem:
    """The visitor's item. An item of somebody else is answered like one that does not exist."""
    try:
        return pages_of(request).db.items.for_annotator(place.project.id, item_id, place.user_id)
    except ForbiddenError as error:
        raise NotFoundError(f"there is no item {item_id} among yours") from error


def _key(form: Form) -> str:
    return form.text("key", most=200)


def _choice(form: Form, item: AnnotatorItem) -> ChoiceInput | None:
    """Nothing, an alternative by its number, or the text by hand, which wins if it is not empty."""
    written = form.data.get("written", "")
    if isinstance(written, str) and written.strip():
        # spaces at its ends belong to a step
        return ChoiceInput(text=written.replace("\r\n", "\n"))
    number = form.optional("chosen")
    if number is None or number == "none":
        return None
    place = form.whole("chosen")
    if not 0 <= place < len(item.traces):
        raise StoreError(f"'chosen' must lie in 0 to {len(item.traces) - 1}")
    return ChoiceInput(trace_id=item.traces[place].id)


def _total(item: AnnotatorItem, step: int, time: int | None) -> int | None:
    """Time for the whole item; unknown if a step's is (without a script nothing is measured)."""
    times = [stored.milliseconds for stored in item.labels if stored.record.step != step] + [time]
    known = [one for one in times if one is not None]
    return sum(known) if len(known) == len(times) else None


def _previous(request: Request, place: Place, item_id: int) -> int | None:
    """The item that the annotator finished last before this one."""
    mine = pages_of(request).db.assignments.of_user(place.project.id, place.user_id, limit=20)
    finished = [one for one in mine if one.state == "done" and one.finished and one.item_id != item_id]
    latest = max(finished, key=lambda one: (one.finished, one.id), default=None)
    return None if latest is None else latest.item_id


def _mine(request: Request, place: Place) -> dict[str, Any] | None:
    """The annotator's own count and pace: nothing about others."""
    progress = pages_of(request).db.assignments.progress(place.project.id)
    own = next((row for row in progress.annotators if row.user_id == place.user_id), None)
    return None if own is None else _own_row(own)


def _own_row(row: AnnotatorProgress) -> dict[str, Any]:
    return {"done": row.done, "skipped": row.skipped, "labels": row.labels, "milliseconds": row.milliseconds}
