"""The Files page: exports, one upload field for files of every format, and items made from the uploads.

The format of an uploaded file is detected from its content. Uploads are saved in a temporary folder; a name
that looks like a path or has an unknown ending is refused.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, Literal, get_args

from starlette.responses import Response, StreamingResponse

from surefoot.errors import NotFoundError, RecordError, StoreError
from surefoot.images import checked
from surefoot.io import ReadReport, read_records
from surefoot.io.files import lower_limits
from surefoot.records import Record, StepLabel
from surefoot.server.pages.page import LABEL_VALUES, Form, Page
from surefoot.server.pages.render import HEADERS
from surefoot.server.store.queue import KnownLabels
from surefoot.server.store.transfer import RECORDS, import_files, kind_of

_LINES: Final = 100
"""Records sent at once."""
_ENDINGS: Final = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".csv", ".parquet", ".eval", ".traj")
_IMAGES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif")
_LONGEST_NAME: Final = 200
_Make = Literal["nothing", "solutions", "known"]
_MAKES: tuple[_Make, ...] = get_args(_Make)


def files_page(page: Page) -> Response:
    """Links to the exports, and the upload field."""
    return page.show("files.html", {"kinds": list(RECORDS), "endings": _ENDINGS + _IMAGES})


def upload(page: Page) -> Response:
    """Import files, and make items from the traces; images are for the runs that hold their hashes."""
    db, make = page.db, page.form.choice("make", _MAKES, default="solutions")
    with _uploads(page.form, page.settings.max_upload_bytes) as (paths, named):
        images = [path for path in paths if path.suffix in _IMAGES]
        kinds = {path: kind_of(path) for path in paths if path not in images}
        if not paths:
            raise StoreError("choose at least one file")
        for path in images:  # before anything of another file is stored
            checked(path.read_bytes(), path.name)
        by_trace: dict[str, KnownLabels] = {}
        if make == "known":  # their labels are known, not an annotator's work
            by_trace = _known_labels([path for path, kind in kinds.items() if kind == "labels"])
            kinds = {path: kind for path, kind in kinds.items() if kind != "labels"}
        imported = import_files(db, page.id, kinds)
        new = sum(db.traces.add_image(page.id, path.read_bytes(), path.name) for path in images)
        files = [
            {"name": path.name, "kind": file.kind, "read": file.read, "added": file.added}
            for path, file in imported.items()
        ]
        for file in imported.values():
            file.read.files = [named(name) for name in file.read.files]
            file.read.bad = [(line, named(reason)) for line, reason in file.read.bad]
    items = len(db.items.add(page.id, None if make == "solutions" else list(by_trace), known=by_trace))
    page.audit("import", kinds=sorted(kinds.values()), items=items, images=new)
    complete = all(file.complete for file in imported.values())
    data = {"complete": complete, "files": files, "items": items, "images": len(images), "new_images": new}
    return page.show("imported.html", data)


def export(page: Page, name: str) -> Response:
    """One kind of record as JSON Lines, ``labels.jsonl``. For labels: ``?settled=1`` (one label per step,
    decisions applied), ``?known=1`` (include items with known labels), ``?imported=0`` (only
    annotators' labels). ``?id=`` (several): only for some runs."""
    db, query, kind = page.db, page.request.query_params, name.removesuffix(".jsonl")
    if kind == name or kind not in RECORDS:
        raise NotFoundError(
            f"the export '{name}' does not exist; choose from {', '.join(RECORDS)} with .jsonl"
        )
    ids = query.getlist("id") or None
    records: Iterable[Record] = (
        db.export.labels(
            page.id,
            known=query.get("known") == "1",
            imported=query.get("imported") != "0",
            settled=query.get("settled") == "1",
            ids=ids,
        )
        if kind == "labels"
        else db.export.records(page.id, kind, ids)
    )
    page.audit("export", kind=kind)
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="project-{page.id}-{name}"'}
    return StreamingResponse(_lines(records), media_type="application/jsonl", headers=headers)


def image(page: Page, digest: str) -> Response:
    """A kept image of the project, or of a request, with the type that was found in its bytes; nothing in it
    can run."""
    content, media_type = page.db.traces.image(page.id if page.opened else None, digest)
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
    return Response(content, media_type=media_type, headers=headers)


def _lines(records: Iterable[Record]) -> Iterator[str]:
    # large chunks: each chunk costs a turn of the event loop
    remaining = iter(records)
    while part := list(islice(remaining, _LINES)):
        yield "".join(record.model_dump_json() + "\n" for record in part)


def _known_labels(paths: list[Path]) -> dict[str, KnownLabels]:
    """The labels in the files, by trace. Raises for other labels than -1, 0 and 1, and for two of a step."""
    report, known = ReadReport(), defaultdict[str, dict[int, Literal[-1, 0, 1]]](dict)
    for label in chain.from_iterable(read_records(path, StepLabel, report=report) for path in paths):
        value = next((sign for sign in LABEL_VALUES if sign == label.value), None)
        if label.kind != "correctness" or value is None:
            where = f"step {label.step} of trace '{label.trace_id}'"
            raise StoreError(f"the known label of {where} must be a correctness label of -1, 0 or 1")
        if known[label.trace_id].setdefault(label.step, value) != value:
            raise StoreError(f"step {label.step} of trace '{label.trace_id}' has two known labels")
    if report.bad_count:
        raise RecordError(f"the known labels cannot all be read: {report.summary()}")
    if not known:
        raise StoreError("items with known labels need a file of labels")
    return dict(known)


@contextmanager
def _uploads(form: Form, most: int) -> Iterator[tuple[list[Path], Callable[[str], str]]]:
    """The files of a form, deleted at the end, and a function that shortens their paths to the users' names.

    At most ``most`` bytes of each are unpacked. A ``RecordError`` in the block uses the users' names.
    """
    with lower_limits(max_unpacked_bytes=most), tempfile.TemporaryDirectory(prefix="surefoot-") as folder:
        named = partial(re.compile(rf"{re.escape(folder)}/\d+/").sub, "")
        paths = []
        for number, file in enumerate(form.files()):
            # two files may have one name
            path = Path(folder, str(number), _checked_name(file.filename or ""))
            path.parent.mkdir()
            with path.open("wb") as out:
                shutil.copyfileobj(file.file, out)
            paths.append(path)
        try:
            yield paths, named
        except RecordError as error:
            raise RecordError(named(str(error))) from error


def _checked_name(name: str) -> str:
    """``name``, if it is a plain name with a known ending. Raises ``StoreError``."""
    if any(mark in name for mark in ("/", "\\", "\0", "..")) or not name.isprintable():
        raise StoreError("a file's name must be a plain name, not a path")
    if not name.endswith(_ENDINGS + _IMAGES) or len(name.encode()) > _LONGEST_NAME:
        raise StoreError(f"a file's name must end in one of {', '.join(_ENDINGS + _IMAGES)}, and be short")
    return name
