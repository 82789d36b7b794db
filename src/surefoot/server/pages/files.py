"""The Files page: exports, one upload field for files of every format, and items made from the uploads.

The format of an uploaded file is detected from its content. Uploads are saved in a temporary folder under
random names; only a known ending of the original name is used, and a name that looks like a path is refused.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, get_args

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.background import BackgroundTask
from starlette.datastructures import UploadFile

from surefoot.errors import NotFoundError, RecordError, StoreError
from surefoot.formats import FORMATS, write_labelled
from surefoot.formats.label_studio import LABELLING_CONFIG
from surefoot.io import ReadReport, read_records, write_records
from surefoot.io.limits import lower_limits
from surefoot.records import Record, StepLabel
from surefoot.server.pages.access import AdminPlace, ReaderPlace, pages_of
from surefoot.server.pages.forms import Form, UploadForm
from surefoot.server.pages.render import HEADERS, show, twin
from surefoot.server.store.database import Database
from surefoot.server.store.labelling import KnownAnswer, NewItem
from surefoot.server.store.transfer import RECORDS, import_files, kind_of

router = APIRouter()

_LINES: Final = 100
"""Records sent at once."""
_ENDINGS: Final = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".csv", ".parquet", ".eval", ".traj")
_Make = Literal["nothing", "solutions", "control", "screening"]
_MAKES: tuple[_Make, ...] = get_args(_Make)
EXPORTS: Mapping[str, str] = MappingProxyType(
    {
        "stepwise.jsonl": "Stepwise rows: prompt, completions and booleans; a neutral label ends the row",
        "label-studio.json": "Label Studio tasks with annotations and predictions",
        **{f"{kind}.parquet": f"{kind.capitalize()} as Parquet" for kind in RECORDS},
    }
)
"""Exports in other formats by file name, without the labels of control and screening items."""


@twin(router, "/projects/{project_id:number}/files")
def files_page(request: Request, place: ReaderPlace) -> Response:
    """Links to the exports, the upload field, and what the latest exports left out."""
    log = place.db.projects.audit_log(place.id, limit=200) if place.role == "admin" else []
    data = {
        "kinds": list(RECORDS),
        "exports": dict(EXPORTS),
        "endings": _ENDINGS,
        "labelling_config": LABELLING_CONFIG,
        "last": [
            {"created": entry.created, "name": entry.detail.get("name"), "report": entry.detail.get("report")}
            for entry in log
            if entry.action == "export" and "report" in entry.detail
        ][:10],
    }
    return show(request, place, "files.html", data)


@router.post("/projects/{project_id:number}/files")
def upload(request: Request, place: AdminPlace, form: UploadForm) -> Response:
    """Import files, and make items from the traces."""
    db, make = place.db, form.choice("make", _MAKES, default="solutions")
    with uploads(form, pages_of(request).settings.max_upload_bytes) as saved:
        kinds = {path: kind_of(path) for path in saved.paths}
        if not kinds:
            raise StoreError("choose at least one file")
        answers = []
        if make in ("control", "screening"):
            # their labels are the known answers, not an annotator's work
            answers = _read_labels([path for path, kind in kinds.items() if kind == "labels"])
            kinds = {path: kind for path, kind in kinds.items() if kind != "labels"}
        imported = import_files(db, place.id, kinds)
        for file in imported.values():
            saved.report(file.read)
        files = [
            {"name": saved.named(path.name), "kind": file.kind, "read": file.read, "added": file.added}
            for path, file in imported.items()
        ]
    items = _make_items(db, place.id, make, answers)
    db.projects.audit("import", place.visitor.user_id, place.id, kinds=sorted(kinds.values()), items=items)
    complete = all(file.complete for file in imported.values())
    return show(request, place, "imported.html", {"complete": complete, "files": files, "items": items})


@router.get("/projects/{project_id:number}/export/{name}")
def export(request: Request, place: ReaderPlace, name: str) -> Response:
    """An export as a file: see ``EXPORTS``, and ``_export_records`` for records as JSON Lines."""
    kind, _, ending = name.partition(".")
    if kind in RECORDS and ending == "jsonl":
        return _export_records(request, place, kind)
    if name not in EXPORTS:
        raise NotFoundError(f"the export '{name}' does not exist; choose from {', '.join(EXPORTS)}")
    folder = Path(tempfile.mkdtemp(prefix="surefoot-export-"))
    try:
        report = _write_export(place.db, place.id, name, folder / name)
        place.db.projects.audit("export", place.visitor.user_id, place.id, name=name, report=report)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FileResponse(
        folder / name,
        filename=f"project-{place.id}-{name}",
        headers={**HEADERS, "X-Surefoot-Report": report},
        background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
    )


def _write_export(db: Database, project_id: int, name: str, path: Path) -> str:
    """Write an export; a sentence that counts the written and dropped records."""
    kind = name.partition(".")[0]
    if kind in FORMATS:
        return write_labelled(kind, db.export.labelled(project_id), path, neutral="drop").summary()
    written = write_records(path, db.export.records(project_id, kind), record=RECORDS[kind])
    return f"{written} {kind} written"


def _export_records(request: Request, place: ReaderPlace, kind: str) -> Response:
    """One kind of record as JSON Lines. For labels: ``?settled=1`` (one label per step, decisions applied),
    ``?controls=1`` (include control and screening items), ``?imported=0`` (only annotators' labels)."""
    db = place.db
    query = request.query_params
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


def _make_items(db: Database, project_id: int, make: _Make, known: list[StepLabel]) -> int:
    """Make the items that the form asks for; their number."""
    if make == "nothing":
        return 0
    if make == "solutions":
        return len(db.items.add_solutions(project_id))
    answers = known_answers(known).items()
    items = [NewItem(trace_id=trace, role=make, known=steps) for trace, steps in answers]
    return len(db.items.add(project_id, items))


_SIGNS: dict[float | None, Literal[-1, 0, 1]] = {-1.0: -1, 0.0: 0, 1.0: 1}


def known_answers(labels: Iterable[StepLabel]) -> dict[str, tuple[KnownAnswer, ...]]:
    """Known answers by trace. Raises ``StoreError`` for labels that cannot be answers."""
    by_trace: dict[str, list[KnownAnswer]] = defaultdict(list)
    for label in labels:
        value = _SIGNS.get(label.value)
        if label.kind != "correctness" or value is None:
            where = f"step {label.step} of trace '{label.trace_id}'"
            raise StoreError(f"the known answer of {where} must be a correctness label of -1, 0 or 1")
        by_trace[label.trace_id].append(KnownAnswer(step=label.step, value=value))
    return {trace: tuple(answers) for trace, answers in by_trace.items()}


class Uploads:
    """Files of a form, saved below ``folder``. Raises ``StoreError`` for an invalid name."""

    def __init__(self, form: Form, folder: Path) -> None:
        self._folder = folder
        self._names: dict[Path, str] = {}
        self.paths = [self._saved(file) for file in form.files()]

    def named(self, text: str) -> str:
        """``text`` with the users' names of the files in place of our own."""
        for path, name in self._names.items():
            text = text.replace(str(path), name).replace(path.name, name)
        return text

    def report(self, report: ReadReport) -> None:
        """Put the users' names into what a reader reports."""
        report.files = [self.named(name) for name in report.files]
        report.bad = [(line, self.named(reason)) for line, reason in report.bad]

    def _saved(self, file: UploadFile) -> Path:
        # nothing else in a message is by chance like this name
        path = self._folder / f"{secrets.token_hex(16)}{_ending(file)}"
        with path.open("wb") as out:
            shutil.copyfileobj(file.file, out)
        self._names[path] = file.filename or ""
        return path


@contextmanager
def uploads(form: Form, most: int) -> Iterator[Uploads]:
    """The files of a form, deleted at the end; at most ``most`` bytes of each are unpacked.

    A ``RecordError`` in the block uses the users' names of the files.
    """
    with (
        lower_limits(max_unpacked_bytes=most),
        tempfile.TemporaryDirectory(prefix="surefoot-import-") as folder,
    ):
        saved = Uploads(form, Path(folder))
        try:
            yield saved
        except RecordError as error:
            raise RecordError(saved.named(str(error))) from error


def _ending(file: UploadFile) -> str:
    name = file.filename or ""
    if any(mark in name for mark in ("/", "\\", "\0", "..")) or not name.isprintable():
        raise StoreError("a file's name must be a plain name, not a path")
    matches = [ending for ending in _ENDINGS if name.endswith(ending)]
    if not matches:
        raise StoreError(f"a file's name must end in one of {', '.join(_ENDINGS)}")
    return max(matches, key=len)
