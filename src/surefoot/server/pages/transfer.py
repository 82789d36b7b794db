"""The Files page: uploads of records, items made from them, and downloads as JSON Lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from surefoot.errors import NotFoundError, RecordError, StoreError
from surefoot.io import ReadReport, read_records
from surefoot.io.sources import ENDINGS
from surefoot.records import Record, StepLabel, Trace
from surefoot.server.pages.access import AdminPlace, ReaderPlace, pages_of
from surefoot.server.pages.forms import UploadForm
from surefoot.server.pages.render import HEADERS, show, twin
from surefoot.server.pages.uploads import uploads
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import KnownAnswer, NewItem
from surefoot.server.store.transfer import import_files

router = APIRouter()

_LINES = 100
"""Records sent at once."""
KINDS = ("problems", "traces", "scores", "labels")
_Make = Literal["nothing", "solutions", "alternatives", "control", "screening"]
_MAKES: tuple[_Make, ...] = get_args(_Make)


@twin(router, "/projects/{project_id:number}/files")
def files_page(request: Request, place: ReaderPlace) -> Response:
    """The upload form, and links to downloads."""
    data = {"kinds": KINDS, "endings": ENDINGS}
    return show(request, place, "files.html", data)


@router.post("/projects/{project_id:number}/files")
def upload(request: Request, place: AdminPlace, form: UploadForm) -> Response:
    """Import files, and make items from the traces."""
    db, make = place.db, form.choice("make", _MAKES, default="solutions")
    with uploads(form, pages_of(request).settings.max_upload_bytes) as saved:
        paths = {kind: saved.save(kind, ENDINGS) for kind in KINDS}
        answers = []
        # labels of control items are their known answers, not an annotator's work
        labels = [] if make in ("control", "screening") else paths["labels"]
        if make in ("control", "screening"):
            answers = _read_labels(paths["labels"])
        report = import_files(
            db,
            place.id,
            problems=paths["problems"],
            traces=paths["traces"],
            scores=paths["scores"],
            labels=labels,
        )
        parts = (report.problems, report.traces, report.scores, report.labels)
        for part in parts:
            saved.report(part.read)
    items = _make_items(db, place.id, make, answers)
    db.projects.audit("import", place.visitor.user_id, place.id, items=items)
    data = {
        "complete": report.complete,
        "report": report,
        "items": items,
    }
    return show(request, place, "imported.html", data)


@router.get("/projects/{project_id:number}/export/{kind}.jsonl")
def export(request: Request, place: ReaderPlace, kind: str) -> Response:
    """One kind of record as JSON Lines. For labels: ``?settled=1`` (one label per step, decisions applied),
    ``?controls=1`` (include control and screening items), ``?imported=0`` (only annotators' labels)."""
    db = place.db
    query = request.query_params
    if kind not in KINDS:
        raise NotFoundError(f"the export '{kind}' does not exist; choose from {', '.join(KINDS)}")
    db.projects.audit("export", place.visitor.user_id, place.id, kind=kind)
    records = db.export.records(place.id, kind)
    if kind == "labels":
        records = db.export.labels(
            place.id,
            controls=query.get("controls") == "1",
            imported=query.get("imported") != "0",
            settled=query.get("settled") == "1",
        )
    name = f"project-{place.id}-{kind}.jsonl"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_lines(records), media_type="application/jsonl", headers=headers)


def _lines(records: Iterable[Record]) -> Iterator[str]:
    # many in a piece: each piece is a turn of the server's loop
    remaining = iter(records)
    while part := list(islice(remaining, _LINES)):
        yield "".join(record.model_dump_json() + "\n" for record in part)


def _read_labels(paths: list[Path]) -> list[StepLabel]:
    report, labels = ReadReport(), []
    for path in paths:
        labels += list(read_records(path, StepLabel, report=report))
    if report.bad_count:
        raise RecordError(f"the known answers cannot all be read: {report.summary()}")
    if not labels:
        raise StoreError("control and screening items need a file of labels: their known answers")
    return labels


def _make_items(db: Database, project_id: int, make: _Make, known: list[StepLabel]) -> dict[str, Any]:
    items: list[NewItem] = []
    left_out = 0
    if make == "solutions":
        return {"made": len(db.items.add_solutions(project_id)), "left_out": 0}
    if make == "alternatives":
        items, left_out = alternatives_of(_without_item(db, project_id))
    if make == "control" or make == "screening":
        answers = known_answers(known).items()
        items = [NewItem(trace_ids=(trace,), role=make, known=steps) for trace, steps in answers]
    return {"made": len(db.items.add(project_id, items)), "left_out": left_out}


def _without_item(db: Database, project_id: int) -> Iterator[Trace]:
    in_items = {name for item in db.items.all(project_id) for name in item.trace_ids}
    yield from (trace for trace in db.export.traces(project_id) if trace.id not in in_items)


_SIGNS: dict[float | None, Literal[-1, 0, 1]] = {-1.0: -1, 0.0: 0, 1.0: 1}


def alternatives_of(traces: Iterable[Trace]) -> tuple[list[NewItem], int]:
    """Items for groups of traces that are equal up to their last step, which differs (PRM800K phase 1).

    Also the number of traces left out: those without steps or without an alternative.
    """
    groups: dict[tuple[object, ...], list[Trace]] = defaultdict(list)
    left_out = 0
    for trace in traces:
        if trace.steps:
            groups[_before_last(trace)].append(trace)
        else:
            left_out += 1
    items = []
    for group in groups.values():
        if len(group) < 2:
            left_out += len(group)
            continue
        step = len(group[0].steps) - 1
        items.append(NewItem(trace_ids=tuple(trace.id for trace in group), kind="alternatives", step=step))
    return items, left_out


def known_answers(labels: Iterable[StepLabel]) -> dict[str, tuple[KnownAnswer, ...]]:
    """Known answers by trace. Raises ``StoreError`` for labels that cannot be answers."""
    by_trace: dict[str, list[KnownAnswer]] = defaultdict(list)
    for label in labels:
        value = _SIGNS.get(label.value)
        if label.kind != "correctness" or value is None:
            where = f"step {label.step} of trace '{label.trace_id}'"
            raise StoreError(f"the known answer of {where} must be a correctness label of -1, 0 or 1")
        by_trace[label.trace_id].append(KnownAnswer(trace_id=label.trace_id, step=label.step, value=value))
    return {trace: tuple(answers) for trace, answers in by_trace.items()}


def _before_last(trace: Trace) -> tuple[object, ...]:
    """What traces must share to be alternatives of their last step."""
    count, last = len(trace.steps), trace.steps[-1]
    if trace.text is not None:
        return trace.problem_id, count, trace.text[: last.start]
    return trace.problem_id, count, trace.messages[: last.message or 0]
