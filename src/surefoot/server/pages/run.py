"""One run: the task, the verdict and its sources, the steps with their scores and labels, and gold calls.

Nothing is run here: the execution of a program is the evidence of a label
(:class:`surefoot.records.Execution`). It holds calls of hidden tests, and the reference's values, so it is
for those who may see the reference answer: administrators and viewers of the project.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response

from surefoot.errors import LabelError, StoreError
from surefoot.evaluation.verdict import Evidence, run_verdict
from surefoot.failures import result_failed
from surefoot.labelling.verifiers.gold_calls import compare_gold_calls
from surefoot.labelling.verifiers.programs import SourceLine, TraceProgram
from surefoot.labelling.verifiers.state_replay import gold_calls
from surefoot.labels import LabelRule
from surefoot.messages import call_arguments
from surefoot.printable import printable
from surefoot.protocols import ProblemTrace
from surefoot.records import CodeTask, Execution, Problem, StepLabel, StepScores, ToolCall, Trace
from surefoot.segment import trace_blocks
from surefoot.server.pages.forms import Form
from surefoot.server.pages.page import Page
from surefoot.server.pages.render import highlighted
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import Adjudication, Comment, StoredLabel
from surefoot.server.store.traces import Facet, RunFilter, RunOrder, title_of

BUCKETS: Final = 10
"""Colours of scores: they also differ in brightness, and the number is always there."""
THRESHOLD: Final = 0.5
"""A probability below it counts as a scorer's objection."""
_FACETS: tuple[Facet, ...] = get_args(Facet)
ORDERS: tuple[RunOrder, ...] = get_args(RunOrder)
_CHARACTERS = 100_000
"""Longest program whose run is shown."""


def run_page(page: Page) -> Response:
    """One run; ``?id=`` takes any id of a data set, ``&call=`` the number of a call of a program.

    ``&at=`` is its place in the list whose filters follow it. ``&disagreement=1`` shows what annotators say,
    without scores and other sources, which must not influence the decision.
    """
    db, fields = page.db, page.query
    blind = fields.ticked("disagreement")
    trace = db.traces.trace(page.id, fields.required_id("id"))
    problem = db.traces.problem(page.id, trace.problem_id)
    labels = db.labels.of_trace(page.id, trace.id)
    if blind:
        labels = [label for label in labels if label.item_id is not None]
    decisions = _decisions(db, page.id, trace.id)
    groups, gold = sources(labels), gold_view(problem, trace)
    scores = [] if blind else db.traces.scores(page.id, trace.id)
    verdict = run_verdict(
        len(trace.steps),
        trace.outcome,
        evidence_of(groups, decisions, scores),
        missing_calls=sum(not one["made"] for one in gold),
    )
    strips = scorer_strips(scores, verdict.error)
    items = sorted({label.item_id for label in labels if label.item_id is not None})
    data: dict[str, Any] = {
        "problem": problem,
        "trace": trace,
        "first_error": verdict.error,
        "verdict": verdict,
        "strips": strips,
        "sources": groups,
        "decisions": {
            step: {"value": decision.value, "note": decision.note, "created": decision.created}
            for step, decision in decisions.items()
        },
        "attempts": db.traces.facets(page.id, RunFilter(problem_id=problem.id))[1]["outcome"],
        "comments": with_names(
            page, (comment for item in items for comment in db.comments.list(page.id, item_id=item))
        ),
        "gold_calls": gold,
        "program": program_view(problem, trace, labels),
    }
    program, disputed, following = data["program"], list[int](), None
    if blind:
        disputes = db.reviews.disagreements(page.id, item_ids=items, decided=None)
        disputed = [dispute.step for dispute in disputes]
        open_ones = db.reviews.disagreements(page.id)
        following = next((other.trace_id for other in open_ones if other.trace_id != trace.id), None)
    return page.show(
        "run.html",
        data,
        mode="decide" if blind else "read",
        disputes=disputed,
        following=following and urlencode({"id": following, "disagreement": 1}),
        code=highlighted([line["text"] for line in program["lines"]]) if program else [],
        blocks=with_labels(trace, groups, decisions, strips),
        query=urlencode({"id": trace.id}),
        title=title_of(problem, trace) or trace.id,
        address=page.request.url.query,
        disputed=next((step for step in disputed if step not in decisions), None),
        neighbours=_neighbours(page),
    )


def decide_here(page: Page) -> Response:
    """Decide a step of the run of the address, which becomes an item if it is none.

    ``after`` is the decision that the form showed, 0 if none. The annotators' labels stay as they are.
    """
    step, value, values = page.form.whole("step"), page.form.value("value"), page.project.protocol.values
    if value not in values:
        raise StoreError(f"'value': this project's labels are {list(values)}")
    note, last = page.form.text("note", default="", most=5000), page.form.whole("after")
    trace = page.db.traces.trace(page.id, page.query.required_id("id"))
    if not 0 <= step < len(trace.steps):
        raise StoreError(f"'step' {step}: the run has {len(trace.steps)} steps")
    (item_id,) = page.db.items.add_solutions(page.id, [trace.id])
    decision = page.db.reviews.adjudicate(page.id, item_id, page.user_id, step, value, note=note, after=last)
    return page.done(f"/projects/{page.id}/run?{page.request.url.query}", {"adjudication": decision})


def with_names(page: Page, comments: Iterable[Comment]) -> list[dict[str, Any]]:
    """Comments and flags with the pseudonyms of who made them."""
    names = {member.user_id: member.pseudonym for member in page.db.projects.members(page.id)}
    return [{**vars(comment), "by": names.get(comment.user_id, "?")} for comment in comments]


def with_labels(
    trace: Trace,
    groups: Sequence[Mapping[str, Any]],
    decisions: Mapping[int, Adjudication],
    strips: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """The timeline with the labels, the decision and the scores of each step."""
    blocks = list(timeline(trace))
    for block in blocks:
        if (step := block["step"]) is not None:
            block["labels"] = _of_step(groups, step)
            block["scores"] = [
                {
                    "scorer": strip["scorer"],
                    **strip["cells"][step],
                    "reason": strip["reasons"][step] if strip["reasons"] else None,
                }
                for strip in strips
            ]
            block["decided"] = decisions.get(step)
    return blocks


def _neighbours(page: Page) -> dict[str, str]:
    """Addresses of the list or report that the visitor came from, and of the runs before and after."""
    where, order, filters = run_filter(page.query)
    at = page.query.optional("at", most=9)
    links = {"list": f"/projects/{page.id}/runs?{urlencode(filters)}"}
    if report := page.query.id("report"):
        links["report"] = f"/report?{urlencode({'id': report})}"
    if at is not None and at.isdigit():
        for name, offset in (("previous", int(at) - 1), ("next", int(at) + 1)):
            rows = (
                page.db.traces.find(page.id, where, order=order, offset=offset, limit=1)
                if offset >= 0
                else []
            )
            for row in rows:
                address = urlencode({"id": row.id, **filters, "at": offset})
                links[name] = f"/projects/{page.id}/run?{address}"
    return links


def run_filter(fields: Form) -> tuple[RunFilter, RunOrder, dict[str, str]]:
    """Filter and order of a list from its address, and the fields that the address needs for them."""
    facets: dict[Facet, str] = {name: value for name in _FACETS if (value := fields.optional(name, most=500))}
    if facets.get("outcome", "wrong") not in ("correct", "wrong", "not judged"):
        raise StoreError("'outcome' must be correct, wrong or not judged")
    wrong = fields.optional("wrong") and fields.choice("wrong", ("yes", "no"))
    where = RunFilter(
        problem_id=fields.id("problem"),
        text=fields.optional("text", most=500),
        wrong=None if wrong is None else wrong == "yes",
        scorer=fields.optional("scorer", most=500),
        min_score=fields.number("low"),
        max_score=fields.number("high"),
        facets=facets,
    )
    order = fields.choice("order", ORDERS, default="newest")
    names = ("problem", "text", "wrong", "scorer", "low", "high", *_FACETS, "order")
    sent = {name: value for name in names if (value := fields.id(name))}
    return where, order, {name: value for name, value in sent.items() if (name, value) != ("order", "newest")}


def timeline(trace: Trace, last: int | None = None) -> Iterator[dict[str, Any]]:
    """The trace in reading order, up to step ``last``: steps, messages between them, and results of tools."""
    for block in trace_blocks(trace):
        if last is not None and last < 0 and block.step is not None:
            return
        message = trace.messages[block.message] if block.message is not None else None
        yield {
            "step": block.step,
            "kind": block.kind,
            "role": block.role,
            "text": block.text,
            "calls": block.calls,
            "summary": result_summary(block.text) if block.role == "tool" else None,
            "failed": message is not None and result_failed(message) is True,
        }
        if last is not None and block.step == last:
            return


def result_summary(text: str) -> str:
    """A tool's result in a few words: the number of its entries, its first fields, or its first line."""
    try:
        value = from_json(text)
    except ValueError:
        value = None
    if isinstance(value, list):
        return f"{len(value)} result{'s' if len(value) != 1 else ''}"
    if isinstance(value, dict):
        plain = {name: field for name, field in value.items() if isinstance(field, str | int | float)}
        return (
            ", ".join(f"{name}: {field}" for name, field in list(plain.items())[:3]) or f"{len(value)} fields"
        )
    return text.strip().partition("\n")[0]


def evidence_of(
    groups: Sequence[Mapping[str, Any]],
    decisions: Mapping[int, Adjudication],
    scores: Sequence[StepScores] = (),
) -> Iterator[Evidence]:
    """What decisions, labels and scores say. Values, and scores below :data:`THRESHOLD`, are objections."""
    for step, decision in decisions.items():
        error = step if decision.value == -1 else None
        yield Evidence(source="decision", kind="decision", checked=(step,), error=error)
    for group in groups:
        labels = [label for label in group["labels"] if label["value"] is not None]
        judged = {label["step"]: label for label in labels if label["kind"] == "correctness"}
        wrong = [step for step, label in judged.items() if label["value"] == -1]
        if judged:
            error = min(wrong, default=None)
            reason = str(judged[error]["message"] or "") if error is not None else ""
            yield Evidence(source=group["source"], checked=tuple(judged), error=error, reason=reason)
        elif group["first_error"] is not None:
            yield Evidence(source=group["source"], kind="objection", error=group["first_error"])
    for record in scores:
        low = [step for step, score in enumerate(record.scores) if score is not None and score < THRESHOLD]
        if low and all(score is None or 0 <= score <= 1 for score in record.scores):
            score = record.scores[low[0]]
            yield Evidence(source=record.scorer, kind="objection", error=low[0], score=score)


def gold_view(problem: Problem, trace: Trace) -> list[dict[str, Any]]:
    """The calls that the task needs, and whether the run makes them; empty where they are not known."""
    item = ProblemTrace(problem=problem, trace=trace)
    try:
        needed, compared = gold_calls(item), compare_gold_calls(item)
    except LabelError:
        return []  # the task states them in another form
    if needed is None or compared is None:
        return []
    right = [
        trace.messages[message].tool_calls[number or 0]
        for (message, number), verdict_of_call in compared.verdicts.items()
        if verdict_of_call.value == 1
    ]
    return [{"call": call, "made": any(_equal(call, other) for other in right)} for call in needed]


def _equal(call: ToolCall, other: ToolCall) -> bool:
    return (
        call.name == other.name
        and (call_arguments(call) or {}).items() <= (call_arguments(other) or {}).items()
    )


def _of_step(groups: Sequence[Mapping[str, Any]], step: int) -> list[dict[str, Any]]:
    return [
        {"source": group["source"], "rater": group["rater"], **label}
        for group in groups
        for label in group["labels"]
        if label["step"] == step
    ]


def _decisions(db: Database, project_id: int, trace_id: str) -> dict[int, Adjudication]:
    return {item.step: item for item in db.reviews.adjudications(project_id) if item.trace_id == trace_id}


def marked_step(db: Database, project_id: int, trace_id: str) -> int | None:
    """The first error of a trace, with its decisions."""
    groups = sources(db.labels.of_trace(project_id, trace_id))
    return run_verdict(0, None, evidence_of(groups, _decisions(db, project_id, trace_id))).error


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


def _wrong(label: StepLabel) -> bool:
    return LabelRule(neutral="good").good(label) is False


def _label_row(label: StoredLabel) -> dict[str, Any]:
    record = label.record
    return {
        "id": label.id,
        **record.model_dump(include={"step", "kind", "value", "reason", "created"}),
        **record.evidence.model_dump(include={"successes", "trials", "interval", "message"}),
        "chosen_by": label.chosen_by,
        "milliseconds": label.milliseconds,
    }


def strip(scores: Sequence[float | None], first_error: int | None = None) -> list[dict[str, Any]]:
    """Cells of a strip, one per step: score, colour class 0 (low) to 9 (high), whether the first error.

    Scores that are not probabilities (one is below 0 or above 1) are coloured over [-1, 1].
    """
    numbers = [score for score in scores if score is not None]
    signed = any(score < 0 or score > 1 for score in numbers)
    return [
        {
            "step": step,
            "score": score,
            "bucket": None if score is None else _bucket((score + 1) / 2 if signed else score),
            "first_error": step == first_error,
        }
        for step, score in enumerate(scores)
    ]


def scorer_strips(scores: Sequence[StepScores], first_error: int | None) -> list[dict[str, Any]]:
    """One strip per scorer."""
    return [
        {
            "scorer": record.scorer,
            "cells": strip(record.scores, first_error),
            "unscored_reason": record.unscored_reason,
            "reasons": record.reasons,
        }
        for record in scores
    ]


def _bucket(share: float) -> int:
    if share != share:
        return 0
    return min(BUCKETS - 1, max(0, int(share * BUCKETS)))


def program_view(problem: Problem, trace: Trace, labels: Sequence[StoredLabel]) -> dict[str, Any] | None:
    """The program, line by line with its steps, and why it fails. ``None`` if the trace is not a program, or
    is too long."""
    try:
        task = CodeTask.of(problem)
    except ValueError:
        return None  # without a valid task it is shown as an ordinary trace
    if task is None or trace.text is None or len(trace.text) + len(task.prompt) > _CHARACTERS:
        return None
    program = TraceProgram.of(trace, task)
    label = next((label for label in reversed(labels) if label.record.evidence.execution), None)
    execution = label.record.evidence.execution if label else None
    lines, seen = [], set[int | None]([None])
    for number, text in enumerate(program.text.removesuffix("\n").split("\n"), start=1):
        step = program.step(SourceLine(number))
        lines.append({"number": number, "text": printable(text), "step": step, "begins": step not in seen})
        seen.add(step)
    return {
        "source": label.record.source if label else None,
        "why": {
            name: printable(value) if isinstance(value, str) else value
            for name, value in (execution or Execution()).model_dump().items()
        },
        "lines": lines,
    }
