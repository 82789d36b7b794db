"""The list of runs (solutions, agent runs, programs), what is done to a selection, and two runs aligned."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby, zip_longest
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from surefoot.server.pages.listing import show_list
from surefoot.server.pages.page import Page
from surefoot.server.pages.run import ORDERS, run_filter, strip, verdicts_of
from surefoot.server.store.traces import title_of

_MOST_PAIRS: Final = 250_000
"""Pairs of steps up to which runs are aligned by content; longer ones by place."""


def run_list(page: Page) -> Response:
    """A page of runs, the attempts at a problem together; filter and page are in the address."""
    db, size = page.db, page.settings.rows
    start = (max(1, page.query.natural("page", default=1)) - 1) * size
    where, order, box = run_filter(page)
    total, facets = db.traces.facets(page.id, where)
    found = list(enumerate(db.traces.find(page.id, where, order=order, offset=start, limit=size), start))
    ids = [row.id for _, row in found]
    scores = db.traces.scores_of(page.id, ids, scorer=where.scorer) if where.scorer else {}
    verdicts, tokens = verdicts_of(page, [row for _, row in found], scores), db.traces.tokens_of(page.id, ids)
    first = {row.problem_id: at for at, row in reversed(found)}
    found.sort(key=lambda pair: (first[pair[1].problem_id], pair[0]))
    rows: list[dict[str, Any]] = []
    for _, attempts in groupby(found, key=lambda pair: pair[1].problem_id):
        for attempt, (at, row) in enumerate(attempts):
            verdict, scored = verdicts[row.id], scores.get(row.id)
            cells = strip(scored[0].scores, verdict.error) if scored else []
            address = urlencode({"id": row.id, **page.fields("text", "problem"), "at": at})
            words = {True: "right", False: "wrong", None: "not graded"}[row.outcome]
            about: dict[str, Any] = {
                "title": row.title or row.id,
                "tokens": tokens[row.id] or None,
                "said": words,
            }
            link = f"/projects/{page.id}/run?{address}"
            lowest = min((cell["score"] for cell in cells if cell["score"] is not None), default=None)
            about |= {"attempt": attempt, "link": link, "strip": cells, "lowest": lowest}
            rows.append({**vars(row), **about, "first_error": verdict.error, "verdict": verdict})
    data = {"total": total, "facets": facets, "scorer": where.scorer}
    return show_list(page, "runs", rows, data, where=box, orders=ORDERS)


def compare(page: Page) -> Response:
    """Two runs (``?id=`` twice) side by side: equal steps face each other, stretches of them are folded."""
    ids = page.query.ids("id", exactly=2)
    traces = [page.db.traces.trace(page.id, trace_id) for trace_id in ids]
    texts = [[trace.step_text(step).strip() for step in range(len(trace.steps))] for trace in traces]
    scores = page.db.traces.scores_of(page.id, ids)
    verdicts, runs = verdicts_of(page, traces, scores), []
    for trace in traces:
        about = trace.model_dump(include={"id", "policy", "outcome", "answer"})
        title = title_of(page.db.traces.problem(page.id, trace.problem_id), trace)
        runs.append({**about, "title": title, "verdict": verdicts[trace.id], "scores": scores[trace.id]})
    rows = []
    for pair in aligned(*texts):
        left, right = (None if at is None else text[at] for text, at in zip(texts, pair, strict=True))
        rows.append({"steps": pair, "texts": (left, right), "same": left == right})
    differ = next((at for at, row in enumerate(rows) if not row["same"]), None)
    stretches = [(same, list(group)) for same, group in groupby(rows, key=lambda row: row["same"])]
    return page.show("compare.html", {"runs": runs, "differ": differ, "steps": rows}, stretches=stretches)


def aligned(left: Sequence[str], right: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Pairs of indices in order; equal texts are paired, and ``None`` stands where one side lacks a step."""
    if len(left) * len(right) > _MOST_PAIRS:
        return list(zip_longest(range(len(left)), range(len(right))))
    changes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    return [pair for _, a, b, c, d in changes for pair in zip_longest(range(a, b), range(c, d))]


def label_selection(page: Page) -> Response:
    """An item for each selected run that has none, so that annotators get it."""
    items = page.db.items.add_solutions(page.id, page.form.ids("id"))
    page.audit("runs to label", items=len(items))
    return page.done(f"/projects/{page.id}/label", {"items": len(items)})


def open_selection(page: Page) -> Response:
    """The address that compares or exports the selection: a form with GET would put its secret there."""
    to = page.form.choice("to", ("compare", "traces", "labels", "scores"))
    name = to if to == "compare" else f"export/{to}.jsonl"
    return page.done(f"/projects/{page.id}/{name}?{urlencode({'id': page.form.ids('id')}, doseq=True)}")
