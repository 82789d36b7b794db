"""What is under evaluation, laid beside the steps of traces: step scores or labels, stored or made here.

A source is a checkpoint (its scores are kept, and used again where model and traces are the same), a file of
``StepScores``, a file of ``StepLabel`` (a judge's, say), or a file of published scores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from surefoot.errors import RecordError, RunError, ScoreError
from surefoot.evaluation.label_sets import label_set
from surefoot.labels import LabelRule
from surefoot.policies.devices import AS_SAVED, LOADING, Loading
from surefoot.protocols import ProblemTrace
from surefoot.records import Record, StepLabel, StepScores, Trace, Usage, content_id
from surefoot.scores import require_fit

R = TypeVar("R", bound=Record)

Progress = Callable[[str, int, int], None]
"""Told the name of a source, traces scored and traces in all."""

_PIECE = 32
"""Traces scored between two stores: what a kill can cost."""
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class RecordCounts:
    """Every record of a source accounted for."""

    records: int
    foreign: int
    """Records of traces, or of steps, that are not among those evaluated."""
    superseded: int
    """Records of a trace (scores) or step (labels) that has a later one; the last counts."""
    without_value: int
    """Steps with a record that says "unknown"; their reasons are in the records."""
    skipped_lines: int = 0
    """Lines of the file that hold no valid record."""


@dataclass(frozen=True, kw_only=True)
class System:
    """One scorer or judge; lists are [traces][steps], ``None`` where nothing is known."""

    name: str
    kind: Literal["scores", "labels"]
    scores: list[list[float | None]]
    """Of a system that scores; empty for labels."""
    good: list[list[bool | None]]
    """Of a system that labels; empty for scores."""
    recorded: list[bool]
    """Whether there is any record of the trace, be it one without values."""
    counts: RecordCounts
    usage: Usage
    """What the records say they cost; nothing where they do not say."""

    def summary(self) -> SystemCounts:
        """The system without its scores and labels."""
        return SystemCounts(
            name=self.name,
            kind=self.kind,
            counts=self.counts,
            traces_without_record=self.recorded.count(False),
            usage=self.usage,
        )


@dataclass(frozen=True, kw_only=True)
class SystemCounts:
    """What a system's records are, and what they cost."""

    name: str
    kind: Literal["scores", "labels"]
    counts: RecordCounts
    traces_without_record: int
    usage: Usage


def scored_system(name: str, records: Sequence[StepScores], traces: Sequence[Trace]) -> System:
    """Step scores beside the steps of ``traces``, joined by trace id; of two records the last counts.

    Raises ``ScoreError`` if a record does not have one score per step (it is never cut or filled up), or if
    no record is of one of the traces.
    """
    of_trace = {record.trace_id: record for record in records}
    known = [of_trace.get(trace.id) for trace in traces]
    if not any(known):
        raise ScoreError(
            f"{name}: none of its {len(records)} records is of the data's traces, by 'trace_id'"
            f"{f' (first {records[0].trace_id})' if records else ''}; give the scores of these traces"
        )
    for trace, record in zip(traces, known, strict=True):
        if record:
            require_fit(record, trace)
    ids = {trace.id for trace in traces}
    foreign = sum(record.trace_id not in ids for record in records)
    found = [record for record in known if record]
    return System(
        name=name,
        kind="scores",
        scores=[
            list(record.scores) if record else [None] * len(trace.steps)
            for trace, record in zip(traces, known, strict=True)
        ],
        good=[],
        recorded=[record is not None for record in known],
        counts=RecordCounts(
            records=len(records),
            foreign=foreign,
            superseded=len(records) - foreign - len(found),
            without_value=sum(record.scores.count(None) for record in found),
        ),
        usage=sum((record.usage for record in found), Usage()),
    )


def labelled_system(
    name: str, labels: Sequence[StepLabel], traces: Sequence[Trace], reading: LabelRule | None = None
) -> System:
    """Labels beside the steps of ``traces``; ``reading`` says which are good. Raises as ``label_set``."""
    found = label_set(name, labels, traces, reading)
    mentioned = {label.trace_id for label in labels}
    return System(
        name=name,
        kind="labels",
        scores=[],
        good=found.good,
        recorded=[trace.id in mentioned for trace in traces],
        counts=RecordCounts(
            records=found.counts.labels,
            foreign=found.counts.unknown_traces + found.counts.unknown_steps,
            superseded=found.counts.superseded,
            without_value=sum(found.counts.unread.values()),
        ),
        usage=Usage(
            completion_tokens=found.cost.policy_tokens,
            verifier_tokens=found.cost.verifier_tokens,
            calls=found.cost.calls,
        ),
    )


def open_systems(
    sources: Mapping[str, str],
    items: Sequence[ProblemTrace],
    store: Path,
    *,
    reading: LabelRule | None = None,
    loading: Loading = LOADING,
    progress: Progress = lambda *_: None,
) -> list[System]:
    """One system per source, in order; a file with scores of several scorers gives one each, ``name/scorer``.

    A source that is a file holds records; any other is a checkpoint for ``load_prm``, whose scores are kept
    in ``store/NAME`` piece by piece. Raises ``RunError`` if that folder holds scores of another model or of
    other traces, ``RecordError`` for a file without usable records, and whatever loading or scoring raises.
    """
    systems: list[System] = []
    traces = [item.trace for item in items]
    for name, path in sources.items():
        if Path(path).is_file():
            systems += _stored(name, Path(path), traces, reading)
        else:
            records = score_once(name, path, items, store, loading=loading, progress=progress)
            systems.append(scored_system(name, records, traces))
    return systems


def score_once(
    name: str,
    checkpoint: str,
    items: Sequence[ProblemTrace],
    store: Path,
    *,
    loading: Loading = LOADING,
    progress: Progress = lambda *_: None,
) -> list[StepScores]:
    """Scores of ``items`` by ``checkpoint``; what ``store/NAME`` has already is not scored again.

    A killed run resumes. The model is not loaded if all scores are stored. Raises ``RunError``
    if the folder belongs to another model or other items, or ``name`` cannot name a folder.
    """
    from surefoot.io import Run
    from surefoot.models.card import CALIBRATION
    from surefoot.models.loading import identifying_files, load_prm

    if not _FOLDER_NAME.fullmatch(name):
        raise RunError(
            f"{name!r} cannot name a folder; give NAME=CHECKPOINT with letters, digits, '.', '_', '-'"
        )
    pieces = [items[start : start + _PIECE] for start in range(0, len(items), _PIECE)]
    config = {"model": checkpoint, "items": content_id(*items)}
    if loading.dtype != AS_SAVED:
        config["dtype"] = loading.dtype
    files = identifying_files(checkpoint)
    files.pop(CALIBRATION, None)  # scores are the model's own: a map that is stored beside it changes none
    with Run.open(store / name, command="evaluate", config=config, inputs=files) as run:
        shards = run.shards("scores", StepScores)
        if missing := shards.missing(len(pieces)):
            scorer = load_prm(checkpoint, loading=loading)
            for number in missing:
                progress(name, number * _PIECE, len(items))
                shards.write(number, scorer.score_traces(pieces[number]))
            progress(name, len(items), len(items))
        return list(shards.read())


def recorded_by_all(systems: Sequence[System], among: Sequence[int] | None = None) -> list[int]:
    """Indices of the traces (``among`` these, or all) of which every system has a record.

    Raises ``ScoreError`` if there is none.
    """
    members = range(len(systems[0].recorded)) if among is None else among
    common = [t for t in members if all(system.recorded[t] for system in systems)]
    if not common:
        counts = ", ".join(f"{system.name} {sum(system.recorded[t] for t in members)}" for system in systems)
        raise ScoreError(
            f"no trace has a record of every source ({counts}); evaluate them separately, or count a trace "
            "without a record as wrong"
        )
    return common


def _stored(name: str, path: Path, traces: Sequence[Trace], reading: LabelRule | None) -> list[System]:
    from surefoot.formats.processbench import read_fover_scores
    from surefoot.io import ReadReport

    scores, skipped = _records(path, StepScores)
    if not scores:
        labels, skipped = _records(path, StepLabel)
        if labels:
            return [_with_skipped(labelled_system(name, labels, traces, reading), skipped)]
        report = ReadReport()
        scores, skipped = list(read_fover_scores(path, report=report)), report.bad_count
    if not scores:
        raise RecordError(
            f"{path}: no StepScores, no StepLabel and no published scores; see docs/reference/formats.md"
        )
    names = list(dict.fromkeys(record.scorer for record in scores))
    parts = {f"{name}/{scorer}": [r for r in scores if r.scorer == scorer] for scorer in names}
    if len(parts) == 1:
        parts = {name: scores}
    return [_with_skipped(scored_system(part, rows, traces), skipped) for part, rows in parts.items()]


def _records(path: Path, record: type[R]) -> tuple[list[R], int]:
    """Records of a file, none if it is of another kind, and the number of lines skipped."""
    from surefoot.io import ReadReport, read_records
    from surefoot.io.files import ENDINGS

    if not path.name.endswith(ENDINGS):
        return [], 0
    report = ReadReport()
    return list(read_records(path, record, report=report)), report.bad_count


def _with_skipped(system: System, lines: int) -> System:
    from dataclasses import replace

    return replace(system, counts=replace(system.counts, skipped_lines=lines))
