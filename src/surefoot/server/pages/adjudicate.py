"""Lists of disagreements, of the decisions that settle them, and of annotators' flags and comments."""

from __future__ import annotations

from itertools import groupby, islice
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from surefoot.server.pages.page import Page
from surefoot.server.pages.run import with_names
from surefoot.server.store.labelling import Disagreement

_SHOWN = 100
"""Items of a list: those that follow move up when these are decided."""
_PER_PAGE: Final = 50
"""Comments per page."""


def disagreements(page: Page) -> Response:
    """Items that annotators who finished labelled differently: the first open ones and the first decided."""
    disputes, data = page.db.reviews.disagreements(page.id, decided=None), dict[str, Any]()
    for name, decided in (("open", False), ("decided", True)):
        chosen = [row for row in disputes if (row.adjudication is not None) == decided]
        by_item = {item_id: list(group) for item_id, group in groupby(chosen, key=lambda row: row.item_id)}
        data[name] = _listed(page, dict(islice(by_item.items(), _SHOWN)))
        data[f"{name}_items"] = len(by_item)
    return page.show("disagreements.html", data)


def _listed(page: Page, groups: dict[int, list[Disagreement]]) -> list[dict[str, Any]]:
    items = page.db.items.of_ids(page.id, groups)
    problems = page.db.traces.problems_of(page.id, {item.problem_id for item in items.values()})
    return [
        {
            "item": item_id,
            "link": f"run?{urlencode({'id': items[item_id].trace_id, 'disagreement': 1})}",
            "problem": problems[items[item_id].problem_id].text,
            "steps": [
                {
                    "step": dispute.step,
                    "values": [{"rater": rater, "value": value} for rater, value in dispute.values],
                    "decided": dispute.adjudication,
                }
                for dispute in disputes
            ],
        }
        for item_id, disputes in groups.items()
    ]


def flag_list(page: Page) -> Response:
    """Open flags and comments, oldest first; with ``?all=1`` also resolved ones."""
    db, query = page.db, page.query
    resolved = None if query.ticked("all") else False
    comments = db.comments.list(page.id, resolved=resolved, after=query.natural("after"), limit=_PER_PAGE + 1)
    items = db.items.of_ids(page.id, {comment.item_id for comment in comments})
    more = len(comments) > _PER_PAGE
    data = {
        "comments": [
            {**comment, "trace": items[comment["item_id"]].trace_id}
            for comment in with_names(page, comments[:_PER_PAGE])
        ],
        "next": page.link(after=comments[_PER_PAGE - 1].id) if more else None,
    }
    return page.show("flags.html", data)


def resolve(page: Page, comment_id: int) -> Response:
    """Resolve a flag or comment, and return to the list."""
    page.db.comments.resolve(page.id, comment_id)
    page.audit("comment resolved", comment=comment_id)
    return page.done(f"/projects/{page.id}/flags", {"resolved": comment_id})
