"""Export in other formats, and import of files whose format is detected from their content."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response
from starlette.background import BackgroundTask

from surefoot.errors import NotFoundError, StoreError
from surefoot.formats import FORMATS, RECORDS, detect_format, write_labelled
from surefoot.formats.label_studio import LABELLING_CONFIG
from surefoot.io import write_records
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace
from surefoot.server.pages.access import AdminPlace, ReaderPlace, pages_of
from surefoot.server.pages.forms import UploadForm
from surefoot.server.pages.render import HEADERS, show, twin
from surefoot.server.pages.uploads import uploads
from surefoot.server.store.database import Database
from surefoot.server.store.transfer import import_format

router = APIRouter()

_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".csv", ".parquet", ".eval", ".traj")


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
        "endings": _ENDINGS,
        "labelling_config": LABELLING_CONFIG,
        "last": [
            {"created": entry.created, "name": entry.detail.get("name"), "report": entry.detail.get("report")}
            for entry in log
            if entry.action == "export" and "report" in entry.detail
        ][:10],
    }
    return show(request, place, "formats.html", data, extra={"query": ""})


@router.get("/projects/{project_id:number}/formats/{name}")
def export(place: ReaderPlace, name: str) -> Response:
    """One export as a file; the header ``X-Surefoot-Report`` counts the written and dropped records."""
    if name not in EXPORTS:
        raise NotFoundError(f"the export '{name}' does not exist; choose from {', '.join(EXPORTS)}")
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
    """Import files of any format that ``detect_format`` recognises."""
    pages = pages_of(request)
    files = []
    with uploads(form, pages.settings.max_upload_bytes) as saved:
        paths = {path: detect_format(path) for path in saved.save("file", _ENDINGS)}
        if not paths:
            raise StoreError("choose at least one file")
        for path, source in paths.items():
            if source == RECORDS:
                raise StoreError(
                    f"'{saved.named(path.name)}' has surefoot records; upload it on the page Files"
                )
        for path, source in paths.items():
            report, added = import_format(pages.db, place.id, source, path)
            saved.report(report)
            read = {"good": report.good, "bad": report.bad_count, "reasons": report.bad}
            files.append({"name": saved.named(path.name), "format": source, "read": read, "added": added})
    items = pages.db.items.add_solutions(place.id) if form.ticked("make_items") else []
    formats = sorted(set(paths.values()))
    pages.db.projects.audit("import", place.visitor.user_id, place.id, formats=formats, items=len(items))
    data = {"files": files, "items": len(items)}
    return show(request, place, "formats_imported.html", data, extra={"query": ""})


EXPORTS: Mapping[str, str] = MappingProxyType(
    {
        "stepwise.jsonl": "Stepwise rows: prompt, completions and booleans; a neutral label ends the row",
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
    """Write the export ``name`` to ``path``; a sentence that counts what was written and dropped."""
    stem = name.partition(".")[0]
    if stem in FORMATS:
        return write_labelled(stem, db.export.labelled(project_id), path, neutral="drop").summary()
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
