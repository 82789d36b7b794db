"""Stored step scores by scorer, as a stream or by trace, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from surefoot.io.tables import RecordTable
from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores


class StoredScores:
    """Step scores of one scorer: a stream of records, and a :class:`surefoot.protocols.StepScorer`.

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

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """One record per trace; a trace without stored scores is unscored, with a reason."""
        records = self.of([item.trace.id for item in items])
        scorer, reason = self._scorer or "stored", "no stored scores of this trace"
        return [
            records.get(item.trace.id) or StepScores.unscored(item.trace, scorer, reason) for item in items
        ]


def scorer_tables(name: str | None, records: Sequence[StepScores]) -> dict[str, StoredScores]:
    """Scores under ``name``, or ``name/scorer`` for several scorers; without ``name`` under ``scorer``."""
    scorers = list(dict.fromkeys(record.scorer for record in records))
    if name is not None and len(scorers) == 1:
        return {name: StoredScores(records)}
    prefix = "" if name is None else f"{name}/"
    return {f"{prefix}{scorer}": StoredScores(records, scorer) for scorer in scorers}
