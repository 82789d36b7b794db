"""MATH-500 (the 500 test problems of Lightman et al., arXiv 2305.20050, from MATH, arXiv 2103.03874)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surefoot.formats._rows import ReadReport, Row, read_rows
from surefoot.records import Problem


class _Row(Row):
    problem: str
    answer: str
    solution: str | None = None
    level: str | int | None = None
    subject: str | None = None
    unique_id: str | None = None


def read_math500(path: Path | str, *, report: ReadReport | None = None) -> Iterator[Problem]:
    """Problems with answers; ``meta`` holds level, subject, unique_id and solution where the row has them.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    return read_rows(path, _Row, lambda _, row: _problem(row), report)


def _problem(row: _Row) -> Problem:
    meta = row.model_dump(include={"level", "subject", "unique_id", "solution"}, exclude_none=True)
    return Problem(text=row.problem, answer=row.answer, source="math500", meta=meta)
