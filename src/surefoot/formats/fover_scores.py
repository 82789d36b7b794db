"""Step scores of published verifiers on ProcessBench, as FoVer gives them (arXiv 2505.15960), joined by id.

A row is one trace: its ``id`` in ProcessBench, its number of steps, and the scores of each verifier. Steps
after the first error were not scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surefoot.errors import RecordError
from surefoot.formats._rows import ReadReport, Row, read_rows
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.records import StepScores


class _Row(Row):
    id: str
    n_steps: int
    label: int
    scores: dict[str, list[float]]


def read_fover_scores(path: Path | str, *, report: ReadReport | None = None) -> Iterator[StepScores]:
    """One record a trace and verifier: ``trace_id`` is the id in ProcessBench, ``scorer`` the verifier.

    Every record has one score a step; those after the first error are ``None``. Raises ``RecordError`` for a
    bad row unless a ``report`` counts it: one with more scores than steps, or with fewer than there are up to
    the first error.
    """
    for records in read_rows(path, _Row, _records, report):
        yield from records


def _records(_: int, row: _Row) -> list[StepScores]:
    needed = row.n_steps if row.label < 0 else row.label + 1
    for name, scores in row.scores.items():
        if not needed <= len(scores) <= row.n_steps:
            raise RecordError(
                f"field 'scores.{name}': {len(scores)} scores for {row.n_steps} steps, "
                f"of which {needed} lie up to the first error"
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
