"""Traces with their problems and labels, joined on disk."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Generic, Self, TypeVar

from surefoot.io.tables import Index, OnDisk, RecordTable, set_for_writing, uri_of
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, StepLabel, Trace, content_id

T = TypeVar("T", ProblemTrace, LabelledTrace)

Cut = Callable[[Trace], Trace]
"""Cuts a trace into steps."""

_CACHED_PROBLEMS = 256
"""Problems that stay in memory: the traces of a problem are usually neighbours."""


@dataclass
class LeftOut:
    """Counts of traces that a join leaves out or cuts into steps."""

    orphans: int = 0
    """Traces whose problem is missing."""
    first_orphan: tuple[str, str] | None = None
    """Id of the first of them, and of its problem."""
    stepless: int = 0
    """Traces without text to cut into steps."""
    first_stepless: str | None = None
    cut: int = 0
    """Traces that were cut into ``new_steps``."""
    new_steps: int = 0


class Joined(OnDisk[T], Generic[T]):
    """Traces of a table with their problems, and with labels after :meth:`labelled`; it can be pickled."""

    def __init__(
        self,
        problems: RecordTable[Problem],
        traces: RecordTable[Trace],
        items: Index,
        cut: Cut,
        labels: RecordTable[StepLabel] | None = None,
    ) -> None:
        self.problems, self.traces, self.labels = problems, traces, labels
        self._items, self._cut = items, cut

    def __len__(self) -> int:
        [(count,)] = self._items.query("SELECT coalesce(max(number) + 1, 0) FROM items")
        return int(count)

    def between(self, start: int, stop: int) -> Iterator[T]:
        """Yield items ``start … stop - 1``."""
        problems = dict[str, Problem]()
        query = "SELECT start, bytes FROM items WHERE number >= ? AND number < ? ORDER BY number"
        for trace in self.traces.read(self._items.query(query, (start, stop))):
            if (name := trace.problem_id) not in problems:
                if len(problems) == _CACHED_PROBLEMS:
                    problems.clear()
                problems[name] = self.problems.find(name)[-1]
            item: Any = ProblemTrace(problem=problems[name], trace=trace if trace.steps else self._cut(trace))
            if self.labels is not None:
                labels = tuple(self.labels.find(trace.id))
                item = LabelledTrace(problem=item.problem, trace=item.trace, labels=labels)
            yield item

    @property
    def digest(self) -> str:
        """A hash of the files that the items come from, and of the selection."""
        chosen = hashlib.blake2b(digest_size=16)
        for (first,) in self._items.query("SELECT first FROM items ORDER BY number"):
            chosen.update(first.to_bytes(8, "little"))
        digest = content_id(self.problems.digest, self.traces.digest, chosen.hexdigest())
        return digest if self.labels is None else content_id(digest, self.labels.digest)

    def problem_ids(self) -> Iterator[str]:
        """The problem id of each item; no item is read."""
        return (problem for (problem,) in self._items.query("SELECT problem FROM items ORDER BY number"))

    def of_problems(self, keep: Callable[[str], bool]) -> Self:
        """The items of the problems for whose ids ``keep`` is true; no item is read."""
        return self._with(row for row in self._rows() if keep(row[-1]))

    def where(self, keep: Callable[[T], bool]) -> Self:
        """The items for which ``keep`` is true; all items are read once."""
        return self._with(row for row, item in zip(self._rows(), self, strict=True) if keep(item))

    def labelled(self, labels: RecordTable[StepLabel]) -> LabelledTraces:
        """The same traces with their labels; a trace without labels has an empty tuple."""
        return Joined(self.problems, self.traces, self._items, self._cut, labels)

    @property
    def strays(self) -> int:
        """Number of labels whose trace is not among the items."""
        if self.labels is None:
            return 0
        with closing(sqlite3.connect(uri_of(self._items.path), uri=True)) as database:
            database.execute("ATTACH ? AS labels", (uri_of(self.labels.lookup.path),))
            query = "SELECT count(*) FROM labels.places WHERE key NOT IN (SELECT trace FROM main.items)"
            [(count,)] = database.execute(query)
        return int(count)

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        return self._items.query("SELECT first, start, bytes, trace, problem FROM items ORDER BY number")

    def _with(self, rows: Iterable[tuple[Any, ...]]) -> Self:
        """The same tables with other items."""
        items = _write_items(self._items.path.parent, rows)
        return type(self)(self.problems, self.traces, items, self._cut, self.labels)


JoinedTraces = Joined[ProblemTrace]
LabelledTraces = Joined[LabelledTrace]


def join_traces(
    problems: RecordTable[Problem], traces: RecordTable[Trace], cut: Cut
) -> tuple[JoinedTraces, LeftOut]:
    """Traces with their problems, and which traces were left out. ``cut`` cuts traces without steps."""
    left_out = LeftOut()
    items = _write_items(traces.lookup.path.parent, _usable(problems, traces, cut, left_out))
    return Joined(problems, traces, items, cut), left_out


def _usable(
    problems: RecordTable[Problem], traces: RecordTable[Trace], cut: Cut, left_out: LeftOut
) -> Iterator[tuple[Any, ...]]:
    with closing(sqlite3.connect(uri_of(traces.lookup.path), uri=True)) as database:
        database.execute("ATTACH ? AS problems", (uri_of(problems.lookup.path),))
        rows = database.execute(
            "SELECT number, start, bytes, key, parent, size, "
            "EXISTS (SELECT 1 FROM problems.places AS problem WHERE problem.key = trace.parent) "
            "FROM main.places AS trace ORDER BY number"
        )
        for first, start, size_bytes, key, parent, steps, has_problem in rows:
            if not has_problem:
                left_out.orphans += 1
                left_out.first_orphan = left_out.first_orphan or (key, parent)
                continue
            if not steps:
                [trace] = traces.read([(start, size_bytes)])
                steps = len(cut(trace).steps)
                if not steps:
                    left_out.stepless += 1
                    left_out.first_stepless = left_out.first_stepless or key
                    continue
                left_out.cut += 1
                left_out.new_steps += steps
            yield first, start, size_bytes, key, parent


def _write_items(folder: Path, rows: Iterable[tuple[Any, ...]]) -> Index:
    handle, name = mkstemp(suffix=".items", dir=folder)
    os.close(handle)
    with closing(sqlite3.connect(name)) as database:
        set_for_writing(database)
        database.execute(
            "CREATE TABLE items (number INTEGER PRIMARY KEY, first INTEGER, start INTEGER, bytes INTEGER, "
            "trace TEXT, problem TEXT)"
        )
        numbered = ((number, *row) for number, row in enumerate(rows))
        database.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", numbered)
        database.execute("CREATE INDEX by_trace ON items (trace)")
        database.commit()
    return Index(Path(name))
