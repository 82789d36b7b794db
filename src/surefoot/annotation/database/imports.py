"""Files into a project: JSON Lines or Parquet of the package's records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from surefoot.annotation.database._database import Database
from surefoot.annotation.database._records import Added
from surefoot.io.files import ReadReport, read_records
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What became of the files of one kind of record."""

    read: ReadReport
    """Lines: good ones, and bad ones with their reasons."""
    added: Added
    """Records made of the good lines."""


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What an import did. Done twice, the second adds nothing."""

    problems: Imported
    traces: Imported
    scores: Imported
    labels: Imported

    @property
    def complete(self) -> bool:
        """Whether nothing was left out: no bad line, no record refused."""
        parts = (self.problems, self.traces, self.scores, self.labels)
        return not any(part.read.bad_count or part.added.refused for part in parts)


def import_files(
    database: Database,
    project_id: int,
    *,
    problems: Sequence[Path | str] = (),
    traces: Sequence[Path | str] = (),
    scores: Sequence[Path | str] = (),
    labels: Sequence[Path | str] = (),
) -> ImportReport:
    """Read files into a project, problems first; bad lines and refused records are counted and skipped.

    The paths are opened as they are: a server must choose them itself, never from a name that was sent.
    Raises ``RecordError`` for a file that cannot be read at all, ``NotFoundError`` for the project.
    """
    store, labelled = database.traces, database.labels
    return ImportReport(
        problems=_read(project_id, problems, Problem, store.add_problems),
        traces=_read(project_id, traces, Trace, store.add_traces),
        scores=_read(project_id, scores, StepScores, store.add_scores),
        labels=_read(project_id, labels, StepLabel, labelled.import_labels),
    )


def _read(
    project_id: int,
    paths: Sequence[Path | str],
    kind: type[R],
    add: Callable[[int, Iterable[R]], Added],
) -> Imported:
    report, added = ReadReport(), Added()
    for path in paths:
        added += add(project_id, read_records(path, kind, report=report))
    return Imported(read=report, added=added)
