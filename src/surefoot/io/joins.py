"""Traces with their problems and labels, joined on disk: sequences that are read as they are used."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Generic, Self, TypeVar

from surefoot.io.tables import Index, OnDisk, Place, RecordTable, uri_of
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, StepLabel, Trace, content_id

T = TypeVar("T", ProblemTrace, LabelledTrace)

Cut = Callable[[Trace], Trace]
"""Cuts a trace into steps."""

_PROBLEMS_KEPT = 256
"""Problems that stay in memory: traces of one problem mostly lie together."""
_ROWS_AT_ONCE = 4096


@dataclass
class LeftOut:
    """Traces that a join leaves out, each kind with its first, and those that were cut."""

    orphans: int = 0
    """Traces whose problem is not there."""
    first_orphan: tuple[str, str] | None = None
    """Its id and that of its problem."""
    stepless: int = 0
    """Traces that have no text to cut into steps."""
    first_stepless: str | None = None
    cut: int = 0
    """Traces that had no steps and were cut, into ``new_steps``."""
    new_steps: int = 0


class Joined(OnDisk[T], Generic[T]):
    """Traces of a table, each with what belongs to it. Slices are lists; it can be pickled as a table can."""

    def __init__(
        self, problems: RecordTable[Problem], traces: RecordTable[Trace], items: Index, cut: Cut
    ) -> None:
        self.problems, self.traces = problems, traces
        self._items, self._cut = items, cut
        [(self._count,)] = items.query("SELECT count(*) FROM items")
        self._problem = lru_cache(_PROBLEMS_KEPT)(self._find_problem)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_problem"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._problem = lru_cache(_PROBLEMS_KEPT)(self._find_problem)

    def __len__(self) -> int:
        return int(self._count)

    def between(self, start: int, stop: int) -> Iterator[T]:
        """Items ``start … stop - 1``, read as they are asked for."""
        rows = self._items.query(
            "SELECT first, 1, start, bytes FROM items WHERE number >= ? AND number < ? ORDER BY number",
            (start, stop),
        )
        for _, [trace] in self.traces.read(map(Place._make, rows)):
            yield self._item(trace if trace.steps else self._cut(trace))

    @property
    def digest(self) -> str:
        """A hash of the files that the items come from, and of which of theirs these are."""
        chosen = hashlib.blake2b(digest_size=16)
        for (first,) in self._items.query("SELECT first FROM items ORDER BY number"):
            chosen.update(first.to_bytes(8, "little"))
        return content_id(self.problems.digest, self.traces.digest, chosen.hexdigest())

    def problem_ids(self) -> Iterator[str]:
        """The problem of each item, without reading the items."""
        return (problem for (problem,) in self._items.query("SELECT problem FROM items ORDER BY number"))

    def of_problems(self, keep: Callable[[str], bool]) -> Self:
        """The items of the problems for whose ids ``keep`` is true; no item is read."""
        rows = self._items.query("SELECT first, start, bytes, trace, problem FROM items ORDER BY number")
        kept = (row for row in rows if keep(row[-1]))
        return self._of(_write_items(self._items.path.parent, kept))

    def where(self, keep: Callable[[T], bool]) -> Self:
        """The items for which ``keep`` is true, in one pass over all."""
        rows = self._items.query("SELECT first, start, bytes, trace, problem FROM items ORDER BY number")
        kept = (row for row, item in zip(rows, self, strict=True) if keep(item))
        return self._of(_write_items(self._items.path.parent, kept))

    def _of(self, items: Index) -> Self:
        return type(self)(self.problems, self.traces, items, self._cut)

    def _item(self, trace: Trace) -> T:
        raise NotImplementedError

    def _find_problem(self, key: str) -> Problem:
        return self.problems.find(key)[-1]


class JoinedTraces(Joined[ProblemTrace]):
    """Traces with their problems. Made by :func:`join_traces`."""

    def _item(self, trace: Trace) -> ProblemTrace:
        return ProblemTrace(problem=self._problem(trace.problem_id), trace=trace)

    def labelled(self, labels: RecordTable[StepLabel]) -> LabelledTraces:
        """The same traces with their labels; those without any have an empty tuple."""
        return LabelledTraces(self.problems, self.traces, self._items, self._cut, labels)


class LabelledTraces(Joined[LabelledTrace]):
    """Traces with their problems and labels. Made by :meth:`JoinedTraces.labelled`."""

    def __init__(
        self,
        problems: RecordTable[Problem],
        traces: RecordTable[Trace],
        items: Index,
        cut: Cut,
        labels: RecordTable[StepLabel],
    ) -> None:
        super().__init__(problems, traces, items, cut)
        self.labels = labels

    @property
    def digest(self) -> str:
        """A hash of the files that the items come from."""
        return content_id(super().digest, self.labels.digest)

    @property
    def strays(self) -> int:
        """Labels that are of no trace here."""
        with closing(sqlite3.connect(uri_of(self._items.path), uri=True)) as database:
            database.execute("ATTACH ? AS labels", (uri_of(self.labels.lookup.path),))
            [(count,)] = database.execute(
                "SELECT coalesce(sum(count), 0) FROM labels.places "
                "WHERE key NOT IN (SELECT trace FROM main.items)"
            )
        return int(count)

    def _of(self, items: Index) -> Self:
        return type(self)(self.problems, self.traces, items, self._cut, self.labels)

    def _item(self, trace: Trace) -> LabelledTrace:
        labels = tuple(self.labels.find(trace.id))
        return LabelledTrace(problem=self._problem(trace.problem_id), trace=trace, labels=labels)


def join_traces(
    problems: RecordTable[Problem], traces: RecordTable[Trace], cut: Cut
) -> tuple[JoinedTraces, LeftOut]:
    """Traces with their problems, those without steps cut by ``cut``; and what was left out."""
    left_out = LeftOut()
    items = _write_items(traces.lookup.path.parent, _usable(problems, traces, cut, left_out))
    return JoinedTraces(problems, traces, items, cut), left_out


def _usable(
    problems: RecordTable[Problem], traces: RecordTable[Trace], cut: Cut, left_out: LeftOut
) -> Iterator[tuple[Any, ...]]:
    with closing(sqlite3.connect(uri_of(traces.lookup.path), uri=True)) as database:
        database.execute("ATTACH ? AS problems", (uri_of(problems.lookup.path),))
        rows = database.execute(
            "SELECT first, start, bytes, key, parent, size, "
            "EXISTS (SELECT 1 FROM problems.places AS problem WHERE problem.key = trace.parent) "
            "FROM main.places AS trace ORDER BY first"
        )
        for first, start, size_bytes, key, parent, steps, known in rows:
            if not known:
                left_out.orphans += 1
                left_out.first_orphan = left_out.first_orphan or (key, parent)
                continue
            if not steps:
                [(_, [trace])] = traces.read([Place(first, 1, start, size_bytes)])
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
        for setting in ("journal_mode = OFF", "synchronous = OFF"):
            database.execute(f"PRAGMA {setting}")
        database.execute(
            "CREATE TABLE items (number INTEGER PRIMARY KEY, first INTEGER, start INTEGER, bytes INTEGER, "
            "trace TEXT, problem TEXT)"
        )
        waiting, number = iter(rows), 0
        while batch := list(islice(waiting, _ROWS_AT_ONCE)):
            database.executemany(
                "INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)",
                ((at, *row) for at, row in enumerate(batch, start=number)),
            )
            number += len(batch)
        database.execute("CREATE INDEX by_trace ON items (trace)")
        database.commit()
    return Index(Path(name))
