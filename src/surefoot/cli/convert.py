"""``surefoot convert``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo
from surefoot.labels import Neutral

if TYPE_CHECKING:
    from surefoot.formats import WriteReport
    from surefoot.io.joins import LabelledTraces
    from surefoot.protocols import LabelledTrace, ProblemTrace
    from surefoot.records import Problem, Record


class Convert(Command):
    """Convert between public formats and this package's records.

    Records are a directory with `problems`, `traces` and `labels`. Rows that cannot be read are counted on
    standard error with their line.

    Example: `surefoot convert phase1_train.jsonl.gz --from prm800k-steps --out prm800k/`

    Example: `surefoot convert prm800k/ --from records --to math-shepherd --neutral good --out ms.jsonl`
    """

    source: Annotated[str, Flag(argument=True)] = Field(
        description="File to read; with `--from records` a directory."
    )
    reader: Annotated[str, Flag(name="--from")] = Field(
        description="agent-processbench, bigbench-mistake, gsm8k, gsm8k-solutions, humaneval, label-studio, "
        "math500, math-aps, math-shepherd, mbpp, mbpp-check, prm800k, prm800k-steps, prmbench, "
        "prmbench-controls, processbench, stepwise, who-and-when, or records (problems, traces and labels as "
        "this package writes them)."
    )
    writer: Annotated[str, Flag(name="--to")] = Field(
        default="records",
        description="records, agent-processbench, label-studio, math-aps, math-shepherd, prm800k, "
        "prm800k-steps, processbench, stepwise or who-and-when.",
    )
    out: Annotated[str, Flag(short="-o", output=True)] = Field(
        description="Directory for records; file for the other formats."
    )
    neutral: Neutral | None = Field(
        default=None,
        description="What a label of 0 becomes in formats that have two signs. Needed if there are such "
        "labels, since published readers disagree.",
    )
    threshold: float = Field(
        default=0.0, description="Value labels above this are good in formats that have signs only."
    )
    parquet: bool = Field(default=False, description="Write records as Parquet instead of JSON Lines.")

    def outputs(self) -> list[Path]:
        """The files of the directory, or the file."""
        if self.writer != "records":
            return super().outputs()
        ending = ".parquet" if self.parquet else ".jsonl"
        return [Path(self.out) / f"{name}{ending}" for name in ("problems", "traces", "labels")]

    def run(self) -> None:
        """Read, convert and write."""
        from surefoot.errors import RecordError
        from surefoot.formats import WRITERS, read_source
        from surefoot.io import ReadReport

        if self.writer != "records" and self.writer not in WRITERS:
            raise RecordError(f"--to is {self.writer!r}; choose from records, {', '.join(WRITERS)}")
        if self.reader == "records":
            self._write(_read_records(Path(self.source)))
            return
        report = ReadReport()
        items: Iterator[Any] = iter(read_source(self.reader, self.source, report=report))
        first = next(items, None)
        if first is None:
            report.require_some(f"is it a file of {self.reader}? surefoot import reads other shapes")
            raise RecordError(f"{self.source}: nothing to convert")
        try:
            self._write(chain([first], items))
        finally:
            echo(report.summary(), err=True)

    def _write(self, items: Iterable[Problem | ProblemTrace | LabelledTrace]) -> None:
        from surefoot.errors import RecordError
        from surefoot.protocols import LabelledTrace

        if self.writer == "records":
            _write_records(Path(self.out), items, ".parquet" if self.parquet else ".jsonl")
            return
        some = 0

        def labelled() -> Iterator[LabelledTrace]:
            nonlocal some
            for item in items:
                if isinstance(item, LabelledTrace):
                    some += 1
                    yield item

        report = _write_format(self.writer, labelled(), self.out, self.neutral, self.threshold)
        if not some:
            raise RecordError(f"{self.source}: no labelled traces, which is what {self.writer} holds")
        echo(report.summary(), err=True)
        if not report.written:
            raise RecordError(f"{self.out}: no row could be written; {report.summary()}")


def _read_records(folder: Path) -> LabelledTraces:
    from surefoot.cli.runs import labelled, read_table
    from surefoot.errors import RecordError
    from surefoot.records import Problem, StepLabel, Trace

    def find(name: str) -> str:
        for ending in (".jsonl", ".parquet", ".jsonl.gz"):
            if (folder / f"{name}{ending}").exists():
                return str(folder / f"{name}{ending}")
        raise RecordError(f"{folder}: there is no {name}.jsonl or {name}.parquet")

    labels = read_table(find("labels"), StepLabel)
    return labelled(read_table(find("problems"), Problem), read_table(find("traces"), Trace), labels)


def _write_records(
    folder: Path, items: Iterable[Problem | ProblemTrace | LabelledTrace], ending: str
) -> None:
    """One file of each kind of record that there is, filled together in one pass."""
    from surefoot.io.files import RecordWriter, record_writer
    from surefoot.io.tables import Seen
    from surefoot.protocols import LabelledTrace
    from surefoot.records import Problem, StepLabel, Trace

    folder.mkdir(parents=True, exist_ok=True)
    writers: dict[str, RecordWriter] = {}
    with ExitStack() as files, closing(Seen()) as seen:

        def writer(name: str, record: type[Record]) -> RecordWriter:
            if name not in writers:
                writers[name] = files.enter_context(record_writer(folder / f"{name}{ending}", record))
            return writers[name]

        for item in items:
            problem = item if isinstance(item, Problem) else item.problem
            if not seen.times(problem.id):
                writer("problems", Problem).write(problem)
            if isinstance(item, Problem):
                continue
            writer("traces", Trace).write(item.trace)
            if isinstance(item, LabelledTrace):
                labels = writer("labels", StepLabel)
                for label in item.labels:
                    labels.write(label)
    counts = ", ".join(f"{one.count} {name}" for name, one in writers.items())
    echo(f"{folder}: {counts}", err=True)


def _write_format(
    writer: str, items: Iterable[LabelledTrace], out: str, neutral: str | None, threshold: float
) -> WriteReport:
    """Raises ``RecordError`` for a neutral label without ``neutral``, if the format has two signs."""
    from surefoot.errors import RecordError
    from surefoot.formats import SIGN_WRITERS, WRITERS
    from surefoot.labels import is_neutral

    if writer not in SIGN_WRITERS:
        return WRITERS[writer](items, out)

    def decided() -> Iterator[LabelledTrace]:
        for item in items:
            if neutral is None and any(map(is_neutral, item.labels)):
                raise RecordError(
                    f"there are neutral labels (0), as of trace {item.trace.id}, which {writer} does not "
                    "have; say what they become with --neutral good, bad or drop"
                )
            yield item

    return SIGN_WRITERS[writer](decided(), out, neutral=neutral or "drop", threshold=threshold)
