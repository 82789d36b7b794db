"""What ways to label share: a method's base class, the run of a labeller, and the summary of its labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from surefoot.cli.runs import pair
from surefoot.cli.settings import MethodSettings
from surefoot.cli.terminal import note, note_count
from surefoot.errors import LabelError
from surefoot.labels import Information
from surefoot.protocols import Labeller, Policy, ProblemTrace, Sampling
from surefoot.records import StepLabel, Usage
from surefoot.work import Job, Opened

if TYPE_CHECKING:
    from surefoot.cli.label.command import Label


class Method(MethodSettings):
    """The settings of one way to label, and the work.

    A labeller of traces overrides ``open``. A method with other inputs or outputs overrides ``run``, too.
    """

    needs: ClassVar[tuple[str, ...]] = ("problems",)
    role: ClassVar[str | None] = None
    """Role of the policy on a card."""
    folder: ClassVar[tuple[str, ...]] = ()
    """Files that it writes, if the output is a directory."""
    size: ClassVar[int] = 50
    """Traces in a piece of work."""
    by_problem: ClassVar[bool] = False
    """Whether a piece is the neighbouring traces of so many problems."""

    @property
    def sampling(self) -> Sampling:
        """How the policy samples where the options do not say otherwise."""
        return Sampling()

    def check(self, label: Label) -> None:
        """Raise ``ValueError`` for options that do not fit the settings."""

    def config(self, label: Label) -> dict[str, Any]:  # noqa: ARG002
        """The settings, and what else labels depend on, for the manifest."""
        return self.model_dump(mode="json")

    def outputs(self, label: Label) -> list[Path]:
        """The files that it writes."""
        if self.folder:
            return [Path(label.out) / name for name in self.folder]
        return [] if label.out == "-" else [Path(label.out)]

    def items(self, label: Label) -> Any:
        """Traces with their problems; unusable ones are reported on stderr."""
        return pair(label.problems, label.file)

    def open(self, label: Label) -> AbstractContextManager[Opened]:
        """The work, opened in each process that labels."""
        raise NotImplementedError

    def may_be_flat(self, label: Label) -> bool:
        """Whether equal values are a result: a rule may find that all is well, or speak on one side alone."""
        return label.allow_uninformative or "allow_uninformative" not in self.takes

    def predict(self, label: Label, items: Sequence[ProblemTrace]) -> None:
        """Show what ``--dry-run`` predicts for ``items``."""
        raise NotImplementedError

    def run(self, label: Label) -> None:
        """Label the traces, and report the total cost, including interrupted runs; or predict it.

        Raises ``PolicyError`` if every request fails: finished pieces are saved, and the same command
        resumes.
        """
        items = self.items(label)
        if label.dry_run:
            self.predict(label, items)
            return
        tally = Tally()
        job = Job(record=StepLabel, load=partial(self.open, label), failure=_failure)
        try:
            outcome = label.map(job, items, self.size, by_problem=self.by_problem, on_line=tally.add)
        finally:
            for reason, count in job.counts.most_common():
                note(f"{count} votes not counted: {reason}")
        tally.report()
        outcome.require_complete()
        if not self.may_be_flat(label):
            tally.require_information()


def work_of(labeller: Labeller, policy: Policy | None = None, failures: Counter[str] | None = None) -> Opened:
    """What ``labeller`` does, with the policy that it asks and the counter of unusable replies."""

    async def work(piece: Sequence[ProblemTrace]) -> list[StepLabel]:
        return [label for of_trace in await labeller.label(piece) for label in of_trace]

    return Opened(work=work, policy=policy, counts=Counter() if failures is None else failures)


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


class Tally:
    """Counts of labels, of labels without a value by reason, of tokens, and what there is to learn.

    In ``trees`` a step that several traces share is labelled in one of them.
    """

    def __init__(self, *, trees: bool = False) -> None:
        self._trees = trees
        self.labels, self.tokens = 0, 0
        self.unknown: Counter[str] = Counter()
        self.all, self.inner = Information(), Information()
        """Of all steps, and of those that are not the last one of their trace."""
        self.kinds: set[str] = set()
        self._trace, self._values = "", list[float | None]()

    def add(self, line: bytes) -> None:
        """Count a label, which is a line of JSON; the labels of a trace come one after another."""
        label = json.loads(line)  # quicker than a record
        if label["trace_id"] != self._trace:
            self._end_trace(label["trace_id"])
        self.labels += 1
        self.kinds.add(label["kind"])
        self._values.append(label["value"])
        self.tokens += Usage(**label["evidence"]["usage"]).tokens
        if label["value"] is None:
            self.unknown[label["reason"] or ""] += 1

    def _end_trace(self, following: str) -> None:
        self.all.add(self._values)
        self.inner.add(self._values[:-1])
        self._trace, self._values = following, []

    def report(self) -> None:
        """Show the summary. Raises ``LabelError`` if no step got a value."""
        self._end_trace("")
        unknown, reasons = self.unknown.total(), self.unknown.most_common()
        note(f"{self.labels} labels written, {unknown} of them without a value; {self.tokens} tokens")
        for reason, count in reasons[:5]:
            note(f"  {count} without a value: {reason}")
        if reasons[5:]:
            note(f"  {len(reasons) - 5} other reasons, see 'reason' in the labels")
        if self.labels and unknown == self.labels:
            reason, count = reasons[0]
            raise LabelError(f"none of the {self.labels} steps got a label; {count}: {reason}")
        note(f"  {self.all}")
        if (inner := self._of) is not self.all and inner.with_value:
            successes = inner.with_value - inner.zeros
            note(f"  a rollout succeeds from {successes} of {inner.with_value} inner steps")

    def require_information(self) -> None:
        """Raise ``LabelError`` if all values are equal."""
        if self._of.is_flat:
            raise LabelError(
                f"all {self._of.with_value} {'inner ' * (self._of is not self.all)}steps have the value "
                f"{self._of.low:g}: the labels are written, but teach nothing; take other traces, a policy "
                "that is right now and then, or --allow-uninformative"
            )

    @property
    def _of(self) -> Information:
        """Where there is something to learn: the value of a last step can be the outcome, which is known."""
        return self.inner if self.kinds == {"value"} and not self._trees else self.all
