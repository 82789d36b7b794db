"""What the labelling commands share: inputs, pieces, budget, summary of the costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefoot.cli import options as o
from surefoot.cli.settings import Command
from surefoot.cli.terminal import echo
from surefoot.errors import LabelError
from surefoot.records import StepLabel
from surefoot.work.jobs import Job, Opened, Pieces

if TYPE_CHECKING:
    from surefoot.io.joins import JoinedTraces
    from surefoot.protocols import Labeller, ProblemTrace
    from surefoot.work import Engine


class LabelCommand(Command):
    """Traces, their problems, and an output file."""

    traces: o.TracesArgument
    problems: o.Problems
    out: o.Out = "-"

    def items(self) -> JoinedTraces:
        """Traces with their problems; unusable ones are reported on stderr."""
        from surefoot.cli.runs import pair, read_table
        from surefoot.records import Problem, Trace

        return pair(read_table(self.problems, Problem), read_table(self.traces, Trace))

    def labeller(self) -> AbstractContextManager[Labeller]:
        """The labeller, opened in each process that labels."""
        raise NotImplementedError

    def write_labels(
        self,
        command: str,
        items: Sequence[ProblemTrace],
        *,
        size: int = 50,
        policy: o.PolicySettings | None = None,
        token_budget: int | None = None,
        config: dict[str, Any] | None = None,
        engine: Engine | None = None,
        counts: Counter[str] | None = None,
        retry_failed: bool = False,
        **inputs: str | None,
    ) -> None:
        """Label ``items``, and report the total cost, including interrupted runs.

        A piece of work is ``size`` traces. With a ``policy`` behind a server it is the neighbouring traces
        of one problem, which share rollouts, and many pieces run concurrently. Raises ``PolicyError`` if
        every request fails: finished pieces are saved, and the same command resumes.
        """
        from surefoot.cli.runs import file_inputs
        from surefoot.work import Here, map_resumable

        tally = Tally()
        server = policy is not None and bool(policy.base_url)
        job = LabelJob(
            settings=self,
            command=command,
            config=self.resolved() | (config or {}),
            inputs=file_inputs(problems=self.problems, traces=self.traces, **inputs),
            counts=Counter() if counts is None else counts,
        )
        outcome = map_resumable(
            job,
            Pieces(items, policy.piece(size) if policy else size, by_problem=server),
            self.out,
            engine=Here(policy.in_flight) if policy and server else engine,
            on_record=tally.add,
            token_budget=token_budget,
            retry_failed=retry_failed,
        )
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
        from surefoot.cli.runs import connections

        with self.settings.labeller() as labeller:

            async def work(piece: Sequence[ProblemTrace]) -> list[StepLabel]:
                return [label for of_trace in await labeller.label(piece) for label in of_trace]

            failures: Counter[str] | None = getattr(labeller, "failures", None)
            yield Opened(
                work=work,
                during=connections(getattr(labeller, "policy", None)),
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


def with_answer(items: JoinedTraces) -> JoinedTraces:
    """Items whose problem has a reference answer; the others are reported on stderr."""
    return _usable(items, lambda item: item.problem.answer is not None, "'answer'")


def with_tests(items: JoinedTraces) -> JoinedTraces:
    """Items whose problem has hidden tests of a program; the others are reported on stderr."""
    from surefoot.labelling.verifiers.programs import has_hidden_tests

    return _usable(items, lambda item: has_hidden_tests(item.problem), "hidden tests")


def _usable(items: JoinedTraces, test: Callable[[ProblemTrace], bool], need: str) -> JoinedTraces:
    usable = items.where(test)
    if len(usable) < len(items):
        echo(f"{len(items) - len(usable)} traces skipped: their problem has no {need}", err=True)
    return usable


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
        echo(self.summary(), err=True)
        if self.labels and self.unknown.total() == self.labels:
            reason, count = self.unknown.most_common(1)[0]
            raise LabelError(f"none of the {self.labels} steps got a label; {count}: {reason}")

    def summary(self) -> str:
        """Lines for standard error."""
        lines = [
            f"{self.labels} labels written, {self.unknown.total()} of them without a value; "
            f"{self.tokens} tokens"
        ]
        lines += [f"  {count} without a value: {reason}" for reason, count in self.unknown.most_common(5)]
        if len(self.unknown) > 5:
            lines.append(f"  {len(self.unknown) - 5} other reasons, see 'reason' in the labels")
        return "\n".join(lines)
