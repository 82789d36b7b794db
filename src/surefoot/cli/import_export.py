"""``surefoot import``, ``segment`` and ``export``: one's own traces in, cut, and back with labels."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo
from surefoot.errors import RecordError
from surefoot.formats import ImportSettings
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace
from surefoot.segment.traces import Granularity

if TYPE_CHECKING:
    from surefoot.answers import Grader
    from surefoot.formats import ImportedTrace
    from surefoot.io.files import RecordWriter

Cut = Annotated[
    o.Segment | None,
    Field(
        description="How texts, contents and reasoning are cut: `blank-line`, `line`, `sentence`, "
        "`thoughts`, `turns`, `step-k`, "
        "`ki`, `python`, `python-blocks`, `python-functions`, `prose-and-code`, "
        "`prose-and-any-code`, `code:LANGUAGE`, `rocq`, `lean` or `regex:PATTERN`. "
        "By default a text, and a lone answer, at blank lines or else line ends, "
        "the content of a message in a longer run not at all."
    ),
]
Grain = Annotated[
    Granularity,
    Field(description="Steps of a message: `part`, its reasoning, content and each call; or `message`, one."),
]


class Import(Command):
    """Read traces of your own, whatever wrote them, cut them into steps, and write problems and traces.

    Read are rows in JSON Lines, CSV, Parquet or a data set of `datasets`, with solutions or chat messages;
    Inspect logs; OpenTelemetry and OpenInference spans; ATIF; outputs of batches (vLLM, OpenAI). The format
    is known by the content, and columns are guessed; what was found is shown. Answers are graded where the
    problem has one and the file does not say.

    Example: `surefoot import answers.csv --text-field reply --problem-field question --out mine`

    Example: `surefoot import logs/run.eval --out mine`
    """

    source: Annotated[str, Flag(argument=True)] = Field(
        description="File to read, or the name of a data set."
    )
    out: o.OutDirectory = Field(description="Directory for problems, traces and attachments.")
    reader: Annotated[str | None, Flag(name="--from")] = Field(
        default=None,
        description="atif, batch, inspect, openhands, otel, rows, swe-agent, tau-bench or tau2; by the "
        "content if not given.",
    )
    columns: Annotated[ImportSettings, OptionGroup(title="Columns")] = ImportSettings()
    segment: Cut = None
    granularity: Grain = "part"
    parquet: bool = Field(default=False, description="Write Parquet instead of JSON Lines.")
    grading: o.GradingSettings = o.GradingSettings()

    def outputs(self) -> list[Path]:
        """The files of the directory; others may lie beside them."""
        return [self._file("problems"), self._file("traces")]

    def run(self) -> None:
        """Read, cut, grade and write."""
        from surefoot.formats import ImportContext, detect_format, import_traces
        from surefoot.io import ReadReport
        from surefoot.io.files import record_writer
        from surefoot.io.tables import Seen

        name = self.reader or detect_format(self.source, self.columns)
        echo(f"{self.source} is read as {name}", err=True)
        context = ImportContext(
            settings=self.columns,
            report=ReadReport(),
            keep=self._keep,
            say=lambda text: echo(text, err=True),
        )
        counts = dict.fromkeys(("problems", "traces", "steps", "graded"), 0)
        with self.grading.open() as grader, ExitStack() as files, closing(Seen()) as seen:

            def file(name: str, record: type[Record]) -> RecordWriter:
                self.out.mkdir(parents=True, exist_ok=True)
                return files.enter_context(record_writer(self._file(name), record))

            problems: RecordWriter | None = None
            traces: RecordWriter | None = None
            for one in import_traces(self.source, name, context):
                problems = problems or file("problems", Problem)
                if one.problem is not None and not seen.times(one.problem.id):
                    counts["problems"] += 1
                    problems.write(one.problem)
                if one.trace is not None:
                    traces = traces or file("traces", Trace)
                    trace = self._finished(one, grader)
                    counts["traces"] += 1
                    counts["steps"] += len(trace.steps)
                    counts["graded"] += trace.outcome is not None
                    traces.write(trace)
            context.report.require_some(
                f"it was read as {name}: --from names another format, the --…-field options name columns"
            )
        if context.report.bad_count:
            echo(context.report.summary(), err=True)
        echo(
            f"{self.out}: {counts['problems']} problems, {counts['traces']} traces with {counts['steps']} "
            f"steps, {counts['graded']} of them graded",
            err=True,
        )
        if counts["problems"] and not counts["traces"]:
            echo(
                "no solutions: no column of them is known; if there is one, import again with --text-field "
                "or --messages-field",
                err=True,
            )
        if counts["traces"] and not counts["problems"]:
            echo(
                "no problems: the file does not have their texts; import again with --problem-field or "
                "--requests, or give the commands that follow problems of your own",
                err=True,
            )

    def _file(self, name: str) -> Path:
        return self.out / f"{name}{'.parquet' if self.parquet else '.jsonl'}"

    def _finished(self, one: ImportedTrace, grader: Grader) -> Trace:
        """The trace with its steps, and with answer and outcome where the file has none."""
        from surefoot.answers import Solution
        from surefoot.segment import cut_trace

        if one.trace is None:
            raise RecordError("a row of problems alone has no trace")
        trace = one.trace if one.trace.steps else cut_trace(one.trace, self.segment, self.granularity)
        reference = one.problem.answer if one.problem else None
        if trace.answer is not None or (reference is None and trace.text is None):
            return trace
        last = next((row.content for row in reversed(trace.messages) if row.role == "assistant"), None)
        said = Solution(text=trace.text or last or "", finish_reason=trace.finish_reason)
        [grade] = grader.grade([said], [reference if trace.outcome is None else None])
        outcome = grade.outcome if trace.outcome is None else trace.outcome
        return trace.model_copy(update={"answer": grade.answer, "outcome": outcome})

    def _keep(self, content: bytes, media_type: str) -> str:
        """Store an attachment under its hash; returns its path relative to the records."""
        import hashlib

        from surefoot.io import atomic_file

        name = hashlib.sha256(content).hexdigest() + (mimetypes.guess_extension(media_type) or "")
        path = self.out / "attachments" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with atomic_file(path) as stream:
                stream.write(content)
        return f"attachments/{name}"


class SegmentTraces(Command):
    """Cut traces into steps, in place of any that they have; their ids stay.

    Labels and scores of the old steps do not fit the new ones. `surefoot import` cuts, too, and so does every
    command that needs steps where a trace has none.

    Example: `surefoot segment traces.jsonl --segment sentence --out sentences.jsonl`
    """

    traces: Annotated[str, Flag(argument=True)] = Field(
        description="File of traces, in any form that `surefoot import` reads."
    )
    out: o.Out = "-"
    segment: Cut = None
    granularity: Grain = "part"

    def run(self) -> None:
        """Cut and write."""
        from surefoot.cli.runs import read_table
        from surefoot.io import write_records
        from surefoot.segment import cut_trace

        steps, without, cut_by = 0, 0, None
        traces = read_table(self.traces, Trace)

        def made() -> Iterator[Trace]:
            nonlocal steps, without, cut_by
            for one in traces:
                trace = cut_trace(one, self.segment, self.granularity)
                steps, without = steps + len(trace.steps), without + (not trace.steps)
                cut_by = cut_by or trace.granularity
                yield trace
            if not steps:
                raise RecordError(f"{self.traces}: no trace has text to cut; the first is {traces[0].id}")

        write_records(self.out if self.out == "-" else Path(self.out), made(), record=Trace)
        echo(f"{len(traces)} traces, {steps} steps, {without} traces without any; cut by {cut_by}", err=True)


class Export(Command):
    """Write labels and scores of imported traces back beside the originals, in the originals' own format.

    Rows get a column `surefoot`, as do runs of tau-bench, simulations of tau2, turns of SWE-agent and events
    of OpenHands; an Inspect log a score; an ATIF trajectory `extra` on each step; a batch output a field of
    each choice. For spans, the output holds `gen_ai.evaluation.result` events (OTLP in JSON).

    Example: `surefoot export run.eval --traces mine/traces.jsonl --scores scores.jsonl --out scored.eval`
    """

    original: Annotated[str, Flag(argument=True)] = Field(description="File that was imported.")
    traces: o.Traces
    labels: o.Labels | None = None
    scores: Annotated[str | None, o.INPUT] = Field(default=None, description="File of step scores.")
    out: Annotated[str, Flag(short="-o", output=True)] = Field(description="File to write.")

    def run(self) -> None:
        """Match and write."""
        from surefoot.cli.runs import read_table
        from surefoot.formats import export_results, results_of

        if self.labels is None and self.scores is None:
            raise RecordError("nothing to write back: give --labels, --scores or both")
        found = results_of(
            read_table(self.traces, Trace),
            read_table(self.labels, StepLabel) if self.labels else [],
            read_table(self.scores, StepScores) if self.scores else [],
        )
        name, written = export_results(Path(self.original), Path(self.out), found)
        if not written:
            raise RecordError(
                f"{self.original}: none of the {len(found)} traces is in it; give the file imported"
            )
        echo(f"{self.out}: labels and scores of {written} traces, as {name}", err=True)
