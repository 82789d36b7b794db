"""Runs: their list; one with its verdict, steps, scores, labels and gold calls; two of them aligned.

A request to the gateway and a held call are shown as runs, too (:mod:`surefoot.server.pages.live`).

Nothing is run here: why a program fails is the evidence of a label (:class:`surefoot.records.Execution`). It
holds a hidden test, and lines of the reference, so it is for those who may see the reference answer:
administrators and viewers of the project.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby, zip_longest
from typing import Any, Final, get_args
from urllib.parse import urlencode

from pydantic_core import from_json
from starlette.responses import Response

from surefoot.errors import LabelError, StoreError, counted
from surefoot.evaluation.verdict import Conclusion, run_verdict
from surefoot.failures import result_failed
from surefoot.labelling.verifiers.gold_calls import compare_gold_calls
from surefoot.labelling.verifiers.state_replay import gold_calls
from surefoot.messages import call_arguments
from surefoot.printable import printable
from surefoot.protocols import ProblemTrace
from surefoot.records import CodeTask, Execution, Problem, StepScores, Trace
from surefoot.segment import trace_blocks
from surefoot.server.pages.page import Filter, Page, Terms, show_list
from surefoot.server.store.labels import decisions_in, evidence_of
from surefoot.server.store.queue import StoredLabel
from surefoot.server.store.traces import Facet, RunFilter, RunOrder, TraceRow, outcome_word, title_of

BUCKETS: Final = 10
"""Colours of scores: they also differ in brightness, and the number is always shown."""
WINDOW: Final = 60
"""Most steps shown at once."""
ORDERS: tuple[RunOrder, ...] = get_args(RunOrder)
_FACETS: tuple[Facet, ...] = get_args(Facet)
TERMS: Final[Terms] = {
    "outcome": ("correct", "wrong", "ungraded"), "error": (), "tool": (), "model": (), "sort": ORDERS,
    "kind": ("solution", "agent", "program"),
}  # fmt: skip
"""Terms of the filter of runs, and their values."""
_MOST_PAIRS: Final = 250_000
"""Most pairs of steps to align by content; longer runs are aligned by position."""


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
    stored = db.labels.of_traces(page.id, [trace.id])[trace.id]
    stored = [label for label in stored if label.user_id is not None or not blind]
    labels = [label for label in stored if not label.is_decision]
    decided = {
        step: {**_label_row(label), "user_id": label.user_id} for step, label in decisions_in(stored).items()
    }
    scores, gold = (
        [] if blind else db.traces.scores_of(page.id, [trace.id])[trace.id],
        gold_view(problem, trace),
    )
    evidence, missing = evidence_of(stored, scores), sum(not call["made"] for call in gold)
    word = outcome_word(trace)
    verdict = run_verdict(len(trace.steps), trace.outcome, evidence, missing_calls=missing, outcome_word=word)
    data = {
        "first_error": verdict.error,
        "verdict": verdict,
        "labels": [_label_row(label) for label in labels],
        "decisions": decided,
        "attempts": db.traces.facets(page.id, RunFilter(problem_id=problem.id))[1]["outcome"],
        "gold_calls": gold,
        "program": program_view(problem, labels),
        "outcome_word": word,
    }
    mode = "decide" if blind else "edit" if page.role == "admin" and fields.ticked("edit") else "read"
    extra: dict[str, Any] = {"mode": mode, "neighbours": _neighbours(page)}
    saved = (row for row in decided.values() if str(row["id"]) == fields.id("decision_id"))
    extra["saved_decision"] = next(saved, None)
    if blind:
        numbers = {label.item_id for label in labels if label.item_id is not None}
        disputes = db.reviews.disagreements(page.id, item_ids=numbers, decided=None)
        extra["disputes"] = [dispute.step for dispute in disputes]
        extra["disputed"] = next((step for step in extra["disputes"] if step not in decided), None)
        runs = (item.trace_id for item in db.reviews.disagreements(page.id) if item.trace_id != trace.id)
        extra["following"] = next((urlencode({"id": run, "disagreement": 1}) for run in runs), None)
    elif trace.outcome is not None:  # an attempt at the same task that ended the other way
        other_way: dict[Facet, str] = {"outcome": "wrong" if trace.outcome else "correct"}
        for rival in db.traces.find(page.id, RunFilter(problem_id=problem.id, facets=other_way), limit=1):
            extra["rival"] = urlencode({"id": [trace.id, rival.id]}, doseq=True)
    return show_run(page, problem, trace, data, scores=scores, **extra)


def show_run(
    page: Page,
    problem: Problem | None,
    trace: Trace,
    data: Mapping[str, Any],
    *,
    scores: Sequence[StepScores] = (),
    disputed: int | None = None,
    title: str = "",
    **extra: Any,
) -> Response:
    """The page of a run, request or held call; a long run shows only the part with the relevant step."""
    decisions, error, count = data.get("decisions", {}), data.get("first_error"), len(trace.steps)
    focus = page.query.natural("step") or 1 + next((at for at in (disputed, error) if at is not None), 0)
    start = 0 if count <= WINDOW else (min(focus, count) - 1) // WINDOW * WINDOW
    part = range(start, min(start + WINDOW, count))
    strips: list[dict[str, Any]] = [
        {
            "scorer": record.scorer,
            "cells": strip(record.scores, error, record.reasons or ()),
            "unscored_reason": record.unscored_reason,
        }
        for record in scores
    ]
    blocks, at = [], 0
    images = page.db.traces.images_of(page.id if page.opened else None, trace)
    for block in timeline(trace, kept=images):
        step, at = block["step"], at if block["step"] is None else block["step"]
        if step in part:
            block["labels"] = [label for label in data.get("labels", ()) if label["step"] == step]
            block["scores"] = [{"scorer": row["scorer"], **row["cells"][step]} for row in strips]
            block["decided"] = decisions.get(step)
        if at in part or not trace.steps:
            blocks.append(block)
    about: dict[str, Any] = {
        "disputed": disputed,
        "address": page.link("decision_id", "step")[1:],
        "blocks": blocks,
        "part": part,
    }
    about["seen"] = max((row["id"] for row in decisions.values()), default=0)
    about["title"] = title or (problem and title_of(problem, trace)) or trace.id
    about["marks"] = _marks(data)
    about["shown_strips"] = strips or [{"scorer": None, "cells": strip([None] * count, error)}]
    data = {"problem": problem, "trace": trace, "strips": strips, **data}
    return page.show("run.html", data, **about, **extra)


def decide_here(page: Page) -> Response:
    """Decide a step of the run of the address, or undo a decision.

    ``seen`` is the latest decision that the form showed, 0 if none. The annotators' labels stay as they are.
    """
    trace = page.db.traces.trace(page.id, page.query.required_id("id"))
    if page.form.ticked("undo"):
        page.db.reviews.undo(page.id, page.form.whole("undo"), page.user_id)
        page.audit("decision undone", trace=trace.id)
        return page.done(f"/projects/{page.id}/run{page.link('decision_id')}")
    step, value, values = page.form.whole("step"), page.form.value("value"), page.project.protocol.values
    if value not in values:
        raise StoreError(f"'value' must be one of this project's labels {list(values)}")
    note, seen = page.form.text("note", default="", most=5000), page.form.whole("seen")
    last = decisions_in(page.db.labels.of_traces(page.id, [trace.id])[trace.id]).get(step)
    prior = last.id if last and last.id <= seen else 0
    decision = page.db.reviews.adjudicate(
        page.id, trace.id, page.user_id, step, value, note=note, after=prior
    )
    to = page.link("decision_id", "step", step=step + 1, decision_id=decision.id)
    return page.done(f"/projects/{page.id}/run{to}#step-{step + 1}", {"decision": decision})


def _neighbours(page: Page) -> dict[str, str]:
    """Addresses of the list or report that the visitor came from, and of the runs before and after."""
    fields, at = page.fields("text", "problem"), page.query.optional("at", most=9)
    links = {"list": f"/projects/{page.id}/runs?{urlencode(fields)}"}
    if report := page.query.id("report"):
        links["report"] = f"/report?{urlencode({'id': report})}"
    if at is not None and at.isascii() and at.isdigit():
        where, order, _ = run_filter(page)
        ranks = {name: rank for name, rank in (("previous", int(at) - 1), ("next", int(at) + 1)) if rank >= 0}
        for name, rank in ranks.items():
            for row in page.db.traces.find(page.id, where, order=order, offset=rank, limit=1):
                links[name] = f"/projects/{page.id}/run?{urlencode({'id': row.id, **fields, 'at': rank})}"
    return links


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


def timeline(
    trace: Trace, last: int | None = None, *, kept: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """The trace in reading order, up to step ``last``: steps, messages between them, and results of tools.

    Images whose hash is in ``kept`` can be shown.
    """
    first_steps: dict[tuple[tuple[str, str], ...], int] = {}
    for block in trace_blocks(trace):
        if last is not None and last < 0 and block.step is not None:
            return
        message = trace.messages[block.message] if block.message is not None else None
        step = block.step
        digest = block.attachment.sha256 if block.attachment else None
        calls = tuple((call.name, call.arguments) for call in block.calls)
        first = first_steps.setdefault(calls, step) if calls and step is not None else step
        yield {
            **{name: getattr(block, name) for name in ("step", "kind", "role", "calls")},
            "text": block.text.strip(),
            "reasoning": step is not None and "reasoning" in (trace.steps[step].part, block.kind),
            "repeats": None if first == step else first,
            "summary": result_summary(block.text) if block.role == "tool" else None,
            "image": digest if digest in kept else None,
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
        return counted(len(value), "result")
    if isinstance(value, dict):
        plain = {name: field for name, field in value.items() if isinstance(field, str | int | float)}
        fields = [f"{name}: {field}" for name, field in list(plain.items())[:3]]
        return ", ".join(fields) or counted(len(value), "field")
    return text.strip().partition("\n")[0]


def verdicts_of(
    page: Page,
    runs: Sequence[Trace] | Sequence[TraceRow],
    scores: Mapping[str, Sequence[StepScores]],
) -> dict[str, Conclusion]:
    """The verdicts on some runs, without the calls that their tasks need."""
    labels = page.db.labels.of_traces(page.id, [run.id for run in runs])
    return {
        run.id: run_verdict(
            run.steps if isinstance(run.steps, int) else len(run.steps),
            run.outcome,
            evidence_of(labels[run.id], scores.get(run.id, ())),
            outcome_word=outcome_word(run) if isinstance(run, Trace) else run.outcome_word,
        )
        for run in runs
    }


def gold_view(problem: Problem, trace: Trace) -> list[dict[str, Any]]:
    """The calls that the task needs, and whether the run makes them; empty where they are not known."""
    item = ProblemTrace(problem=problem, trace=trace)
    try:
        needed, compared = gold_calls(item), compare_gold_calls(item)
    except LabelError:
        return []  # the task states its gold calls in another form
    if needed is None or compared is None:
        return []
    indices = [index for index, verdict in compared.verdicts.items() if verdict.value == 1]
    right = [trace.messages[message].tool_calls[number or 0] for message, number in indices]
    right_calls = [(call.name, (call_arguments(call) or {}).items()) for call in right]
    return [
        {"call": call, "made": any(call.name == name and gold <= sent for name, sent in right_calls)}
        for call in needed
        for gold in [(call_arguments(call) or {}).items()]
    ]


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


def strip(
    scores: Sequence[float | None], first_error: int | None = None, reasons: Sequence[str | None] = ()
) -> list[dict[str, Any]]:
    """Cells of a strip, one per step: score, colour class 0 (low) to 9 (high), whether the first error.

    Scores that are not probabilities (one is below 0 or above 1) are coloured over [-1, 1].
    """
    signed = any(score < 0 or score > 1 for score in scores if score is not None)
    cells = []
    for step, (score, reason) in enumerate(zip_longest(scores, reasons)):
        share = None if score is None else 0.0 if score != score else (score + 1) / 2 if signed else score
        bucket = None if share is None else min(BUCKETS - 1, max(0, int(share * BUCKETS)))
        about = {"step": step, "score": score, "bucket": bucket, "reason": reason}
        cells.append({**about, "first_error": step == first_error})
    return cells


def _marks(data: Mapping[str, Any]) -> dict[int, str]:
    """What is said of each checked step: ✓, ✗, or ? where sources differ or the verdict doubts it."""
    decided, verdict = data.get("decisions", {}), data.get("verdict")
    rows = [*(row for row in data.get("labels", ()) if row["step"] not in decided), *decided.values()]
    values = [(row["step"], row["value"]) for row in rows if row["kind"] == "correctness"]
    wrong = {(step, value < 0) for step, value in values if value is not None}
    if verdict and verdict.step is not None and verdict.error is None:
        wrong |= {(verdict.step, True), (verdict.step, False)}
    return {step: "?" if (step, not bad) in wrong else "✗" if bad else "✓" for step, bad in wrong}


def program_view(problem: Problem, labels: Sequence[StoredLabel]) -> dict[str, Any] | None:
    """Why the program fails, by the latest label with its execution. ``None`` if the task is not code."""
    try:
        if CodeTask.of(problem) is None:
            return None
    except ValueError:
        return None  # without a valid task it is shown as an ordinary trace
    label = next((label for label in reversed(labels) if label.record.evidence.execution), None)
    execution = label.record.evidence.execution if label else None
    why = (execution or Execution()).model_dump()
    escaped = {name: printable(value) if isinstance(value, str) else value for name, value in why.items()}
    return {"source": label.record.source if label else None, "why": escaped}


def run_list(page: Page) -> Response:
    """A page of runs, the attempts at a problem together; filter and page are in the address."""
    db, size = page.db, page.settings.rows
    start = (max(1, page.query.natural("page", default=1)) - 1) * size
    where, order, box = run_filter(page)
    total, facets = db.traces.facets(page.id, where)
    matches = list(enumerate(db.traces.find(page.id, where, order=order, offset=start, limit=size), start))
    ids = [row.id for _, row in matches]
    scores = db.traces.scores_of(page.id, ids, scorer=where.scorer) if where.scorer else {}
    verdicts = verdicts_of(page, [row for _, row in matches], scores)
    first = {row.problem_id: at for at, row in reversed(matches)}
    matches.sort(key=lambda pair: (first[pair[1].problem_id], pair[0]))
    rows: list[dict[str, Any]] = []
    for _, attempts in groupby(matches, key=lambda pair: pair[1].problem_id):
        for attempt, (at, row) in enumerate(attempts):
            verdict, scored = verdicts[row.id], scores.get(row.id)
            cells = strip(scored[0].scores, verdict.error) if scored else []
            address = urlencode({"id": row.id, **page.fields("text", "problem"), "at": at})
            words = {True: "correct", False: "wrong", None: "not graded"}[row.outcome]
            about: dict[str, Any] = {"title": row.title or row.id, "tokens": row.tokens or None}
            about["outcome_word"] = row.outcome_word or words
            link = f"/projects/{page.id}/run?{address}"
            lowest = min((cell["score"] for cell in cells if cell["score"] is not None), default=None)
            about |= {"attempt": attempt, "link": link, "strip": cells, "lowest": lowest}
            rows.append({**vars(row), **about, "first_error": verdict.error, "verdict": verdict})
    data = {"total": total, "facets": facets, "scorer": where.scorer}
    return show_list(page, "runs", rows, data, where=box, orders=ORDERS)


def compare(page: Page) -> Response:
    """Two runs (``?id=`` twice) side by side: equal steps are aligned, long stretches folded."""
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
        sides = tuple(None if at is None else text[at] for text, at in zip(texts, pair, strict=True))
        rows.append({"steps": pair, "texts": sides, "same": sides[0] == sides[1]})
    differ = next((at for at, row in enumerate(rows) if not row["same"]), None)
    stretches = [(same, list(group)) for same, group in groupby(rows, key=lambda row: row["same"])]
    return page.show("compare.html", {"runs": runs, "differ": differ, "steps": rows}, stretches=stretches)


def aligned(left: Sequence[str], right: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Pairs of indices in order; equal texts are paired; ``None`` marks a step that one side lacks."""
    if len(left) * len(right) > _MOST_PAIRS:
        return list(zip_longest(range(len(left)), range(len(right))))
    changes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    return [pair for _, a, b, c, d in changes for pair in zip_longest(range(a, b), range(c, d))]


def label_selection(page: Page) -> Response:
    """Create an item for each selected run without one, so that annotators get it."""
    items = page.db.items.add(page.id, page.form.ids("id"))
    page.audit("runs to label", items=len(items))
    return page.done(f"/projects/{page.id}/label", {"items": len(items)})
