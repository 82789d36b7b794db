"""Labels and traces of files as columns: each line is decoded once, and what a report needs of it is kept.

A label in the form that this package writes is checked and decoded without making a record of it. Any other
line, and each trace, is read as its record: values and errors are the same.

The steps of many traces lie in flat arrays of a few bytes per step, without Python objects.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import accumulate, compress, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from surefoot.io import ReadReport, read_records
from surefoot.io.files import FileLimits, needs, open_bounded, parse_line, placed_lines, readable
from surefoot.io.sources import OUT_ENDINGS, files_of
from surefoot.io.tables import Facts, facts_in
from surefoot.records import MAX_COUNT, Evidence, Execution, LabelKind, StepLabel, StepScores, Trace, Usage
from surefoot.stats.bootstrap import FloatArray

Row = dict[str, Any]

_BLOCK, _BATCH = 64, 1 << 14
"""Labels that become columns at once, few because the garbage collector visits them; labels of a batch."""

_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_TAKEN: Final[Mapping[Any, Any]] = {int: _Count, datetime: AwareDatetime, Execution | None: None}
"""What a row takes of a type of which the record also takes values that it changes."""


def _row_of(record: type[BaseModel]) -> Any:
    """A row has all fields of its record, in order, and takes no value that the record refuses or changes.

    Values that it does not take are left to the record class.
    """
    declared = {name: field.annotation for name, field in record.model_fields.items()}
    types = get_type_hints(SimpleNamespace(__annotations__=declared))  # without the record's own checks
    rows = {
        name: _row_of(kind) if kind in (Evidence, Usage) else _TAKEN.get(kind, kind)
        for name, kind in types.items()
    }
    strictly = with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
    return strictly(TypedDict(record.__name__, rows))  # type: ignore[operator]


LABEL_KINDS: Final[tuple[LabelKind, ...]] = get_args(LabelKind)
_decode_label = TypeAdapter(_row_of(StepLabel)).validator.validate_json


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
    """Of the whole labels: equal labels have equal ones."""

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
        for columns in _batches(self._entries()):
            is_new, seen = _first_of(columns.hashes, seen)
            self.repeated += len(columns) - int(is_new.sum())
            yield columns.where(is_new)
        self.report.require_some(needs(StepLabel))

    def _entries(self) -> Iterator[tuple[Any, ...]]:
        files = [] if self.path == "-" else files_of(self.path)
        if not files or not all(file.name.endswith(OUT_ENDINGS) for file in files):
            yield from map(_entries_of, read_records(self.path, StepLabel, report=self.report))
            return
        for file in files:
            self.report.opened(file.name)
            for number, _, line in _lines(file):
                try:
                    row = _label_row(line)
                except ValueError:
                    if label := parse_line(line, StepLabel, str(file), number, self.report):
                        yield _entries_of(label)
                else:
                    self.report.read()
                    yield _entries(row)


def label_columns(labels: Iterable[StepLabel] | LabelFile) -> Iterator[LabelColumns]:
    """Labels as columns, some at a time."""
    yield from labels if isinstance(labels, LabelFile) else _batches(map(_entries_of, labels))


def holds_labels(path: str) -> bool:
    """Whether a file holds step labels and no step scores, by its first valid line."""
    report, file = ReadReport(keep=0), files_of(path)[0]
    if file.name.endswith(OUT_ENDINGS):
        for number, _, line in _lines(file):
            for kind in (StepScores, StepLabel):
                if parse_line(line, kind, path, number, report):
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
    """The trace of a chat."""
    number: int = 0
    """Of its line."""
    start: int = 0
    """Position of its line in the file, in bytes."""

    @classmethod
    def of(cls, trace: Trace, number: int = 0, start: int = 0) -> TraceFacts:
        """Facts about a record."""
        about = trace.id, trace.problem_id, len(trace.steps), trace.answer, trace.outcome
        chat = trace if trace.text is None else None
        return cls(*about, len(trace.text or ""), chat, number, start)


def trace_file(path: str) -> Path | None:
    """The one JSON Lines file that ``path`` names; ``None`` for others, which tables read."""
    files = [] if path == "-" else files_of(path)
    return files[0] if len(files) == 1 and files[0].name.endswith(".jsonl") else None


def trace_facts(path: Path, report: ReadReport) -> Iterator[TraceFacts]:
    """Facts about the traces of a JSON Lines file; ``report`` counts invalid lines."""
    report.opened(path.name)
    for number, start, line in _lines(path):
        if trace := parse_line(line, Trace, str(path), number, report):
            yield TraceFacts.of(trace, number, start)


def read_traces(
    path: Path, numbers: Sequence[int], starts: Sequence[int], chosen: Iterable[int]
) -> Iterator[Trace]:
    """The ``chosen`` traces of a file, 0 is the first, by the number and the position of each trace's line.

    Raises ``RecordError`` for an invalid one.
    """
    with readable(str(path)), path.open("rb") as stream:
        for at in chosen:
            stream.seek(starts[at])
            line = stream.readline(FileLimits.from_environment().max_piece_bytes).strip()
            if trace := parse_line(line, Trace, str(path), numbers[at], None):
                yield trace


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    limits = FileLimits.from_environment()
    with readable(str(path)), open_bounded(path, limits) as stream:
        yield from placed_lines(stream, limits)


def _label_row(line: bytes) -> Row:
    """The row of a valid label in the usual form. Raises ``ValueError`` for any other line."""
    row: Row = _decode_label(line)
    if (value := row["value"]) is None:
        fits = bool(row["reason"])
    elif row["kind"] == "correctness":
        fits = value in (-1, 0, 1)
    else:
        fits = (0 if row["kind"] == "value" else -1) <= value <= 1
    if not fits:
        raise ValueError
    return row


def _entries_of(label: StepLabel) -> tuple[Any, ...]:
    row = {**vars(label), "evidence": {**vars(label.evidence), "usage": vars(label.evidence.usage)}}
    if "created" not in label.model_fields_set:
        row["created"] = None  # the time of reading is no part of a label
    return _entries(row)


def _entries(row: Row) -> tuple[Any, ...]:
    """What each column holds of a label."""
    evidence: Row = row.pop("evidence")
    usage: Row = evidence.pop("usage")
    return (
        row["trace_id"],
        min(row["step"], MAX_COUNT),  # no trace has as many
        row["kind"],
        row["value"],
        row["reason"],
        row["source"],
        evidence["rater"],
        usage["prompt_tokens"] + usage["completion_tokens"],
        usage["verifier_tokens"],
        usage["calls"],
        hash((*row.values(), *evidence.values(), *usage.values())),
    )


def _batches(entries: Iterator[tuple[Any, ...]]) -> Iterator[LabelColumns]:
    columns: list[list[Any]] = [[] for _ in fields(LabelColumns)]
    while block := list(islice(entries, _BLOCK)):
        for column, part in zip(columns, zip(*block, strict=True), strict=True):
            column += part
        if len(columns[0]) >= _BATCH:
            yield _columns(columns)
            columns = [[] for _ in columns]
    if columns[0]:
        yield _columns(columns)


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


T = TypeVar("T")

BoolArray = NDArray[np.bool_]
CodeArray = NDArray[np.int8]

GOOD, BAD, UNREAD, UNLABELLED = 1, 0, -1, -2
"""Codes of a step: good or bad by the label that counts; only labels that say neither; no label."""

_MEANING = {GOOD: True, BAD: False, UNREAD: None, UNLABELLED: None}


class StepLayout:
    """Positions of each trace's steps in flat arrays [steps], in the order of the traces.

    Memory grows by about 150 bytes per trace and 75 per problem, mostly for their ids.
    """

    def __init__(self, facts: Iterable[Facts], *, with_steps: bool = False) -> None:
        self.numbers: dict[str, int] = {}
        """Id → number of the trace, of the first where several share an id."""
        problems: dict[str, int] = {}
        lengths, problem = array("q"), array("i")
        self.repeated: list[tuple[int, int]] = []
        """Traces with the id of an earlier one: the number of the first, and of this trace."""
        self.left_out = 0
        """Traces without steps, if only those ``with_steps`` are asked for."""
        for trace in facts:
            if with_steps and not trace.size:
                self.left_out += 1
                continue
            number = len(lengths)
            first = self.numbers.setdefault(trace.key, number)
            if first != number:
                self.repeated.append((first, number))
            lengths.append(trace.size)
            problem.append(problems.setdefault(trace.parent or "", len(problems)))
        self._starts = array("q", accumulate(lengths, initial=0))
        self.problem_ids = list(problems)
        """[problems], in the order of their first trace."""
        self.problem: NDArray[np.int32] = np.array(problem, dtype=np.int32)
        """[traces]: index of the trace's problem."""
        self.lengths: NDArray[np.int64] = np.array(lengths, dtype=np.int64)
        """[traces]: steps."""

    @classmethod
    def of(cls, traces: Iterable[Trace]) -> StepLayout:
        """The layout of all steps of ``traces``; the text of traces on disk is not read."""
        return cls(facts_in(traces))

    @property
    def traces(self) -> int:
        return len(self.lengths)

    @property
    def steps(self) -> int:
        return self._starts[-1]

    @property
    def starts(self) -> NDArray[np.int64]:
        """[traces + 1]: the position of each trace's first step, and the end."""
        return np.frombuffer(self._starts, dtype=np.int64)

    def span(self, number: int) -> tuple[int, int]:
        """The positions of a trace's first step and of the step after its last."""
        return self._starts[number], self._starts[number + 1]

    def positions(
        self, trace_ids: Iterable[str], steps: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[n] each: the position of step i of a trace, and the trace's number; -1 if there is none."""
        numbers = np.array([self.numbers.get(name, -1) for name in trace_ids], dtype=np.int64)
        positions = self.starts[numbers] + steps
        inside = (numbers >= 0) & (positions < self.starts[numbers + 1])
        return np.where(inside, positions, -1), numbers

    def of_step(self, values: NDArray[Any]) -> NDArray[Any]:
        """[traces] → [steps]: repeat each trace's value for its steps."""
        return np.repeat(values, self.lengths)

    def step_numbers(self) -> NDArray[np.int32]:
        """[steps]: the index of each step in its trace."""
        positions = np.arange(self.steps, dtype=np.int64)
        positions -= self.of_step(self.starts[:-1])
        return positions.astype(np.int32)

    def parts(self, count: int) -> NDArray[np.int32]:
        """[steps]: the part of its trace in which a step lies; step i of T is in part floor(count i / T)."""
        positions = count * self.step_numbers().astype(np.int64)
        positions //= self.of_step(self.lengths)
        return positions.astype(np.int32)

    def first_errors(self, codes: CodeArray) -> FloatArray:
        """[traces]: the index of the first bad step, -1 for none, NaN if an unknown step hides it."""
        firsts = np.full(self.traces, -1.0)
        positions = np.flatnonzero(codes != GOOD)
        trace = np.searchsorted(self.starts, positions, "right") - 1
        positions = positions[np.r_[True, trace[1:] != trace[:-1]][: len(trace)]]
        trace = np.searchsorted(self.starts, positions, "right") - 1
        firsts[trace] = np.where(codes[positions] == BAD, positions - self.starts[trace], math.nan)
        return firsts


class StepRows(Generic[T]):
    """One list per trace with an entry for each step, created from a flat array on access.

    Of codes (int8) ``True`` is good and ``False`` bad, of scores each number is itself; ``None`` is unknown.
    """

    def __init__(self, flat: NDArray[Any], layout: StepLayout) -> None:
        self.flat = flat
        """[steps]"""
        self._layout = layout

    def __len__(self) -> int:
        return self._layout.traces

    def __getitem__(self, number: int) -> list[T | None]:
        part = self.flat[slice(*self._layout.span(range(len(self))[number]))]
        return [_MEANING[code] for code in part.tolist()] if part.dtype == np.int8 else optional(part)  # type: ignore[misc, return-value]

    def array(self, number: int) -> FloatArray:
        """The entries of a trace as numbers; NaN is unknown, good is 1 and bad is 0."""
        part = self.flat[slice(*self._layout.span(number))]
        return as_numbers(part) if part.dtype == np.int8 else part

    def __iter__(self) -> Iterator[list[T | None]]:
        return (self[number] for number in range(len(self)))


def optional(values: FloatArray) -> list[float | None]:
    """``values`` as a list, with ``None`` for NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def as_numbers(codes: CodeArray, good: float = 1.0, bad: float = 0.0) -> FloatArray:
    """Codes [steps] as numbers; NaN is unknown."""
    return np.array([math.nan, math.nan, bad, good])[codes - UNLABELLED]
