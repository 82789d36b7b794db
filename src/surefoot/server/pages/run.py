"""One run: the task, the verdict and its sources, the steps with their scores and labels, and gold calls.

A request to the gateway and a held call are shown as runs, too (:mod:`surefoot.server.pages.request_log`).

Nothing is run here: the execution of a program is the evidence of a label
(:class:`surefoot.records.Execution`). It holds calls of hidden tests, and the reference's values, so it is
for those who may see the reference answer: administrators and viewers of the project.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response

from surefoot.errors import LabelError, StoreError
from surefoot.evaluation.verdict import Evidence, run_verdict
from surefoot.failures import result_failed
from surefoot.labelling.verifiers.gold_calls import compare_gold_calls
from surefoot.labelling.verifiers.state_replay import gold_calls
from surefoot.labels import LabelRule
from surefoot.messages import call_arguments
from surefoot.printable import printable
from surefoot.protocols import ProblemTrace
from surefoot.records import CodeTask, Execution, Problem, StepLabel, StepScores, ToolCall, Trace
from surefoot.segment import trace_blocks
from surefoot.server.pages.listing import Filter, Terms
from surefoot.server.pages.page import Page
from surefoot.server.store.labelling import Adjudication, Comment, StoredLabel
from surefoot.server.store.traces import Facet, RunFilter, RunOrder, title_of

BUCKETS: Final = 10
"""Colours of scores: they also differ in brightness, and the number is always there."""
THRESHOLD: Final = 0.5
"""A probability below it counts as a scorer's objection."""
WINDOW: Final = 60
"""Steps of a longer run that are shown at once."""
ORDERS: tuple[RunOrder, ...] = get_args(RunOrder)
_FACETS: tuple[Facet, ...] = get_args(Facet)
TERMS: Final[Terms] = {
    "outcome": ("correct", "wrong", "ungraded"), "error": (), "tool": (), "model": (), "sort": ORDERS,
    "kind": ("solution", "agent", "program"),
}  # fmt: skip
"""What a filter of runs may name."""
Decisions = Mapping[int, Adjudication]


def run_page(page: Page) -> Response:
    """One run; ``?id=`` takes any id of a data set, ``&step=`` is shown of a long one.

    ``&at=`` is its place in the list whose filter follows it. It is read unless ``&edit=1`` lets an
    administrator decide steps; ``&disagreement=1`` also shows what annotators say without scores and other
    sources, which must not influence the decision.
    """
    db, fields = page.db, page.query
    blind = fields.ticked("disagreement")
    trace = db.traces.trace(page.id, fields.required_id("id"))
    problem = db.traces.problem(page.id, trace.problem_id)
    labels = db.labels.of_trace(page.id, trace.id)
    labels = [label for label in labels if label.item_id is not None or not blind]
    decisions = decisions_of(page, [trace.id])[trace.id]
    scores = [] if blind else db.traces.scores(page.id, trace.id)
    gold = gold_view(problem, trace)
    missing = sum(not one["made"] for one in gold)
    verdict = run_verdict(
        len(trace.steps), trace.outcome, evidence_of(labels, decisions, scores), missing_calls=missing
    )
    items = sorted({label.item_id for label in labels if label.item_id is not None})
    comments = (comment for item in items for comment in db.comments.list(page.id, item_id=item))
    attempts = db.traces.facets(page.id, RunFilter(problem_id=problem.id))[1]["outcome"]
    data = {
        "first_error": verdict.error,
        "verdict": verdict,
        "labels": sorted(
            map(_label_row, labels), key=lambda row: (row["source"], row["rater"] or "", row["id"])
        ),
        "decisions": {
            step: {"value": decision.value, "note": decision.note, "created": decision.created}
            for step, decision in decisions.items()
        },
        "attempts": attempts,
        "comments": with_names(page, comments),
        "gold_calls": gold,
        "program": program_view(problem, labels),
    }
    disputed, following = list[int](), None
    if blind:
        disputes = db.reviews.disagreements(page.id, item_ids=items, decided=None)
        disputed = [dispute.step for dispute in disputes]
        open_ones = db.reviews.disagreements(page.id)
        following = next((other.trace_id for other in open_ones if other.trace_id != trace.id), None)
    said = next((one for one in decisions.values() if str(one.id) == fields.optional("said", most=15)), None)
    edits = page.role == "admin" and fields.ticked("edit")
    return show_run(
        page,
        problem,
        trace,
        data,
        mode="decide" if blind else "edit" if edits else "read",
        scores=scores,
        decisions=decisions,
        said=said,
        disputes=disputed,
        disputed=next((step for step in disputed if step not in decisions), None),
        following=following and urlencode({"id": following, "disagreement": 1}),
        neighbours=_neighbours(page),
        rival=_rival(page, trace) if not blind else None,
    )


def show_run(
    page: Page,
    problem: Problem | None,
    trace: Trace,
    data: Mapping[str, Any],
    *,
    mode: str = "read",
    scores: Sequence[StepScores] = (),
    decisions: Decisions | None = None,
    disputed: int | None = None,
    title: str = "",
    **extra: Any,
) -> Response:
    """The page of a run, request or held call: of a long one the part with the step that matters."""
    decisions, error = decisions or {}, data.get("first_error")
    at = page.query.natural(
        "step", default=1 + next((one for one in (disputed, error) if one is not None), 0)
    )
    start = 0 if len(trace.steps) <= WINDOW else (max(1, min(at, len(trace.steps))) - 1) // WINDOW * WINDOW
    part = range(start, min(start + WINDOW, len(trace.steps)))
    strips = scorer_strips(scores, error)
    blocks, step = [], 0
    for block in timeline(trace):
        step = step if block["step"] is None else block["step"]
        if step in part or not trace.steps:
            blocks.append(block)
    for block in blocks:
        if (step := block["step"]) is not None:
            block["labels"] = [label for label in data.get("labels", ()) if label["step"] == step]
            block["scores"] = [
                {
                    "scorer": one["scorer"],
                    **one["cells"][step],
                    "reason": one["reasons"] and one["reasons"][step],
                }
                for one in strips
            ]
            block["decided"] = decisions.get(step)
    unscored = {"scorer": None, "cells": strip([None] * len(trace.steps), error), "unscored_reason": None}
    return page.show(
        "run.html",
        {"problem": problem, "trace": trace, "strips": strips, **data},
        mode=mode,
        blocks=blocks,
        part=part,
        shown_strips=strips or [unscored],
        seen=max((decision.id for decision in decisions.values()), default=0),
        disputed=disputed,
        title=title or (problem and title_of(problem, trace)) or trace.id,
        address=page.link("said")[1:],
        **{"neighbours": {}, "disputes": (), "said": None, "rival": None, "following": None, **extra},
    )


def decide_here(page: Page) -> Response:
    """Decide a step of the run of the address, which becomes an item if it is none, or undo a decision.

    ``seen`` is the latest decision that the form showed, 0 if none. The annotators' labels stay as they are.
    """
    trace = page.db.traces.trace(page.id, page.query.required_id("id"))
    here = f"/projects/{page.id}/run{page.link('said')}"
    if page.form.ticked("undo"):
        page.db.reviews.undo(page.id, page.form.whole("undo"), page.user_id)
        page.audit("decision undone", trace=trace.id)
        return page.done(here)
    step, value, values = page.form.whole("step"), page.form.value("value"), page.project.protocol.values
    if value not in values:
        raise StoreError(f"'value': this project's labels are {list(values)}")
    note, seen = page.form.text("note", default="", most=5000), page.form.whole("seen")
    if not 0 <= step < len(trace.steps):
        raise StoreError(f"'step' {step}: the run has {len(trace.steps)} steps")
    last = decisions_of(page, [trace.id])[trace.id].get(step)
    (item_id,) = page.db.items.add_solutions(page.id, [trace.id])
    decision = page.db.reviews.adjudicate(
        page.id,
        item_id,
        page.user_id,
        step,
        value,
        note=note,
        after=last.id if last and last.id <= seen else 0,
    )
    return page.done(f"{here}&said={decision.id}#step-{step + 1}", {"adjudication": decision})


def with_names(page: Page, comments: Iterable[Comment]) -> list[dict[str, Any]]:
    """Comments and flags with the pseudonyms of who made them."""
    names = {member.user_id: member.pseudonym for member in page.db.projects.members(page.id)}
    return [{**vars(comment), "by": names.get(comment.user_id, "?")} for comment in comments]


def _neighbours(page: Page) -> dict[str, str]:
    """Addresses of the list or report that the visitor came from, and of the runs before and after."""
    fields, at = page.fields("text", "problem"), page.query.optional("at", most=9)
    links = {"list": f"/projects/{page.id}/runs?{urlencode(fields)}"}
    if report := page.query.id("report"):
        links["report"] = f"/report?{urlencode({'id': report})}"
    if at is not None and at.isdigit():
        where, order, _ = run_filter(page)
        for name, offset in (("previous", int(at) - 1), ("next", int(at) + 1)):
            for row in (
                page.db.traces.find(page.id, where, order=order, offset=offset, limit=1)
                if offset >= 0
                else ()
            ):
                links[name] = f"/projects/{page.id}/run?{urlencode({'id': row.id, **fields, 'at': offset})}"
    return links


def _rival(page: Page, trace: Trace) -> str | None:
    """Address of the comparison with an attempt at the same task that ended the other way."""
    if trace.outcome is None:
        return None
    where = RunFilter(
        problem_id=trace.problem_id, facets={"outcome": "wrong" if trace.outcome else "correct"}
    )
    rows = page.db.traces.find(page.id, where, limit=1)
    return urlencode({"id": [trace.id, rows[0].id]}, doseq=True) if rows else None


def run_filter(page: Page) -> tuple[RunFilter, RunOrder, Filter]:
    """Filter and order of a list from its address, and the text of its filter box. Raises ``StoreError``."""
    scorers = page.db.traces.scorers(page.id)
    box = Filter.of(page, TERMS, scorers)
    where = RunFilter(
        problem_id=page.query.id("problem"),
        text=box.words or None,
        error=box.steps("error"),
        no_error=box.terms.get("error") == "none",
        tool=box.terms.get("tool"),
        scorer=box.scorer or next(iter(scorers), None),
        min_score=box.low,
        max_score=box.high,
        facets={name: box.terms[name] for name in _FACETS if name in box.terms},
    )
    return where, next((order for order in ORDERS if order == box.terms.get("sort")), "newest"), box


def timeline(trace: Trace, last: int | None = None) -> Iterator[dict[str, Any]]:
    """The trace in reading order, up to step ``last``: steps, messages between them, and results of tools."""
    made: dict[tuple[tuple[str, str], ...], int] = {}
    for block in trace_blocks(trace):
        if last is not None and last < 0 and block.step is not None:
            return
        message = trace.messages[block.message] if block.message is not None else None
        step = block.step
        calls = tuple((call.name, call.arguments) for call in block.calls)
        first = made.setdefault(calls, step) if calls and step is not None else step
        yield {
            "step": step,
            "kind": block.kind,
            "role": block.role,
            "text": block.text.strip(),
            "calls": block.calls,
            "reasoning": step is not None
            and (trace.steps[step].part == "reasoning" or block.kind == "reasoning"),
            "repeats": None if first == step else first,
            "summary": result_summary(block.text) if block.role == "tool" else None,
            "failed": message is not None and result_failed(message) is True,
        }
        if last is not None and step == last:
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
        fields = [f"{name}: {field}" for name, field in list(plain.items())[:3]]
        return ", ".join(fields) or f"{len(value)} fields"
    return text.strip().partition("\n")[0]


def evidence_of(
    labels: Sequence[StoredLabel], decisions: Decisions, scores: Iterable[StepScores] = ()
) -> Iterator[Evidence]:
    """What decisions, labels and scores say. Values, and scores below :data:`THRESHOLD`, are objections."""
    for step, decision in decisions.items():
        error = step if decision.value == -1 else None
        yield Evidence(source="decision", kind="decision", checked=(step,), error=error)
    by_rater: dict[tuple[str, str], list[StepLabel]] = defaultdict(list)
    for record in sorted((label.record for label in labels), key=lambda record: (record.source, record.step)):
        by_rater[record.source, record.evidence.rater or ""].append(record)
    rule = LabelRule(neutral="good")
    for (source, _), records in by_rater.items():
        judged = [record for record in records if record.kind == "correctness" and record.value is not None]
        wrong = next((record for record in judged or records if rule.good(record) is False), None)
        error, reason = (None, None) if wrong is None else (wrong.step, wrong.evidence.message)
        if judged:
            checked = tuple(record.step for record in judged)
            yield Evidence(source=source, checked=checked, error=error, reason=reason or "")
        elif error is not None:
            yield Evidence(source=source, kind="objection", error=error)
    for scored in scores:
        low = [step for step, score in enumerate(scored.scores) if score is not None and score < THRESHOLD]
        if low and all(score is None or 0 <= score <= 1 for score in scored.scores):
            score = scored.scores[low[0]]
            yield Evidence(source=scored.scorer, kind="objection", error=low[0], score=score)


def decisions_of(page: Page, ids: Collection[str]) -> dict[str, dict[int, Adjudication]]:
    """The decisions on some runs, by step."""
    decided: dict[str, dict[int, Adjudication]] = {trace_id: {} for trace_id in ids}
    for item in page.db.reviews.adjudications(page.id):
        if item.trace_id in decided:
            decided[item.trace_id][item.step] = item
    return decided


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
    needed, made = call_arguments(call) or {}, call_arguments(other) or {}
    return call.name == other.name and needed.items() <= made.items()


def _label_row(label: StoredLabel) -> dict[str, Any]:
    record = label.record
    return {
        "id": label.id,
        "rater": record.evidence.rater,
        **record.model_dump(include={"source", "step", "kind", "value", "reason", "created"}),
        **record.evidence.model_dump(include={"successes", "trials", "interval", "message"}),
        "chosen_by": label.chosen_by,
        "milliseconds": label.milliseconds,
    }


def strip(scores: Sequence[float | None], first_error: int | None = None) -> list[dict[str, Any]]:
    """Cells of a strip, one per step: score, colour class 0 (low) to 9 (high), whether the first error.

    Scores that are not probabilities (one is below 0 or above 1) are coloured over [-1, 1].
    """
    signed = any(score < 0 or score > 1 for score in scores if score is not None)
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
    return 0 if share != share else min(BUCKETS - 1, max(0, int(share * BUCKETS)))


def program_view(problem: Problem, labels: Sequence[StoredLabel]) -> dict[str, Any] | None:
    """Why the program fails, by the latest label with its execution. ``None`` if the task is none of code."""
    try:
        if CodeTask.of(problem) is None:
            return None
    except ValueError:
        return None  # without a valid task it is shown as an ordinary trace
    label = next((label for label in reversed(labels) if label.record.evidence.execution), None)
    execution = label.record.evidence.execution if label else None
    why = (execution or Execution()).model_dump()
    shown = {name: printable(value) if isinstance(value, str) else value for name, value in why.items()}
    return {"source": label.record.source if label else None, "why": shown}
