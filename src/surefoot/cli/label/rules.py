"""``verify``, ``expert``, ``consensus`` and ``advantage``: labels by rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from surefoot import labelling as lb
from surefoot import policies
from surefoot.cli import options as o
from surefoot.cli.label.method import Method, Tally, usable, work_of
from surefoot.cli.reports import named
from surefoot.cli.runs import labelled, read_table
from surefoot.cli.terminal import note, note_count
from surefoot.errors import LabelError
from surefoot.io import write_records
from surefoot.io.joins import LabelledTraces
from surefoot.labelling.consensus import ConsensusSettings
from surefoot.labelling.expert import Disagreement, MatchRule
from surefoot.labelling.verifiers.tool_calls import TOOL_RULES, ToolRule
from surefoot.protocols import LabelledTrace, StepVerifier
from surefoot.records import StepLabel, Trace
from surefoot.work.jobs import Opened

if TYPE_CHECKING:
    from surefoot.cli.label.command import Label


class Verify(Method):
    """By rule: equations, programs that are run, proofs, tool calls, the lab's checker, or your own.

    The labels are of kind correctness, with the verifier's reason as evidence. Steps that a verifier cannot
    check stay unlabelled, with a reason.
    """

    takes = ("tool_policy", "sandbox", "workers")
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
            note(f"{count} expert traces left out: {reason}")
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

        write_records(label.out if label.out == "-" else Path(label.out), consensus(), record=StepLabel)
        for name, count in strays.items():
            note_count(count, f"labels of {name} skipped: they belong to no step of a usable trace")
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
            note(f"success rates of {len(rates)} problems from {label.traces}")

        def work(items: Sequence[LabelledTrace]) -> Iterator[StepLabel]:
            return chain.from_iterable(lb.advantage_labels(items, start=rates, best_of=self.best_of))

        yield Opened(work=work)
