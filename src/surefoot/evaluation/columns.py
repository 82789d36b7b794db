"""Labels and traces of files as columns: each line is decoded once, with the fields that a report needs.

A line in the form that this package writes is checked and decoded in one call, and no record is made of it.
Any other line is read as its record, so it has the same values, or the same error with its line and field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, compress, islice
from pathlib import Path
from typing import IO, Annotated, Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from surefoot.io import ReadReport, read_records
from surefoot.io.files import needs, parse_line, readable
from surefoot.io.limits import FileLimits, open_bounded
from surefoot.io.sources import OUT_ENDINGS, files_of
from surefoot.records import MAX_COUNT, LabelKind, Record, StepLabel, StepScores, Trace

Row = dict[str, Any]

_BLOCK, _BLOCK_BYTES, _BATCH = 64, 1 << 20, 1 << 14
"""Lines that are decoded at once, few because the garbage collector would visit many, and their bytes; labels
of a batch."""

_with_these = with_config(ConfigDict(extra="ignore", strict=True, allow_inf_nan=False))
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


@_with_these
class _UsageRow(TypedDict):
    prompt_tokens: _Count
    completion_tokens: _Count
    verifier_tokens: _Count
    calls: _Count


@_with_these
class _EvidenceRow(TypedDict):
    rater: str | None
    usage: _UsageRow


@_with_these
class _LabelRow(TypedDict):
    schema_version: Literal[2]
    trace_id: str
    step: _Count
    kind: LabelKind
    value: float | None
    reason: str | None
    source: str
    evidence: _EvidenceRow


@_with_these
class _StepRow(TypedDict):
    """Steps are counted alone: import checks their spans."""


@_with_these
class _TraceRow(TypedDict):
    schema_version: Literal[2]
    id: Annotated[str, Field(min_length=1)]
    problem_id: str
    text: str
    messages: Annotated[list[None], Field(max_length=0)]
    steps: list[_StepRow]
    answer: str | None
    outcome: bool | None


LABEL_KINDS: Final[tuple[LabelKind, ...]] = get_args(LabelKind)
_USUAL: Final = b'{"schema_version":2,"trace_id":"'
_decode_label = TypeAdapter(_LabelRow).validator.validate_json
_decode_trace = TypeAdapter(_TraceRow).validator.validate_json


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelColumns:
    """Some labels, in order: each column has one entry for each."""

    trace_ids: list[str]
    steps: NDArray[np.int64]
    kinds: list[LabelKind]
    values: NDArray[np.float64]
    """NaN = none."""
    reasons: list[str | None]
    sources: list[str]
    raters: list[str | None]
    policy_tokens: NDArray[np.int64]
    verifier_tokens: NDArray[np.int64]
    calls: NDArray[np.int64]
    hashes: NDArray[np.int64]
    """Of the whole labels."""

    def __len__(self) -> int:
        return len(self.trace_ids)

    def are(self, kind: LabelKind) -> NDArray[np.bool_]:
        """Which labels are of this kind."""
        return np.array([each == kind for each in self.kinds], dtype=bool)

    def where(self, chosen: NDArray[np.bool_]) -> LabelColumns:
        """The chosen labels."""
        if chosen.all():
            return self
        parts: Any = {
            name: list(compress(column, chosen)) if isinstance(column, list) else column[chosen]
            for name, column in vars(self).items()
        }
        return LabelColumns(**parts)


class LabelFile:
    """The labels of a file, or of several by a pattern, as columns; of equal labels the first."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.report = ReadReport()
        """The read and skipped lines, after all columns are read."""
        self.repeated = 0
        """Labels that were left out because an equal one comes before them."""

    def __iter__(self) -> Iterator[LabelColumns]:
        """Can be used once. Raises ``RecordError`` for a file without valid labels."""
        seen = np.empty(0, dtype=np.int64)
        for columns in _batches(self._rows()):
            is_new, seen = _first_of(columns.hashes, seen)
            self.repeated += len(columns) - int(is_new.sum())
            yield columns.where(is_new)
        self.report.require_some(needs(StepLabel))

    def _rows(self) -> Iterator[list[Row]]:
        files = [] if self.path == "-" else files_of(self.path)
        if files and all(file.name.endswith(OUT_ENDINGS) for file in files):
            for file in files:
                for *_, rows in _decoded(file, StepLabel, _label_rows, self.report):
                    yield [_row_of(row) if isinstance(row, StepLabel) else row for row in rows if row]
        else:
            yield from _rows_of(read_records(self.path, StepLabel, report=self.report))


def label_columns(labels: Iterable[StepLabel] | LabelFile) -> Iterator[LabelColumns]:
    """Labels as columns, some at a time."""
    yield from labels if isinstance(labels, LabelFile) else _batches(_rows_of(iter(labels)))


def holds_labels(path: str) -> bool:
    """Whether a file holds step labels and no step scores, by its first valid line."""
    limits, report = FileLimits.from_environment(), ReadReport(keep=0)
    file = files_of(path)[0]
    if file.name.endswith(OUT_ENDINGS):
        with readable(str(file)), open_bounded(file, limits) as stream:
            for line in _next_lines(stream, limits, 1):
                for kind in (StepScores, StepLabel):
                    if _record(line, kind, path, 1, report):
                        return kind is StepLabel
    return next(read_records(path, StepScores, report=report), None) is None


class TraceFacts(NamedTuple):
    """What reports on whole files need of a trace."""

    id: str
    problem_id: str
    steps: int
    answer: str | None
    outcome: bool | None
    characters: int
    """Of its text, 0 for a chat."""
    record: Trace | None = None
    """The trace, if its line is not in the usual form; for a chat always."""
    number: int = 0
    """Of its line."""
    start: int = 0
    """Position of its line in the file, in bytes."""

    @classmethod
    def of(cls, trace: Trace) -> TraceFacts:
        """Facts about a record."""
        about = trace.id, trace.problem_id, len(trace.steps), trace.answer, trace.outcome
        return cls(*about, len(trace.text or ""), trace)


def trace_file(path: str) -> Path | None:
    """The one JSON Lines file that ``path`` names; ``None`` for others, which tables read."""
    files = [] if path == "-" else files_of(path)
    return files[0] if len(files) == 1 and files[0].name.endswith(".jsonl") else None


def trace_facts(path: Path, report: ReadReport) -> Iterator[TraceFacts]:
    """Facts about the traces of a JSON Lines file; ``report`` counts invalid lines."""
    for first, position, lines, rows in _decoded(path, Trace, _trace_rows, report):
        starts = accumulate(map(len, lines), initial=position)
        for number, (start, row) in enumerate(zip(starts, rows, strict=False), first):
            if row is not None:
                facts = row if isinstance(row, TraceFacts) else TraceFacts.of(row)
                yield facts._replace(number=number, start=start)


def read_traces(
    path: Path, numbers: Sequence[int], starts: Sequence[int], chosen: Iterable[int]
) -> Iterator[Trace]:
    """The ``chosen`` traces of a file, 0 is the first, by the number and the position of each trace's line.

    Raises ``RecordError`` for an invalid one.
    """
    with readable(str(path)), path.open("rb") as stream:
        for at in chosen:
            stream.seek(starts[at])
            line = stream.readline(FileLimits.from_environment().max_piece_bytes)
            if isinstance(trace := _record(line, Trace, str(path), numbers[at], None), Trace):
                yield trace


def _row_of(label: StepLabel) -> Row:
    evidence = label.evidence
    row = {**vars(label), "evidence": {"rater": evidence.rater, "usage": vars(evidence.usage)}}
    row["step"] = min(label.step, MAX_COUNT)  # no trace has as many
    return row | {"line": label.model_dump_json().encode("utf-8", "surrogatepass")}


def _rows_of(labels: Iterator[StepLabel]) -> Iterator[list[Row]]:
    return iter(lambda: list(map(_row_of, islice(labels, _BLOCK))), [])


def _label_rows(lines: Sequence[bytes]) -> list[Row]:
    if not all(line.startswith(_USUAL) for line in lines):
        raise ValueError  # so that an equal label in another spelling has the same hash
    rows: list[Row] = list(map(_decode_label, lines))
    for row, line in zip(rows, lines, strict=True):
        if (value := row["value"]) is None:
            fits = bool(row["reason"])
        elif row["kind"] == "correctness":
            fits = value in (-1, 0, 1)
        else:
            fits = (0 if row["kind"] == "value" else -1) <= value <= 1
        if not fits:
            raise ValueError
        row["line"] = line.strip()
    return rows


def _trace_rows(lines: Sequence[bytes]) -> list[TraceFacts]:
    return [
        TraceFacts(
            row["id"], row["problem_id"], len(row["steps"]), row["answer"], row["outcome"], len(row["text"])
        )
        for row in map(_decode_trace, lines)
    ]


def _batches(blocks: Iterable[list[Row]]) -> Iterator[LabelColumns]:
    lists: list[list[Any]] = [[] for _ in fields(LabelColumns)]
    for rows in blocks:
        evidence = [row["evidence"] for row in rows]
        usage = [record["usage"] for record in evidence]
        parts = (
            [row["trace_id"] for row in rows],
            [row["step"] for row in rows],
            [row["kind"] for row in rows],
            [row["value"] for row in rows],
            [row["reason"] for row in rows],
            [row["source"] for row in rows],
            [record["rater"] for record in evidence],
            [record["prompt_tokens"] + record["completion_tokens"] for record in usage],
            [record["verifier_tokens"] for record in usage],
            [record["calls"] for record in usage],
            [hash(row["line"]) for row in rows],
        )
        for column, part in zip(lists, parts, strict=True):
            column += part
        if len(lists[0]) >= _BATCH:
            yield _columns(lists)
            lists = [[] for _ in lists]
    if lists[0]:
        yield _columns(lists)


def _columns(lists: list[list[Any]]) -> LabelColumns:
    columns: dict[str, Any] = {}
    for field, values in zip(fields(LabelColumns), lists, strict=True):
        numbers = {"values": np.float64}.get(field.name, np.int64) if "NDArray" in str(field.type) else None
        columns[field.name] = np.array(values, dtype=numbers) if numbers else values
    return LabelColumns(**columns)


def _first_of(
    hashes: NDArray[np.int64], earlier: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether each hash is new, and all hashes; ``earlier`` and the result are sorted, 8 bytes a label."""
    distinct, first = np.unique(hashes, return_index=True)
    if len(earlier):
        nearest = np.searchsorted(earlier, distinct).clip(max=len(earlier) - 1)
        first, distinct = (values[earlier[nearest] != distinct] for values in (first, distinct))
    is_new = np.zeros(len(hashes), dtype=bool)
    is_new[first] = True
    # the stable sort merges two sorted runs
    return is_new, np.sort(np.concatenate([earlier, distinct]), kind="stable")


def _decoded(
    path: Path, record: type[Record], decode: Callable[[list[bytes]], Sequence[Any]], report: ReadReport
) -> Iterator[tuple[int, int, list[bytes], Sequence[Any]]]:
    """Neighbouring lines of a file: the number and position of the first, the lines, and what each holds.

    That is a row, a record for a line in another form, or ``None`` for an empty or invalid one. ``decode``
    raises ``ValueError`` unless all lines are in the usual form.
    """
    limits, number, start = FileLimits.from_environment(), 1, 0
    report.opened(path.name)
    with readable(str(path)), open_bounded(path, limits) as stream:
        while lines := _next_lines(stream, limits, number):
            rows: Sequence[Any]
            try:
                rows = decode(lines)
                report.good += len(rows)
            except ValueError:
                numbered = enumerate(lines, number)
                rows = [_record(line, record, str(path), at, report) for at, line in numbered]
            yield number, start, lines, rows
            number, start = number + len(lines), start + sum(map(len, lines))


def _record(
    line: bytes, record: type[Record], path: str, number: int, report: ReadReport | None
) -> Record | None:
    text = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
    return parse_line(text, record, path, number, report) if text else None


def _next_lines(stream: IO[bytes], limits: FileLimits, number: int) -> list[bytes]:
    """The next lines, of which ``number`` is the first. Raises :class:`surefoot.io.limits.LimitError`."""
    lines: list[bytes] = []
    size, most = 0, limits.max_piece_bytes
    while len(lines) < _BLOCK and size < _BLOCK_BYTES and (line := stream.readline(most + 1)):
        if len(line) > most:
            at = number + len(lines)
            raise limits.exceeded("max_piece_bytes", f"line {at} has more than {most:,} bytes")
        lines.append(line)
        size += len(line)
    if number + len(lines) - 1 > limits.max_rows:
        raise limits.exceeded("max_rows", f"it has more than {limits.max_rows:,} rows")
    return lines
