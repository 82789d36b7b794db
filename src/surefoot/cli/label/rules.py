"""``surefoot label verify``, ``expert``, ``consensus``, ``advantage`` and ``progress``: labels by rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from surefoot import policies
from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import named, named_numbers
from surefoot.cli.label.command import LabelCommand, usable
from surefoot.cli.runs import RecordFiles, labelled, pair, read_table
from surefoot.cli.settings import Command, Flag, fill
from surefoot.cli.terminal import note, note_count
from surefoot.errors import LabelError
from surefoot.io import write_json, write_records
from surefoot.io.joins import LabelledTraces
from surefoot.labelling import StateReplayVerifier, ToolCallVerifier, ToolPolicy, read_tool_policy
from surefoot.labelling.advantage import advantage_labels, progress_labels, start_values
from surefoot.labelling.consensus import Consensus, ConsensusRule, SameFirstError, Unanimous, Weighted
from surefoot.labelling.expert import Disagreement, ExpertLabeller, MatchRule, StepMatch, expert_traces
from surefoot.labelling.mutation import MutantReport, labelled_mutants
from surefoot.labelling.verifiers.tool_calls import TOOL_RULES, ToolRule
from surefoot.labels import Neutral
from surefoot.protocols import LabelledTrace, Labeller, StepVerifier
from surefoot.records import Problem, StepLabel, Trace
from surefoot.sandbox import open_sandbox
from surefoot.segment import segmenter
from surefoot.work import Opened


class Verify(LabelCommand):
    """Label steps by rule: equations, programs that are run, tool calls, the lab's checker, or your own.

    The labels are of kind correctness, with the verifier's reason as evidence. Steps that
    a verifier cannot check stay unlabelled, with a reason.

    Example: `surefoot label verify traces.jsonl --problems problems.jsonl --verifier equations -o l.jsonl`
    """

    size: ClassVar[int] = 500
    verifier: tuple[str, ...] = Field(min_length=1)
    """`compile`, `equations`, `execution-trace`, `gold-calls`, `lab`, `lean`, `python-tests`, `rocq`,
    `shop`, `tool-calls`, `visible-tests` or `module:Class`; the lowest verdict counts."""
    tool_rules: tuple[ToolRule, ...] = TOOL_RULES
    """Rules of `tool-calls`; a step that breaks one is -1."""
    tool_policy: Annotated[str | None, o.INPUT] = None
    """JSON file with a policy for `tool-calls` (`forbidden`, `rules`, `repeatable`, `read_only`), in addition
    to a problem's `meta.tool_policy`."""
    environment: o.EnvironmentName = None
    gold_order: bool = False
    """To `state-replay` a gold call before an earlier one that it does not commute with is wrong, and so is a
    turn that ends without all gold calls."""
    sandbox: o.SandboxName = "bubblewrap"
    workers: o.Workers = 1
    engine: o.EngineName = "local"

    @model_validator(mode="after")
    def _check(self) -> Self:
        tool_options = self.tool_policy is not None or self.tool_rules != TOOL_RULES
        if tool_options and "tool-calls" not in self.verifier:
            raise ValueError("'tool_rules' and 'tool_policy' belong to --verifier tool-calls")
        if (self.environment is not None or self.gold_order) and "state-replay" not in self.verifier:
            raise ValueError("'environment' and 'gold_order' belong to --verifier state-replay")
        return self

    def labeller(self) -> AbstractContextManager[Labeller]:
        with_settings: dict[str, StepVerifier] = {}
        if "tool-calls" in self.verifier:
            policy = read_tool_policy(self.tool_policy) if self.tool_policy else ToolPolicy()
            with_settings["tool-calls"] = ToolCallVerifier(rules=self.tool_rules, policy=policy)
        if "state-replay" in self.verifier:
            with_settings["state-replay"] = StateReplayVerifier(
                environment=policies.load_environment(self.environment) if self.environment else None,
                order="gold" if self.gold_order else "any",
            )
        return o.open_verifiers(self.verifier, with_settings, sandbox=self.sandbox)


class LabelExpert(LabelCommand):
    """Label steps by agreement with an expert's step at the same point (imitation).

    Steps shared with an expert are +1; the first that no expert took is unknown, or -1 on request; those
    after it are unknown. Expert traces with a wrong outcome are not followed.

    Example: `surefoot label expert traces.jsonl --problems problems.jsonl --expert solutions.jsonl
    --match numbers --out labels.jsonl`
    """

    expert: Annotated[str, o.INPUT]
    """File of the experts' traces with steps; there can be several per problem."""
    match: MatchRule = "exact"
    """When a step is an expert's: the same text, the same numbers, or the same tool calls."""
    tolerance: float | None = None
    """Relative difference of numbers (numbers 1e-6, tool-call 1e-9)."""
    disagreement: Disagreement = "unknown"
    """Label of the first step that no expert took."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.match == "exact" and self.tolerance is not None:
            raise ValueError("'match' exact takes no --tolerance; choose numbers or tool-call")
        return self

    @contextmanager
    def labeller(self) -> Iterator[Labeller]:
        experts, left_out = expert_traces(read_table(self.expert, Trace))
        for reason, count in left_out.items():
            note(f"{count} expert traces left out: {reason}")
        match = StepMatch(self.match, self.tolerance)
        yield ExpertLabeller(experts=experts, match=match, disagreement=self.disagreement)


class LabelConsensus(Command):
    """Keep the labels on which several labellers agree, and count the others.

    The default is the published filter (arXiv 2501.07301): a trace is kept if all sources have the same
    first error, or none has an error. Labels of traces without any consensus are not written.

    Example: `surefoot label consensus mc=mc.jsonl judge=judge.jsonl --traces traces.jsonl
    --problems problems.jsonl --report report.json --out labels.jsonl`
    """

    sources: o.Sources = Field(description="`NAME=FILE` for each source of labels, two or more.")
    traces: o.Traces
    problems: o.Problems
    out: o.Out = "-"
    rule: Literal["first-error", "unanimous", "weighted"] = "first-error"
    """first-error keeps or drops whole traces; unanimous and weighted decide on each step."""
    weight: tuple[str, ...] = ()
    """`NAME=NUMBER` for `--rule weighted`; 1 if not given."""
    margin: float | None = None
    """Least lead for `--rule weighted`, as a share of all weights; 0 = any."""
    good_above: float = 0.0
    """A value label above this is good; 0 = any rollout succeeded."""
    neutral: Neutral = "drop"
    """How to read a label of 0: good, bad, or abstain (`drop`)."""
    report: Annotated[Path | None, Flag(output=True)] = None
    """JSON file with the counts of kept and dropped traces, and the reasons."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rule != "weighted" and (self.weight or self.margin is not None):
            raise ValueError(f"'weight' and 'margin' belong to --rule weighted, not to --rule {self.rule}")
        named_numbers("weight", self.weight)
        return self

    def run(self) -> None:
        rule = self._rule()
        files = named(self.sources)
        items = pair(self.problems, self.traces)
        tables = {name: read_table(path, StepLabel) for name, path in files.items()}
        combined = Consensus(tables, rule=rule, good_above=self.good_above, neutral=self.neutral)
        strays = {name: len(table) for name, table in tables.items()}

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
                    yield from agreed

        write_records(self.out if self.out == "-" else Path(self.out), consensus(), record=StepLabel)
        for name, count in strays.items():
            note_count(count, f"labels of {name} skipped: they belong to no step of a usable trace")
        report = combined.report()
        if self.report:
            write_json(self.report, report.as_json())
        note(report.summary())
        if not report.kept_traces:
            raise LabelError(
                "the sources agree on no trace; --rule unanimous or weighted decides step by step"
            )

    def _rule(self) -> ConsensusRule:
        if self.rule == "weighted":
            return Weighted(weights=named_numbers("weight", self.weight), margin=self.margin or 0.0)
        return SameFirstError() if self.rule == "first-error" else Unanimous()


class ValueCommand(LabelCommand):
    """Labels that are computed from value labels."""

    size: ClassVar[int] = 1000
    labels: Annotated[str, o.INPUT]
    """File of value labels, by soft estimates (`surefoot label mc`)."""
    start: Annotated[str | None, Flag(transient=True)] = None
    """File of plain samples of that policy; a problem's success rate is the value before the first step."""

    def labels_of(self, items: Sequence[LabelledTrace], rates: Mapping[str, float]) -> list[list[StepLabel]]:
        """Labels from the values of ``items``, and from the problems' success rates."""
        raise NotImplementedError

    def items(self) -> LabelledTraces:
        """Traces with a value; the others are counted. Raises ``LabelError`` if none has one."""
        items = labelled(self.problems, self.traces, self.labels)
        valued: LabelledTraces = usable(
            items,
            lambda item: any(label.kind == "value" for label in item.labels),
            f"{self.labels} has no label of kind 'value' for them; label mc makes such labels",
        )
        return valued

    def resolved(self) -> dict[str, Any]:
        """The settings, with the success rates."""
        return super().resolved() | {"rates": sorted(self._rates().items())}

    def _rates(self) -> dict[str, float]:
        return start_values(read_table(self.start, Trace)) if self.start else {}

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        rates = self._rates()
        if self.start:
            note(f"success rates of {len(rates)} problems from {self.start}")
        yield Opened(work=lambda items: chain.from_iterable(self.labels_of(items, rates)))


class Advantage(ValueCommand):
    """Label steps by advantage: the chance of success after a step less the chance before it.

    A prover that takes the best of K samples costs nothing more: its values are 1 - (1 - value)^K (Setlur et
    al., arXiv 2410.08146). Without `--start` the first step of a trace stays unlabelled. Do not give samples
    that were chosen by outcome, since their success rate differs.

    Example: `surefoot label advantage traces.jsonl --problems problems.jsonl --labels values.jsonl
    --best-of 4 --start traces.jsonl --out advantages.jsonl`
    """

    best_of: int = Field(default=1, ge=1)
    """Prover: the best of this many samples of the labels' policy."""

    def labels_of(self, items: Sequence[LabelledTrace], rates: Mapping[str, float]) -> list[list[StepLabel]]:
        """Differences of values."""
        return advantage_labels(items, start=rates, best_of=self.best_of)


class RelativeProgress(ValueCommand):
    """Label steps good or bad by relative progress: the chance of success after a step over that before it.

    A step is +1 where the ratio is at least `--threshold`, else -1; after a step of value 0 all are -1
    (GenPRM, Zhao et al., arXiv 2504.00891). Without `--start` the first step of a trace stays unlabelled,
    unless its value is 0. Do not give samples that were chosen by outcome, since their success rate differs.

    Example: `surefoot label progress traces.jsonl --problems problems.jsonl --labels values.jsonl
    --start traces.jsonl --out labels.jsonl`
    """

    threshold: float = Field(default=0.8, gt=0)
    """Lowest ratio of a good step; 1 = no loss at all."""

    def labels_of(self, items: Sequence[LabelledTrace], rates: Mapping[str, float]) -> list[list[StepLabel]]:
        """Ratios of values."""
        return progress_labels(items, start=rates, threshold=self.threshold)


class Mutants(Command):
    """Make programs with one known fault from reference solutions, with exact labels.

    Writes `traces.jsonl` and `labels.jsonl` into the directory: the step with the fault is -1, those before
    it are +1. Programs run in a sandbox; those that pass all hidden tests are counted and left out.

    Example: `surefoot label mutants problems.jsonl --per-problem 10 --out mutants/`
    """

    problems: Annotated[str, Flag(argument=True, transient=True, file=True)]
    """File of problem records with tests and reference solutions, or `-` for standard input."""
    out: o.OutDirectory = Field(description="Directory for traces and labels.")
    per_problem: int = Field(default=10, ge=1, description="Most mutants of one problem, chosen at random.")
    segment: o.Segment = "python"
    sandbox: o.SandboxName = "bubblewrap"
    seed: o.Seed = 0

    def outputs(self) -> list[Path]:
        """Both files."""
        return [self.out / "traces.jsonl", self.out / "labels.jsonl"]

    def run(self) -> None:
        problems = read_table(self.problems, Problem)
        report = MutantReport()
        with open_sandbox(self.sandbox) as sandbox, RecordFiles(self.out) as files:
            cut = segmenter(self.segment)
            for mutant in fill(labelled_mutants, self, problems, sandbox, segmenter=cut, report=report):
                files.write(traces=[mutant.trace], labels=mutant.labels)
        note(report.summary())
        if not report.usable:
            raise LabelError(f"no mutant could be made: {report.summary()}")
