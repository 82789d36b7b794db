"""Traces: the list with its filters, and one trace with the scores and labels of every source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import StoreError
from surefoot.labels import LabelRule
from surefoot.records import StepLabel, StepScores, Trace
from surefoot.segment import trace_blocks
from surefoot.server.pages.access import ReaderPlace, pages_of
from surefoot.server.pages.forms import query_of
from surefoot.server.pages.program import program_view
from surefoot.server.pages.render import next_page, show, twin
from surefoot.server.pages.score_strip import scorer_strips, strip
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import Adjudication, StoredLabel
from surefoot.server.store.traces import TraceRow

router = APIRouter()

_OUTCOMES = ("correct", "wrong")
_SCAN = 500
"""Traces examined for one page if a filter needs more than the database's columns."""


@dataclass(frozen=True, kw_only=True)
class _TraceFilters:
    """Filters of the list; ``None`` does not filter."""

    policy: str | None
    outcome: str | None
    scorer: str | None
    low: float | None
    high: float | None
    text: str | None
    solution: str | None
    error: str | None
    """``any``, ``none``, or the number of the step, from 1."""

    def query(self) -> str:
        """The filters as a query string."""
        return urlencode({name: value for name, value in vars(self).items() if value is not None})


@twin(router, "/projects/{project_id:number}/traces")
def trace_list(request: Request, place: ReaderPlace) -> Response:
    """Traces by id; the filters are in the URL, so a list can be shared."""
    db, filters = place.db, _filters(request)
    scorers = db.traces.scorers(place.id)
    rows, last, examined = _search(
        db, place.id, filters, query_of(request).id("after") or "", pages_of(request).settings.rows
    )
    scorer = filters.scorer or (scorers[0] if scorers else None)
    query = filters.query()
    data = {
        "filters": vars(filters),
        "scorers": scorers,
        "scorer": scorer,
        "traces": _rows(db, place.id, rows, scorer),
        "examined": examined,
        "next": None if last is None else next_page(query, after=last),
    }
    return show(request, place, "traces.html", data, extra={"query": query})


@twin(router, "/projects/{project_id:number}/trace")
def trace_page(request: Request, place: ReaderPlace) -> Response:
    """One trace; ``?id=`` takes any id of a data set, ``&call=`` the number of a call of a program."""
    db = place.db
    trace = db.traces.trace(place.id, query_of(request).required_id("id"))
    labels = db.labels.of_trace(place.id, trace.id)
    decisions = decisions_by_step(labels, db.reviews.adjudications(place.id), trace.id)
    error = marked_error(labels, decisions)
    groups = sources(labels)
    strips = scorer_strips(db.traces.scores(place.id, trace.id), error)
    problem = db.traces.problem(place.id, trace.problem_id)
    data = {
        "problem": problem,
        "trace": trace,
        "first_error": error,
        "strips": strips,
        "sources": groups,
        "decisions": decisions,
        "program": program_view(problem, trace, labels, query_of(request).natural("call")),
    }
    extra = {"parts": _parts(trace, groups, strips), "query": urlencode({"id": trace.id})}
    return show(request, place, "trace.html", data, extra=extra)


def _filters(request: Request) -> _TraceFilters:
    query = query_of(request)
    filters = _TraceFilters(
        policy=query.optional("policy", most=500),
        outcome=query.optional("outcome") and query.choice("outcome", _OUTCOMES),
        scorer=query.optional("scorer", most=500),
        low=query.number("low"),
        high=query.number("high"),
        text=query.optional("text", most=500),
        solution=query.optional("solution", most=500),
        error=query.optional("error", most=9),
    )
    if filters.error not in (None, "any", "none") and query.natural("error") < 1:
        raise StoreError("'error' must be 'any', 'none' or the number of a step, from 1")
    return filters


def _search(
    db: Database, project_id: int, filters: _TraceFilters, last_id: str, limit: int
) -> tuple[list[tuple[TraceRow, int | None]], str | None, int]:
    """Rows with their first error, the id to continue after (``None`` = end), and how many were examined."""
    decisions = db.reviews.adjudications(project_id)
    rows: list[tuple[TraceRow, int | None]] = []
    examined = 0
    while examined < _SCAN:
        batch = db.traces.find(
            project_id,
            policy=filters.policy,
            outcome=None if filters.outcome is None else filters.outcome == "correct",
            scorer=filters.scorer,
            min_score=filters.low,
            max_score=filters.high,
            text=filters.text,
            after=last_id,
            limit=limit + 1,
        )
        labels = db.labels.of_traces(project_id, (row.trace.id for row in batch[:limit] if row.labels))
        for row in batch[:limit]:
            last_id, examined = row.trace.id, examined + 1
            trace_labels = labels.get(row.trace.id, [])
            error = (
                marked_error(trace_labels, decisions_by_step(trace_labels, decisions, row.trace.id))
                if trace_labels
                else None
            )
            if _fits(row, error, filters):
                rows.append((row, error))
        if len(batch) <= limit:
            return rows, None, examined
        if len(rows) >= limit or (filters.solution is None and filters.error is None):
            return rows, last_id, examined
    return rows, last_id, examined


def _fits(row: TraceRow, error: int | None, filters: _TraceFilters) -> bool:
    if filters.solution is not None and filters.solution.casefold() not in whole_text(row.trace).casefold():
        return False
    if filters.error is None:
        return True
    if filters.error in ("any", "none"):
        return (error is None) == (filters.error == "none")
    return error == int(filters.error) - 1


def whole_text(trace: Trace) -> str:
    """The text of a trace, or all that its messages say: reasoning, contents and calls."""
    return trace.text if trace.text is not None else "\n".join(map(str, trace_blocks(trace)))


def _rows(
    db: Database, project_id: int, rows: Sequence[tuple[TraceRow, int | None]], scorer: str | None
) -> list[dict[str, Any]]:
    scores = (
        db.traces.scores_of(project_id, (row.trace.id for row, _ in rows), scorer=scorer) if scorer else {}
    )
    return [_row(project_id, row, error, scores.get(row.trace.id, [])) for row, error in rows]


def _row(project_id: int, row: TraceRow, error: int | None, scores: Sequence[StepScores]) -> dict[str, Any]:
    trace = row.trace
    return {
        "id": trace.id,
        "link": f"/projects/{project_id}/trace?{urlencode({'id': trace.id})}",
        "problem_id": trace.problem_id,
        "problem": row.problem[:200],
        "policy": trace.policy,
        "answer": trace.answer,
        "outcome": trace.outcome,
        "steps": len(trace.steps),
        "labels": row.labels,
        "first_error": error,
        "strip": strip(scores[0].scores, error) if scores else None,
    }


def _parts(trace: Trace, groups: list[dict[str, Any]], strips: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trace in order: steps with their scores and labels, and what stands between them."""
    parts: list[dict[str, Any]] = []
    for block in trace_blocks(trace):
        content = {"text": block.text, "role": block.role}
        if block.step is None:
            kind = "message" if block.kind in ("instruction", "observation") else "between"
            parts += [{"kind": kind, **content}] if block.text else []
            parts += [{"kind": "call", "name": call.name, "text": call.arguments} for call in block.calls]
            continue
        parts.append(
            {
                "kind": "step",
                "step": block.step,
                "type": block.kind,
                **content,
                "calls": [{"name": call.name, "text": call.arguments} for call in block.calls],
                "labels": _of_step(groups, block.step),
                "scores": [{"scorer": strip["scorer"], **strip["cells"][block.step]} for strip in strips],
            }
        )
    return parts


def _of_step(groups: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    return [
        {"source": group["source"], "rater": group["rater"], **label}
        for group in groups
        for label in group["labels"]
        if label["step"] == step
    ]


def decisions_by_step(
    labels: Sequence[StoredLabel], decisions: Iterable[Adjudication], trace_id: str
) -> dict[int, Any]:
    """Decisions on disagreements, by step; the latest counts."""
    by_label = {label.id: label.record.evidence.rater for label in labels}
    return {
        decision.step: {
            "value": decision.value,
            "note": decision.note,
            "created": decision.created,
            "chosen_rater": by_label.get(decision.label_id or 0),
        }
        for decision in sorted(decisions, key=lambda decision: decision.id)
        if decision.trace_id == trace_id
    }


def sources(labels: Sequence[StoredLabel]) -> list[dict[str, Any]]:
    """One entry per source and rater, sorted by name: its labels by step, and its first error."""
    groups: dict[tuple[str, str], list[StoredLabel]] = {}
    for label in labels:
        groups.setdefault((label.record.source, label.record.evidence.rater or ""), []).append(label)
    return [
        {
            "source": source,
            "rater": rater or None,
            "first_error": first_error(label.record for label in group),
            "labels": [
                _label_row(label) for label in sorted(group, key=lambda label: (label.record.step, label.id))
            ],
        }
        for (source, rater), group in sorted(groups.items())
    ]


def first_error(labels: Iterable[StepLabel]) -> int | None:
    """The earliest step that a label calls wrong: correctness −1, or no success in any trial.

    The second is the hard estimate of Math-Shepherd (Wang et al., arXiv 2312.08935).
    """
    return min((label.step for label in labels if _wrong(label)), default=None)


def marked_error(labels: Sequence[StoredLabel], decisions: dict[int, Any]) -> int | None:
    """The step to mark: the earliest with a correctness label of "wrong"; decisions replace labels."""
    steps = {
        label.record.step
        for label in labels
        if label.record.kind == "correctness" and _wrong(label.record) and label.record.step not in decisions
    }
    steps |= {step for step, decision in decisions.items() if decision["value"] == -1}
    return min(steps, default=None)


def _wrong(label: StepLabel) -> bool:
    return LabelRule(neutral="good").good(label) is False


def _label_row(one: StoredLabel) -> dict[str, Any]:
    record = one.record
    evidence = record.evidence
    return {
        "id": one.id,
        "step": record.step,
        "kind": record.kind,
        "value": record.value,
        "reason": record.reason,
        "successes": evidence.successes,
        "trials": evidence.trials,
        "interval": evidence.interval,
        "message": evidence.message,
        "created": record.created,
        "chosen_by": one.chosen_by,
        "milliseconds": one.milliseconds,
    }
