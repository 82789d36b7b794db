"""What the evaluations share: settings, scorers and judges opened with a progress bar, tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.runs import print_table
from surefoot.cli.settings import Command
from surefoot.cli.terminal import echo
from surefoot.errors import LabelError
from surefoot.policies.devices import Loading

if TYPE_CHECKING:
    from surefoot.evaluation.report import Report
    from surefoot.evaluation.step_layout import StepLayout
    from surefoot.evaluation.step_scores import System
    from surefoot.labels import LabelRule
    from surefoot.protocols import LabelledTrace, ProblemTrace
    from surefoot.records import StepLabel

AfterError = Literal["unlabelled", "step", "wrong"]
"""What the lab's checker says of steps after the first error; see ``surefoot.lab.world.ExactLabeller``."""

_LABELLED_TOGETHER = 256
"""Traces for which one event loop is made."""
_ENDINGS = (".jsonl.gz", ".json.gz", ".jsonl", ".json", ".parquet")


class EvaluationCommand(Command):
    """Settings of every evaluation."""

    report_name: ClassVar[str]

    sources: o.Sources = Field(min_length=1, description="NAME=CHECKPOINT, or NAME=FILE of step scores.")
    out: o.OutDirectory = Field(description="Directory for the JSON file, the HTML report and scores.")
    draws: o.Draws = 1000
    seed: o.Seed = 0

    def outputs(self) -> list[Path]:
        """The report's files; another evaluation's can lie beside them, and so do the stored scores."""
        return [self.out / f"{self.report_name}.{ending}" for ending in ("json", "html")]

    def folder(self) -> Path:
        """The directory of ``out``, made if it is missing."""
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out


def named(sources: Sequence[str]) -> dict[str, str]:
    """Name → path of arguments like ``NAME=PATH`` or ``PATH``, whose stem is then the name.

    Raises ``LabelError`` for a name that occurs twice.
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


def open_all(
    sources: Mapping[str, str],
    items: Sequence[ProblemTrace],
    out: Path,
    *,
    layout: StepLayout | None = None,
    reading: LabelRule | None = None,
    loading: Loading,
) -> list[System]:
    """Scorers and judges; scores of checkpoints are stored in ``out/scores``. Bad lines are reported.

    ``layout`` has the steps of the traces, where ``items`` lacks some.
    """
    from surefoot.evaluation.step_scores import open_systems
    from surefoot.work import progress_bars

    with progress_bars() as progress:
        systems = open_systems(
            sources,
            items,
            out / "scores",
            layout=layout,
            reading=reading,
            loading=loading,
            progress=progress,
        )
    for system in systems:
        if system.counts.skipped_lines:
            echo(f"{system.name}: {system.counts.skipped_lines} lines skipped, no valid record", err=True)
    return systems


def unlabelled(items: Iterable[LabelledTrace]) -> list[ProblemTrace]:
    """Traces without their labels, as scorers take them."""
    from surefoot.protocols import ProblemTrace

    return [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]


def show(report: Report) -> None:
    """What a report has for the terminal, on standard output."""
    for part in report.printed:
        if isinstance(part, str):
            echo(part)
        else:
            print_table(part)


def lab_labels(items: Iterable[ProblemTrace], after_error: AfterError) -> Iterator[StepLabel]:
    """Labels of the lab's exact checker, as they are asked for."""
    from surefoot.concurrency import run_sync
    from surefoot.lab.world import ExactLabeller

    labeller, waiting = ExactLabeller(after_error=after_error), iter(items)
    while some := list(islice(waiting, _LABELLED_TOGETHER)):
        for labels in run_sync(labeller.label(some)):
            yield from labels
