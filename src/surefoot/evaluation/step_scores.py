"""Step scores or labels under evaluation, aligned with the steps of traces.

A source is a checkpoint (its scores are stored and reused for the same model and traces), a file of
``StepScores``, or a file of ``StepLabel`` (e.g. of a judge).
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from surefoot.errors import RecordError, RunError, ScoreError
from surefoot.evaluation.columns import BoolArray, LabelFile, StepLayout, StepRows
from surefoot.evaluation.labels import LabelSet, label_sets
from surefoot.evaluation.measures import Measured
from surefoot.io.sources import names_files
from surefoot.io.tables import RecordTable, facts_of
from surefoot.labels import LabelRule
from surefoot.policies.devices import AS_SAVED, LOADING, Loading
from surefoot.protocols import ALL_CHANNELS, ProblemTrace
from surefoot.records import StepLabel, StepScores, Trace, Usage, content_id_of
from surefoot.scores import TraceRule, require_scores

Progress = Callable[[str, int, int], None]
"""Receives the name of a source, the number of scored traces and the total."""

_NONE: StepRows[Any] = StepRows(np.empty(0), StepLayout(()))
_PIECE = 32
"""Traces per shard, which is the work that a kill can lose."""
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class System:
    """One scorer or judge; rows are [traces][steps], ``None`` if unknown; 8 bytes per score."""

    name: str
    kind: Literal["scores", "labels"]
    recorded: BoolArray
    """[traces]: whether there is any record of the trace, with or without values."""
    counts: Measured
    """The ``records`` by use: of other traces or unknown steps (``foreign``); ``superseded`` by a later one
    of the trace (scores) or step (labels); steps with a record of an unknown value (``without_value``), for
    which the records give the reasons; invalid lines of the file (``skipped_lines``)."""
    usage: Usage
    """Costs as stated in the records."""
    scores: StepRows[float] = _NONE
    """Empty for labels."""
    good: StepRows[bool] = _NONE
    """Empty for scores."""
    values: StepRows[float] = _NONE
    """The labels' values, which distinguish neutral from good steps; empty for scores."""

    def summary(self) -> Measured:
        """Counts and costs of the system's records."""
        return Measured(
            name=self.name,
            kind=self.kind,
            counts=self.counts,
            traces_without_record=int((~self.recorded).sum()),
            usage=self.usage,
            policy_tokens=self.usage.prompt_tokens + self.usage.completion_tokens,
        )


def scored_system(name: str, records: Iterable[StepScores], traces: Sequence[Trace]) -> System:
    """Step scores aligned with ``traces`` by trace id; the last record of a trace counts.

    Records are streamed. Raises ``ScoreError`` if a record does not have one score per step (it is never
    truncated or padded), or if all records belong to other traces.
    """
    arrays = _ScoreArrays(StepLayout.of(traces))
    for record in records:
        arrays.add(record)
    return arrays.system(name)


class _ScoreArrays:
    def __init__(self, layout: StepLayout) -> None:
        self._layout = layout
        self.scores = np.full(layout.steps, math.nan)
        self.recorded: BoolArray = np.zeros(layout.traces, dtype=bool)
        self._usage = np.zeros((layout.traces, len(Usage.model_fields)), dtype=np.int64)
        self._records = self._foreign = self._superseded = 0
        self._first = ""
        self._misfits: dict[int, StepScores] = {}

    def add(self, record: StepScores) -> int | None:
        """The number of the record's trace, if it is known."""
        self._first = self._first if self._records else record.trace_id
        self._records += 1
        number = self._layout.numbers.get(record.trace_id)
        if number is None:
            self._foreign += 1
            return None
        start, stop = self._layout.span(number)
        self._superseded += int(self.recorded[number])
        self.recorded[number] = True
        self._misfits.pop(number, None)
        if len(record.scores) != stop - start:
            self._misfits[number] = record
            return number
        self.scores[start:stop] = [math.nan if score is None else score for score in record.scores]
        self._usage[number] = tuple(vars(record.usage).values())
        return number

    def check_steps(self) -> None:
        """Raise ``ScoreError`` if a trace's latest record has another number of steps."""
        for number, record in sorted(self._misfits.items()):
            require_scores(record, record.trace_id, int(self._layout.lengths[number]))

    def system(self, name: str) -> System:
        """The result. Raises ``ScoreError`` if all records belong to other traces."""
        if not self.recorded.any():
            raise ScoreError(
                f"{name}: none of its {self._records} records is of the data's traces, by 'trace_id'"
                f"{f' (first {self._first})' if self._records else ''}; give the scores of these traces"
            )
        self.check_steps()
        for first, later in self._layout.repeated:
            start, stop = self._layout.span(first)
            self.scores[slice(*self._layout.span(later))] = self.scores[start:stop]
            self.recorded[later] = self.recorded[first]
        unscored = np.isnan(self.scores) & self._layout.of_step(self.recorded)
        spent = dict(zip(Usage.model_fields, self._usage.sum(axis=0).tolist(), strict=True))
        return System(
            name=name,
            kind="scores",
            scores=StepRows(self.scores, self._layout),
            recorded=self.recorded,
            counts=Measured(
                records=self._records,
                foreign=self._foreign,
                superseded=self._superseded,
                without_value=int(unscored.sum()),
                skipped_lines=0,
            ),
            usage=Usage(**spent),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceScores:
    """Step scores of one scorer, or labels as scores in [0, 1], aligned with the traces of a file."""

    scorer: str
    rule: TraceRule
    """How the scores of a trace become one number: ``verdicts`` if all are verdicts, else ``min``."""
    rows: StepRows[float]
    recorded: BoolArray
    """[traces]"""
    refuted: BoolArray
    """[traces]: whether a check found a step wrong."""
    first: str
    """What its first record is, to say if no trace is scored."""
    lowest: float = 0.0
    highest: float = 1.0
    """The range of the scores, [0, 1] at least."""
    repeated: bool = False
    """Whether a scorer has several records of one trace; the last one counts."""

    def of(self, number: int) -> list[float | None] | None:
        """The scores of a trace; ``None`` without a record of it."""
        return self.rows[number] if self.recorded[number] else None


def trace_scores(records: Iterable[StepScores], layout: StepLayout) -> TraceScores:
    """Raises ``ScoreError`` for several scorers, and for scores that do not fit their trace's steps."""
    arrays, refuted = _ScoreArrays(layout), np.zeros(layout.traces, dtype=bool)
    scorers, are_verdicts, keys, first = dict[str, None](), set[bool](), array("q"), ""
    low, high = 0.0, 1.0
    for record in records:
        if not first and all(score is None for score in record.scores):
            first = f"no trace has a score; first, {record.trace_id}: {record.unscored_reason}"
        first = first or f"no score is of these traces; its first 'trace_id' is {record.trace_id!r}"
        number = arrays.add(record)
        if number is not None:
            refuted[number] = record.refuted()
        keys.append(hash((record.trace_id, record.scorer)))
        scorers[record.scorer] = None
        if scored := [score for score in record.scores if score is not None]:
            are_verdicts.add(record.are_verdicts)
            low, high = min(low, *scored), max(high, *scored)
    arrays.check_steps()
    return TraceScores(
        scorer=_only(scorers),
        rule="verdicts" if are_verdicts == {True} else "min",
        rows=StepRows(arrays.scores, layout),
        recorded=arrays.recorded,
        refuted=refuted,
        first=first,
        lowest=low,
        highest=high,
        repeated=len(np.unique(keys)) < len(keys),
    )


def label_scores(labels: LabelFile, layout: StepLayout) -> TraceScores:
    """Labels as scores: correctness +1 is 1, 0 is ½ and -1 is 0, a value itself, an advantage A (1 + A) / 2.

    Of a step's labels the lowest counts. Raises ``ScoreError`` for labels of several sources.
    """
    scores, recorded = np.full(layout.steps, math.nan), np.zeros(layout.traces, dtype=bool)
    sources, kinds, first = dict[str, None](), set[str](), ""
    for part in labels:
        first = first or f"no label has a value of these traces; the first is of trace {part.trace_ids[0]!r}"
        sources |= dict.fromkeys(part.sources)
        kinds |= set(part.kinds)
        positions, numbers = layout.positions(part.trace_ids, part.steps)
        recorded[numbers[numbers >= 0]] = True
        values = np.where(part.are("value"), part.values, (1 + part.values) / 2)
        np.fmin.at(scores, positions[positions >= 0], values[positions >= 0])
    return TraceScores(
        scorer=_only(sources),
        rule="verdicts" if kinds == {"correctness"} else "min",
        rows=StepRows(scores, layout),
        recorded=recorded,
        refuted=np.zeros(layout.traces, dtype=bool),
        first=first,
    )


def _only(scorers: Iterable[str]) -> str:
    names = sorted(scorers)
    if len(names) > 1:
        raise ScoreError(f"scores of {len(names)} scorers ({', '.join(names[:3])}); give one's")
    return next(iter(names), "labels")


def labelled_system(
    name: str, labels: Iterable[StepLabel], traces: Sequence[Trace], reading: LabelRule | None = None
) -> System:
    """Labels of all raters as one system; ``reading`` defines which are good. Raises as ``label_set``."""
    return _of_label_set(label_sets(name, labels, StepLayout.of(traces), reading)[0])


def _of_label_set(labels: LabelSet) -> System:
    recorded = labels.mentioned.copy()
    for first, later in labels.layout.repeated:
        recorded[later] = recorded[first]
    return System(
        name=labels.name,
        kind="labels",
        good=labels.good,
        values=StepRows(labels.values, labels.layout),
        recorded=recorded,
        counts=Measured(
            records=labels.counts.labels,
            foreign=labels.counts.unknown_traces + labels.counts.unknown_steps,
            superseded=labels.counts.superseded,
            without_value=sum(labels.counts.unread.values()),
            skipped_lines=0,
        ),
        usage=Usage(
            completion_tokens=labels.cost.policy_tokens,
            verifier_tokens=labels.cost.verifier_tokens,
            calls=labels.cost.calls,
        ),
    )


def open_systems(
    sources: Mapping[str, str],
    items: Sequence[ProblemTrace],
    store: Path,
    *,
    layout: StepLayout | None = None,
    reading: LabelRule | None = None,
    loading: Loading = LOADING,
    images: Path | None = None,
    progress: Progress = lambda *_: None,
) -> list[System]:
    """One system per source, in order; a file with several scorers gives one each, ``name/scorer``, and so do
    labels of the same steps by several raters.

    ``layout`` has the steps of the traces, if ``items`` lacks traces without text. A source that is a file, a
    pattern or a storage URL contains records; any other is a checkpoint for ``load_prm`` (with ``images``),
    whose scores are stored in ``store/NAME`` shard by shard. Raises ``RunError`` if this folder contains
    scores of another model or of other traces, ``RecordError`` for a file without usable records, and
    whatever loading or scoring raises.
    """
    systems: list[System] = []
    layout = layout or StepLayout(facts_of(item.trace) for item in items)
    for name, path in sources.items():
        if names_files(path):
            systems += _stored(name, path, layout, reading)
        else:
            records = score_once(name, path, items, store, loading=loading, images=images, progress=progress)
            systems += _of_scores(name, records, layout)
    return systems


def score_once(
    name: str,
    checkpoint: str,
    items: Sequence[ProblemTrace],
    store: Path,
    *,
    loading: Loading = LOADING,
    images: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Iterator[StepScores]:
    """Scores of ``items`` by ``checkpoint``, as a stream.

    Scores in ``store/NAME`` are reused, so a killed run resumes. The model is not loaded if all scores are
    stored. Raises ``RunError`` if the folder belongs to another model or other items, or for a ``name`` that
    cannot be a folder name.
    """
    from surefoot.io import Run
    from surefoot.models.card import CALIBRATION
    from surefoot.models.loading import identifying_files, load_prm

    if not _FOLDER_NAME.fullmatch(name):
        raise RunError(
            f"{name!r} cannot name a folder; give NAME=CHECKPOINT with letters, digits, '.', '_', '-'"
        )
    config = {"model": checkpoint, "items": content_id_of(items)}
    config |= {} if loading.dtype == AS_SAVED else {"dtype": loading.dtype}
    files = identifying_files(checkpoint)
    files.pop(CALIBRATION, None)  # stored scores are not calibrated
    with Run.open(store / name, command="score", config=config, inputs=files) as run:
        journal = run.journal("scores", StepScores)
        if missing := journal.missing(math.ceil(len(items) / _PIECE)):
            scorer = load_prm(checkpoint, loading=loading, images=images)
            for number in missing:
                start = number * _PIECE
                progress(name, start, len(items))
                journal.write(number, scorer.score_traces(items[start : start + _PIECE]))
            progress(name, len(items), len(items))
        yield from journal.read()


def recorded_by_all(systems: Sequence[System]) -> list[int]:
    """Indices of the traces with a record of every system. Raises ``ScoreError`` if there are none."""
    common: list[int] = np.flatnonzero(np.all([system.recorded for system in systems], axis=0)).tolist()
    if not common:
        counts = ", ".join(f"{system.name} {int(system.recorded.sum())}" for system in systems)
        raise ScoreError(
            f"no trace has a record of every source ({counts}); evaluate them separately, or count traces "
            "without a record as wrong"
        )
    return common


class StoredScores:
    """Step scores of one scorer: a stream of records, and a :class:`surefoot.protocols.StepScorer`.

    A table stays on disk. If ``records`` have several scorers, only the records of ``scorer`` are used.
    """

    reads = ALL_CHANNELS

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


def _stored(name: str, path: str, layout: StepLayout, reading: LabelRule | None) -> list[System]:
    from surefoot.io import ReadReport, read_records

    for kind in (StepScores, StepLabel):
        report = ReadReport()
        records: Iterator[Any] = read_records(path, kind, report=report)
        if (first := next(records, None)) is None:
            continue
        records = chain([first], records)
        if kind is StepScores:
            systems = _of_scores(name, records, layout)
        else:
            systems = [*map(_of_label_set, label_sets(name, records, layout, reading, by_rater=None))]
        for system in systems:
            system.counts["skipped_lines"] = report.bad_count
        return systems
    raise RecordError(f"{path}: no StepScores and no StepLabel; see docs/reference/formats.md")


def _of_scores(name: str, records: Iterable[StepScores], layout: StepLayout) -> list[System]:
    """One system for each scorer of the records."""
    scorers: dict[str, _ScoreArrays] = {}
    for record in records:
        if record.scorer not in scorers:
            scorers[record.scorer] = _ScoreArrays(layout)
        scorers[record.scorer].add(record)
    alone = len(scorers) == 1
    return [arrays.system(name if alone else f"{name}/{scorer}") for scorer, arrays in scorers.items()]
