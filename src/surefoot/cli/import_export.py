"""``surefoot import``, ``segment`` and ``export``: data of any format in, cut into steps, and out again."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from surefoot import formats, images
from surefoot.answers import Grader, Solution
from surefoot.cli import options as o
from surefoot.cli.runs import RecordFiles, labelled, read_table, store_attachment
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import note
from surefoot.errors import RecordError, RunError, counted
from surefoot.formats.imports import IMPORT_KEY
from surefoot.formats.rows import memory_of
from surefoot.io import ReadReport
from surefoot.io.files import blocks, write_lines
from surefoot.io.tables import Seen
from surefoot.labels import Neutral
from surefoot.records import Attachment, Problem, Trace, trusted_copy
from surefoot.segment.traces import CutTrace, Granularity

Cut = Annotated[
    o.Segment | None,
    Field(
        description="How texts, contents and reasoning are cut (see `sample`). By default a text and a lone "
        "answer are cut at blank lines, or at line ends if there are none; the content of a message in a "
        "longer run is not cut."
    ),
]
Grain = Annotated[
    Granularity,
    Field(
        description="Steps of a message: `part`, for its reasoning, its content and each call; or `message`, "
        "one step for all of it."
    ),
]

_SHOW_S = 5.0
"""Seconds between two lines of progress."""

_RECORDS: Final = ("problems", "traces", "labels", "scores")
"""Files of records that an import can write."""


class Import(Command):
    """Read data in any supported format and write problems, traces, labels and scores.

    Own data: rows with solutions or chat messages in JSON Lines, CSV, Parquet or a data set of `datasets`;
    Inspect logs; OpenTelemetry and OpenInference spans; exports of Langfuse, LangSmith and Phoenix; ATIF;
    batch outputs (vLLM, OpenAI); runs of tau-bench, SWE-agent and OpenHands. Public data sets: PRM800K,
    ProcessBench, Math-Shepherd, GSM8K and others (docs/reference/formats.md lists all). The format is
    detected from the content, and columns are guessed; the command shows its guesses. Own traces are cut
    into steps and graded if the problem has an answer and the file does not say whether the trace is
    correct; data sets are written as they are.

    Example: `surefoot import answers.csv --text-field reply --problem-field question --out mine`

    Example: `surefoot import phase1_train.jsonl.gz --from prm800k-steps --out prm800k`
    """

    source: Annotated[str, Flag(argument=True, file=True)]
    """File to read, or the name of a data set."""
    out: o.OutDirectory = Field(description="Directory for problems, traces, labels, scores and attachments.")
    reader: Annotated[str | None, Flag(name="--from")] = None
    """Name of the format; detected from the content by default."""
    licence: str = "not stated"
    """Licence of the data (SPDX), for `surefoot lineage` and cards."""
    columns: Annotated[formats.ImportSettings, OptionGroup(title="Columns")] = formats.ImportSettings()
    segment: Cut = None
    granularity: Grain = "part"
    grading: o.GradingSettings = o.GradingSettings()

    def outputs(self) -> list[Path]:
        """The files of the directory, which may contain others."""
        return [self.out / f"{name}.jsonl" for name in _RECORDS]

    def run(self) -> None:
        name = self.reader or formats.detect_format(self.source, self.columns)
        is_log = name not in formats.FORMATS or formats.FORMATS[name].read_log is not None
        if not is_log and (self.segment or self.granularity != "part"):
            raise RunError(f"{name} is a data set with fixed steps; cut its traces with surefoot segment")
        note(f"{self.source} is read as {name}")
        context = formats.ImportContext(
            settings=self.columns,
            report=ReadReport(),
            keep=partial(store_attachment, self.out),
            say=lambda text: note(text),
            failed=[],
        )
        counts: Counter[str] = Counter()
        printed_s = time.monotonic()
        with self.grading.open() as grader, RecordFiles(self.out) as files, closing(Seen()) as seen:
            for block in blocks(formats.import_traces(self.source, name, context), memory_of):
                problems = [item.problem for item in block if item.problem is not None]
                files.write(problems=[problem for problem in problems if not seen.times(problem.id)])
                pairs = [
                    (self._with_images(item.trace, context.report.left_out), item.problem)
                    for item in block
                    if item.trace is not None
                ]
                if is_log:
                    pairs = [(self._cut(trace), problem) for trace, problem in pairs]
                    pairs = [(graded(trace, problem, grader), problem) for trace, problem in pairs]
                traces = [trace for trace, _ in pairs]
                counts["steps"] += sum(len(trace.steps) for trace in traces)
                counts["graded"] += sum(trace.outcome is not None for trace in traces)
                files.write(
                    traces=traces,
                    labels=[label for item in block for label in item.labels],
                    scores=[item.scores for item in block if item.scores],
                )
                if time.monotonic() > printed_s + _SHOW_S:
                    printed_s = time.monotonic()
                    note(f"{counted(files.count('traces'), 'trace')} so far")
            context.report.require_some(
                f"it was read as {name}: --from names another format, the --…-field options name columns"
            )
        counts.update({name: files.count(name) for name in _RECORDS})
        for text in context.account():
            note(text)
        also = [counted(counts[f"{noun}s"], noun) for noun in ("label", "score") if counts[f"{noun}s"]]
        added = "".join(f", {noun}" for noun in also)
        tasks, runs, steps = (counted(counts[f"{noun}s"], noun) for noun in ("problem", "trace", "step"))
        note(f"{self.out}: {tasks}, {runs} with {steps}, {counts['graded']} of them graded{added}")
        if is_log and counts["problems"] and not counts["traces"]:
            note(
                "no solutions: none of the columns is a known name for them; if there is one, import with "
                "--text-field or --messages-field. Next, let a model write some: surefoot sample "
                f"{self.out}/problems.jsonl --policy MODEL --out traces.jsonl"
            )
        if counts["traces"] and not counts["problems"]:
            note(
                "no problems: the file does not have their texts; import again with --problem-field or "
                "--requests, or give your own problems to the next commands"
            )

    def _cut(self, trace: Trace) -> Trace:
        return trace if trace.steps else CutTrace.of(trace, self.segment, self.granularity)

    def _with_images(self, trace: Trace, left_out: Counter[str]) -> Trace:
        """The trace with copies of the images that its file names by path, as far as they can be read."""
        if not any(message.attachments for message in trace.messages):
            return trace
        source = Path(self.source)
        file = trace.meta.get(IMPORT_KEY, {}).get("file", "")
        folder = (source / file).parent if source.is_dir() else source.parent

        def kept(attachment: Attachment) -> Attachment:
            try:
                return images.stored(attachment, folder, partial(store_attachment, self.out))
            except RecordError as error:
                left_out[str(error)] += 1
                return attachment

        return trace.with_attachments(kept)


def graded(trace: Trace, problem: Problem | None, grader: Grader) -> Trace:
    """The trace with answer and outcome if the file does not have them."""
    reference = problem.answer if problem else None
    if trace.answer is not None or (reference is None and trace.text is None):
        return trace
    answers = (row.content for row in reversed(trace.messages) if row.role == "assistant")
    solution = Solution(text=trace.text or next(answers, None) or "", finish_reason=trace.finish_reason)
    target = reference if trace.outcome is None else None
    [grade] = grader.grade([solution], [target], problem.text if problem else "")
    outcome = grade.outcome if trace.outcome is None else trace.outcome
    return trusted_copy(trace, {"answer": grade.answer, "outcome": outcome})


class SegmentTraces(Command):
    """Cut traces into steps, in place of any that they have; their ids stay.

    Labels and scores of the old steps do not fit the new ones. `surefoot import` also cuts, as does every
    command that needs steps if a trace has none.

    Example: `surefoot segment traces.jsonl --segment sentence --out sentences.jsonl`
    """

    traces: Annotated[str, Flag(argument=True, file=True)]
    """File of traces, in any format that `surefoot import` reads."""
    out: o.Out = "-"
    segment: Cut = None
    granularity: Grain = "part"

    def run(self) -> None:
        cut = partial(CutTrace.of, name=self.segment, granularity=self.granularity)
        traces = read_table(self.traces, Trace, change=cut)
        stepless = steps = 0
        for facts in traces.facts():
            steps, stepless = steps + facts.size, stepless + (not facts.size)
        if not steps:
            raise RecordError(f"{self.traces}: no trace has text to cut; the first is {traces[0].id}")
        write_lines(self.out, traces.lines())
        by = traces[0].granularity
        note(f"{counted(len(traces), 'trace')}, {stepless} without any, {counted(steps, 'step')} by {by}")


class Export(Command):
    """Write a directory of problems, traces and labels in another format that holds labelled traces.

    Example: `surefoot export prm800k --to stepwise --neutral bad --out steps.jsonl`
    """

    source: Annotated[str, Flag(argument=True, file=True)]
    """Directory of records, as `surefoot import` writes it."""
    to: Literal["label-studio", "processbench", "stepwise"]
    """Format of the output."""
    traces: o.Traces | None = None
    labels: o.Labels | None = None
    neutral: Neutral | None = None
    """Meaning of labels of 0 in formats with two signs; required if there are any, because published readers
    disagree."""
    threshold: float = 0.0
    """Value labels above this are good, in formats with two signs."""
    out: Annotated[str, Flag(short="-o", output=True)]
    """File to write."""

    def run(self) -> None:
        problems, traces, labels = map(self._record_file, ("problems", "traces", "labels"))
        report = formats.write_labelled(
            self.to,
            labelled(problems, traces, labels),
            self.out,
            neutral=self.neutral,
            threshold=self.threshold,
        )
        note(report.summary())
        if not report.written:
            raise RecordError(f"{self.out}: no row could be written; {report.summary()}")

    def _record_file(self, name: str) -> str:
        """The file of these records, as an option names it, else in the directory. Raises ``RecordError``."""
        if named := {"traces": self.traces, "labels": self.labels}.get(name):
            return named
        for ending in (".jsonl", ".parquet", ".jsonl.gz"):
            if (file := Path(self.source) / f"{name}{ending}").exists():
                return str(file)
        raise RecordError(f"{self.source}: there is no {name}.jsonl or {name}.parquet")
