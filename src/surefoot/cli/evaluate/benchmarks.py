"""``surefoot evaluate processbench``, ``prmbench``, ``agent-processbench``, ``runs`` and ``who-and-when``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from surefoot import formats
from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import ScoringCommand, named, read_noted, show_skipped, unlabelled
from surefoot.cli.runs import labelled
from surefoot.cli.settings import fill
from surefoot.evaluation.benchmarks import agent_steps, prmbench, processbench, who_and_when
from surefoot.evaluation.frame import Tested
from surefoot.evaluation.splits import SPLIT, parse_rules
from surefoot.io import ReadReport
from surefoot.labels import LabelRule
from surefoot.protocols import LabelledTrace


class BenchmarkCommand(ScoringCommand):
    """Settings of both benchmarks."""

    data: Annotated[tuple[str, ...], o.INPUT] = Field(min_length=1)
    """The benchmark's file, as NAME=FILE or FILE; repeat it for several subsets."""
    missing: Literal["leave-out", "wrong"] = "leave-out"
    """Traces without a record of some source: `leave-out` (for all sources), or `wrong` (no prediction of
    this source)."""
    neutral: o.NeutralRule = "good"


class EvaluateProcessBench(BenchmarkCommand):
    """Find the first error: ProcessBench's F1 of scorers and judges, side by side, with intervals.

    Sources are checkpoints, or files of step scores, of a judge's labels, or of published scores.

    Example: `surefoot evaluate processbench mine=runs/prm judge=labels.jsonl --data gsm8k.json
    --data math.json --out bench`
    """

    threshold: tuple[str, ...] = ()
    """`split` (fitted on the other half of the problems), a subset's name (fitted on it, applied to all) or a
    number. By default `split`, `gsm8k` if it is in the data, and 0.5."""

    def run(self) -> None:
        paths = named(self.data)
        default = [SPLIT, *(["gsm8k"] if "gsm8k" in paths else []), "0.5"]
        rules = parse_rules(list(self.threshold) or default, list(paths))
        subsets = {name: read_noted(formats.read_processbench, path) for name, path in paths.items()}
        items = unlabelled(item for rows in subsets.values() for item in rows)
        cases = processbench.processbench_cases(subsets)
        systems = self.systems(items, reading=LabelRule(neutral=self.neutral))
        result = fill(processbench.evaluate_processbench, self, cases, systems, rules=rules)
        judged = processbench.judged_traces(result, cases, systems)
        self.write(processbench.processbench_section(result), judged=judged)


class EvaluatePRMBench(BenchmarkCommand):
    """Detect wrong steps: PRMBench's PRMScore of scorers and judges, side by side, with intervals.

    Like PRMBench, it does not count traces without a verdict.

    Example: `surefoot evaluate prmbench mine=runs/prm --data prmbench.jsonl --out bench`
    """

    threshold: tuple[str, ...] = ("0.5", "split")
    """A number (a step above it is valid; 0.5 is the published one), or `split` (fitted on the other half of
    the problems)."""
    redundancy: Annotated[tuple[str, ...], o.INPUT] = ()
    """NAME=FILE of redundancy scores of the source NAME, for the classes of simplicity."""
    redundancy_threshold: float = Field(default=0.15, description="A step with more redundancy is flagged.")

    def run(self) -> None:
        rules = parse_rules(list(self.threshold), [])
        cases = prmbench.prmbench_cases(
            [item for path in named(self.data).values() for item in _read_prmbench(path)]
        )
        items = unlabelled(case.item for case in cases.cases)
        systems = self.systems(items, reading=LabelRule(neutral=self.neutral))
        redundancy = {system.name: system for system in self.systems(items, sources=self.redundancy)}
        result = fill(prmbench.evaluate_prmbench, self, cases, systems, rules=rules, redundancy=redundancy)
        self.write(prmbench.prmbench_section(result), judged=prmbench.judged_flags(result, cases, systems))


class AgentCommand(ScoringCommand):
    """Settings of evaluations of each step of agent runs."""

    sources: o.Sources = ()
    """NAME=CHECKPOINT, or NAME=FILE of step scores, labels or judgements."""
    threshold: tuple[str, ...] = ("split",)
    """A step with a lower score is wrong: a number, or `split` (fitted for each subset on the other half of
    its problems)."""
    unknown: Literal["wrong", "good"] = "wrong"
    """How unlabelled steps of a labelled run count: `wrong`, as in AgentProcessBench, or `good`, for rules
    that only report errors."""

    def evaluate(
        self,
        items: Sequence[LabelledTrace | formats.JudgedRun],
        title: str,
        tested: Tested = "wrong steps on public benchmarks",
    ) -> None:
        """Evaluate, print and write the report."""
        rules, runs = parse_rules(self.threshold, []), agent_steps.agent_runs(items)
        systems = self.systems(
            unlabelled(item for item in items if isinstance(item, LabelledTrace)),
            layout=agent_steps.agent_layout(runs),
            reading=LabelRule(neutral="good"),
        )
        result = fill(agent_steps.evaluate_agent_steps, self, runs, systems, rules=rules)
        judged = agent_steps.judged_runs(result, items, systems)
        self.write(agent_steps.agent_section(result, title, tested), judged=judged)


class EvaluateAgentProcessBench(AgentCommand):
    """Evaluate the steps of tool-using runs: AgentProcessBench's accuracies, with baselines.

    Sources are checkpoints, or files of step scores, of a judge's labels, or of stored judgements;
    without sources only the baselines are reported. Steps without a prediction count as wrong.

    Example: `surefoot evaluate agent-processbench mine=runs/prm rules=labels.jsonl --data hotpotqa.jsonl
    --out bench`
    """

    data: Annotated[tuple[str, ...], o.INPUT] = Field(min_length=1)
    """The benchmark's file, or one with labels of people and judges; repeat it for several."""

    def run(self) -> None:
        items = [item for path in self.data for item in _read_runs(path)]
        self.evaluate(items, "AgentProcessBench")


class EvaluateRuns(AgentCommand):
    """Evaluate the steps of your own agent runs like AgentProcessBench, with baselines.

    Also reports the quality of alarms: false alarms, warnings before the end of a failed run, credit for
    recovery, and loopholes found if labels mark them. Subsets are the problems' sources. Steps without a
    prediction count as wrong.

    Example: `surefoot evaluate runs mine=runs/prm rules=labels.jsonl --problems problems.jsonl
    --traces traces.jsonl --labels truth.jsonl --out bench`
    """

    problems: o.Problems
    traces: o.Traces
    labels: Annotated[str, o.INPUT]
    """File of true labels; evidence that begins with `loophole` marks a loophole."""

    def run(self) -> None:
        items = labelled(self.problems, self.traces, self.labels)
        self.evaluate(list(items), "Runs of agents", "wrong steps on held-out problems")


class EvaluateWhoAndWhen(ScoringCommand):
    """Find the agent and the step that caused a failed multi-agent run: Who&When, with baselines.

    Sources are checkpoints, or files of step scores or of a judge's labels; without sources only the
    baselines are reported. A scorer blames the agents' step with its lowest score, a judge its first bad
    step.

    Example: `surefoot evaluate who-and-when judge=labels.jsonl --data hand='Hand-Crafted/*.json' --out
    bench`
    """

    sources: o.Sources = ()
    """NAME=CHECKPOINT, or NAME=FILE of step scores or labels."""
    data: Annotated[tuple[str, ...], o.INPUT] = Field(min_length=1)
    """The data set's files, as NAME=FILE or NAME=PATTERN; repeat it for several subsets."""

    def run(self) -> None:
        report = ReadReport()
        data = {
            name: list(formats.read_who_and_when(path, report=report))
            for name, path in named(self.data).items()
        }
        report.require_some("give files of Who&When")
        show_skipped(report)
        items = [item for rows in data.values() for item in rows]
        runs = who_and_when.blamed_runs(data)
        systems = self.systems(unlabelled(items), reading=LabelRule(neutral="good"))
        result = fill(who_and_when.evaluate_who_and_when, self, runs, systems)
        judged = who_and_when.judged_blames(runs, items, systems)
        self.write(who_and_when.who_and_when_section(result), judged=judged)


def _read_prmbench(path: str) -> list[LabelledTrace]:
    """Rows and controls; a skipped row is reported once."""
    report, controls = ReadReport(), ReadReport()
    items = [
        *formats.read_prmbench(path, report=report),
        *formats.read_prmbench_controls(path, report=controls),
    ]
    show_skipped(report)
    if controls.bad_count > report.bad_count:
        show_skipped(controls, "controls of ")
    return items


def _read_runs(path: str) -> list[LabelledTrace | formats.JudgedRun]:
    """Runs of the benchmark, or of a file of judgements; skipped rows are reported."""
    report, judged = ReadReport(), ReadReport()
    items: list[LabelledTrace | formats.JudgedRun] = [
        *formats.read_agent_processbench(path, report=report),
        *formats.read_agent_judgements(path, report=judged),
    ]
    used = judged if judged.good else report
    used.require_some("give a file of AgentProcessBench, or one with labels of people and judges")
    show_skipped(used)
    return items
