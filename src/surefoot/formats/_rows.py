"""What the formats share: rows in files, their form, and steps given as a list.

A file is JSON Lines, one JSON array or one object over many lines, also gzipped; each row is checked against
the format's row class.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.io.atomic import atomic_file
from surefoot.io.files import ReadReport, error_reason, json_lines, readable, shortened
from surefoot.io.limits import FileLimits, RowSize, open_bounded, read_whole
from surefoot.io.sources import files_of
from surefoot.labels import AFTER_FIRST_ERROR, NO_ERROR, up_to_first_error
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, Problem, Step, StepLabel, Trace, content_id, now

T = TypeVar("T")
M = TypeVar("M")

FORM_KEY = "form"
"""Where ``Trace.meta`` notes the form of a row that has not just the usual fields in the usual order."""
RECORD_BYTES = 500
"""About the bytes that a step, a message or a label takes in memory, beside its text."""
SEPARATOR_KEY = "separator"
"""Where ``Trace.meta`` notes what a reader put between steps, so that a writer can take it out again."""


def finite(value: Any) -> Any:
    """``value``, unless it holds what JSON cannot: then it raises ``ValueError``."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError("holds NaN or an infinity") from error
    return value


Finite = Annotated[Any, AfterValidator(finite)]
"""What surefoot does not use and keeps in ``meta``, which is JSON."""


class FileRow(BaseModel):
    """Base of the row classes: exact types; fields that surefoot does not use are kept as ``model_extra``.

    No number is NaN or infinite, in these fields neither: they are kept in ``meta``, which is JSON.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    _order: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _note_order(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        row = handler(data)
        if isinstance(data, dict):
            row._order = tuple(data)
        return row

    @model_validator(mode="after")
    def _check_extra(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            try:
                finite(value)
            except ValueError as error:
                raise ValueError(f"'{name}' {error}") from error
        return self

    @property
    def order(self) -> tuple[str, ...]:
        """Names of all fields that the row had, in its order."""
        return self._order


@dataclass(kw_only=True)
class WriteReport:
    """What a writer wrote and what the format had no place for."""

    written: int = 0
    """Rows in the file."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Count for each reason; the reason says whether it counts traces, steps or labels."""

    def summary(self) -> str:
        """One sentence: ``12 rows written; dropped: 3 steps: neutral, 1 traces: chat trace``."""
        lost = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.written} rows written; dropped: {lost or 'nothing'}"


class TraceBuilder:
    """Makes the traces of one file, whose labels are all ``created`` when the builder is."""

    def __init__(self, separator: str) -> None:
        """``separator`` is put between steps."""
        self.separator, self.created = separator, now()
        self._counts: Counter[str] = Counter()

    def number(self, *parts: object) -> int:
        """How often ``parts`` came before: 0 for the first.

        It numbers equal solutions, so that each stays a trace of its own, with its own labels.
        """
        key = content_id(*parts)
        self._counts[key] += 1
        return self._counts[key] - 1

    def trace(self, problem: Problem, parts: Sequence[str], **fields: Any) -> Trace:
        """A trace with ``parts`` as steps; its sample is its number unless ``fields`` tell it from others."""
        if not fields.keys() & {"id", "sample"}:
            fields["sample"] = self.number(problem.id, self.separator.join(parts))
        return joined_trace(problem, parts, self.separator, **fields)

    def labelled(
        self,
        problem: Problem,
        parts: Sequence[str],
        values: Sequence[float | None],
        *,
        source: str,
        error_message: str | None = None,
        **fields: Any,
    ) -> LabelledTrace:
        """A trace with one correctness label per step; ``None`` is unknown for being after the first error.

        ``error_message`` becomes the evidence of the labels that are −1.
        """
        trace = self.trace(problem, parts, **fields)
        labels = tuple(
            StepLabel(
                trace_id=trace.id,
                step=index,
                kind="correctness",
                value=value,
                reason=AFTER_FIRST_ERROR if value is None else None,
                source=source,
                evidence=Evidence(message=error_message if value == -1.0 else None),
                created=self.created,
            )
            for index, value in enumerate(values)
        )
        return LabelledTrace(problem=problem, trace=trace, labels=labels)


def read_rows(
    path: Path | str,
    row: type[M],
    build: Callable[[int, M], T],
    report: ReadReport | None,
) -> Iterator[T]:
    """Yield ``build(number, row)`` for each row of ``path``; numbers count from 1 (lines, or array items).

    As a text, ``path`` may be a pattern, a folder or a URL (:func:`surefoot.io.sources.files_of`); numbers
    are those of each file.
    ``row`` is a model, or a TypedDict where millions of small objects would be made.
    ``build`` refuses a row by raising ``RecordError`` or a ``ValidationError``. A refused row is counted in
    ``report``; without one it raises ``RecordError`` naming file, line, field and fix.
    """
    check = TypeAdapter(row).validate_python
    for file in files_of(path):
        yield from _rows_of(file, check, build, report)


def _rows_of(
    path: Path, check: Callable[[object], M], build: Callable[[int, M], T], report: ReadReport | None
) -> Iterator[T]:
    if report is not None:
        report.opened(path.name)
    for number, raw in _items(path):
        try:
            item = build(number, check(_parsed(raw)))
        except (RecordError, ValidationError) as error:
            reason = str(error) if isinstance(error, RecordError) else error_reason(error)
            if report is None:
                fix = "correct the row, or pass a ReadReport to skip and count such rows"
                raise RecordError(f"{path}, line {number}: {shortened(reason)}; {fix}") from error
            report.skipped(number, reason)
            continue
        if report is not None:
            report.read()
        yield item


def read_expanded_rows(
    path: Path | str,
    row: type[M],
    build: Callable[[int, M], Iterator[LabelledTrace]],
    report: ReadReport | None,
) -> Iterator[LabelledTrace]:
    """Yield the traces that ``build`` makes of each row, as :func:`read_rows` does.

    A row is refused as a whole, and also if its traces together exceed ``FileLimits.max_piece_bytes``.
    """
    limits = FileLimits.from_environment()

    def whole(number: int, checked: M) -> list[LabelledTrace]:
        size, made = RowSize(limits), []
        for item in build(number, checked):
            size.add(trace_size(item.trace) + RECORD_BYTES * len(item.labels))
            made.append(item)
        return made

    for items in read_rows(path, row, whole, report):
        yield from items


def trace_size(trace: Trace) -> int:
    """About the bytes of ``trace`` in memory."""
    characters = len(trace.text or "") + sum(len(message.content or "") for message in trace.messages)
    return characters + RECORD_BYTES * (len(trace.messages) + len(trace.steps))


def write_rows(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write ``rows`` atomically: a JSON array for ``.json``, JSON Lines otherwise, gzipped for ``.gz``.

    Raises ``OSError`` where the folder cannot be written.
    """
    path = Path(path)
    array = path.name.removesuffix(".gz").endswith(".json")
    with atomic_file(path) as stream:
        if path.suffix != ".gz":
            _write(stream, rows, array)
            return
        # Neither name nor time in the header, so that equal rows give equal bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
            _write(packed, rows, array)


def form_note(name: str, row: FileRow, usual: Sequence[str]) -> dict[str, Any]:
    """Entry for ``Trace.meta``, empty for a row of the ``usual`` form. ``name`` is the format's.

    It holds the names of all fields and the content of those that the reader does not know.
    """
    if row.order == tuple(usual):
        return {}
    return {FORM_KEY: {"format": name, "fields": list(row.order), "extra": dict(row.model_extra or {})}}


def in_form(name: str, row: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """``row`` as it was read: with the fields that ``meta`` notes for this format, in that order.

    Without a note, or with one of another format, ``row`` stays as it is.
    """
    note = meta.get(FORM_KEY)
    if not isinstance(note, dict) or note.get("format") != name:
        return dict(row)
    known = {**note["extra"], **row}
    return {field: known[field] for field in note["fields"] if field in known}


def joined_trace(
    problem: Problem,
    parts: Sequence[str],
    separator: str,
    *,
    meta: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Trace:
    """A trace with ``parts`` as steps; a separator belongs to the step before it, and ``meta`` notes it."""
    steps: list[Step] = []
    end = 0
    for number, part in enumerate(parts, start=1):
        length = len(part) + (len(separator) if number < len(parts) else 0)
        steps.append(Step(start=end, end=end + length))
        end += length
    return Trace(
        problem_id=problem.id,
        text=separator.join(parts),
        steps=tuple(steps),
        meta={**(meta or {}), SEPARATOR_KEY: separator},
        **fields,
    )


def step_parts(trace: Trace) -> list[str]:
    """The steps of a text trace without what separates them.

    For a trace that one of this package's readers joined these are the very parts; for any other, the
    white space around each step is taken off.
    """
    texts = [trace.step_text(index) for index in range(len(trace.steps))]
    separator = trace.meta.get(SEPARATOR_KEY)
    if not isinstance(separator, str):
        return [text.strip() for text in texts]
    return [text.removesuffix(separator) for text in texts[:-1]] + texts[-1:]


def first_error_values(steps: Sequence[str], error: int | None, field: str) -> list[float | None]:
    """Correctness of each step of a row whose ``field`` gives the first error; ``None`` = there is none.

    Raises ``RecordError`` for a row without steps and an error at a step that it does not have.
    """
    if not steps:
        raise RecordError("field 'steps': empty")
    if error is not None and not 0 <= error < len(steps):
        raise RecordError(f"field {field!r}: {error}, but there are {len(steps)} steps")
    return up_to_first_error(NO_ERROR if error is None else error, len(steps))


def _parsed(raw: object) -> object:
    """An array's items are parsed already; a line is still bytes, which no JSON value is."""
    if not isinstance(raw, bytes):
        return raw
    try:
        return from_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(error_reason(error)) from error
    except ValueError as error:
        raise RecordError(f"not JSON ({error})") from error


def _items(path: Path) -> Iterator[tuple[int, object]]:
    limits = FileLimits.from_environment()
    with readable(str(path)), open_bounded(path, limits) as stream:
        for number, text in json_lines(stream, limits):
            if number == 1 and (text.startswith(b"[") or text == b"{"):
                yield from enumerate(_whole(text + b"\n" + read_whole(stream, limits), path, limits), start=1)
                return
            yield number, text


def _whole(text: bytes, path: Path, limits: FileLimits) -> list[object]:
    try:
        items = from_json(text)
    except ValueError as error:
        raise RecordError(f"{path}: not one JSON value: {error}; fetch the file again") from error
    limits.check_fields(items, "its value")
    return items if isinstance(items, list) else [items]


def _write(stream: IO[bytes] | gzip.GzipFile, rows: Iterable[Mapping[str, Any]], array: bool) -> None:
    separator = b""
    if array:
        stream.write(b"[")
    for row in rows:
        line = json.dumps(row, ensure_ascii=False).encode("utf-8")
        stream.write(separator + line if array else line + b"\n")
        separator = b",\n"
    if array:
        stream.write(b"]\n")
