"""A project's records in and out: files of the package's records or of other formats, and exports.

Files are imported in two passes, whatever their format. The first reads all of them through, within the
limits of files, and keeps nothing; so a file that is too large, or cannot be read to its end, stores nothing.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Row, Select, and_, select, tuple_

from surefoot import formats
from surefoot.errors import RecordError
from surefoot.formats import ImportContext, ImportedTrace, ImportSettings, detect_format, import_traces
from surefoot.formats.rows import raw_rows
from surefoot.images import is_inline
from surefoot.io.files import ReadReport, check_size, needs, read_records
from surefoot.messages.reading import StoreAttachment, embedded_bytes
from surefoot.records import Attachment, Problem, Record, StepLabel, StepScores, Trace, trusted_copy
from surefoot.segment import cut_trace
from surefoot.server.store.accounts import project_in
from surefoot.server.store.engine import Repository
from surefoot.server.store.labels import labels_in
from surefoot.server.store.queue import StoredLabel, items, labels
from surefoot.server.store.traces import Added, problems, step_scores, traces

if TYPE_CHECKING:
    from surefoot.server.store.database import Database

_ROWS = 200
"""Rows that are read, or stored, at once."""


class ExportRepository(Repository):
    """Everything of one project as records, including what annotators must not see."""

    def labels(
        self,
        project_id: int,
        *,
        known: bool = False,
        imported: bool = True,
        settled: bool = False,
        ids: Collection[str] | None = None,
    ) -> Iterator[StepLabel]:
        """Labels that count, by trace and step: the latest of each annotator's labels of a step.

        ``evidence.rater`` is the pseudonym and ``evidence.message`` the comment. ``known``: include
        items with known labels; ``imported``: include labels of other sources. ``settled``: a decided step
        has the decision (source ``human:adjudicated``) instead of the annotators' labels. ``ids``: only of
        these traces.
        """
        label, item = labels.c, items.c
        by_people = label.item_id.is_not(None)
        keys = (label.trace_id, label.step, label.id)
        query = select(*keys, label.payload).join(items, item.id == label.item_id, isouter=True)
        query = query.where(label.project_id == project_id, label.is_current)
        if not known:
            query = query.where(~by_people | ~item.has_known)
        if not imported:
            query = query.where(label.user_id.is_not(None))
        later = labels.alias()
        decided = select(later.c.id).where(
            and_(later.c.project_id == project_id, later.c.is_current),
            and_(later.c.item_id.is_(None), later.c.user_id.is_not(None)),
            and_(later.c.trace_id == label.trace_id, later.c.step == label.step),
            by_people | (later.c.id > label.id),
        )
        query = query.where(label.user_id.is_(None) | (~decided.exists() if settled else by_people))
        if ids is not None:
            query = query.where(label.trace_id.in_(ids))
        with self._connections.read() as connection:
            project_in(connection, project_id)
        return (StepLabel.model_validate_json(row.payload) for row in self._pages(query, *keys))

    def records(self, project_id: int, kind: str, ids: Collection[str] | None = None) -> Iterator[Any]:
        """``problems`` or ``traces`` by id, ``scores`` by trace and scorer, or :meth:`labels`; ``ids``: only
        these, or of these traces.

        Raises ``NotFoundError``, like the others.
        """
        if kind == "labels":
            return self.labels(project_id, ids=ids)
        with self._connections.read() as connection:
            project_in(connection, project_id)
        table, record = _TABLES[kind], RECORDS[kind]
        keys = [column for column in table.primary_key.columns if column.name != "project_id"]
        query = select(*keys, table.c.payload).where(table.c.project_id == project_id)
        if ids is not None:
            query = query.where(keys[0].in_(ids))
        return (record.model_validate_json(row.payload) for row in self._pages(query, *keys))

    def stored(self, project_id: int) -> list[StoredLabel]:
        """All labels ever submitted, retracted ones too, with time taken and queue policy."""
        with self._connections.read() as connection:
            project_in(connection, project_id)
            return labels_in(connection, project_id, retracted=True)

    def _pages(self, query: Select[Any], *keys: ColumnElement[Any]) -> Iterator[Row[Any]]:
        """Rows in the order of ``keys``, their first columns.

        Page by page: a slow reader holds neither the rows nor a transaction open.
        """
        query = query.order_by(*keys).limit(_ROWS)
        rows = self._all(query)
        while rows:
            yield from rows
            more = query.where(tuple_(*keys) > tuple(rows[-1][: len(keys)]))
            rows = self._all(more) if len(rows) == _ROWS else ()


_TABLES: Final = {"problems": problems, "traces": traces, "scores": step_scores}
RECORDS: Final[Mapping[str, type[Record]]] = MappingProxyType(
    {"problems": Problem, "traces": Trace, "scores": StepScores, "labels": StepLabel}
)
"""The kinds of records, in the order in which they are imported."""


@dataclass(frozen=True, kw_only=True)
class ImportedFile:
    """Result of the import of one file. Repeating an import adds nothing."""

    kind: str
    read: ReadReport
    """Good rows, and bad ones with their reasons."""
    added: Mapping[str, Added]
    """What became of the good rows, by kind of record."""

    @property
    def complete(self) -> bool:
        """Whether no row was bad and no record refused."""
        return not (self.read.bad_count or any(added.refused for added in self.added.values()))


def kind_of(path: Path) -> str:
    """The kind of records in a file (of ``RECORDS``) or the name of its format, from its content.

    Raises ``RecordError`` for a file that cannot be opened or is empty.
    """
    name = detect_format(path)
    if zipfile.is_zipfile(path):
        return name
    row = next((row for _, row in raw_rows(path) if isinstance(row, Mapping)), {})
    for kind, record in RECORDS.items():
        required = {name for name, field in record.model_fields.items() if field.is_required()}
        if required <= row.keys() <= record.model_fields.keys():
            return kind
    if name == formats.RECORDS:
        raise RecordError(f"{path}: its fields fit no record; see docs/reference/formats.md")
    return name


def import_files(database: Database, project_id: int, files: Mapping[Path, str]) -> dict[Path, ImportedFile]:
    """Read files into a project; each has a kind of ``RECORDS`` or the name of a format, see ``kind_of``.

    Bad rows and refused records are counted and skipped, and traces without steps are cut. Images inside of
    messages are kept if :func:`surefoot.images.checked` accepts them, else counted as left out. The paths are
    opened as they are: a server must choose them itself, never from a name in a request. Raises
    ``RecordError`` for a file that cannot be read to its end or is too large, and if not a single record was
    accepted; ``NotFoundError`` for the project, ``MissingExtraError`` for images without Pillow.
    """
    for path, kind in files.items():
        if kind in RECORDS:
            check_size(path)
        else:
            for _ in _solutions(kind, path, ReadReport()):
                pass
    add: dict[str, Callable[[int, Iterable[Any]], Added]] = {
        "problems": database.traces.add_problems,
        "traces": database.traces.add_traces,
        "scores": database.traces.add_scores,
        "labels": database.labels.import_labels,
    }
    # scores and labels need the traces, also traces of other formats
    order = {"problems": 0, "traces": 1, "scores": 3, "labels": 4}

    def keep(report: ReadReport, content: bytes, _: str) -> None:
        try:
            database.traces.add_image(project_id, content, "of a run")
        except RecordError as error:  # the run then names what it does not show
            report.leave_out(str(error))

    imported = {}
    for path, kind in sorted(files.items(), key=lambda file: order.get(file[1], 2)):
        report = ReadReport()
        added = dict.fromkeys((kind,) if kind in RECORDS else RECORDS, Added())
        for batch in _batches(kind, path, report, partial(keep, report)):
            for name, records in batch.items():
                added[name] += add[name](project_id, records)
        imported[path] = ImportedFile(kind=kind, read=report, added=added)
    _refuse_nothing(imported.values())
    return imported


def _batches(
    kind: str, path: Path, report: ReadReport, keep: StoreAttachment
) -> Iterator[dict[str, Iterable[Record]]]:
    """The good rows of a file by kind of record, some hundred at a time; traces have steps."""
    if kind in RECORDS:
        records: Iterable[Any] = read_records(path, RECORDS[kind], report=report)
        yield {kind: (_detached(_cut(trace), keep) for trace in records) if kind == "traces" else records}
        return
    solutions = _solutions(kind, path, report, keep)
    while batch := list(islice(solutions, _ROWS)):
        yield {
            "problems": {item.problem.id: item.problem for item in batch if item.problem}.values(),
            "traces": [_cut(item.trace) for item in batch if item.trace],
            "scores": [item.scores for item in batch if item.scores],
            "labels": [label for item in batch for label in item.labels],
        }


def _solutions(
    source: str, path: Path, report: ReadReport, keep: StoreAttachment | None = None
) -> Iterator[ImportedTrace]:
    return import_traces(path, source, ImportContext(settings=ImportSettings(), report=report, keep=keep))


def _detached(trace: Trace, keep: StoreAttachment) -> Trace:
    """The trace with the hashes of the images that its messages embed, which go to ``keep``."""

    def without(held: Attachment) -> Attachment:
        if not is_inline(held):
            return held
        content = embedded_bytes(str(held.uri))
        uri = keep(content, held.media_type or "")
        return trusted_copy(held, {"uri": uri, "sha256": hashlib.sha256(content).hexdigest()})

    return trace.with_attachments(without)


def _cut(trace: Trace) -> Trace:
    return trace if trace.steps else cut_trace(trace)


def _refuse_nothing(imported: Iterable[ImportedFile]) -> None:
    """Raise ``RecordError`` with the first reason if not a single record was accepted."""
    files = list(imported)
    added = [added for file in files for added in file.added.values()]
    if not files or any(counts.new or counts.same or counts.replaced for counts in added):
        return
    for file in files:
        record = RECORDS.get(file.kind)
        file.read.require_some(needs(record) if record else f"is it a file of {file.kind}?")
    name, reason = next(reason for counts in added for reason in counts.reasons)
    raise RecordError(f"none of the records fits; first, {name}: {reason}")
