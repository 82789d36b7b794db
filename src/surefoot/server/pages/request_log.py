"""The gateway's requests: their candidates and search trees, import into a project, and held tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from surefoot.errors import NotFoundError, StoreError
from surefoot.records import StepScores, Trace
from surefoot.search.saved_tree import SavedTree
from surefoot.server.pages.page import Page, next_page
from surefoot.server.pages.run import strip
from surefoot.server.records import GatewayCandidate, HeldCall
from surefoot.server.store.requests import HeldRow, HeldState
from surefoot.server.store.traces import whole_text

_NAMES = ("model", "strategy", "policy", "scorer", "session")
"""Filters of requests that are texts."""
_MOST = 500
"""Requests imported at once."""
_NODES = 4_000
"""Nodes per page; of a larger tree only the first are shown, and the page says so."""
HELD_STATES: Final[tuple[HeldState, ...]] = get_args(HeldState)
_PER_PAGE: Final = 20
_SHOWN: Final = 6
"""Latest messages of the run that are shown."""


def request_list(page: Page) -> Response:
    """Requests, newest first; the filters are in the URL."""
    db, limit, query = page.db, page.settings.rows, page.query
    filters = {
        **{name: query.optional(name, most=500) for name in _NAMES},
        **{name: query.optional(name) and query.choice(name, ("yes", "no")) for name in ("failed", "trees")},
        "project": query.optional("project", most=9),
    }
    rows = db.gateway.find(**request_filters(filters), before=query.id("before"), limit=limit + 1)
    fields = urlencode({name: value for name, value in filters.items() if value is not None})
    last = rows[limit - 1] if len(rows) > limit else None
    data = {
        "filters": filters,
        "requests": [
            {**vars(row), "link": f"/request?{urlencode({'id': row.request_id})}"} for row in rows[:limit]
        ],
        "next": next_page(fields, before=last.request_id) if last else None,
        "live": query.id("before") is None,
    }
    return page.show(
        "requests.html", data, query=fields, projects=db.projects.list() if page.actor.may("manage") else []
    )


def request_filters(fields: Mapping[str, str | None]) -> dict[str, Any]:
    """Arguments of ``find`` from query or form fields. Raises ``StoreError`` for a bad project number."""
    project = fields.get("project")
    if project is not None and not (project.isascii() and project.isdigit() and len(project) < 10):
        raise StoreError(f"'project' must be a whole number, not {project!r}")
    return {
        **{name: fields.get(name) for name in _NAMES},
        "project_id": None if project is None else int(project),
        **{
            name: None if fields.get(name) is None else fields.get(name) == "yes"
            for name in ("failed", "trees")
        },
    }


def request_page(page: Page) -> Response:
    """One request with all its candidates."""
    record = page.db.gateway.get(page.query.required_id("id"))
    # the client's own solutions, then choice by choice the chosen candidate and the others
    candidates = sorted(
        record.candidates, key=lambda item: (-1 if item.choice is None else item.choice, not item.chosen)
    )
    return page.show(
        "request.html",
        {"request": record},
        query=urlencode({"id": record.request_id}),
        candidates=[_candidate(candidate) for candidate in candidates],
        trees=sorted(record.trees),
    )


def request_tree(page: Page) -> Response:
    """All steps that the search sampled for one answer (``choice``) of a request."""
    record = page.db.gateway.get(page.query.required_id("id"))
    number = page.query.natural("choice")
    if number not in record.trees:
        raise NotFoundError(f"choice {number} does not have a tree: its search discarded nothing")
    tree = SavedTree.model_validate(record.trees[number])
    about = {"id": record.request_id, "choice": number}
    return page.show(
        "tree.html",
        {**about, "tree": tree},
        query=urlencode(about),
        rows=outline(tree),
        left_out=max(0, len(tree.nodes) - _NODES),
    )


def outline(tree: SavedTree) -> list[dict[str, Any]]:
    """The tree as a flat list of opening and closing entries, so that the template does not recurse."""
    below = tree.children
    cells = strip([node.score for node in tree.nodes])
    chosen = set(tree.chosen)
    rows: list[dict[str, Any]] = []
    todo: list[int | None] = [child for child in reversed(below[0]) if child < _NODES]
    while todo:
        node_id = todo.pop()
        if node_id is None:
            rows.append({"close": True})
            continue
        inner = [child for child in reversed(below[node_id]) if child < _NODES]
        node = {**tree.nodes[node_id].model_dump(), "bucket": cells[node_id]["bucket"]}
        rows.append({"close": False, "node": node, "chosen": node_id in chosen, "children": len(inner)})
        if inner:
            todo += [None, *inner]
    return rows


def _candidate(candidate: GatewayCandidate) -> dict[str, Any]:
    trace, scores = candidate.trace, candidate.scores
    return {
        **candidate.model_dump(include={"chosen", "choice", "weight", "score", "reason", "flags"}),
        **trace.model_dump(include={"answer", "outcome", "error"}),
        "scorer": scores.scorer if scores else None,
        "strip": strip(scores.scores if scores else ()),
        "steps": [trace.step_text(index) for index in range(len(trace.steps))] or [whole_text(trace)],
    }


def import_answers(page: Page) -> Response:
    """Import the latest answered requests that match the filters into a project, an item for each solution.

    Scores replace older ones of the same scorer and solution. They are left out if the project has the
    solution with other steps.
    """
    which = page.form.choice("which", ("chosen", "all"))
    destination = page.enter(page.form.whole("into"), "manage")
    db, project = destination.db, destination.id
    filters = {name: page.form.optional(name, most=500) for name in (*_NAMES, "project")}
    rows = db.gateway.find(**{**request_filters(filters), "failed": False}, limit=_MOST + 1)
    problems, solutions = [], list[tuple[Trace, StepScores | None]]()
    for row in reversed(rows[:_MOST]):
        record = db.gateway.get(row.request_id)
        labelled = _solutions(record.candidates, every=which == "all")
        if record.problem is not None and labelled:
            problems.append(record.problem)
            solutions += labelled
    report = {
        "problems": db.traces.add_problems(project, problems),
        "traces": db.traces.add_traces(project, (trace for trace, _ in solutions)),
    }
    present = db.traces.traces_of(project, {trace.id for trace, _ in solutions})
    scored = [(trace, scores) for trace, scores in solutions if scores is not None]
    # sorted oldest first, so that the latest scores of a scorer replace the others
    fitting = [scores for trace, scores in scored if _same_steps(trace, present.get(trace.id))]
    report["scores"] = db.traces.add_scores(project, fitting)
    items = db.items.add_solutions(project, list(present))
    destination.audit("answers imported", requests=len(problems), items=len(items))
    data = {
        "requests": len(problems),
        "without_solution": len(rows[:_MOST]) - len(problems),
        "complete": len(rows) <= _MOST,
        "files": [],
        "report": report,
        "scores_left_out": len(scored) - len(fitting),
        "items": len(items),
    }
    return destination.show("imported.html", data)


def _solutions(
    candidates: Iterable[GatewayCandidate], *, every: bool
) -> list[tuple[Trace, StepScores | None]]:
    """The solutions of a request that can be labelled, with steps, and with scores of these steps."""
    solutions: dict[str, tuple[Trace, StepScores | None]] = {}
    for candidate in candidates:
        solution = candidate.solution() if every or candidate.chosen or candidate.choice is None else None
        if solution is not None:
            solutions.setdefault(solution[0].id, solution)
    return list(solutions.values())


def _same_steps(trace: Trace, other: Trace | None) -> bool:
    return other is not None and (trace.text, trace.messages, trace.steps) == (
        other.text,
        other.messages,
        other.steps,
    )


def held_list(page: Page) -> Response:
    """Held calls; ``?state=`` is waiting (oldest first), approved, delivered, denied, abandoned or all."""
    calls, query = page.db.held_calls, page.query
    state = query.choice("state", (*HELD_STATES, "all"), default="waiting")
    rows = calls.find(
        state=next((name for name in HELD_STATES if name == state), None),
        past=query.natural("past") or None,
        limit=_PER_PAGE + 1,
    )
    data = {
        "state": state,
        "counts": calls.count(),
        "calls": [_shown(row, calls.get(row.id)[0]) for row in rows[:_PER_PAGE]],
        "next": next_page(f"state={state}", past=rows[_PER_PAGE - 1].id) if len(rows) > _PER_PAGE else None,
        "live": query.id("past") is None,
    }
    return page.show("held.html", data, query=f"state={state}", states=(*HELD_STATES, "all"))


def decide_held(page: Page, number: int) -> Response:
    """Approve or deny a call; the comment goes to the model if it is denied."""
    db = page.db
    decision = page.form.choice("decision", ("approve", "deny"))
    comment = page.form.optional("comment", most=2000) or ""
    approved = decision == "approve"
    db.held_calls.decide(number, page.actor.user_id, approved=approved, comment=comment)
    page.audit(f"held call {'approved' if approved else 'denied'}", held=number)
    return page.done("/held", {"held": number, "approved": approved})


def _shown(row: HeldRow, held: HeldCall) -> dict[str, Any]:
    return {
        **vars(row),
        "request_id": held.request_id,
        "reason": held.decision.reason,
        "before": len(held.run[:-_SHOWN]),
        "run": [
            {
                "role": message.role,
                "text": "\n".join(filter(None, (message.content, *map(str, message.tool_calls)))),
            }
            for message in held.run[-_SHOWN:]
        ],
        "text": held.reply.content,
        "calls": held.decision.calls,
    }
