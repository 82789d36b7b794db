"""The list of runs: solutions, agent runs and programs, with facets, search, and actions on a selection."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import StoreError
from surefoot.server.pages.access import AdminPlace, ReaderPlace, pages_of
from surefoot.server.pages.forms import CheckedForm, query_of
from surefoot.server.pages.render import done, show, twin
from surefoot.server.pages.run import ORDERS, marked_step, run_filter, strip
from surefoot.server.store.traces import title_of

router = APIRouter()


@twin(router, "/projects/{project_id:number}/runs")
def run_list(request: Request, place: ReaderPlace) -> Response:
    """25 runs of a page; filters, order and page are in the address, so that a list can be shared."""
    db, fields, size = place.db, query_of(request), pages_of(request).settings.rows
    where, order, filters = run_filter(fields)
    scorers = db.traces.scorers(place.id)
    scorer = where.scorer or next(iter(scorers), None)
    if order == "lowest score" and where.scorer is None:
        raise StoreError("'order' lowest score needs a 'scorer'")
    total, facets = db.traces.facets(place.id, where)
    page = max(1, fields.natural("page", default=1))
    rows = db.traces.find(place.id, where, order=order, offset=(page - 1) * size, limit=size)
    ids = [row.id for row in rows]
    wrong, labels = db.traces.wrong_steps(place.id, ids), db.traces.label_counts(place.id, ids)
    decided = {item.trace_id for item in db.reviews.adjudications(place.id)} & {*ids}
    scores = db.traces.scores_of(place.id, ids, scorer=scorer) if scorer else {}
    listed: list[dict[str, Any]] = []
    for number, row in enumerate(rows, start=(page - 1) * size):
        error = marked_step(db, place.id, row.id) if row.id in decided else wrong.get(row.id)
        scored = scores.get(row.id)
        cells = strip(scored[0].scores, error) if scored else []
        values = [cell["score"] for cell in cells if cell["score"] is not None]
        address = urlencode({"id": row.id, **filters, "at": number})
        listed.append(
            {
                **vars(row),
                "link": f"/projects/{place.id}/run?{address}",
                "labels": labels.get(row.id, 0),
                "first_error": error,
                "strip": cells,
                "lowest": min(values, default=None),
            }
        )
    data = {
        "filters": filters,
        "scorers": scorers,
        "scorer": scorer,
        "total": total,
        "facets": facets,
        "page": page,
        "pages": -(-total // size),
        "runs": listed,
    }

    def without(*names: str, **changes: Any) -> str:
        """The address with some fields changed and others left out."""
        remaining = {name: value for name, value in filters.items() if name not in names}
        return "?" + urlencode({**remaining, **changes})

    extra = {"query": urlencode(filters), "address": without, "orders": ORDERS}
    return show(request, place, "runs.html", data, extra=extra)


@twin(router, "/projects/{project_id:number}/compare")
def compare(request: Request, place: ReaderPlace) -> Response:
    """Two runs (``?id=`` twice) side by side, with the first step at which they differ."""
    ids = query_of(request).ids("id")
    if len(ids) != 2:
        raise StoreError(f"choose two runs to compare, not {len(ids)}")
    traces = [place.db.traces.trace(place.id, trace_id) for trace_id in ids]
    texts = [[trace.step_text(step).strip() for step in range(len(trace.steps))] for trace in traces]
    rows = list(zip_longest(*texts))
    data = {
        "runs": [
            {
                "id": trace.id,
                "title": title_of(place.db.traces.problem(place.id, trace.problem_id), trace),
                "model": trace.policy,
                "outcome": trace.outcome,
                "answer": trace.answer,
                "first_error": marked_step(place.db, place.id, trace.id),
                "scores": place.db.traces.scores(place.id, trace.id),
            }
            for trace in traces
        ],
        "differ": next((step for step, (first, second) in enumerate(rows) if first != second), None),
        "steps": rows,
    }
    return show(request, place, "compare.html", data, extra={"query": urlencode({"id": ids}, doseq=True)})


@router.post("/projects/{project_id:number}/runs")
def label_selection(request: Request, place: AdminPlace, form: CheckedForm) -> Response:
    """An item for each selected run that has none, so that annotators get it."""
    items = place.db.items.add_solutions(place.id, form.ids("id"))
    place.db.projects.audit("runs to label", place.visitor.user_id, place.id, items=len(items))
    return done(request, f"/projects/{place.id}/label", {"items": len(items)})


@router.post("/projects/{project_id:number}/selection")
def open_selection(request: Request, place: ReaderPlace, form: CheckedForm) -> Response:
    """The address that compares or exports the selected runs: a form with GET would put its secret there."""
    to = form.choice("to", ("compare", "traces", "labels", "scores"))
    page = to if to == "compare" else f"export/{to}.jsonl"
    return done(request, f"/projects/{place.id}/{page}?{urlencode({'id': form.ids('id')}, doseq=True)}")
