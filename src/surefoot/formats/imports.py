"""One's own traces by the format that their content shows, and back with labels and scores."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats import (
    atif,
    batch_output,
    inspect_log,
    openhands,
    otel_spans,
    own_rows,
    swe_agent,
    tau_bench,
)
from surefoot.formats._imports import IMPORT_KEY, ImportContext, ImportedTrace, ImportSettings, raw_rows
from surefoot.formats._results import TraceResults
from surefoot.io.sources import files_of
from surefoot.io.tables import Seen

IMPORTS: Mapping[str, Callable[[Path | str, ImportContext], Iterator[ImportedTrace]]] = MappingProxyType(
    {
        own_rows.NAME: own_rows.read_own_rows,
        inspect_log.NAME: inspect_log.read_inspect_log,
        otel_spans.NAME: otel_spans.read_otel_spans,
        atif.NAME: atif.read_atif,
        batch_output.NAME: batch_output.read_batch_output,
        tau_bench.TAU: tau_bench.read_tau_bench,
        tau_bench.TAU2: tau_bench.read_tau2,
        swe_agent.NAME: swe_agent.read_swe_agent,
        openhands.NAME: openhands.read_openhands,
    }
)
"""Readers by the name of their format."""

EXPORTS: Mapping[str, Callable[[Path, Path, Mapping[str, TraceResults]], int]] = MappingProxyType(
    {
        own_rows.NAME: own_rows.write_own_rows,
        inspect_log.NAME: inspect_log.write_inspect_log,
        otel_spans.NAME: otel_spans.write_otel_events,
        atif.NAME: atif.write_atif,
        batch_output.NAME: batch_output.write_batch_output,
        tau_bench.TAU: own_rows.write_own_rows,
        tau_bench.TAU2: tau_bench.write_tau2,
        swe_agent.NAME: swe_agent.write_swe_agent,
        openhands.NAME: openhands.write_openhands,
    }
)
"""Writers by the name of their format; each takes the original, the new file, and results by their place."""

RECORDS = "records"
"""What ``detect_format`` calls a file of this package's own, which needs no import."""

_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
_OWN_ENDINGS: Mapping[str, tuple[str, ...]] = {
    inspect_log.NAME: (".eval", ".json"),
    swe_agent.NAME: (".traj", *_ENDINGS),
}

_PLACES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    own_rows.NAME: lambda note: f"{note['row']}/{note.get('sample', 0)}",
    inspect_log.NAME: lambda note: note["sample"],
    otel_spans.NAME: lambda note: note["conversation"],
    atif.NAME: lambda note: note["trajectory"],
    batch_output.NAME: lambda note: f"{note['row']}/{note['choice']}",
    tau_bench.TAU: lambda note: str(note["row"]),
    tau_bench.TAU2: lambda note: str(note["simulation"]),
    swe_agent.NAME: lambda note: note["run"],
    openhands.NAME: lambda note: note["run"],
}


def detect_format(path: Path | str, settings: ImportSettings | None = None) -> str:
    """The name in ``IMPORTS`` of the format of ``path``, or ``RECORDS``, by its content alone.

    Of several files (see :func:`import_traces`) the first decides. Raises ``RecordError`` for a file that
    cannot be opened, is empty, or is an archive of no known kind.
    """
    path = _files(path)[0]
    if Path(path).is_file() and zipfile.is_zipfile(path):
        with inspect_log.open_archive(Path(path)) as archive:
            if any(name.startswith(("samples/", "header.json", "_journal/")) for name in archive.namelist()):
                return inspect_log.NAME
        raise RecordError(f"{path}: a zip archive that is no Inspect log; unpack it and import what is in it")
    if Path(path).suffix == ".eval" and Path(path).is_file():
        raise RecordError(f"{path}: not a zip archive, so no whole Inspect log; fetch it again")
    _, row = next(raw_rows(path, settings), (0, None))
    if row is None:
        raise RecordError(f"{path}: empty; give a file with at least one row")
    return _format_of(row) if isinstance(row, Mapping) else own_rows.NAME


def _format_of(row: Mapping[str, Any]) -> str:
    if isinstance(row.get("schema_version"), int) and "id" in row:
        return RECORDS
    if "eval" in row and ("samples" in row or "plan" in row):
        return inspect_log.NAME
    if str(row.get("schema_version", "")).startswith("ATIF") or ("agent" in row and _has_turns(row)):
        return atif.NAME
    if tau_bench.is_tau_bench(row):
        return tau_bench.TAU
    if tau_bench.is_tau2(row):
        return tau_bench.TAU2
    if swe_agent.is_swe_agent(row):
        return swe_agent.NAME
    if openhands.is_openhands(row):
        return openhands.NAME
    spans = {"resourceSpans", "resource_spans"} & row.keys()
    if spans or ("attributes" in row and {"context", "traceId", "trace_id", "span_id"} & row.keys()):
        return otel_spans.NAME
    if any(name.startswith("attributes.") for name in row):
        return otel_spans.NAME
    body = ("choices" in row and "usage" in row) or row.get("object") in ("response", "chat.completion")
    if body or ("custom_id" in row and ("response" in row or "error" in row)):
        return batch_output.NAME
    return own_rows.NAME


def _has_turns(row: Mapping[str, Any]) -> bool:
    steps = row.get("steps")
    return isinstance(steps, list) and bool(steps) and isinstance(steps[0], Mapping) and "source" in steps[0]


def import_traces(path: Path | str, name: str, context: ImportContext) -> Iterator[ImportedTrace]:
    """The traces of ``path``, read as format ``name``; two of the same id get numbers.

    A text may also be a pattern or a URL, see :func:`surefoot.io.sources.files_of`, or the name or folder of
    a data set.

    Rows that hold no trace are counted in ``context.report``. Raises ``RecordError`` for a name that is not
    in ``IMPORTS`` and a file that cannot be read at all.
    """
    if name == RECORDS:
        raise RecordError(
            f"{path} holds records of this package already: give it to the commands as it is, or to surefoot "
            "segment to cut its traces again"
        )
    if name not in IMPORTS:
        raise RecordError(f"no format is called '{name}'; choose one of {', '.join(IMPORTS)}")
    with closing(Seen()) as seen:
        for one in _read(path, name, context):
            if one.trace is not None and (again := seen.times(one.trace.id)):
                update = {"id": f"{one.trace.id}-{again}", "sample": max(one.trace.sample, again)}
                yield ImportedTrace(problem=one.problem, trace=one.trace.model_copy(update=update))
            else:
                yield one


def _read(path: Path | str, name: str, context: ImportContext) -> Iterator[ImportedTrace]:
    for file in _files(path):
        context.report.opened(str(file))
        yield from IMPORTS[name](file, context)


def _files(path: Path | str) -> Sequence[Path | str]:
    """The files of ``path``; a folder is that of one data set, as the ``datasets`` library writes it."""
    return [path] if Path(path).is_dir() else files_of(path)


def export_results(original: Path, path: Path, results: Iterable[TraceResults]) -> tuple[str, int]:
    """Write labels and scores back beside the traces of ``original``; returns format and traces written.

    Raises ``RecordError`` for traces that were not imported, or from files of several formats, and for a
    ``path`` of another ending than the format's.
    """
    by_format: dict[str, dict[str, TraceResults]] = {}
    for found in results:
        note = found.trace.meta.get(IMPORT_KEY)
        if not isinstance(note, Mapping) or note.get("format") not in EXPORTS:
            raise RecordError(
                f"trace {found.trace.id} was not made by surefoot import, so its place in {original} is "
                "not known"
            )
        by_format.setdefault(note["format"], {})[_PLACES[note["format"]](note)] = found
    if not by_format:
        raise RecordError("no trace has a label or a score; give the files that were made of these traces")
    if len(by_format) > 1:
        raise RecordError(f"the traces come from files of {', '.join(by_format)}; give those of one file")
    [(name, placed)] = by_format.items()
    endings = _OWN_ENDINGS.get(name, _ENDINGS)
    if not path.name.endswith(endings):
        raise RecordError(f"{path}: {name} is written as {', '.join(endings)}; let the name end so")
    return name, EXPORTS[name](original, path, placed)
