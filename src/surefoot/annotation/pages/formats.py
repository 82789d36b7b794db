"""Export and import in other formats: PRM800K, Label Studio, Parquet, archives of records.

Of an upload's own name only the ending is used, and a name that looks like a path is rejected.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from surefoot.annotation.database.database import Database
from surefoot.annotation.database.traces import Added
from surefoot.annotation.pages.access import AdminPlace, ReaderPlace, pages_of
from surefoot.annotation.pages.forms import Form, UploadForm, upload_ending
from surefoot.annotation.pages.render import HEADERS, show, twin
from surefoot.errors import NotFoundError, StoreError
from surefoot.formats import (
    IMPORTS,
    SOURCES,
    WRITERS,
    ImportContext,
    ImportSettings,
    import_traces,
    read_source,
)
from surefoot.formats.label_studio import LABELLING_CONFIG
from surefoot.io import ReadReport, write_records
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace
from surefoot.segment import cut_trace

router = APIRouter()

_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".csv", ".parquet", ".eval")
_PIECE = 1 << 20
_BATCH = 500
"""Traces added at once."""


@twin(router, "/projects/{project_id:number}/formats")
def formats_page(request: Request, place: ReaderPlace) -> Response:
    """Links to the exports, the upload form, and what the latest exports left out."""
    db = place.db
    log = db.projects.audit_log(place.id, limit=200) if place.role == "admin" else []
    data = {
        "exports": [
            {"name": name, "what": what, "link": f"/projects/{place.id}/formats/{quote(name)}"}
            for name, what in EXPORTS.items()
        ],
        "imports": sorted({*IMPORTS, *SOURCES}),
        "endings": _ENDINGS,
        "labelling_config": LABELLING_CONFIG,
        "last": [
            {"created": one.created, "name": one.detail.get("name"), "report": one.detail.get("report")}
            for one in log
            if one.action == "export" and "report" in one.detail
        ][:10],
    }
    return show(request, place, "formats.html", data, extra={"query": ""})


@router.get("/projects/{project_id:number}/formats/{name}")
def export(place: ReaderPlace, name: str) -> Response:
    """One export as a file. The header ``X-Surefoot-Report`` says what was written and what was dropped."""
    if name not in EXPORTS:
        raise NotFoundError(f"there is no export '{name}'; choose from {', '.join(EXPORTS)}")
    db = place.db
    folder = Path(tempfile.mkdtemp(prefix="surefoot-export-"))
    try:
        report = write_export(db, place.id, name, folder / name)
        db.projects.audit("export", place.visitor.user_id, place.id, name=name, report=report)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FileResponse(
        folder / name,
        filename=f"project-{place.id}-{name}",
        headers={**HEADERS, "X-Surefoot-Report": report},
        background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
    )


@router.post("/projects/{project_id:number}/formats")
def upload(request: Request, place: AdminPlace, form: UploadForm) -> Response:
    """Import one file in another format."""
    pages = pages_of(request)
    source = form.choice("format", sorted({*IMPORTS, *SOURCES}))
    report = ReadReport()
    with tempfile.TemporaryDirectory(prefix="surefoot-import-") as folder:
        path = _saved(form, Path(folder), pages.settings.max_upload_bytes)
        added = _import(pages.db, place.id, source, path, report)
        report.require_some(f"is it a file of {source}?")
    items = pages.db.items.add_solutions(place.id) if form.ticked("make_items") else []
    pages.db.projects.audit("import", place.visitor.user_id, place.id, format=source, items=len(items))
    data = {
        "format": source,
        "read": {"good": report.good, "bad": report.bad_count, "reasons": report.bad},
        "added": added,
        "items": len(items),
    }
    return show(request, place, "formats_imported.html", data, extra={"query": ""})


def _import(db: Database, project_id: int, source: str, path: Path, report: ReadReport) -> dict[str, Added]:
    """Read and add in batches. Raises ``RecordError`` for a file that cannot be read at all."""
    total = {"problems": Added(), "traces": Added(), "labels": Added()}
    piece: list[Any] = []

    def add() -> None:
        items = [one for one in piece if isinstance(one, LabelledTrace | ProblemTrace)]
        asked = (getattr(one, "problem", one) for one in piece)
        problems = {one.id: one for one in asked if isinstance(one, Problem)}
        alone = [one for one in piece if isinstance(one, Trace)]
        labels = [label for one in items if isinstance(one, LabelledTrace) for label in one.labels]
        total["problems"] += db.traces.add_problems(project_id, problems.values())
        total["traces"] += db.traces.add_traces(project_id, [*(one.trace for one in items), *alone])
        total["labels"] += db.labels.import_labels(project_id, labels)
        piece.clear()

    for item in _own(source, path, report) if source in IMPORTS else read_source(source, path, report=report):
        piece.append(item)
        if len(piece) >= _BATCH:
            add()
    add()
    return total


def _own(source: str, path: Path, report: ReadReport) -> Iterator[Problem | Trace | ProblemTrace]:
    """One's own problems and traces, cut into steps."""
    for one in import_traces(path, source, ImportContext(settings=ImportSettings(), report=report)):
        trace = one.trace and (one.trace if one.trace.steps else cut_trace(one.trace))
        if one.problem and trace:
            yield ProblemTrace(problem=one.problem, trace=trace)
        elif (alone := one.problem or trace) is not None:
            yield alone


def _saved(form: Form, folder: Path, most: int) -> Path:
    """The upload under a name of our own, unpacked to at most ``most`` bytes."""
    files = list(form.files("file"))
    if len(files) != 1:
        raise StoreError("choose one file")
    (file,) = files
    ending = upload_ending(file, _ENDINGS)
    path = folder / f"upload{ending.removesuffix('.gz')}"
    with path.open("wb") as out:
        if not ending.endswith(".gz"):
            _copy(file.file, out, most)
            out.flush()
            if zipfile.is_zipfile(path):
                _check_unpacked(path, most)
            return path
        try:
            with gzip.GzipFile(fileobj=file.file, mode="rb") as packed:
                _copy(packed, out, most)
        except (OSError, EOFError, zlib.error) as error:
            raise StoreError("the file ends in .gz, but cannot be unpacked") from error
    return path


def _check_unpacked(path: Path, most: int) -> None:
    """Refuse an archive by the sizes that its directory states; no member is read beyond its own."""
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > most:
            raise HTTPException(413, f"the file unpacks to more than {most} bytes")


def _copy(source: IO[bytes] | gzip.GzipFile, out: IO[bytes], most: int) -> None:
    written = 0
    while piece := source.read(_PIECE):
        written += len(piece)
        if written > most:
            raise HTTPException(413, f"the file unpacks to more than {most} bytes")
        out.write(piece)


EXPORTS: Mapping[str, str] = MappingProxyType(
    {
        "prm800k.jsonl": "PRM800K as published, one record per labelled solution",
        "prm800k-steps.jsonl": "PRM800K as step rows, one per label",
        "label-studio.json": "Label Studio tasks with annotations and predictions",
        "records-jsonl.zip": "Problems, traces, labels and scores as JSON Lines",
        "records-parquet.zip": "Problems, traces, labels and scores as Parquet",
        "problems.parquet": "Problems as Parquet",
        "traces.parquet": "Traces as Parquet",
        "labels.parquet": "Labels as Parquet",
        "scores.parquet": "Step scores as Parquet",
    }
)
"""The exports, by file name. They exclude labels of control and screening items."""

_KINDS: Mapping[str, type[Record]] = MappingProxyType(
    {"problems": Problem, "traces": Trace, "labels": StepLabel, "scores": StepScores}
)


def write_export(db: Database, project_id: int, name: str, path: Path) -> str:
    """Write the export ``name`` to ``path``; a sentence on what was written and dropped."""
    stem = name.partition(".")[0]
    if stem in WRITERS:
        return WRITERS[stem](_labelled(db, project_id), path).summary()
    if stem in _KINDS:
        written = write_records(path, db.export.records(project_id, stem), record=_KINDS[stem])
        return f"{written} {stem} written"
    ending = ".parquet" if "parquet" in name else ".jsonl"
    return _archive(db, project_id, ending, path)


def _archive(db: Database, project_id: int, ending: str, path: Path) -> str:
    counts = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for kind, record in _KINDS.items():
            part = path.with_name(f"{kind}{ending}")
            counts[kind] = write_records(part, db.export.records(project_id, kind), record=record)
            archive.write(part, part.name)
            part.unlink()
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) + " written"


def _labelled(db: Database, project_id: int) -> Iterator[LabelledTrace]:
    """Every trace with its labels. Problems and labels are held in memory; traces are not."""
    problems = {problem.id: problem for problem in db.export.problems(project_id)}
    labels: dict[str, list[StepLabel]] = defaultdict(list)
    for label in db.export.labels(project_id):
        labels[label.trace_id].append(label)
    for trace in db.export.traces(project_id):
        yield LabelledTrace(
            problem=problems[trace.problem_id], trace=trace, labels=tuple(labels.get(trace.id, ()))
        )
