"""A project's records as one file: in a foreign format, as Parquet, or as an archive of all of them."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from surefoot.annotation.database import Database
from surefoot.formats import WRITERS
from surefoot.io import write_records
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace

EXPORTS: Mapping[str, str] = MappingProxyType(
    {
        "prm800k.jsonl": "PRM800K as published, one record a labelled solution",
        "prm800k-steps.jsonl": "PRM800K as step rows, one a label",
        "label-studio.json": "Label Studio tasks with annotations and predictions",
        "records-jsonl.zip": "Problems, traces, labels and scores as JSON Lines",
        "records-parquet.zip": "Problems, traces, labels and scores as Parquet",
        "problems.parquet": "Problems as Parquet",
        "traces.parquet": "Traces as Parquet",
        "labels.parquet": "Labels as Parquet",
        "scores.parquet": "Step scores as Parquet",
    }
)
"""What can be had, by file name. Labels of control and screening items are left out."""

_KINDS: Mapping[str, type[Record]] = MappingProxyType(
    {"problems": Problem, "traces": Trace, "labels": StepLabel, "scores": StepScores}
)


def write_export(db: Database, project_id: int, name: str, path: Path) -> str:
    """Write the export called ``name`` to ``path``; what was written and what was dropped, in a sentence."""
    stem = name.partition(".")[0]
    if stem in WRITERS:
        return WRITERS[stem](_labelled(db, project_id), path).summary()
    if stem in _KINDS:
        written = write_records(path, _records(db, project_id, stem), record=_KINDS[stem])
        return f"{written} {stem} written"
    ending = ".parquet" if "parquet" in name else ".jsonl"
    return _archive(db, project_id, ending, path)


def _archive(db: Database, project_id: int, ending: str, path: Path) -> str:
    counts = {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for kind, record in _KINDS.items():
            part = path.with_name(f"{kind}{ending}")
            counts[kind] = write_records(part, _records(db, project_id, kind), record=record)
            archive.write(part, part.name)
            part.unlink()
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) + " written"


def _records(db: Database, project_id: int, kind: str) -> Iterable[Record]:
    readers: dict[str, Callable[[int], Iterable[Record]]] = {
        "problems": db.export.problems,
        "traces": db.export.traces,
        "labels": db.export.labels,
        "scores": db.export.scores,
    }
    return readers[kind](project_id)


def _labelled(db: Database, project_id: int) -> Iterator[LabelledTrace]:
    """Every trace with its labels. Problems and labels are held in memory, traces are not."""
    problems = {problem.id: problem for problem in db.export.problems(project_id)}
    labels: dict[str, list[StepLabel]] = defaultdict(list)
    for label in db.export.labels(project_id):
        labels[label.trace_id].append(label)
    for trace in db.export.traces(project_id):
        yield LabelledTrace(
            problem=problems[trace.problem_id], trace=trace, labels=tuple(labels.get(trace.id, ()))
        )
