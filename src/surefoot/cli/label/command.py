"""What the labelling commands share: inputs, pieces, budget, summary of the costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from surefoot.cli import options as o
from surefoot.cli.runs import map_pieces, pair
from surefoot.cli.settings import Command
from surefoot.cli.terminal import note, note_count
from surefoot.errors import LabelError
from surefoot.protocols import Labeller, ProblemTrace
from surefoot.records import StepLabel, Usage
from surefoot.work.jobs import Job, Opened


class LabelCommand(Command):
    """Traces, their problems, and an output file: a subclass has the settings of a labeller, and opens it."""

    size: ClassVar[int] = 50
    """Traces in a piece of work."""

    traces: o.TracesArgument
    problems: o.Problems
    out: o.Out = "-"

    def items(self) -> Any:
        """Traces with their problems; unusable ones are reported on stderr."""
        return pair(self.problems, self.traces)

    def labeller(self) -> AbstractContextManager[Labeller]:
        """The labeller, opened in each process that labels."""
        raise NotImplementedError

    def predict(self, items: Sequence[ProblemTrace]) -> None:
        """Show what ``--dry-run`` predicts for ``items``."""
        raise NotImplementedError

    def run(self) -> None:
        """Label, and report the total cost, including interrupted runs; or predict it.

        Raises ``PolicyError`` if every request fails: finished pieces are saved, and the same command
        resumes.
        """
        items = self.items()
        if getattr(self, "dry_run", False):
            self.predict(items)
            return
        tally = Tally()
        job = Job(record=StepLabel, load=self.opened, failure=_failure)
        try:
            outcome = map_pieces(self, job, items, self.size, on_line=tally.add)
        finally:
            for reason, count in job.counts.most_common():
                note(f"{count} votes not counted: {reason}")
        tally.report()
        outcome.require_complete()

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """The work of a job: what the labeller does."""
        with self.labeller() as labeller:

            async def work(piece: Sequence[ProblemTrace]) -> list[StepLabel]:
                return [label for of_trace in await labeller.label(piece) for label in of_trace]

            policy = getattr(labeller, "policy", None)
            counts: Any = getattr(labeller, "failures", Counter[str]())
            yield Opened(work=work, policy=policy, counts=counts)


def _failure(labels: Sequence[StepLabel]) -> str | None:
    """Why all requests for these labels failed, if they did."""
    tried = [label for label in labels if label.evidence.usage.calls]
    # an unusable reply has cost tokens; a request that failed has not
    if tried and all(label.value is None and not label.evidence.usage.tokens for label in tried):
        return tried[-1].reason
    return None


def usable(items: Any, test: Callable[[Any], bool], need: str) -> Any:
    """Items that pass ``test``; the others are counted. Raises ``LabelError`` if none does."""
    passing = items.where(test)
    if not passing:
        raise LabelError(f"none of the {len(items)} traces can be labelled: {need}")
    note_count(len(items) - len(passing), f"traces skipped: {need}")
    return passing


def with_answer(items: Any) -> Any:
    """Items whose problem has a reference answer."""
    return usable(items, lambda item: item.problem.answer is not None, "their problem has no 'answer'")


_FREE = b'"usage":%s' % Usage().model_dump_json().encode()


class Tally:
    """Counts of labels, of labels without a value by reason, and of tokens."""

    def __init__(self) -> None:
        self.labels, self.tokens = 0, 0
        self.unknown: Counter[str] = Counter()

    def add(self, line: bytes) -> None:
        """Count a label, which is a line of JSON."""
        self.labels += 1
        if b'"value":null' not in line and _FREE in line:
            return
        label = StepLabel.model_validate_json(line)
        self.tokens += label.evidence.usage.tokens
        if label.value is None:
            self.unknown[label.reason or ""] += 1

    def report(self) -> None:
        """Show the summary. Raises ``LabelError`` if no step got a value."""
        unknown, reasons = self.unknown.total(), self.unknown.most_common()
        note(f"{self.labels} labels written, {unknown} of them without a value; {self.tokens} tokens")
        for reason, count in reasons[:5]:
            note(f"  {count} without a value: {reason}")
        if reasons[5:]:
            note(f"  {len(reasons) - 5} other reasons, see 'reason' in the labels")
        if self.labels and unknown == self.labels:
            reason, count = reasons[0]
            raise LabelError(f"none of the {self.labels} steps got a label; {count}: {reason}")
