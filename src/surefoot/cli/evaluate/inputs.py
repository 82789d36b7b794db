"""Shared parts of the commands that write a report: settings, sources, JSON file and page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.runs import print_table
from surefoot.cli.settings import Command
from surefoot.cli.terminal import echo
from surefoot.errors import LabelError
from surefoot.policies.devices import Loading

if TYPE_CHECKING:
    from surefoot.evaluation.report import JSONResult, Report
    from surefoot.evaluation.step_layout import StepLayout
    from surefoot.evaluation.step_scores import System
    from surefoot.io import ReadReport
    from surefoot.labels import LabelRule
    from surefoot.protocols import LabelledTrace, ProblemTrace
    from surefoot.records import StepLabel

R = TypeVar("R", bound="JSONResult")

AfterError = Literal["unlabelled", "step", "wrong"]
"""Labels of the lab's checker after the first error; see ``surefoot.lab.world.ExactLabeller``."""

_LABELLED_TOGETHER = 256
"""Traces per event loop."""
_ENDINGS = (".jsonl.gz", ".json.gz", ".jsonl", ".json", ".parquet")


class ReportCommand(Command):
    """Settings of the commands that write ``report_name.json`` and ``report_name.html``."""

    report_name: ClassVar[str]

    out: o.OutDirectory = Field(description="Directory for the JSON file, the HTML report and scores.")
    draws: o.Draws = 1000
    seed: o.Seed = 0

    def outputs(self) -> list[Path]:
        """The report's files; the directory may also hold other reports and stored scores."""
        return [self.out / f"{self.report_name}.{ending}" for ending in ("json", "html")]

    def folder(self) -> Path:
        """The directory ``out``; created if it is missing."""
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out

    def write(self, data: Mapping[str, Any], report: Callable[[Path], Report]) -> None:
        """Write the JSON file and the page, and print the report."""
        from surefoot.io import write_json

        self.folder()
        for_json, for_html = self.outputs()
        write_json(for_json, data)
        for part in report(for_html).printed:
            if isinstance(part, str):
                echo(part)
            else:
                print_table(part)


class EvaluationCommand(ReportCommand):
    """Settings of every evaluation."""

    sources: o.Sources = Field(min_length=1, description="NAME=CHECKPOINT, or NAME=FILE of step scores.")

    def finish(self, inputs: Mapping[str, Any], result: R, report: Callable[[R, Path], Report]) -> None:
        """Write ``result`` and its report; ``inputs`` are the resolved inputs besides the sources."""
        data = {"inputs": {"sources": named(self.sources), **inputs}, **result.to_json()}
        self.write(data, lambda path: report(result, path))


class ScoringCommand(EvaluationCommand):
    """Settings of the evaluations of scorers."""

    loading: o.Models = Loading()

    def systems(
        self,
        items: Sequence[ProblemTrace],
        *,
        sources: Sequence[str] | None = None,
        layout: StepLayout | None = None,
        reading: LabelRule | None = None,
    ) -> list[System]:
        """Scorers and judges; scores of checkpoints are stored in ``out/scores``. Bad lines are reported.

        ``layout`` has the steps of the traces, if ``items`` lacks some of them.
        """
        from surefoot.evaluation.step_scores import open_systems
        from surefoot.work import progress_bars

        with progress_bars() as progress:
            systems = open_systems(
                named(self.sources if sources is None else sources),
                items,
                self.folder() / "scores",
                layout=layout,
                reading=reading,
                loading=self.loading,
                progress=progress,
            )
        for system in systems:
            if system.counts.skipped_lines:
                echo(f"{system.name}: {system.counts.skipped_lines} invalid lines skipped", err=True)
        return systems


def named(sources: Sequence[str]) -> dict[str, str]:
    """Name → path of arguments like ``NAME=PATH`` or ``PATH``, whose stem is then the name.

    Raises ``LabelError`` for a repeated name.
    """
    paths: dict[str, str] = {}
    for source in sources:
        name, equals, path = source.partition("=")
        if not equals:
            path, name = source, Path(source).name
            name = next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)
        if not name or not path:
            raise LabelError(f"{source!r}: give NAME=FILE, or FILE alone")
        if name in paths:
            raise LabelError(f"two sources are called {name!r}; give NAME=FILE to distinguish them")
        paths[name] = path
    return paths


def unlabelled(items: Iterable[LabelledTrace]) -> list[ProblemTrace]:
    """Traces without their labels."""
    from surefoot.protocols import ProblemTrace

    return [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]


def show_skipped(report: ReadReport, prefix: str = "") -> None:
    """Report invalid rows on standard error."""
    if report.bad_count:
        echo(prefix + report.summary(), err=True)


def lab_labels(items: Iterable[ProblemTrace], after_error: AfterError) -> Iterator[StepLabel]:
    """Labels of the lab's exact checker, computed on demand."""
    from surefoot.concurrency import run_sync
    from surefoot.lab.world import ExactLabeller

    labeller, waiting = ExactLabeller(after_error=after_error), iter(items)
    while batch := list(islice(waiting, _LABELLED_TOGETHER)):
        for labels in run_sync(labeller.label(batch)):
            yield from labels
