"""The pages of labelling: an annotator's next item, one step at a time, and the instructions; agreement among
annotators; disagreements and skipped items.

Steps appear one at a time: the page does not contain what follows the current step, so that it cannot
influence the label. The view of an item is built from ``AnnotatorItem`` alone: no labels by others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import cache
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from surefoot.errors import ForbiddenError, NotFoundError, StoreError
from surefoot.server.pages.page import Page
from surefoot.server.pages.run import timeline
from surefoot.server.store.accounts import Protocol, new_token
from surefoot.server.store.labels import AnnotatorItem, LabelInput, Ratings
from surefoot.server.store.traces import title_of
from surefoot.stats.bootstrap import FloatArray, Resample, bootstrap_statistic
from surefoot.stats.intervals import Interval, wilson_interval
from surefoot.stats.rater_agreement import Agreement, agreement, cohens_kappa, contingency

IntArray = NDArray[np.int64]

_VALUES = (-1.0, 0.0, 1.0)
_DRAWS = 400
"""Bootstrap draws: opening within a second matters more than the third digit of a bound."""
_MANY_UNITS = 5_000
"""Above this many steps the page leaves the bootstrap to ``surefoot evaluate --as labels``."""
_SHOWN = 100
"""Items of a list: those that follow move up when these are decided."""
SKIP_REASONS = {
    "give_up": "I cannot judge it",
    "bad_problem": "The problem makes no sense",
    "unreadable": "The solution is unreadable",
    "other": "Another reason",
}
"""Why an item is skipped; the first two are PRM800K's ``finish_reason``."""


def next_item(page: Page) -> Response:
    """Lease the next item and redirect to it, or say that there is none."""
    assignment = page.db.assignments.next(page.id, page.user_id, page.pages.rng)
    if assignment is None:
        return work_page(page, empty=True)
    return page.done(f"/projects/{page.id}/items/{assignment.item_id}", {"item": assignment.item_id})


def work_page(page: Page, *, empty: bool = False) -> Response:
    """The visitor's work: the number of labels left, the instructions and the keys."""
    user_id, protocol = page.actor.user_id, page.project.protocol
    progress = page.db.assignments.progress(page.id, users=() if user_id is None else (user_id,))
    data = {
        "empty": empty,
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
    images = page.db.traces.images_of(page.id, item.trace)
    data = item_view(item, page.project.protocol, images)
    about = {"title": title_of(item.problem, item.trace), "blocks": data["blocks"], "disputed": None}
    # of one submission: the same form sent twice adds one label
    return page.show("run.html", data, mode="label", key=new_token(), skip_reasons=SKIP_REASONS, **about)


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


def item_view(item: AnnotatorItem, protocol: Protocol, kept: Collection[str]) -> dict[str, Any]:
    """Data of the page; images whose hash is in ``kept`` are shown."""
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
            for block in timeline(item.trace, visible, kept=kept)
            for label in [labels.get(block["step"])]
        ],
    }


def next_step(item: AnnotatorItem, protocol: Protocol) -> int | None:
    """First step without a label; ``None`` once all have one, or at an error at which the protocol ends."""
    values = {label.record.step: label.record.value for label in item.labels}
    if -1.0 in values.values() and protocol.until != "every-step":
        return None
    return next((step for step in range(len(item.trace.steps)) if step not in values), None)


def agreement_page(page: Page) -> Response:
    """Figures of labels: among annotators, and of known steps against their known labels; not for annotators,
    who work blind to each other.

    Intervals are 95 %: the bootstrap's over solutions, and Wilson's for shares of known labels.
    """
    ratings = page.db.reviews.ratings(page.id)
    data = {
        "overall": _overall(ratings),
        "annotators": _by_annotator(ratings),
        "quality": _quality(page.db.reviews.known_labels(page.id)),
    }
    return page.show("agreement.html", data)


def _overall(ratings: Ratings) -> dict[str, Any] | None:
    if not len(ratings.items):
        return None
    figures = agreement(ratings.matrix, categories=_VALUES)
    many = len(ratings.items) > _MANY_UNITS
    intervals = {} if many else _intervals(ratings.matrix, ratings.items)
    return {**asdict(figures), "intervals": intervals}


def _intervals(matrix: FloatArray, items: IntArray) -> dict[str, Interval]:
    """Bootstrap over solutions, since their steps are correlated; steps with one rating are left out."""
    paired = (~np.isnan(matrix)).sum(axis=0) >= 2
    rated, clusters = matrix[:, paired], items[paired].tolist()
    if len(set(clusters)) < 2:  # one solution says nothing about the spread
        return {}

    @cache  # the coefficients share their draws, and each draw gives all of them
    def resampled(items: bytes) -> Agreement:
        return agreement(rated[:, np.frombuffer(items, dtype=np.intp)], categories=_VALUES)

    def coefficient(name: str) -> Interval:
        def of(draw: Resample) -> float:
            return float(getattr(resampled(draw.items.astype(np.intp).tobytes()), name))

        return bootstrap_statistic(clusters, of, draws=_DRAWS, rng=np.random.default_rng(0))

    return {name: coefficient(name) for name in ("raw", "kappa", "alpha", "ac1")}


def _by_annotator(ratings: Ratings) -> list[dict[str, Any]]:
    """Each annotator against all others, pooled."""
    rows = dict(zip(ratings.raters, ratings.matrix, strict=True))
    figures = []
    for name, row in rows.items():
        tables = [contingency(row, theirs, values=_VALUES) for other, theirs in rows.items() if other != name]
        table = np.sum(tables, axis=0) if tables else np.zeros((3, 3))
        total, counts = float(table.sum()), {value: int((row == value).sum()) for value in _VALUES}
        labels = sum(counts.values())
        figures.append(
            {
                "annotator": name,
                "labels": labels,
                "compared": int(total),
                "raw": float(np.trace(table)) / total if total else None,
                "kappa": cohens_kappa(table),
                "shares": {int(value): count / labels if labels else None for value, count in counts.items()},
            }
        )
    return figures


def _quality(known: Sequence[tuple[str, bool]]) -> list[dict[str, Any]]:
    """Share of known labels that each annotator labelled correctly."""
    correct: dict[str, list[bool]] = defaultdict(list)
    for annotator, right in known:
        correct[annotator].append(right)
    table = []
    for name, answers in sorted(correct.items()):
        share = wilson_interval(sum(answers), len(answers))
        row = {"annotator": name, "known": len(answers), "correct": sum(answers)}
        table.append({**row, "accuracy": share.value, "low": share.low, "high": share.high})
    return table


def disagreements(page: Page) -> Response:
    """Items that annotators who finished labelled differently: the first open ones and the first decided."""
    disputes, data = page.db.reviews.disagreements(page.id, decided=None), dict[str, Any]()
    for name, decided in (("open", False), ("decided", True)):
        chosen = [row for row in disputes if (row.decision is not None) == decided]
        items = [list(group) for _, group in groupby(chosen, key=lambda row: row.item_id)]
        data[name] = [
            {
                "item": steps[0].item_id,
                "title": steps[0].title,
                "link": f"run?{urlencode({'id': steps[0].trace_id, 'disagreement': 1})}",
                "steps": steps,
            }
            for steps in items[:_SHOWN]
        ]
        data[f"{name}_items"] = len(items)
    data["skipped"] = page.db.assignments.skipped(page.id, limit=_SHOWN)
    return page.show("disagreements.html", data)
