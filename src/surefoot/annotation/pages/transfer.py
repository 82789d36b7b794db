"""The Files page: uploads of records, items made from them, and downloads as JSON Lines.

Of an upload's own name only a known ending is used; it never becomes a path.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import UploadFile

from surefoot.annotation.database import Database, KnownAnswer, NewItem, import_files
from surefoot.annotation.pages.access import SignedIn, enter, pages_of
from surefoot.annotation.pages.forms import CheckedForm, Form
from surefoot.annotation.pages.render import HEADERS, show, twin
from surefoot.errors import NotFoundError, StoreError
from surefoot.io import ReadReport, read_records
from surefoot.io.files import ENDINGS
from surefoot.records import Record, StepLabel, Trace

router = APIRouter()

KINDS = ("problems", "traces", "scores", "labels")
_MAKES = ("nothing", "solutions", "alternatives", "control", "screening")


@twin(router, "/projects/{project_id:int}/files")
def files_page(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """The upload form, and links to downloads."""
    place = enter(request, visitor, project_id, "admin", "viewer")
    data = {"project": {"id": project_id, "name": place.project.name}, "kinds": KINDS, "endings": ENDINGS}
    return show(request, visitor, "files.html", data, place=place)


@router.post("/projects/{project_id:int}/files")
def upload(request: Request, visitor: SignedIn, project_id: int, form: CheckedForm) -> Response:
    """Import files, and make items from the traces."""
    place = enter(request, visitor, project_id, "admin")
    db, make = pages_of(request).db, form.text("make", default="solutions")
    if make not in _MAKES:
        raise StoreError(f"'make' must be one of {', '.join(_MAKES)}")
    with tempfile.TemporaryDirectory(prefix="surefoot-import-") as folder:
        paths = {kind: _saved(form, kind, Path(folder)) for kind in KINDS}
        known = []
        # labels of control items are their known answers, not an annotator's work
        labels = [] if make in ("control", "screening") else paths["labels"]
        if make in ("control", "screening"):
            known = _read_labels(paths["labels"])
        report = import_files(
            db, project_id, problems=paths["problems"], traces=paths["traces"], scores=paths["scores"],
            labels=labels,
        )  # fmt: skip
    items = _make_items(db, project_id, make, known)
    db.projects.audit("import", visitor.user_id, project_id, items=items)
    data = {
        "project": {"id": project_id, "name": place.project.name},
        "complete": report.complete,
        "report": report,
        "items": items,
    }
    return show(request, visitor, "imported.html", data, place=place)


@router.get("/projects/{project_id:int}/export/{kind}.jsonl")
def export(request: Request, visitor: SignedIn, project_id: int, kind: str) -> Response:
    """One kind of record as JSON Lines. For labels: ``?settled=1`` (one label per step, decisions applied),
    ``?controls=1`` (include control and screening items), ``?imported=0`` (only annotators' labels)."""
    enter(request, visitor, project_id, "admin", "viewer")
    db = pages_of(request).db
    query = request.query_params
    if kind not in KINDS:
        raise NotFoundError(f"there is no export '{kind}'; choose from {', '.join(KINDS)}")
    db.projects.audit("export", visitor.user_id, project_id, kind=kind)
    if kind == "labels":
        records: Iterable[Record] = db.export.labels(
            project_id,
            controls=query.get("controls") == "1",
            imported=query.get("imported") != "0",
            settled=query.get("settled") == "1",
        )
    else:
        records = {"problems": db.export.problems, "traces": db.export.traces, "scores": db.export.scores}[
            kind
        ](project_id)
    name = f"project-{project_id}-{kind}.jsonl"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_lines(records), media_type="application/jsonl", headers=headers)


def _lines(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        yield record.model_dump_json() + "\n"


def _saved(form: Form, kind: str, folder: Path) -> list[Path]:
    """Uploads of one field, saved under names of our own. Raises ``StoreError`` for an unknown ending."""
    saved = []
    for number, file in enumerate(form.files(kind)):
        path = folder / f"{kind}-{number}{_ending(file)}"
        with path.open("wb") as out:
            shutil.copyfileobj(file.file, out)
        saved.append(path)
    return saved


def _ending(file: UploadFile) -> str:
    for ending in ENDINGS:
        if (file.filename or "").endswith(ending):
            return ending
    raise StoreError(f"a file's name must end in one of {', '.join(ENDINGS)}")


def _read_labels(paths: list[Path]) -> list[StepLabel]:
    report, labels = ReadReport(), []
    for path in paths:
        labels += list(read_records(path, StepLabel, report=report))
    if report.bad_count:
        raise StoreError(f"the known answers cannot all be read: {report.summary()}")
    if not labels:
        raise StoreError("control and screening items need a file of labels: their known answers")
    return labels


def _make_items(db: Database, project_id: int, make: str, known: list[StepLabel]) -> dict[str, Any]:
    if make == "nothing":
        return {"made": 0, "left_out": 0}
    if make == "solutions":
        return {"made": len(db.items.add_solutions(project_id)), "left_out": 0}
    if make == "alternatives":
        items, left_out = alternatives_of(_without_item(db, project_id))
        return {"made": len(db.items.add(project_id, items)), "left_out": left_out}
    role: Literal["control", "screening"] = "control" if make == "control" else "screening"
    rows = [
        NewItem(trace_ids=(trace,), role=role, known=answers)
        for trace, answers in known_answers(known).items()
    ]
    return {"made": len(db.items.add(project_id, rows)), "left_out": 0}


def _without_item(db: Database, project_id: int) -> Iterator[Trace]:
    in_items: set[str] = set()
    after = 0
    while rows := db.items.list(project_id, after=after, limit=500):
        in_items.update(name for row in rows for name in row.trace_ids)
        after = rows[-1].id
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
