"""Measures of benchmarks: ProcessBench, PRMBench, steps of agent runs, Who&When."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from surefoot import formats
from surefoot.cli import options as o
from surefoot.cli.evaluate.command import Evaluate, Measure
from surefoot.cli.evaluate.inputs import named, read_noted, show_skipped, unlabelled
from surefoot.cli.runs import labelled
from surefoot.evaluation.benchmarks import agent_steps, prmbench, processbench, who_and_when
from surefoot.evaluation.frame import Tested
from surefoot.evaluation.splits import SPLIT, parse_rules
from surefoot.io import ReadReport
from surefoot.labels import LabelRule
from surefoot.protocols import LabelledTrace

Threshold = Annotated[
    tuple[str, ...],
    Field(
        description="A step with a lower score is wrong: a number, `split` (fitted for each subset on the "
        "other half of its problems) or, for processbench, a subset's name (fitted on it)."
    ),
]
Missing = Annotated[
    Literal["leave-out", "wrong"],
    Field(
        description="Traces without a record of some source: `leave-out` (for all sources), or `wrong` (no "
        "prediction of this source)."
    ),
]
Unknown = Annotated[
    Literal["wrong", "good"],
    Field(
        description="How unlabelled steps of a labelled run count: `wrong`, as in AgentProcessBench, or "
        "`good`, for rules that only report errors."
    ),
]
_SCORERS = ("sources", "loading", "draws")


class ProcessBench(Measure):
    """Find the first error: ProcessBench's F1. By default with thresholds `split`, `gsm8k` if it is in the
    data, and 0.5."""

    needs: ClassVar = ("sources", "data")
    takes: ClassVar = _SCORERS
    threshold: Threshold = ()
    missing: Missing = "leave-out"
    neutral: o.NeutralRule = "good"

    def run(self, command: Evaluate) -> None:
        paths = named(command.data)
        default = [SPLIT, *(["gsm8k"] if "gsm8k" in paths else []), "0.5"]
        rules = parse_rules(list(self.threshold) or default, list(paths))
        subsets = {name: read_noted(formats.read_processbench, path) for name, path in paths.items()}
        items = unlabelled(item for rows in subsets.values() for item in rows)
        cases = processbench.processbench_cases(subsets)
        systems = command.systems(items, reading=LabelRule(neutral=self.neutral))
        result = processbench.evaluate_processbench(
            cases, systems, rules=rules, missing=self.missing, draws=command.draws, seed=command.seed
        )
        judged = processbench.judged_traces(result, cases, systems)
        command.write(processbench.processbench_section(result), judged=judged)


class PRMBench(Measure):
    """Detect wrong steps: PRMBench's PRMScore, which does not count traces without a verdict."""

    needs: ClassVar = ("sources", "data")
    takes: ClassVar = (*_SCORERS, "redundancy")
    threshold: Threshold = ("0.5", "split")
    missing: Missing = "leave-out"
    neutral: o.NeutralRule = "good"
    redundancy_threshold: float = Field(default=0.15, description="A step with more redundancy is flagged.")

    def run(self, command: Evaluate) -> None:
        rules = parse_rules(list(self.threshold), [])
        cases = prmbench.prmbench_cases(
            [item for path in named(command.data).values() for item in _read_prmbench(path)]
        )
        items = unlabelled(case.item for case in cases.cases)
        systems = command.systems(items, reading=LabelRule(neutral=self.neutral))
        result = prmbench.evaluate_prmbench(
            cases,
            systems,
            redundancy={one.name: one for one in command.systems(items, sources=command.redundancy)},
            redundancy_threshold=self.redundancy_threshold,
            rules=rules,
            missing=self.missing,
            draws=command.draws,
            seed=command.seed,
        )
        judged = prmbench.judged_flags(result, cases, systems)
        command.write(prmbench.prmbench_section(result), judged=judged)


class AgentSteps(Measure):
    """Accuracy on each step of agent runs."""

    threshold: Threshold = ("split",)
    unknown: Unknown = "wrong"

    def measure(
        self,
        command: Evaluate,
        items: Sequence[LabelledTrace | formats.JudgedRun],
        title: str,
        tested: Tested = "wrong steps on public benchmarks",
    ) -> None:
        """Evaluate, print and write the report."""
        rules, runs = parse_rules(self.threshold, []), agent_steps.agent_runs(items)
        systems = command.systems(
            unlabelled(item for item in items if isinstance(item, LabelledTrace)),
            layout=agent_steps.agent_layout(runs),
            reading=LabelRule(neutral="good"),
        )
        result = agent_steps.evaluate_agent_steps(
            runs, systems, rules=rules, unknown=self.unknown, draws=command.draws, seed=command.seed
        )
        judged = agent_steps.judged_runs(result, items, systems)
        command.write(agent_steps.agent_section(result, title, tested), judged=judged)


class AgentProcessBench(AgentSteps):
    """Each step of tool-using runs: AgentProcessBench's accuracies. Steps without a prediction count as
    wrong; without sources only the baselines are reported."""

    needs: ClassVar = ("data",)
    takes: ClassVar = _SCORERS

    def run(self, command: Evaluate) -> None:
        items = [item for path in command.data for item in _read_runs(path)]
        self.measure(command, items, "AgentProcessBench")


class Runs(AgentSteps):
    """Each step of your own agent runs, as in AgentProcessBench, and the quality of alarms: false alarms,
    warnings before the end of a failed run, credit for recovery, loopholes (labels whose evidence begins
    with `loophole`). Subsets are the problems' sources."""

    needs: ClassVar = ("problems", "traces", "labels")
    takes: ClassVar = _SCORERS

    def run(self, command: Evaluate) -> None:
        items = labelled(command.problems or "", command.traces or "", command.labels or "")
        self.measure(command, list(items), "Runs of agents", "wrong steps on held-out problems")


class WhoAndWhen(Measure):
    """The agent and the step that caused a failed multi-agent run: Who&When. A scorer blames the agents' step
    with its lowest score, a judge its first bad step."""

    needs: ClassVar = ("data",)
    takes: ClassVar = _SCORERS

    def run(self, command: Evaluate) -> None:
        report = ReadReport()
        data = {
            name: list(formats.read_who_and_when(path, report=report))
            for name, path in named(command.data).items()
        }
        report.require_some("give files of Who&When")
        show_skipped(report)
        items = [item for rows in data.values() for item in rows]
        runs = who_and_when.blamed_runs(data)
        systems = command.systems(unlabelled(items), reading=LabelRule(neutral="good"))
        result = who_and_when.evaluate_who_and_when(runs, systems, draws=command.draws, seed=command.seed)
        judged = who_and_when.judged_blames(runs, items, systems)
        command.write(who_and_when.who_and_when_section(result), judged=judged)


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
