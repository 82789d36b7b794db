"""Files in and out: uploads of records, items made of them, and downloads as JSON Lines.

An upload's own name is used for one thing, its ending, and only if that is one of ours: it is never a path.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.datastructures import UploadFile

from surefoot.annotation.database import Database, NewItem, import_files
from surefoot.annotation.pages.context import enter, pages_of
from surefoot.annotation.pages.forms import CheckedForm, Form
from surefoot.annotation.pages.grouping import alternatives_of, known_answers
from surefoot.annotation.pages.render import HEADERS, show, twin
from surefoot.annotation.pages.visitors import SignedIn
from surefoot.errors import NotFoundError, StoreError
from surefoot.io import ReadReport, read_records
from surefoot.io.files import ENDINGS
from surefoot.records import Record, StepLabel, Trace

router = APIRouter()

KINDS = ("problems", "traces", "scores", "labels")
_MAKES = ("nothing", "solutions", "alternatives", "control", "screening")


@twin(router, "/projects/{project_id:int}/files")
def files_page(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """The form for uploads, and links to downloads."""
    place = enter(request, visitor, project_id, "admin", "viewer")
    data = {"project": {"id": project_id, "name": place.project.name}, "kinds": KINDS, "endings": ENDINGS}
    return show(request, visitor, "files.html", data, place=place)


@router.post("/projects/{project_id:int}/files")
def upload(request: Request, visitor: SignedIn, project_id: int, form: CheckedForm) -> Response:
    """Import files, and make items of the traces."""
    place = enter(request, visitor, project_id, "admin")
    db, make = pages_of(request).db, form.text("make", default="solutions")
    if make not in _MAKES:
        raise StoreError(f"'make' must be one of {', '.join(_MAKES)}")
    with tempfile.TemporaryDirectory(prefix="surefoot-import-") as folder:
        paths = {kind: _saved(form, kind, Path(folder)) for kind in KINDS}
        known = []
        # the labels of a control item are its answer, not anybody's work
        labels = [] if make in ("control", "screening") else paths["labels"]
        if make in ("control", "screening"):
            known = _read_labels(paths["labels"])
        report = import_files(
            db, project_id, problems=paths["problems"], traces=paths["traces"], scores=paths["scores"],
            labels=labels,
        )  # fmt: skip
    made = _make_items(db, project_id, make, known)
    db.projects.audit("import", visitor.user_id, project_id, items=made)
    data = {
        "project": {"id": project_id, "name": place.project.name},
        "complete": report.complete,
        "report": report,
        "items": made,
    }
    return show(request, visitor, "imported.html", data, place=place)


@router.get("/projects/{project_id:int}/export/{kind}.jsonl")
def export(request: Request, visitor: SignedIn, project_id: int, kind: str) -> Response:
    """One kind of record as JSON Lines. For labels: ``?settled=1`` (one label a step, decisions applied),
    ``?controls=1`` (control and screening items, too), ``?imported=0`` (annotators' labels alone)."""
    enter(request, visitor, project_id, "admin", "viewer")
    db = pages_of(request).db
    asked = request.query_params
    if kind not in KINDS:
        raise NotFoundError(f"there is no export of '{kind}'; ask for {', '.join(KINDS)}")
    db.projects.audit("export", visitor.user_id, project_id, kind=kind)
    if kind == "labels":
        found: Iterable[Record] = db.export.labels(
            project_id,
            controls=asked.get("controls") == "1",
            imported=asked.get("imported") != "0",
            settled=asked.get("settled") == "1",
        )
    else:
        found = {"problems": db.export.problems, "traces": db.export.traces, "scores": db.export.scores}[
            kind
        ](project_id)
    name = f"project-{project_id}-{kind}.jsonl"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_lines(found), media_type="application/jsonl", headers=headers)


def _lines(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        yield record.model_dump_json() + "\n"


def _saved(form: Form, kind: str, folder: Path) -> list[Path]:
    """Uploads of one field as files named by us. Raises ``StoreError`` for an unknown ending."""
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
    report, found = ReadReport(), []
    for path in paths:
        found += list(read_records(path, StepLabel, report=report))
    if report.bad_count:
        raise StoreError(f"the known answers cannot all be read: {report.summary()}")
    if not found:
        raise StoreError("control and screening items need a file of labels: their known answers")
    return found


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
    taken: set[str] = set()
    after = 0
    while rows := db.items.list(project_id, after=after, limit=500):
        taken.update(name for row in rows for name in row.trace_ids)
        after = rows[-1].id
    yield from (trace for trace in db.export.traces(project_id) if trace.id not in taken)
