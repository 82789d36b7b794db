"""What ways to label share: a method's base class, the summary of its labels; and the ways by rule."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from surefoot import labelling as lb
from surefoot import policies
from surefoot.cli import options as o
from surefoot.cli.reports import named
from surefoot.cli.runs import labelled, pair, read_table
from surefoot.cli.settings import MethodSettings
from surefoot.cli.terminal import note, note_count
from surefoot.errors import LabelError, counted
from surefoot.io import write_records
from surefoot.io.tables import LabelledTraces
from surefoot.labelling.consensus import ConsensusSettings
from surefoot.labelling.expert import Disagreement, MatchRule
from surefoot.labelling.verifiers.tool_calls import TOOL_RULES, ToolRule
from surefoot.labels import Information
from surefoot.protocols import LabelledTrace, Labeller, Policy, ProblemTrace, Sampling, StepVerifier
from surefoot.records import StepLabel, Trace, Usage
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
        return self.model_dump(mode="json", exclude={"price"})

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

    def money(self, usage: Usage) -> str:  # noqa: ARG002
        """What it costs, as the end of a sentence; empty where no price is given."""
        return ""

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
        tally.report(self.money(tally.usage))
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
    note_count(len(items) - len(passing), "trace", f"skipped: {need}")
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
        self.labels, self.usage = 0, Usage()
        self.unknown: Counter[str] = Counter()
        self.all, self.inner = Information(), Information()
        """Of all steps, and of those that are not the last one of their trace."""
        self.of_rollouts = True
        """Whether all are chances of success, which at the last step are the outcome itself."""
        self._trace, self._values = "", list[float | None]()

    def add(self, line: bytes) -> None:
        """Count a label, which is a line of JSON; the labels of a trace come one after another."""
        label = json.loads(line)  # quicker than a record
        if label["trace_id"] != self._trace:
            self._end_trace(label["trace_id"])
        self.labels += 1
        if label["value"] is not None:
            self.of_rollouts &= label["kind"] == "value" and label["evidence"]["trials"] is not None
        self._values.append(label["value"])
        self.usage += Usage(**label["evidence"]["usage"])
        if label["value"] is None:
            self.unknown[label["reason"] or ""] += 1

    def _end_trace(self, following: str) -> None:
        self.all.add(self._values)
        self.inner.add(self._values[:-1])
        self._trace, self._values = following, []

    def report(self, money: str = "") -> None:
        """Show the summary. Raises ``LabelError`` if no step got a value."""
        self._end_trace("")
        unknown, reasons = self.unknown.total(), self.unknown.most_common()
        tokens, cached = self.usage.tokens, self.usage.cached_tokens
        spent = counted(tokens, "token") + (f", {cached} of them in the server's cache" if cached else "")
        note(f"{counted(self.labels, 'label')} written, {unknown} of them without a value; {spent}{money}")
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
            note(f"  a rollout succeeds from {successes} of {counted(inner.with_value, 'inner step')}")

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
        return self.inner if self.of_rollouts and not self._trees else self.all


class Verify(Method):
    """By rule: equations, programs that are run, proofs, tool calls, the lab's checker, or your own.

    The labels are of kind correctness, with the verifier's reason as evidence. Steps that a verifier cannot
    check stay unlabelled, with a reason.
    """

    takes = ("tool_policy", "sandbox", "workers", "engine")
    size = 500
    rules: tuple[str, ...] = Field(min_length=1)
    """`compile`, `equations`, `gold-calls`, `lab`, `lean`, `python-tests`, `repair`, `rocq`, `state-replay`,
    `tool-calls`, `visible-tests` or `module:Class`; the lowest verdict counts."""
    tool_rules: tuple[ToolRule, ...] = TOOL_RULES
    """Rules of `tool-calls`; a step that breaks one is -1."""
    environment: o.EnvironmentName = None
    gold_order: bool = False
    """To `state-replay` a gold call before an earlier one that it does not commute with is wrong, and so is a
    turn that ends without all gold calls."""

    def check(self, label: Label) -> None:
        tool_options = bool(label.tool_policy) or self.tool_rules != TOOL_RULES
        if tool_options and "tool-calls" not in self.rules:
            raise ValueError("'tool_policy' and tool-rules belong to rules=tool-calls")
        if (self.environment is not None or self.gold_order) and "state-replay" not in self.rules:
            raise ValueError("environment and gold-order belong to rules=state-replay")
        if self.environment is None and "state-replay" in self.rules:
            raise ValueError("rules=state-replay needs environment=module:Class")

    @contextmanager
    def open(self, label: Label) -> Iterator[Opened]:
        with_settings: dict[str, StepVerifier] = {}
        if "tool-calls" in self.rules:
            policy = lb.read_tool_policy(label.tool_policy) if label.tool_policy else lb.ToolPolicy()
            with_settings["tool-calls"] = lb.ToolCallVerifier(rules=self.tool_rules, policy=policy)
        if self.environment is not None:
            with_settings["state-replay"] = lb.StateReplayVerifier(
                environment=policies.load_environment(self.environment),
                order="gold" if self.gold_order else "any",
            )
        with o.open_verifiers(self.rules, with_settings, sandbox=label.sandbox) as labeller:
            yield work_of(labeller)


class ExpertLabels(Method):
    """By agreement with an expert's step at the same point (imitation).

    Steps shared with an expert are +1; the first that no expert took is unknown, or -1 on request; those
    after it are unknown. Expert traces with a wrong outcome are not followed.
    """

    needs = ("problems", "traces")
    match: MatchRule = "exact"
    """When a step is an expert's: the same text, the same numbers, or the same tool calls."""
    disagreement: Disagreement = "unknown"
    """Label of the first step that no expert took."""

    @contextmanager
    def open(self, label: Label) -> Iterator[Opened]:
        experts, left_out = lb.expert_traces(read_table(label.traces, Trace))
        for reason, count in left_out.items():
            note(f"{counted(count, 'expert trace')} left out: {reason}")
        labeller = lb.ExpertLabeller(experts=experts, match=self.match, disagreement=self.disagreement)
        yield work_of(labeller)


def _weights(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return {name: number for name, _, number in (text.partition("=") for text in value.split("+"))}


class ConsensusLabels(ConsensusSettings, Method):
    """By agreement of several labellers, whose labels are given; the other labels are dropped and counted.

    The default is the published filter (arXiv 2501.07301): a trace is kept if all sources have the same
    first error, or none has an error. Labels of traces without any consensus are not written.
    """

    needs = ("problems", "labels")
    takes = ("allow_uninformative",)
    weights: Annotated[Mapping[str, float], BeforeValidator(_weights)] = Field(default_factory=dict)

    def run(self, label: Label) -> None:
        items = self.items(label)
        tables = {name: read_table(path, StepLabel) for name, path in named(label.labels).items()}
        combined = lb.Consensus(tables, self)
        strays = {name: len(table) for name, table in tables.items()}
        tally = Tally()

        def consensus() -> Iterator[StepLabel]:
            for item in items:
                steps = len(item.trace.steps)
                labels = {
                    name: [label for label in table.find(item.trace.id) if label.step < steps]
                    for name, table in tables.items()
                }
                for name, of_trace in labels.items():
                    strays[name] -= len(of_trace)
                agreed = combined.combine(item, labels)
                if any(label.value is not None for label in agreed):
                    for consensus_label in agreed:
                        tally.add(consensus_label.model_dump_json().encode())
                    yield from agreed

        write_records(label.out if label.out == "-" else Path(label.out), consensus())
        for name, count in strays.items():
            note_count(count, "label", f"of {name} skipped: they belong to no step of a usable trace")
        report = combined.report()
        note(report.summary())
        if not report.kept_traces:
            raise LabelError("the sources agree on no trace; rule=weighted decides step by step")
        tally.report()
        if not self.may_be_flat(label):
            tally.require_information()


class Advantage(Method):
    """By the change in the chance of success: its value after a step less that before it.

    A prover that takes the best of K samples costs nothing more: its values are 1 - (1 - value)^K (Setlur et
    al., arXiv 2410.08146). Without `--traces` the first step of a trace stays unlabelled. Do not give samples
    that were chosen by outcome, since their success rate differs.
    """

    needs = ("problems", "labels")
    takes = ("traces", "allow_uninformative")
    size = 1000
    best_of: int = Field(default=1, ge=1)
    """Prover: the best of this many samples of the labels' policy."""

    def check(self, label: Label) -> None:
        if len(label.labels) != 1:
            raise ValueError(f"give one file of 'labels', the values, not {len(label.labels)}")

    def items(self, label: Label) -> LabelledTraces:
        """Traces with a value; the others are counted. Raises ``LabelError`` if none has one."""
        (path,) = named(label.labels).values()
        items = labelled(label.problems, label.file, path)
        valued: LabelledTraces = usable(
            items,
            lambda item: any(label.kind == "value" for label in item.labels),
            f"{path} lacks labels of kind 'value' for them; `label FILE mc` makes such labels",
        )
        return valued

    @contextmanager
    def open(self, label: Label) -> Iterator[Opened]:
        rates = lb.start_values(read_table(label.traces, Trace)) if label.traces else {}
        if label.traces:
            note(f"success rates of {counted(len(rates), 'problem')} from {label.traces}")

        def work(items: Sequence[LabelledTrace]) -> Iterator[StepLabel]:
            return chain.from_iterable(lb.advantage_labels(items, start=rates, best_of=self.best_of))

        yield Opened(work=work)
