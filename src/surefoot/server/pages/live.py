"""The gateway's pages: requests and held tool calls, each shown as a run, import of answers, the monitor."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final, get_args
from urllib.parse import urlencode

from starlette.responses import Response

from surefoot.errors import NotFoundError, StoreError
from surefoot.records import StepScores, Trace
from surefoot.segment import segment_trace
from surefoot.server.pages.page import Filter, Page, show_list
from surefoot.server.pages.run import show_run, strip
from surefoot.server.records import GatewayCandidate, HeldCall
from surefoot.server.store.requests import GatewayRow, HeldRow, HeldState
from surefoot.server.store.traces import first_line, title_of

_MOST: Final = 500
"""Requests imported at once."""
HELD_STATES: Final[tuple[HeldState, ...]] = get_args(HeldState)
TERMS: Final = {
    **dict.fromkeys(("model", "strategy", "policy", "scorer", "session"), ()),
    "failed": ("yes", "no"),
}
"""Terms of the filter of requests."""


def request_list(page: Page) -> Response:
    """Requests, newest first."""
    db, limit, cursor = page.db, page.settings.rows, page.query.id("before")
    box = Filter.of(page, TERMS)
    hits = db.gateway.find(**_conditions(box), before=cursor, limit=limit + 1)
    rows = [{**vars(row), **_cells(row)} for row in hits[:limit]]
    following = page.link(before=hits[limit - 1].request_id) if len(hits) > limit else None
    projects = db.projects.list() if page.actor.may("manage") else []
    return show_list(page, "requests", rows, {"next": following, "live": cursor is None}, projects=projects)


def _conditions(box: Filter) -> dict[str, Any]:
    """Arguments of ``find``. Raises ``StoreError`` for words."""
    if box.words:
        raise StoreError(f"filter requests by {', '.join(TERMS)}, as in model:NAME; words are not searched")
    return {name: value == "yes" if name == "failed" else value for name, value in box.terms.items()}


def _cells(row: GatewayRow) -> dict[str, Any]:
    """What the list shows of a request in its own way."""
    ending = "withheld" if row.failed else "answered"
    return {
        "title": first_line(row.title) or row.title,
        "link": f"/request?{urlencode({'id': row.request_id})}",
        "outcome": not row.failed,
        "outcome_word": str(row.status) if row.status >= 400 else ending,
        "steps": row.steps or None,
        "tokens": row.tokens or None,
        "strip": strip(row.scores),
        "lowest": min((score for score in row.scores if score is not None), default=None),
    }


def request_page(page: Page) -> Response:
    """One request as a run: the candidate ``?candidate=``, by default the chosen one, or the held call."""
    record = page.db.gateway.get(page.query.required_id("id"))
    # choice by choice the chosen candidate and the others
    candidates = sorted(record.candidates, key=lambda one: (one.choice, not one.chosen))
    held, session = page.db.held_calls.of_request(record.request_id), record.session
    number = page.query.natural("candidate")
    if number >= max(1, len(candidates)):
        raise NotFoundError(f"this request has {len(candidates)} candidates")
    trace, scores = Trace(problem_id="", text=""), None
    if candidates:
        trace, scores = candidates[number].solution() or (candidates[number].trace, None)
    elif held:
        trace = _held_trace(held[0][0])
    elif session and session.messages:
        trace = Trace(problem_id="", messages=session.messages)
    title = (record.problem and title_of(record.problem, trace)) or f"{record.endpoint}: {record.request_id}"
    return show_run(
        page,
        record.problem,
        trace,
        {"request": record, "held": [_held_row(row, call) for call, row in held]},
        mode="request",
        title=title,
        scores=[scores] if scores else (),
        candidates=[_candidate(candidate) for candidate in candidates],
        candidate=number,
        guard=[decision for decisions in record.guard.values() for decision in decisions],
        tools=trace.tools or (session.tools if session else ()),
    )


def _candidate(candidate: GatewayCandidate) -> dict[str, Any]:
    return {
        **candidate.model_dump(include={"chosen", "choice", "weight", "score", "reason", "flags"}),
        **candidate.trace.model_dump(include={"answer", "outcome", "error"}),
        "strip": strip(candidate.scores.scores if candidate.scores else ()),
    }


def import_answers(page: Page) -> Response:
    """Import the latest answered requests that match the filter into a project, an item for each solution.

    Scores replace older ones of the same scorer and solution. They are left out if the project has the
    solution with other steps.
    """
    import_all = page.form.choice("which", ("chosen", "all")) == "all"
    destination = page.enter(page.form.whole("into"), "manage")
    db, project = destination.db, destination.id
    conditions = {**_conditions(Filter.of(page, TERMS)), "failed": False}
    rows = db.gateway.find(**conditions, limit=_MOST + 1)
    problems, solutions = [], list[tuple[Trace, StepScores | None]]()
    for row in reversed(rows[:_MOST]):
        record = db.gateway.get(row.request_id)
        picked = (entry for entry in record.candidates if import_all or entry.chosen)
        unique = {pair[0].id: pair for pair in (entry.solution() for entry in picked) if pair}
        if record.problem is not None and unique:
            problems.append(record.problem)
            solutions += unique.values()
    report = {
        "problems": db.traces.add_problems(project, problems),
        "traces": db.traces.add_traces(project, (trace for trace, _ in solutions)),
    }
    db.traces.take_images(project, (trace for trace, _ in solutions))
    ids = {trace.id for trace, _ in solutions}
    cut = {trace.id: _cut(trace) for trace in db.export.records(project, "traces", ids)}
    scored = [(scores, cut.get(trace.id) == _cut(trace)) for trace, scores in solutions if scores is not None]
    # sorted oldest first, so that the latest scores of a scorer replace the others
    report["scores"] = db.traces.add_scores(project, [scores for scores, fits in scored if fits])
    items = db.items.add(project, list(cut))
    destination.audit("answers imported", requests=len(problems), items=len(items))
    data = {
        "requests": len(problems),
        "without_solution": len(rows[:_MOST]) - len(problems),
        "complete": len(rows) <= _MOST,
        "files": [],
        "report": report,
        "scores_left_out": sum(not fits for _, fits in scored),
        "items": len(items),
    }
    return destination.show("imported.html", data)


def _cut(trace: Trace) -> tuple[object, ...]:
    return trace.text, trace.messages, trace.steps


def held_list(page: Page) -> Response:
    """Held calls; ``?state=`` is waiting (oldest first), approved, delivered, denied, abandoned or all."""
    calls, query, size = page.db.held_calls, page.query, page.settings.rows
    states: dict[str, HeldState | None] = {**dict(zip(HELD_STATES, HELD_STATES, strict=True)), "all": None}
    state = query.choice("state", states, default="waiting")
    hits = calls.find(state=states[state], past=query.natural("past") or None, limit=size + 1)
    following = page.link(past=hits[size - 1].id) if len(hits) > size else None
    rows = [_held_row(row, calls.get(row.id)[0]) for row in hits[:size]]
    data = {"state": state, "counts": calls.count(), "next": following, "live": query.id("past") is None}
    return show_list(page, "calls", rows, data, states=list(states))


def held_page(page: Page, number: int) -> Response:
    """A held call as a run: the conversation before it, the call, why it is held, and the decision."""
    call, row = page.db.held_calls.get(number)
    content = _held_row(row, call)
    with suppress(NotFoundError):  # a request is recorded only after its answer
        page.db.gateway.get(call.request_id)
        content["request"] = f"/request?{urlencode({'id': call.request_id})}"
    about = {"title": content["title"], "guard": [call.decision]}
    return show_run(page, None, _held_trace(call), {"held": [content]}, mode="request", **about)


def _held_trace(call: HeldCall) -> Trace:
    return segment_trace(Trace(problem_id="", messages=(*call.run, call.reply)))


def _held_row(row: HeldRow, call: HeldCall) -> dict[str, Any]:
    questions = [message.content for message in call.run if message.role == "user" and message.content]
    names = ", ".join(decided.call.name for decided in call.decision.calls)
    return {
        **vars(row),
        "link": f"/held/{row.id}",
        "outcome": {"approved": True, "delivered": True, "denied": False}.get(row.state),
        "outcome_word": row.state,
        "title": f"{names}: {first_line(questions[-1] if questions else '')}",
        "request_id": call.request_id,
        "reason": call.decision.reason,
        "calls": call.decision.calls,
    }


def decide_held(page: Page, number: int) -> Response:
    """Approve or deny a call; the comment goes to the model if it is denied."""
    decision = page.form.choice("decision", ("approve", "deny"))
    comment, approved = page.form.optional("comment", most=2000) or "", decision == "approve"
    page.db.held_calls.decide(number, page.actor.user_id, approved=approved, comment=comment)
    page.audit(f"held call {'approved' if approved else 'denied'}", held=number)
    return page.done("/held", {"held": number, "approved": approved})


def monitor_page(page: Page) -> Response:
    """The state of the monitor. ``curves`` of the JSON twin has a value for each of the latest requests."""
    if (chart := page.pages.monitor) is None:
        return page.show("monitor.html", {"state": None})
    evidence = [math.log10(max(value, 1e-3)) for value in chart.evidence]
    state = {
        "fitted": chart.fitted,
        "settings": chart.settings,
        "change": chart.change,
        "signals": {
            name: {"reference": reference, "latest": latest}
            for name, (reference, latest) in chart.compared().items()
        },
        "curves": {
            "Evidence (log10)": {"values": evidence, "limit": math.log10(chart.settings.run_length)},
            "Score of the answer": {"values": list(chart.scores), "limit": None},
        },
    }
    return page.show("monitor.html", {"state": state})
