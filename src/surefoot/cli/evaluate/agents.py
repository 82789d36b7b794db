"""``surefoot evaluate agent-processbench``, ``runs`` and ``who-and-when``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import EvaluationCommand, named, open_all, show, unlabelled
from surefoot.cli.terminal import echo
from surefoot.labels import LabelRule
from surefoot.policies.devices import Loading

if TYPE_CHECKING:
    from surefoot.formats import JudgedRun
    from surefoot.protocols import LabelledTrace


class AgentCommand(EvaluationCommand):
    """Settings of evaluations that judge each step of agents' runs."""

    sources: o.Sources = Field(
        default=(), description="NAME=CHECKPOINT, or NAME=FILE of step scores, labels or judgements."
    )
    threshold: tuple[str, ...] = Field(
        default=("split",),
        description="`split` (fitted for each subset on the other half of its problems) or a number: a step "
        "scored below it is wrong.",
    )
    unknown: Literal["wrong", "good"] = Field(
        default="wrong",
        description="What a step is that labels leave unknown: `wrong`, as AgentProcessBench counts, or "
        "`good`, for rules that only say what is wrong.",
    )
    loading: o.Models = Loading()

    def _evaluate(self, items: Sequence[LabelledTrace | JudgedRun], title: str, **inputs: object) -> None:
        """Evaluate, print and write the report."""
        from surefoot.evaluation.benchmarks.agent_report import write_agent_report
        from surefoot.evaluation.benchmarks.agent_steps import agent_layout, agent_runs, evaluate_agent_steps
        from surefoot.evaluation.splits import parse_rules
        from surefoot.io import write_json
        from surefoot.protocols import LabelledTrace

        files, rules = named(self.sources), parse_rules(self.threshold, [])
        runs = agent_runs(items)
        folder = self.folder()
        systems = open_all(
            files,
            unlabelled(one for one in items if isinstance(one, LabelledTrace)),
            folder,
            layout=agent_layout(runs),
            reading=LabelRule(neutral="good"),
            loading=self.loading,
        )
        result = evaluate_agent_steps(
            runs, systems, rules=rules, unknown=self.unknown, draws=self.draws, seed=self.seed
        )
        for_json, for_html = self.outputs()
        write_json(for_json, {"inputs": {"sources": files, **inputs}, **result.to_json()})
        show(write_agent_report(result, for_html, title=title))


class EvaluateAgentProcessBench(AgentCommand):
    """Judge each step of runs with tools: AgentProcessBench's accuracies, always beside floors.

    Sources are checkpoints, or files of step scores, of a judge's labels, or of stored judgements; without
    any the floors stand alone. Scores of checkpoints are stored in DIR/scores and reused; a killed run
    resumes. The tables are printed; DIR/agent-processbench.json has every number and
    DIR/agent-processbench.html the plots. What a source does not predict is wrong.

    Example: `surefoot evaluate agent-processbench mine=runs/prm rules=labels.jsonl --data hotpotqa.jsonl
    --out bench`
    """

    report_name: ClassVar[str] = "agent-processbench"

    data: Annotated[tuple[str, ...], o.INPUT] = Field(
        min_length=1,
        description="The benchmark's file, or one of people's labels beside judges'; repeat it for several.",
    )

    def run(self) -> None:
        """Evaluate, print and write the report."""
        items = [item for path in self.data for item in _read(path)]
        self._evaluate(items, "AgentProcessBench", data=list(self.data))


class EvaluateRuns(AgentCommand):
    """Judge each step of your own agents' runs, as AgentProcessBench does, always beside floors.

    Also what an alarm is worth: false alarms, warnings before the end of a failed run, credit for recovery,
    and loopholes found where labels mark them. Subsets are the problems' sources. The tables are printed;
    DIR/runs.json has every number and DIR/runs.html the plots. What a source does not predict is wrong.

    Example: `surefoot evaluate runs mine=runs/prm rules=labels.jsonl --problems problems.jsonl
    --traces traces.jsonl --labels truth.jsonl --out bench`
    """

    report_name: ClassVar[str] = "runs"

    problems: o.Problems
    traces: o.Traces
    labels: Annotated[str, o.INPUT] = Field(
        description="File of true labels; one whose evidence begins with `loophole` marks a loophole."
    )

    def run(self) -> None:
        """Evaluate, print and write the report."""
        from surefoot.cli.runs import labelled, read_table
        from surefoot.records import Problem, StepLabel, Trace

        items = labelled(
            read_table(self.problems, Problem),
            read_table(self.traces, Trace),
            read_table(self.labels, StepLabel),
        )
        names = {"problems", "traces", "labels"}
        self._evaluate(list(items), "Runs of agents", **self.model_dump(include=names))


class EvaluateWhoAndWhen(EvaluationCommand):
    """Find who is to blame for a failed run of several agents, and when: Who&When, always beside floors.

    Sources are checkpoints, or files of step scores or of a judge's labels; without any the floors stand
    alone. A scorer blames the agents' step that it scores lowest, a judge its first bad step. Scores of
    checkpoints are stored in DIR/scores and reused. The tables are printed; DIR/who-and-when.json has every
    number and DIR/who-and-when.html the tables.

    Example: `surefoot evaluate who-and-when judge=labels.jsonl --data hand='Hand-Crafted/*.json' --out
    bench`
    """

    report_name: ClassVar[str] = "who-and-when"

    sources: o.Sources = Field(
        default=(), description="NAME=CHECKPOINT, or NAME=FILE of step scores or labels."
    )
    data: Annotated[tuple[str, ...], o.INPUT] = Field(
        min_length=1,
        description="The data set's files, as NAME=FILE or NAME=PATTERN; repeat it for several subsets.",
    )
    loading: o.Models = Loading()

    def run(self) -> None:
        """Evaluate, print and write the report."""
        from surefoot.evaluation.benchmarks.who_and_when import (
            blamed_runs,
            evaluate_who_and_when,
            write_who_and_when_report,
        )
        from surefoot.formats import read_who_and_when
        from surefoot.io import ReadReport, write_json

        files, paths = named(self.sources), named(self.data)
        report = ReadReport()
        data = {name: list(read_who_and_when(path, report=report)) for name, path in paths.items()}
        report.require_some("give files of Who&When")
        if report.bad_count:
            echo(report.summary(), err=True)
        runs = blamed_runs(data)
        folder = self.folder()
        items = unlabelled(item for rows in data.values() for item in rows)
        systems = open_all(files, items, folder, reading=LabelRule(neutral="good"), loading=self.loading)
        result = evaluate_who_and_when(runs, systems, draws=self.draws, seed=self.seed)
        for_json, for_html = self.outputs()
        write_json(for_json, {"inputs": {"sources": files, "data": paths}, **result.to_json()})
        show(write_who_and_when_report(result, for_html))


def _read(path: str) -> list[LabelledTrace | JudgedRun]:
    """Runs of the benchmark, or of a file of judgements; what is skipped is said."""
    from surefoot.formats import read_agent_judgements, read_agent_processbench
    from surefoot.io import ReadReport

    report, judged = ReadReport(), ReadReport()
    items: list[LabelledTrace | JudgedRun] = [
        *read_agent_processbench(path, report=report),
        *read_agent_judgements(path, report=judged),
    ]
    counted = judged if judged.good else report
    counted.require_some("give a file of AgentProcessBench, or of people's labels beside judges'")
    if counted.bad_count:
        echo(counted.summary(), err=True)
    return items
