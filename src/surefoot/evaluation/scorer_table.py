"""Stored step scores, by scorer: read one after another or looked up, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from surefoot.io.tables import RecordTable
from surefoot.records import StepScores


class ScorerTable:
    """Step scores of one scorer: read one after another, or looked up by trace.

    ``records`` of a table stay on disk. Where they are of several scorers, those of ``scorer`` count.
    """

    def __init__(self, records: Sequence[StepScores], scorer: str | None = None) -> None:
        self._records, self._scorer = records, scorer
        table = isinstance(records, RecordTable)
        self._known = {} if table else {record.trace_id: record for record in self}

    def __iter__(self) -> Iterator[StepScores]:
        return (record for record in self._records if self._scorer in (None, record.scorer))

    def of(self, trace_ids: Sequence[str]) -> dict[str, StepScores]:
        """The records of these traces by their ids; those that have none are left out."""
        if not isinstance(self._records, RecordTable):
            return {name: self._known[name] for name in trace_ids if name in self._known}
        found = self._records.find_many(trace_ids).items()
        own = {name: [one for one in some if self._scorer in (None, one.scorer)] for name, some in found}
        return {name: some[-1] for name, some in own.items() if some}


def scorer_tables(name: str | None, records: Sequence[StepScores]) -> dict[str, ScorerTable]:
    """Under ``name``, or ``name/scorer`` each if there are several; without ``name`` by the scorer's own."""
    scorers = list(dict.fromkeys(record.scorer for record in records))
    if name is not None and len(scorers) == 1:
        return {name: ScorerTable(records)}
    prefix = "" if name is None else f"{name}/"
    return {f"{prefix}{scorer}": ScorerTable(records, scorer) for scorer in scorers}
