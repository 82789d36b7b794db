"""The annotator's pages: the next item, one step at a time, undo, skipping, instructions.

Steps appear one at a time: the page does not contain what follows the current step, so that it cannot
influence the label. The view of an item is built from ``AnnotatorItem`` alone: no labels by others.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from surefoot.errors import ForbiddenError, NotFoundError, StoreError
from surefoot.server.pages.forms import new_key
from surefoot.server.pages.page import Page
from surefoot.server.pages.run import timeline
from surefoot.server.store.accounts import Protocol
from surefoot.server.store.labels import AnnotatorItem, LabelInput
from surefoot.server.store.traces import title_of

SKIP_REASONS = {
    "give_up": "I cannot judge it",
    "bad_problem": "The problem makes no sense",
    "unreadable": "The solution is unreadable",
    "other": "Another reason",
}
"""Why an item is skipped; the first two are PRM800K's ``finish_reason``."""


def next_item(page: Page) -> Response:
    """Lease the next item and redirect to it, or say why there is none."""
    offer = page.db.assignments.next(page.id, page.user_id, page.pages.rng)
    if offer.assignment is not None:
        to = f"/projects/{page.id}/items/{offer.assignment.item_id}"
        return page.done(to, {"why": offer.why, "item": offer.assignment.item_id})
    return _work(page, offer.why)


def work_page(page: Page) -> Response:
    """The visitor's work: the number of labels left, the instructions and the keys."""
    return _work(page, None)


def _work(page: Page, why: str | None) -> Response:
    user_id, protocol = page.actor.user_id, page.project.protocol
    progress = page.db.assignments.progress(page.id, users=() if user_id is None else (user_id,))
    data = {
        "why": why,
        "item": None,
        "items": progress.items,
        "left": progress.needed - progress.done,
        "instructions": page.project.instructions,
        "values": list(protocol.values),
        "until": protocol.until,
        "show_answer": protocol.show_answer,
    }
    return page.show("label.html", data, own=next(iter(progress.annotators), None))


def item_page(page: Page, item_id: int) -> Response:
    """The item as far as it is labelled, and the current step."""
    item = _own(page, item_id)
    data = item_view(item, page.project.protocol)
    about = {"title": title_of(item.problem, item.trace), "blocks": data["blocks"], "disputed": None}
    return page.show("run.html", data, mode="label", key=new_key(), skip_reasons=SKIP_REASONS, **about)


def label(page: Page, item_id: int) -> Response:
    """Label one step; the last one, or the first error if the protocol ends there, finishes the item.

    Under whole-solution one form labels all steps up to the first wrong one.
    """
    db, item, until = page.db, _own(page, item_id), page.project.protocol.until
    value, time, last = page.form.value("value"), page.form.milliseconds(), len(item.trace.steps) - 1
    step = last if until == "whole-solution" and value == 1 else page.form.whole("step")
    labels = [LabelInput(step=step, value=value, milliseconds=time, comment=page.form.optional("comment"))]
    if until == "whole-solution":
        if value == 0:
            raise StoreError("'value' must be -1 for the first wrong step, or 1 if no step is wrong")
        labels = [*(LabelInput(step=earlier, value=1) for earlier in range(min(step, last))), *labels]
    finish = step == last or until == "whole-solution" or (value == -1 and until == "first-error")
    key, after = page.form.text("key", most=200), page.form.whole("after")
    submission = db.labels.submit(
        page.id, item_id, page.user_id, labels, key, after=after, finish=finish,
        milliseconds=_total(item, step, time) if finish else None,
    )  # fmt: skip
    return page.done(f"/projects/{page.id}/items/{item_id}", {"submission": submission})


def undo(page: Page, item_id: int) -> Response:
    """Retract the latest submission for the item."""
    submission = page.db.labels.undo(page.id, item_id, page.user_id, page.form.whole("after"))
    return page.done(f"/projects/{page.id}/items/{item_id}", {"submission": submission})


def skip(page: Page, item_id: int) -> Response:
    """Skip the item with a reason, and go to the next."""
    reason = page.form.choice("reason", SKIP_REASONS)
    words = page.form.optional("words", most=2000)
    page.db.assignments.skip(page.id, item_id, page.user_id, f"{reason}: {words}" if words else reason)
    return page.done(f"/projects/{page.id}/annotate", {"skipped": item_id})


def _own(page: Page, item_id: int) -> AnnotatorItem:
    """The visitor's item. Any other item is reported as missing."""
    try:
        return page.db.labels.item(page.project.id, item_id, page.user_id)
    except ForbiddenError as error:
        raise NotFoundError(f"item {item_id} is not assigned to you") from error


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
