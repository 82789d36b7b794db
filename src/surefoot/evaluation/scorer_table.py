"""Stored step scores by scorer, as a stream or by trace, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from surefoot.io.tables import RecordTable
from surefoot.records import StepScores


class ScorerTable:
    """Step scores of one scorer, as a stream or by trace.

    A table stays on disk. If ``records`` have several scorers, only the records of ``scorer`` are used.
    """

    def __init__(self, records: Sequence[StepScores], scorer: str | None = None) -> None:
        self._records, self._scorer = records, scorer
        table = isinstance(records, RecordTable)
        self._by_trace = {} if table else {record.trace_id: record for record in self}

    def __iter__(self) -> Iterator[StepScores]:
        return (record for record in self._records if self._scorer in (None, record.scorer))

    def of(self, trace_ids: Sequence[str]) -> dict[str, StepScores]:
        """The records of these traces by trace id; traces without a record are left out."""
        if not isinstance(self._records, RecordTable):
            return {name: self._by_trace[name] for name in trace_ids if name in self._by_trace}
        return {
            name: record
            for name, records in self._records.find_many(trace_ids).items()
            for record in records
            if self._scorer in (None, record.scorer)
        }


def scorer_tables(name: str | None, records: Sequence[StepScores]) -> dict[str, ScorerTable]:
    """Tables under ``name``, or ``name/scorer`` for several scorers; without ``name`` under ``scorer``."""
    scorers = list(dict.fromkeys(record.scorer for record in records))
    if name is not None and len(scorers) == 1:
        return {name: ScorerTable(records)}
    prefix = "" if name is None else f"{name}/"
    return {f"{prefix}{scorer}": ScorerTable(records, scorer) for scorer in scorers}
