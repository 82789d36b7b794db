"""``surefoot label verify``, ``expert``, ``consensus``, ``advantage`` and ``progress``: labels by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.label.command import LabelCommand, Tally
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo
from surefoot.errors import LabelError
from surefoot.labelling.verifiers.tool_calls import TOOL_RULES, ToolRule
from surefoot.labels import Neutral

if TYPE_CHECKING:
    from surefoot.io.joins import LabelledTraces
    from surefoot.labelling.consensus import ConsensusRule
    from surefoot.labelling.expert import StepMatch
    from surefoot.protocols import LabelledTrace, Labeller, StepVerifier
    from surefoot.records import StepLabel


class Verify(LabelCommand):
    """Label steps by rule: equations, programs that are run, tool calls, the lab's checker, or your own.

    The labels are of kind correctness, with the verifier's reason as evidence. Steps that
    a verifier cannot check stay unlabelled, with a reason.

    Example: `surefoot label verify traces.jsonl --problems problems.jsonl --verifier arithmetic -o l.jsonl`
    """

    verifier: tuple[str, ...] = Field(
        min_length=1,
        description="`arithmetic`, `compile`, `execution-trace`, `lab`, `lean`, `python-tests`, `rocq`, "
        "`shop`, `tool-calls`, `visible-tests` or `module:Class`; the lowest verdict counts.",
    )
    tool_rules: tuple[ToolRule, ...] = Field(
        default=TOOL_RULES, description="Rules of `tool-calls`; a step that breaks one is -1."
    )
    tool_policy: Annotated[str | None, o.INPUT] = Field(
        default=None,
        description="JSON file with a policy for `tool-calls` (`forbidden`, `clauses`, `repeatable`, "
        "`read_only`), in addition to a problem's `meta.tool_policy`.",
    )
    environment: o.EnvironmentName = None
    gold_order: bool = Field(
        default=False, description="To `state-replay` a gold call before an earlier one is wrong."
    )
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

    def run(self) -> None:
        """Check every step."""
        self.write_labels(
            "label verify",
            self.items(),
            size=500,
            engine=o.open_engine(self.engine, self.workers),
            tool_policy=self.tool_policy,
        )

    def labeller(self) -> AbstractContextManager[Labeller]:
        """The verifiers."""
        with_settings: dict[str, StepVerifier] = {}
        if "tool-calls" in self.verifier:
            from surefoot.labelling import ToolCallVerifier, ToolPolicy

            policy = ToolPolicy.of_file(self.tool_policy) if self.tool_policy else ToolPolicy()
            with_settings["tool-calls"] = ToolCallVerifier(rules=self.tool_rules, policy=policy)
        if "state-replay" in self.verifier:
            from surefoot.labelling import StateReplayVerifier
            from surefoot.policies import load_environment

            with_settings["state-replay"] = StateReplayVerifier(
                environment=load_environment(self.environment) if self.environment else None,
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

    expert: Annotated[str, o.INPUT] = Field(
        description="File of the experts' traces with steps; there can be several per problem."
    )
    match: Literal["exact", "numbers", "tolerance", "tool-call"] = Field(
        default="exact",
        description="When a step is an expert's: the same text, the same numbers, most of the same words, or "
        "the same tool calls.",
    )
    tolerance: float | None = Field(
        default=None,
        description="Relative difference of numbers (numbers 1e-6, tool-call 1e-9), or share of words that "
        "may differ (tolerance 0.2).",
    )
    disagreement: Literal["unknown", "wrong"] = Field(
        default="unknown", description="Label of the first step that no expert took."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.match == "exact" and self.tolerance is not None:
            raise ValueError("'match' exact takes no --tolerance; choose numbers, tolerance or tool-call")
        return self

    def run(self) -> None:
        """Compare every step."""
        self.write_labels("label expert", self.items(), expert=self.expert)

    @contextmanager
    def labeller(self) -> Iterator[Labeller]:
        """The labeller. Unusable expert traces are reported on stderr."""
        from surefoot.cli.runs import read_table
        from surefoot.labelling.expert import ExpertLabeller, expert_traces
        from surefoot.records import Trace

        match = self._match()
        experts, left_out = expert_traces(read_table(self.expert, Trace))
        for reason, count in left_out.items():
            echo(f"{count} expert traces left out: {reason}", err=True)
        yield ExpertLabeller(experts=experts, match=match, disagreement=self.disagreement)

    def _match(self) -> StepMatch[Any]:
        from surefoot.labelling.expert import ExactText, SameNumbers, SameToolCalls, SimilarText

        if self.match == "exact":
            return ExactText()
        rules: dict[str, type[SameNumbers | SimilarText | SameToolCalls]] = {
            "numbers": SameNumbers,
            "tolerance": SimilarText,
            "tool-call": SameToolCalls,
        }
        rule = rules[self.match]
        return rule() if self.tolerance is None else rule(tolerance=self.tolerance)


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
    rule: Literal["first-error", "unanimous", "weighted"] = Field(
        default="first-error",
        description="first-error keeps or drops whole traces; unanimous and weighted decide on each step.",
    )
    weight: tuple[str, ...] = Field(
        default=(), description="`NAME=NUMBER` for `--rule weighted`; 1 if not given."
    )
    margin: float | None = Field(
        default=None, description="Least lead for `--rule weighted`, as a share of all weights; 0 = any."
    )
    good_above: float = Field(
        default=0.0, description="A value label above this is good; 0 = any rollout succeeded."
    )
    neutral: Neutral = Field(
        default="drop", description="How to read a label of 0: good, bad, or abstain (`drop`)."
    )
    report: Annotated[Path | None, Flag(output=True)] = Field(
        default=None, description="JSON file with the counts of kept and dropped traces, and the reasons."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rule != "weighted" and (self.weight or self.margin is not None):
            raise ValueError(f"'weight' and 'margin' belong to --rule weighted, not to --rule {self.rule}")
        return self

    def run(self) -> None:
        """Combine, write and report."""
        from surefoot.cli.runs import pair, read_table
        from surefoot.io import write_json, write_records
        from surefoot.labelling.consensus import Combiner
        from surefoot.records import Problem, StepLabel, Trace

        rule = self._rule()
        files = _named(self.sources, "NAME=FILE")
        items = pair(read_table(self.problems, Problem), read_table(self.traces, Trace))
        tables = {name: read_table(path, StepLabel) for name, path in files.items()}
        combiner = Combiner(tables, rule=rule, good_above=self.good_above, neutral=self.neutral)
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
                combined = combiner.combine(item, labels)
                if any(label.value is not None for label in combined):
                    yield from combined

        write_records(self.out if self.out == "-" else Path(self.out), consensus(), record=StepLabel)
        for name, count in strays.items():
            if count:
                echo(f"{count} labels of {name} skipped: they belong to no step of a usable trace", err=True)
        report = combiner.report()
        if self.report:
            write_json(self.report, report.as_json())
        echo(report.summary(), err=True)
        if not report.kept_traces:
            raise LabelError(
                "the sources agree on no trace; --rule unanimous or weighted decides step by step"
            )

    def _rule(self) -> ConsensusRule:
        from surefoot.labelling.consensus import SameFirstError, Unanimous, Weighted

        if self.rule == "weighted":
            weights = {name: _number(name, text) for name, text in _named(self.weight, "NAME=NUMBER").items()}
            return Weighted(weights=weights, margin=self.margin or 0.0)
        return SameFirstError() if self.rule == "first-error" else Unanimous()


class ValueCommand(LabelCommand):
    """Labels that are computed from value labels."""

    labels: Annotated[str, o.INPUT] = Field(
        description="File of value labels, by soft estimates (`surefoot label mc`)."
    )
    start: Annotated[str | None, Flag(transient=True)] = Field(
        default=None,
        description="File of plain samples of that policy; a problem's success rate is the value "
        "before the first step.",
    )

    def compare(
        self,
        command: str,
        make: Callable[[Sequence[LabelledTrace], Mapping[str, float]], list[list[StepLabel]]],
    ) -> None:
        """Write the labels that ``make`` computes from the traces with values and the problems' success
        rates."""
        from surefoot.cli.runs import file_inputs, labelled, read_table
        from surefoot.labelling.advantage import start_values
        from surefoot.records import Problem, StepLabel, Trace
        from surefoot.work import FunctionJob, Pieces, map_resumable

        values = read_table(self.labels, StepLabel)
        items = self._with_values(
            labelled(read_table(self.problems, Problem), read_table(self.traces, Trace), values)
        )
        rates = start_values(read_table(self.start, Trace)) if self.start else {}
        if self.start:
            echo(f"success rates of {len(rates)} problems from {self.start}", err=True)
        tally = Tally()

        def work(piece: Sequence[LabelledTrace]) -> list[StepLabel]:
            return [label for of_trace in make(piece, rates) for label in of_trace]

        job = FunctionJob(
            record=StepLabel,
            work=work,
            command=command,
            config=self.resolved() | {"rates": sorted(rates.items())},
            inputs=file_inputs(problems=self.problems, traces=self.traces, labels=self.labels),
        )
        outcome = map_resumable(job, Pieces(items, 1000), self.out, on_record=tally.add)
        tally.report()
        outcome.require_complete()

    def _with_values(self, items: LabelledTraces) -> LabelledTraces:
        """Items that have a value; the others are counted. Raises ``LabelError`` if none has."""
        valued = items.where(lambda item: any(label.kind == "value" for label in item.labels))
        if not valued:
            raise LabelError(
                f"{self.labels}: no label of kind 'value' for these traces; make some with label mc"
            )
        if without := len(items) - len(valued):
            echo(f"{without} traces skipped: they have no label of kind 'value'", err=True)
        return valued


class Advantage(ValueCommand):
    """Label steps by advantage: the chance of success after a step less the chance before it.

    A prover that takes the best of K samples costs nothing more: its values are 1 - (1 - value)^K (Setlur et
    al., arXiv 2410.08146). Without `--start` the first step of a trace stays unlabelled. Do not give samples
    that were chosen by outcome, since their success rate differs.

    Example: `surefoot label advantage traces.jsonl --problems problems.jsonl --labels values.jsonl
    --best-of 4 --start traces.jsonl --out advantages.jsonl`
    """

    best_of: int = Field(
        default=1, ge=1, description="Prover: the best of this many samples of the labels' policy."
    )

    def run(self) -> None:
        """Subtract, and write."""
        from surefoot.labelling.advantage import advantage_labels

        self.compare(
            "label advantage",
            lambda piece, rates: advantage_labels(piece, start=rates, best_of=self.best_of),
        )


class RelativeProgress(ValueCommand):
    """Label steps good or bad by relative progress: the chance of success after a step over that before it.

    A step is +1 where the ratio is at least `--threshold`, else -1; after a step of value 0 all are -1
    (GenPRM, Zhao et al., arXiv 2504.00891). Without `--start` the first step of a trace stays unlabelled,
    unless its value is 0. Do not give samples that were chosen by outcome, since their success rate differs.

    Example: `surefoot label progress traces.jsonl --problems problems.jsonl --labels values.jsonl
    --start traces.jsonl --out labels.jsonl`
    """

    threshold: float = Field(
        default=0.8, gt=0, description="Lowest ratio of a good step; 1 = no loss at all."
    )

    def run(self) -> None:
        """Divide, and write."""
        from surefoot.labelling.advantage import progress_labels

        self.compare(
            "label progress",
            lambda piece, rates: progress_labels(piece, start=rates, threshold=self.threshold),
        )


def _named(words: Sequence[str], form: str) -> dict[str, str]:
    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise LabelError(f"{word!r} is not of the form {form}")
        if name in named:
            raise LabelError(f"'{name}' occurs twice; every source needs its own name")
        named[name] = value
    return named


def _number(source: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise LabelError(f"--weight {source}={text}: give a number") from None
