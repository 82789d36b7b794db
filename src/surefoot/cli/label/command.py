"""What the labelling commands share: inputs, pieces, budget, summary of the costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from surefoot.cli import options as o
from surefoot.cli.settings import Command
from surefoot.cli.terminal import echo
from surefoot.errors import LabelError
from surefoot.records import StepLabel
from surefoot.work.jobs import Job, Opened

if TYPE_CHECKING:
    from surefoot.protocols import Labeller, ProblemTrace


class LabelCommand(Command):
    """Traces, their problems, and an output file: a subclass has the settings of a labeller, and opens it."""

    command: ClassVar[str]
    size: ClassVar[int] = 50
    """Traces in a piece of work."""
    files: ClassVar[tuple[str, ...]] = ("problems", "traces")
    """Settings that name files which the labels depend on."""

    traces: o.TracesArgument
    problems: o.Problems
    out: o.Out = "-"

    def items(self) -> Any:
        """Traces with their problems; unusable ones are reported on stderr."""
        from surefoot.cli.runs import pair, read_table
        from surefoot.records import Problem, Trace

        return pair(read_table(self.problems, Problem), read_table(self.traces, Trace))

    def labeller(self) -> AbstractContextManager[Labeller]:
        """The labeller, opened in each process that labels."""
        raise NotImplementedError

    def inputs(self) -> dict[str, Path]:
        """Files that the labels depend on."""
        from surefoot.cli.runs import file_inputs

        return file_inputs(**{name: getattr(self, name) for name in self.files})

    def predict(self, items: Sequence[ProblemTrace]) -> None:
        """Show what ``--dry-run`` predicts for ``items``."""
        raise NotImplementedError

    def run(self) -> None:
        """Label, and report the total cost, including interrupted runs; or predict it.

        Raises ``PolicyError`` if every request fails: finished pieces are saved, and the same command
        resumes.
        """
        from surefoot.cli.runs import map_pieces

        items = self.items()
        if getattr(self, "dry_run", False):
            self.predict(items)
            return
        tally = Tally()
        job = LabelJob(settings=self, command=self.command, config=self.resolved(), inputs=self.inputs())
        try:
            outcome = map_pieces(self, job, items, self.size, on_record=tally.add)
        finally:
            for reason, count in job.counts.most_common():
                echo(f"{count} votes not counted: {reason}", err=True)
        tally.report()
        outcome.require_complete()


@dataclass(frozen=True, kw_only=True)
class LabelJob(Job[StepLabel]):
    """Labelling as a job for any process."""

    settings: LabelCommand
    record: type[StepLabel] = StepLabel

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Open the labeller."""
        from surefoot.cli.runs import connections, server_facts

        with self.settings.labeller() as labeller:

            async def work(piece: Sequence[ProblemTrace]) -> list[StepLabel]:
                return [label for of_trace in await labeller.label(piece) for label in of_trace]

            policy = getattr(labeller, "policy", None)
            self.facts.update(server_facts(policy))
            failures: Counter[str] | None = getattr(labeller, "failures", None)
            yield Opened(
                work=work,
                during=connections(policy),
                counts=Counter() if failures is None else failures,
            )

    def failed(self, labels: Sequence[StepLabel]) -> str | None:
        """Why all requests for these labels failed, if they did."""
        tried = [label for label in labels if label.evidence.usage.calls]
        # an unusable reply has cost tokens; a request that failed has not
        if tried and all(label.value is None and not label.evidence.usage.tokens for label in tried):
            return tried[-1].reason
        return None

    def cost(self, labels: Sequence[StepLabel]) -> int:
        """Tokens read and written by the policy, and by a judge."""
        return sum(label.evidence.usage.tokens for label in labels)


def usable(items: Any, test: Callable[[Any], bool], need: str) -> Any:
    """Items that pass ``test``; the others are reported on stderr."""
    passing = items.where(test)
    if len(passing) < len(items):
        echo(f"{len(items) - len(passing)} traces skipped: {need}", err=True)
    return passing


def with_answer(items: Any) -> Any:
    """Items whose problem has a reference answer."""
    return usable(items, lambda item: item.problem.answer is not None, "their problem has no 'answer'")


class Tally:
    """Counts of labels, of labels without a value by reason, and of tokens."""

    def __init__(self) -> None:
        self.labels, self.tokens = 0, 0
        self.unknown: Counter[str] = Counter()

    def add(self, label: StepLabel) -> None:
        """Count ``label``."""
        self.labels += 1
        self.tokens += label.evidence.usage.tokens
        if label.value is None:
            self.unknown[label.reason or ""] += 1

    def report(self) -> None:
        """Show the summary. Raises ``LabelError`` if no step got a value."""
        unknown, reasons = self.unknown.total(), self.unknown.most_common()
        echo(
            f"{self.labels} labels written, {unknown} of them without a value; {self.tokens} tokens", err=True
        )
        for reason, count in reasons[:5]:
            echo(f"  {count} without a value: {reason}", err=True)
        if reasons[5:]:
            echo(f"  {len(reasons) - 5} other reasons, see 'reason' in the labels", err=True)
        if self.labels and unknown == self.labels:
            reason, count = reasons[0]
            raise LabelError(f"none of the {self.labels} steps got a label; {count}: {reason}")
