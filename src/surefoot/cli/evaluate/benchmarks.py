"""Measures of benchmarks: ProcessBench, PRMBench, steps of agent runs, Who&When."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from surefoot import formats
from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import Measure, named, read_noted, show_skipped, unlabelled
from surefoot.cli.runs import labelled
from surefoot.evaluation.benchmarks import agent_steps, prmbench, processbench, who_and_when
from surefoot.evaluation.report import Section
from surefoot.evaluation.splits import SPLIT, judged, parse_rules, ranked
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace

if TYPE_CHECKING:
    from surefoot.cli.evaluate.command import Evaluate

Threshold = Annotated[
    tuple[str, ...],
    Field(
        description="A step with a lower score is wrong: a number, `split` (fitted for each subset on the "
        "other half of its problems) or, for processbench, a subset's name (fitted on it)."
    ),
]
_SCORERS = ("sources", "loading", "draws")


class OfTraces(Measure):
    """Settings of the benchmarks of solutions."""

    needs: ClassVar = ("sources", "data")
    takes: ClassVar = _SCORERS
    threshold: Threshold = ()
    missing: Literal["leave-out", "wrong"] = "leave-out"
    """Traces without a record of some source: `leave-out` (for all sources), or `wrong` (no prediction of
    this source)."""
    neutral: o.NeutralRule = "good"


class ProcessBench(OfTraces):
    """Find the first error: ProcessBench's F1. By default with thresholds `split`, `gsm8k` if it is in the
    data, and 0.5."""

    def run(self, command: Evaluate) -> None:
        paths = named(command.data)
        default = [SPLIT, *(["gsm8k"] if "gsm8k" in paths else []), "0.5"]
        rules = parse_rules(list(self.threshold) or default, list(paths))
        cases = processbench.processbench_cases(
            {name: read_noted(formats.read_processbench, path) for name, path in paths.items()}
        )
        systems = command.systems(unlabelled(case.item for case in cases), neutral=self.neutral)
        result = processbench.evaluate_processbench(
            cases, systems, rules=rules, missing=self.missing, draws=command.draws, seed=command.seed
        )
        lead = ranked(result.scores, lambda score: score.average_f1.value)[0]
        errors = [(case.item, case.label, case.subset) for case in cases]
        command.write(processbench.processbench_section(result), judged=judged(lead, systems, errors))


class PRMBench(OfTraces):
    """Detect wrong steps: PRMBench's PRMScore, which does not count traces without a verdict."""

    threshold: Threshold = ("0.5", "split")

    def run(self, command: Evaluate) -> None:
        report, controls = ReadReport(), ReadReport()
        items: list[LabelledTrace] = []
        for path in named(command.data).values():
            items += formats.read_prmbench(path, report=report)
            items += formats.read_prmbench_controls(path, report=controls)
        show_skipped(report)  # a row that both readers skip is reported once
        if controls.bad_count > report.bad_count:
            show_skipped(controls, "controls of ")
        data = prmbench.prmbench_cases(items)
        systems = command.systems(unlabelled(case.item for case in data.cases), neutral=self.neutral)
        result = prmbench.evaluate_prmbench(
            data,
            systems,
            rules=parse_rules(self.threshold, []),
            missing=self.missing,
            draws=command.draws,
            seed=command.seed,
        )
        errors = [(case.item, case.first_error, case.kind) for case in data.cases]
        command.write(prmbench.prmbench_section(result), judged=judged(result.scores[0], systems, errors))


class AgentSteps(Measure):
    """Accuracy on each step of agent runs."""

    takes: ClassVar = _SCORERS
    threshold: Threshold = ("split",)
    unknown: Literal["wrong", "good"] = "wrong"
    """How unlabelled steps of a labelled run count: `wrong`, as in AgentProcessBench, or `good`, for rules
    that only report errors."""

    def measure(
        self,
        command: Evaluate,
        items: Iterable[LabelledTrace | formats.JudgedRun],
        section: Callable[..., Section],
    ) -> None:
        """Evaluate, print and write the report."""
        items = list(items)
        rules, runs = parse_rules(self.threshold, []), agent_steps.agent_runs(items)
        systems = command.systems(
            unlabelled(item for item in items if isinstance(item, LabelledTrace)),
            layout=agent_steps.agent_layout(runs),
        )
        result = agent_steps.evaluate_agent_steps(
            runs, systems, rules=rules, unknown=self.unknown, draws=command.draws, seed=command.seed
        )
        lead = next((score for score in result.scores if score.kind != "floor"), None)
        errors = [(item, run.first_error, run.subset) for item, run in zip(items, runs, strict=True)]
        command.write(section(result), judged=judged(lead, systems, errors) if lead else ())


class AgentProcessBench(AgentSteps):
    """Each step of tool-using runs: AgentProcessBench's accuracies. Steps without a prediction count as
    wrong; without sources only the baselines are reported."""

    needs: ClassVar = ("data",)

    def run(self, command: Evaluate) -> None:
        items: list[LabelledTrace | formats.JudgedRun] = []
        for path in command.data:
            report, of_judges = ReadReport(), ReadReport()
            items += formats.read_agent_processbench(path, report=report)
            items += formats.read_agent_judgements(path, report=of_judges)
            used = of_judges if of_judges.good else report
            used.require_some("give a file of AgentProcessBench, or one with labels of people and judges")
            show_skipped(used)
        self.measure(command, items, partial(agent_steps.agent_section, title="AgentProcessBench"))


class Runs(AgentSteps):
    """Each step of your own agent runs, as in AgentProcessBench, and the quality of alarms: false alarms,
    warnings before the end of a failed run, credit for recovery, loopholes (labels whose evidence begins
    with `loophole`). Subsets are the problems' sources."""

    needs: ClassVar = ("problems", "traces", "labels")

    def run(self, command: Evaluate) -> None:
        items = labelled(command.problems or "", command.traces or "", command.labels or "")
        section = partial(
            agent_steps.agent_section, title="Runs of agents", tested="wrong steps on held-out problems"
        )
        self.measure(command, items, section)


class WhoAndWhen(Measure):
    """The agent and the step that caused a failed multi-agent run: Who&When. A scorer blames the agents' step
    with its lowest score, a judge its first bad step."""

    needs: ClassVar = ("data",)
    takes: ClassVar = _SCORERS

    def run(self, command: Evaluate) -> None:
        report, paths = ReadReport(), named(command.data)
        data = {name: list(formats.read_who_and_when(path, report=report)) for name, path in paths.items()}
        report.require_some("give files of Who&When")
        show_skipped(report)
        items = [item for rows in data.values() for item in rows]
        runs, systems = who_and_when.blamed_runs(data), command.systems(unlabelled(items))
        result = who_and_when.evaluate_who_and_when(runs, systems, draws=command.draws, seed=command.seed)
        judged_runs = who_and_when.judged_blames(runs, items, systems)
        command.write(who_and_when.who_and_when_section(result), judged=judged_runs)
