"""Step scores of published verifiers on ProcessBench, from FoVer (arXiv 2505.15960)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import Field

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, expand_rows
from surefoot.io import ReadReport
from surefoot.labels import AFTER_FIRST_ERROR, NO_ERROR
from surefoot.records import StepScores

_MOST_STEPS: Final = 100_000
"""Bound on the steps that a row of scores may declare, since each step without a score becomes a ``None``."""


class _FoVerRow(FileRow):
    id: str
    n_steps: int = Field(ge=0, le=_MOST_STEPS)
    label: int
    scores: dict[str, list[float]]


def read_fover_scores(path: Path | str, *, report: ReadReport | None = None) -> Iterator[StepScores]:
    """One record per trace and verifier: ``trace_id`` is the id in ProcessBench, ``scorer`` the verifier.

    Steps after the first error were not scored and are ``None``. Raises ``RecordError`` for a bad row unless
    a ``report`` counts it: one with more scores than steps, or with fewer than there are up to the first
    error.
    """
    return expand_rows(path, _FoVerRow, lambda _, row: _fover_records(row), report)


def _fover_records(row: _FoVerRow) -> list[StepScores]:
    required = row.n_steps if row.label == NO_ERROR else row.label + 1
    for name, scores in row.scores.items():
        if not required <= len(scores) <= row.n_steps:
            raise RecordError(
                f"field 'scores.{name}': {len(scores)} scores for {row.n_steps} steps, "
                f"{required} of them up to the first error"
            )
    return [
        StepScores(
            trace_id=row.id,
            scorer=name,
            scores=(*scores, *[None] * (row.n_steps - len(scores))),
            unscored_reason=AFTER_FIRST_ERROR if len(scores) < row.n_steps else None,
        )
        for name, scores in row.scores.items()
    ]
