"""The list of runs (solutions, agent runs, programs), what is done to a selection, and two runs aligned."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby, zip_longest
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from surefoot.errors import StoreError
from surefoot.evaluation.verdict import run_verdict
from surefoot.server.pages.listing import show_list
from surefoot.server.pages.page import Page
from surefoot.server.pages.run import ORDERS, decisions_of, evidence_of, run_filter, strip
from surefoot.server.store.traces import title_of

_MOST_PAIRS: Final = 250_000
"""Pairs of steps up to which runs are aligned by content; longer ones by place."""


def run_list(page: Page) -> Response:
    """A page of runs, the attempts at a problem together; filter and page are in the address."""
    db, size = page.db, page.settings.rows
    number = max(1, page.query.natural("page", default=1))
    try:
        where, order, box = run_filter(page)
    except StoreError as error:
        return show_list(page, "runs", [], error=str(error))
    total, facets = db.traces.facets(page.id, where)
    found = list(
        enumerate(db.traces.find(page.id, where, order=order, offset=(number - 1) * size, limit=size))
    )
    ids = [row.id for _, row in found]
    labels, decided, tokens = (
        db.labels.of_traces(page.id, ids), decisions_of(page, ids), db.traces.tokens_of(page.id, ids)
    )  # fmt: skip
    scores = db.traces.scores_of(page.id, ids, scorer=where.scorer) if where.scorer else {}
    first = {row.problem_id: at for at, row in reversed(found)}
    found.sort(key=lambda pair: (first[pair[1].problem_id], pair[0]))
    rows: list[dict[str, Any]] = []
    for _, attempts in groupby(found, key=lambda pair: pair[1].problem_id):
        for attempt, (at, row) in enumerate(attempts):
            evidence = evidence_of(labels[row.id], decided[row.id], scores.get(row.id, ()))
            verdict = run_verdict(row.steps, row.outcome, evidence)
            cells = strip(scores[row.id][0].scores, verdict.error) if scores.get(row.id) else []
            address = {"id": row.id, **page.fields("text", "problem"), "at": (number - 1) * size + at}
            rows.append(
                {
                    **vars(row),
                    "title": row.title or row.id,
                    "tokens": tokens[row.id] or None,
                    "link": f"/projects/{page.id}/run?{urlencode(address)}",
                    "attempt": attempt,
                    "first_error": verdict.error,
                    "verdict": verdict,
                    "strip": cells,
                    "lowest": min(
                        (cell["score"] for cell in cells if cell["score"] is not None), default=None
                    ),
                }
            )
    pages = -(-total // size)
    around = {"previous": number - 1 if number > 1 else 0, "next": number + 1 if number < pages else 0}
    data = {"total": total, "facets": facets, "scorer": where.scorer, "page": number, "pages": pages}
    data |= {name: page.link(page=to) if to else None for name, to in around.items()}
    return show_list(page, "runs", rows, where=box, past=number > max(pages, 1), data=data, orders=ORDERS)


def compare(page: Page) -> Response:
    """Two runs (``?id=`` twice) side by side: equal steps face each other, stretches of them are folded."""
    ids = page.query.ids("id")
    if len(ids) != 2:
        raise StoreError(f"choose two runs to compare, not {len(ids)}")
    traces = [page.db.traces.trace(page.id, trace_id) for trace_id in ids]
    texts = [[trace.step_text(step).strip() for step in range(len(trace.steps))] for trace in traces]
    labels, decided = page.db.labels.of_traces(page.id, ids), decisions_of(page, ids)
    scores = page.db.traces.scores_of(page.id, ids)
    runs = []
    for trace in traces:
        evidence = evidence_of(labels[trace.id], decided[trace.id], scores[trace.id])
        verdict = run_verdict(len(trace.steps), trace.outcome, evidence)
        about = trace.model_dump(include={"id", "policy", "outcome", "answer"})
        title = title_of(page.db.traces.problem(page.id, trace.problem_id), trace)
        runs.append({**about, "title": title, "verdict": verdict, "scores": scores[trace.id]})
    rows = [
        {"steps": pair, "texts": pair_texts, "same": pair_texts[0] == pair_texts[1]}
        for pair in aligned(*texts)
        for pair_texts in [[None if at is None else text[at] for text, at in zip(texts, pair, strict=True)]]
    ]
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
