"""The list of runs: solutions, agent runs and programs, with facets, search, and actions on a selection."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from surefoot.errors import StoreError
from surefoot.server.pages.page import Page
from surefoot.server.pages.run import ORDERS, marked_step, run_filter, strip
from surefoot.server.store.traces import title_of


def run_list(page: Page) -> Response:
    """25 runs of a page; filters, order and page are in the address, so that a list can be shared."""
    db, fields, size = page.db, page.query, page.settings.rows
    where, order, filters = run_filter(fields)
    scorers = db.traces.scorers(page.id)
    scorer = where.scorer or next(iter(scorers), None)
    if order == "lowest score" and where.scorer is None:
        raise StoreError("'order' lowest score needs a 'scorer'")
    total, facets = db.traces.facets(page.id, where)
    number = max(1, fields.natural("page", default=1))
    rows = db.traces.find(page.id, where, order=order, offset=(number - 1) * size, limit=size)
    ids = [row.id for row in rows]
    wrong, labels = db.traces.wrong_steps(page.id, ids), db.traces.label_counts(page.id, ids)
    decided = {item.trace_id for item in db.reviews.adjudications(page.id)} & {*ids}
    scores = db.traces.scores_of(page.id, ids, scorer=scorer) if scorer else {}
    listed: list[dict[str, Any]] = []
    for at, row in enumerate(rows, start=(number - 1) * size):
        error = marked_step(db, page.id, row.id) if row.id in decided else wrong.get(row.id)
        scored = scores.get(row.id)
        cells = strip(scored[0].scores, error) if scored else []
        values = [cell["score"] for cell in cells if cell["score"] is not None]
        address = urlencode({"id": row.id, **filters, "at": at})
        listed.append(
            {
                **vars(row),
                "link": f"/projects/{page.id}/run?{address}",
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
        "page": number,
        "pages": -(-total // size),
        "runs": listed,
    }

    def without(*names: str, **changes: Any) -> str:
        """The address with some fields changed and others left out."""
        remaining = {name: value for name, value in filters.items() if name not in names}
        return "?" + urlencode({**remaining, **changes})

    return page.show("runs.html", data, query=urlencode(filters), address=without, orders=ORDERS)


def compare(page: Page) -> Response:
    """Two runs (``?id=`` twice) side by side, with the first step at which they differ."""
    ids = page.query.ids("id")
    if len(ids) != 2:
        raise StoreError(f"choose two runs to compare, not {len(ids)}")
    traces = [page.db.traces.trace(page.id, trace_id) for trace_id in ids]
    texts = [[trace.step_text(step).strip() for step in range(len(trace.steps))] for trace in traces]
    rows = list(zip_longest(*texts))
    data = {
        "runs": [
            {
                "id": trace.id,
                "title": title_of(page.db.traces.problem(page.id, trace.problem_id), trace),
                "model": trace.policy,
                "outcome": trace.outcome,
                "answer": trace.answer,
                "first_error": marked_step(page.db, page.id, trace.id),
                "scores": page.db.traces.scores(page.id, trace.id),
            }
            for trace in traces
        ],
        "differ": next((step for step, (first, second) in enumerate(rows) if first != second), None),
        "steps": rows,
    }
    return page.show("compare.html", data, query=urlencode({"id": ids}, doseq=True))


def label_selection(page: Page) -> Response:
    """An item for each selected run that has none, so that annotators get it."""
    items = page.db.items.add_solutions(page.id, page.form.ids("id"))
    page.audit("runs to label", items=len(items))
    return page.done(f"/projects/{page.id}/label", {"items": len(items)})


def open_selection(page: Page) -> Response:
    """The address that compares or exports the selected runs: a form with GET would put its secret there."""
    to = page.form.choice("to", ("compare", "traces", "labels", "scores"))
    name = to if to == "compare" else f"export/{to}.jsonl"
    return page.done(f"/projects/{page.id}/{name}?{urlencode({'id': page.form.ids('id')}, doseq=True)}")
