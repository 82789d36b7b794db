"""``surefoot evaluate agent-processbench``, ``runs`` and ``who-and-when``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import ScoringCommand, named, show_skipped, unlabelled
from surefoot.labels import LabelRule

if TYPE_CHECKING:
    from surefoot.formats import JudgedRun
    from surefoot.protocols import LabelledTrace


class AgentCommand(ScoringCommand):
    """Settings of evaluations of each step of agent runs."""

    sources: o.Sources = Field(
        default=(), description="NAME=CHECKPOINT, or NAME=FILE of step scores, labels or judgements."
    )
    threshold: tuple[str, ...] = Field(
        default=("split",),
        description="A step with a lower score is wrong: a number, or `split` (fitted for each subset on the "
        "other half of its problems).",
    )
    unknown: Literal["wrong", "good"] = Field(
        default="wrong",
        description="How unlabelled steps of a labelled run count: `wrong`, as in AgentProcessBench, or "
        "`good`, for rules that only report errors.",
    )

    def evaluate(self, items: Sequence[LabelledTrace | JudgedRun], title: str) -> None:
        """Evaluate, print and write the report."""
        from surefoot.evaluation.benchmarks.agent_steps import (
            agent_layout,
            agent_runs,
            agent_section,
            evaluate_agent_steps,
        )
        from surefoot.evaluation.splits import parse_rules
        from surefoot.protocols import LabelledTrace

        rules, runs = parse_rules(self.threshold, []), agent_runs(items)
        systems = self.systems(
            unlabelled(item for item in items if isinstance(item, LabelledTrace)),
            layout=agent_layout(runs),
            reading=LabelRule(neutral="good"),
        )
        result = evaluate_agent_steps(
            runs, systems, rules=rules, unknown=self.unknown, draws=self.draws, seed=self.seed
        )
        self.write(agent_section(result, title))


class EvaluateAgentProcessBench(AgentCommand):
    """Evaluate the steps of tool-using runs: AgentProcessBench's accuracies, with baselines.

    Sources are checkpoints, or files of step scores, of a judge's labels, or of stored judgements; without
    sources only the baselines are reported. Scores of checkpoints are stored in DIR/scores and reused, so a
    killed run resumes. The tables are printed; DIR/agent-processbench.json has every number and
    DIR/agent-processbench.html the plots. Steps without a prediction count as wrong.

    Example: `surefoot evaluate agent-processbench mine=runs/prm rules=labels.jsonl --data hotpotqa.jsonl
    --out bench`
    """

    report_name: ClassVar[str] = "agent-processbench"

    data: Annotated[tuple[str, ...], o.INPUT] = Field(
        min_length=1,
        description="The benchmark's file, or one with labels of people and judges; repeat it for several.",
    )

    def run(self) -> None:
        """Evaluate, print and write the report."""
        items = [item for path in self.data for item in _read(path)]
        self.evaluate(items, "AgentProcessBench")


class EvaluateRuns(AgentCommand):
    """Evaluate the steps of your own agent runs like AgentProcessBench, with baselines.

    Also reports the quality of alarms: false alarms, warnings before the end of a failed run, credit for
    recovery, and loopholes found if labels mark them. Subsets are the problems' sources. The tables are
    printed; DIR/runs.json has every number and DIR/runs.html the plots. Steps without a prediction count as
    wrong.

    Example: `surefoot evaluate runs mine=runs/prm rules=labels.jsonl --problems problems.jsonl
    --traces traces.jsonl --labels truth.jsonl --out bench`
    """

    report_name: ClassVar[str] = "runs"

    problems: o.Problems
    traces: o.Traces
    labels: Annotated[str, o.INPUT] = Field(
        description="File of true labels; evidence that begins with `loophole` marks a loophole."
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
        self.evaluate(list(items), "Runs of agents")


class EvaluateWhoAndWhen(ScoringCommand):
    """Find the agent and the step that caused a failed multi-agent run: Who&When, with baselines.

    Sources are checkpoints, or files of step scores or of a judge's labels; without sources only the
    baselines are reported. A scorer blames the agents' step with its lowest score, a judge its first bad
    step. Scores of checkpoints are stored in DIR/scores and reused. The tables are printed;
    DIR/who-and-when.json has every number and DIR/who-and-when.html the tables.

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

    def run(self) -> None:
        """Evaluate, print and write the report."""
        from surefoot.evaluation.benchmarks.who_and_when import (
            blamed_runs,
            evaluate_who_and_when,
            who_and_when_section,
        )
        from surefoot.formats import read_who_and_when
        from surefoot.io import ReadReport

        report = ReadReport()
        data = {name: list(read_who_and_when(path, report=report)) for name, path in named(self.data).items()}
        report.require_some("give files of Who&When")
        show_skipped(report)
        items = unlabelled(item for rows in data.values() for item in rows)
        runs = blamed_runs(data)
        systems = self.systems(items, reading=LabelRule(neutral="good"))
        result = evaluate_who_and_when(runs, systems, draws=self.draws, seed=self.seed)
        self.write(who_and_when_section(result))


def _read(path: str) -> list[LabelledTrace | JudgedRun]:
    """Runs of the benchmark, or of a file of judgements; skipped rows are reported."""
    from surefoot.formats import read_agent_judgements, read_agent_processbench
    from surefoot.io import ReadReport

    report, judged = ReadReport(), ReadReport()
    items: list[LabelledTrace | JudgedRun] = [
        *read_agent_processbench(path, report=report),
        *read_agent_judgements(path, report=judged),
    ]
    used = judged if judged.good else report
    used.require_some("give a file of AgentProcessBench, or one with labels of people and judges")
    show_skipped(used)
    return items
