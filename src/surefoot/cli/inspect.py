"""``surefoot inspect``: the contents of files, checked without a model."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from textwrap import fill
from typing import Annotated

from pydantic import Field

from surefoot import formats
from surefoot.answers import Grader
from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag, OptionGroup, command_line
from surefoot.cli.terminal import echo, note
from surefoot.errors import RunError, counted
from surefoot.evaluation.inspection import (
    CHECKS,
    Finding,
    Inspection,
    Readable,
    first_suspicious,
    inspect_traces,
)
from surefoot.evaluation.report import to_json
from surefoot.formats.rows import raw_rows
from surefoot.io import ReadReport, read_records, write_json
from surefoot.io.sources import files_of
from surefoot.labelling.verifiers.tool_calls import TOOL_RULES
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace
from surefoot.search.saved_tree import SavedTree, draw_text
from surefoot.segment import cut_trace

_SHOW_S = 5.0
"""Seconds between two lines of progress."""
_OFFERED = 10
"""Sessions that are listed without arguments."""
_TREES = 3
"""Trees that are drawn; :func:`surefoot.search.draw_text` draws others."""
_ARGUMENTS = 200
"""Characters of a tool's arguments in the terminal; the JSON file has all."""


class Inspect(Command):
    """Show what files contain, and which steps look wrong, without any model.

    The checks: calls that differ from the task's gold calls, calls that declared schemas do not allow or that
    are unlike all others of their tool, calls written as text, repeated calls, arguments and identifiers from
    nowhere, failures that an answer ignores, claims that no call supports, equations that do not hold, and
    empty or truncated answers. A finding is a verdict on its step, unless on some corpus with ten cases or
    more the check was right in less than 70 %: then it is advice. The ten most suspicious steps are shown
    with evidence; a run on which no check speaks is unchecked. See docs/results/agents.md. Of a file that
    `search --trees` wrote, the first trees are drawn.

    Example: `surefoot inspect results.json`

    Example: `surefoot inspect mine/problems.jsonl mine/traces.jsonl mine/labels.jsonl --out inspection.json`
    """

    files: Annotated[tuple[str, ...], Flag(argument=True, metavar="FILE")] = ()
    """Files in any format that `surefoot import` reads, records of this package, or a folder of runs; without
    any, the newest sessions of coding agents on this machine are listed."""
    reader: Annotated[str | None, Flag(name="--from")] = None
    """Name of the format; detected from the content by default."""
    columns: Annotated[formats.ImportSettings, OptionGroup(title="Columns")] = formats.ImportSettings()
    limit: int = Field(default=5000, ge=0)
    """Number of traces to inspect, the first ones; 0 = all."""
    out: Annotated[Path | None, Flag(short="-o", output=True)] = None
    """File for the whole result, `.json`."""

    def run(self) -> None:
        if self.out is not None and self.out.suffix != ".json":
            raise RunError(f"--out {self.out}: the ending must be .json; surefoot serve shows runs as pages")
        if not self.files:
            _offer_sessions()
            return
        names = {file: self.reader or formats.detect_format(file, self.columns) for file in self.files}
        for file in [file for file, name in names.items() if name == formats.RECORDS and _holds_trees(file)]:
            for tree in islice(read_records(file, SavedTree), _TREES):
                echo(draw_text(tree))
            del names[file]
        if not names:
            return
        for file, name in names.items():
            echo(f"{file} is read as {name}")
        say = note if formats.FOLDER in names.values() else lambda _: None
        context = formats.ImportContext(settings=self.columns, report=ReadReport(), failed=[], say=say)
        shown_s, traces, first = time.monotonic(), 0, list[Finding]()

        def show(_: ProblemTrace, findings: Sequence[Finding]) -> None:
            """Where the work takes long, show the first verdict and how far the work is."""
            nonlocal shown_s, traces, first
            traces, first = traces + 1, first or first_suspicious(findings)
            if time.monotonic() > shown_s + _SHOW_S:
                shown_s = time.monotonic()
                verdict = f"; {_place(first[0])}: {first[0].check}: {first[0].reason}" if first else ""
                note(f"{counted(traces, 'trace')} so far{verdict}")

        with o.GradingSettings().open() as grader:
            inspection = inspect_traces(_read(names, context, grader), limit=self.limit, each=show)
        if not inspection.contents:
            context.report.require_some("give a file with problems, traces, labels or scores")
        for text in context.account():
            note(text)
        if self.out is not None:
            write_json(self.out, to_json(inspection))
        _print(inspection)
        echo("\nNext")
        for command in self._next(inspection, names):
            _line(command)

    def _next(self, inspection: Inspection, names: Mapping[str, str]) -> Iterator[str]:
        """The commands that make sense with these contents, on what the user gave: files by their format."""
        from surefoot.cli.import_export import Import

        unread = [file for file, name in names.items() if name != formats.RECORDS]
        outs = {file: Path("runs", *[Path(file).stem] * (len(unread) > 1)) for file in unread}
        folder = next(iter(outs.values()), Path("runs"))
        paths: dict[type[Record], str] = {
            kind: str(folder / f"{name}.jsonl")
            for kind, name in ((Problem, "problems"), (Trace, "traces"), (StepLabel, "labels"))
        }
        for file, name in names.items():
            if name == formats.RECORDS:
                paths |= {_record_class(path): shlex.quote(str(path)) for path in files_of(file)}
        for file, out in outs.items():
            command = Import(source=file, out=out, reader=self.reader, columns=self.columns)
            yield shlex.join(command_line(command))
        contents, problems = inspection.contents, f"--problems {paths[Problem]}"
        if not contents.get("traces"):
            yield f"surefoot sample {paths[Problem]} --policy MODEL --n 4 --out traces.jsonl"
            return
        verify = f"surefoot label {paths[Trace]} verify:rules="
        if contents.get("with gold calls"):
            yield f"{verify}gold-calls {problems} --out labels.jsonl"
        if inspection.findings.keys() & set(TOOL_RULES):
            yield f"{verify}tool-calls {problems} --out rules.jsonl"
        if "equation" in inspection.findings:
            yield f"{verify}equations {problems} --out labels.jsonl"
        if not inspection.labels:
            yield f"surefoot label {paths[Trace]} judge {problems} --policy MODEL --out judged.jsonl"
        else:
            labels = f"--labels {paths[StepLabel]}"
            yield f"surefoot train prm {paths[Trace]} {labels} {problems} --base MODEL --out prm"


def _offer_sessions() -> None:
    """List the newest sessions of coding agents. Raises ``RunError`` without any."""
    sessions = formats.newest_sessions(_OFFERED)
    if not sessions:
        folders = ", ".join(str(folder) for folder, _ in formats.session_places().values())
        raise RunError(f"give a file or a folder; no session of a coding agent is in {folders}")
    echo("The newest sessions of coding agents on this machine:")
    for session in sessions:
        day = datetime.fromtimestamp(session.changed_s).astimezone().strftime("%Y-%m-%d %H:%M")
        echo(f"  {day}  {session.format:<14} {session.size / 2**20:6.1f} MB  {session.path}")
    echo("\nNext")
    echo(f"  surefoot inspect {shlex.quote(str(sessions[0].path))}")
    echo(f"  surefoot inspect {shlex.quote(str(sessions[0].path.parent))}   # the whole folder")


def _read(names: Mapping[str, str], context: formats.ImportContext, grader: Grader) -> Iterator[Readable]:
    """The contents of files, whose formats are ``names``; logs are cut into steps and graded."""
    from surefoot.cli.import_export import graded

    records = [path for file, name in names.items() if name == formats.RECORDS for path in files_of(file)]
    for path in sorted(records, key=lambda path: _record_class(path) is not Problem):
        yield from _records(path, context)
    for file, name in names.items():
        if name == formats.RECORDS:
            continue
        is_log = name not in formats.FORMATS or formats.FORMATS[name].read_log is not None
        for item in formats.import_traces(file, name, context):
            trace = (formats.with_file(item, file) if len(names) > 1 else item).trace
            if trace is not None and is_log:
                trace = graded(trace if trace.steps else cut_trace(trace), item.problem, grader)
            yield replace(item, trace=trace)


def _holds_trees(file: str) -> bool:
    return all(_record_class(path) is SavedTree for path in files_of(file))


def _record_class(file: Path) -> type[Record]:
    """The class of a file's records, from its first row."""
    row = next((row for _, row in raw_rows(file) if isinstance(row, dict)), {})
    fields: dict[str, type[Record]] = {"scores": StepScores, "step": StepLabel, "nodes": SavedTree}
    fields["problem_id"] = Trace
    return next((kind for name, kind in fields.items() if name in row), Problem)


def _records(file: Path, context: formats.ImportContext) -> Iterator[Readable]:
    """Records of this package, of one class per file."""
    for item in read_records(file, _record_class(file), report=context.report):
        if isinstance(item, StepScores):
            yield item
        elif isinstance(item, Trace):
            yield formats.ImportedTrace(problem=None, trace=item if item.steps else cut_trace(item))
        elif isinstance(item, StepLabel):
            yield formats.ImportedTrace(problem=None, trace=None, labels=(item,))
        elif isinstance(item, Problem):
            yield formats.ImportedTrace(problem=item, trace=None)


def _print(inspection: Inspection) -> None:
    """The result as plain text, at most 80 columns wide."""
    echo("\nContents")
    for name, count in inspection.contents.items():
        _line(f"{count:>9,}  {name}")
    for name, length in inspection.lengths.items():
        _line(f"{name} per trace (median, maximum): {length}")
    for what, counts in (("written by", inspection.models), ("labels", inspection.labels)):
        if counts:
            _line(f"{what}: " + ", ".join(f"{name} ({count:,})" for name, count in counts.items()))
    if inspection.tools:
        echo("\nTools, with the arguments of the calls that did not fail")
    for tool in inspection.tools:
        errors = f", {tool.errors:,} failed" if tool.errors else ""
        _line(f"{tool.name} ({counted(tool.calls, 'call')}{errors}): {tool.arguments:.{_ARGUMENTS}}")
    echo("\nChecks without a model")
    if not inspection.complete:
        _line("Only the first traces were inspected; --limit 0 inspects all.")
    _line(inspection.summary)
    for name, count in inspection.findings.items():
        advice = inspection.advice.get(name, 0)
        kind = "verdict" if not advice else "advice" if advice == count else f"{advice:,} of them advice"
        _line(f"{count:>5,}  {name} ({kind}): {CHECKS[name]}", further=9)
    if inspection.most_suspicious:
        echo("\nThe most suspicious steps")
    for number, finding in enumerate(inspection.most_suspicious, start=1):
        check = finding.check + " (advice)" * finding.advice
        _line(f"{number}. {_place(finding)}: {check}")
        _line(finding.reason, first=5, further=5)
        _line(f"> {finding.quote}", first=5, further=7)


def _place(finding: Finding) -> str:
    """A finding's step, run, file, task and outcome."""
    row = f"row {finding.row}" if finding.row and (finding.row > 1 or not finding.file) else ""
    outcome = {True: "correct", False: "wrong", None: "of unknown outcome"}[finding.outcome]
    where = ", ".join(filter(None, (finding.file, row, f"task {finding.problem_id}", outcome)))
    return f"step {finding.step} of {finding.trace_id} ({where})"


def _line(text: str, *, first: int = 2, further: int = 4) -> None:
    """Print lines of at most 80 columns, with so many blanks before the first and the further ones."""
    echo(fill(text, 80, initial_indent=" " * first, subsequent_indent=" " * further))
