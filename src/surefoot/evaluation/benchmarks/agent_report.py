"""The report on steps of agents' runs: a table for each subset, floors first, and what an alarm is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.evaluation.benchmarks.agent_steps import ALL, AgentEvaluation, AgentScore
from surefoot.evaluation.benchmarks.processbench import sources_table, thresholds_text
from surefoot.evaluation.plots import interval_figure
from surefoot.evaluation.report import Report


def write_agent_report(result: AgentEvaluation, path: Path, *, title: str) -> Report:
    """One page: sources, a table for each subset with floors first, and what an alarm is worth."""
    report = Report(title)
    report.text(
        f"{sum(result.runs.values())} runs of {result.problems} problems, {sum(result.steps.values())} "
        f"steps; {result.unlabelled_steps} steps without label are not counted, and the outcome of "
        f"{result.outcome_unknown} runs is unknown. Intervals are 95 %, from {result.settings['draws']} "
        "bootstrap draws of problems, each with all its runs. What is not predicted is wrong.",
        printed=True,
    )
    if result.systems:
        sources_table(report, result.systems)
    report.heading("Accuracy")
    report.text(
        "Floors do not read the run. Those that use the outcome know whether it failed, which nothing that "
        "is to warn in time can know; the others are what a source has to beat. Numbers and thresholds are "
        "fitted for each subset on the other half of its problems, unless a rule is fixed.",
        printed=True,
    )
    for name in next(iter(result.scores)).subsets:
        _subset_table(report, name, result)
    _monitoring_table(report, result.scores)
    return report.write(path)


def _subset_table(report: Report, name: str, result: AgentEvaluation) -> None:
    best = result.best_floor[name]
    runs = sum(result.runs.values()) if name == ALL else result.runs[name]
    report.table(
        [
            "source",
            "knows the outcome",
            "steps",
            "first error",
            "first error less floor",
            "steps less floor",
            "missing runs",
            "missing steps",
            "first error, missing as no error",
            "rule",
            "threshold",
        ],
        [
            [
                _row(one),
                "yes" if one.uses_outcome else "no",
                found.step,
                found.first_error,
                found.first_error_less_floor,
                found.step_less_floor,
                found.missing_runs,
                found.missing_steps,
                found.lenient_first_error,
                one.rule,
                thresholds_text(one.thresholds) if one.thresholds else "",
            ]
            for one in result.scores
            if (found := one.subsets.get(name))
        ],
        f"{name}, {runs} runs: share of steps with the right sign, and of runs with the first error at its "
        f"step; less the best floor without the outcome ({best['first_error']}; for steps {best['step']})",
        spec=".1%",
        printed=5,
    )
    report.figure(
        interval_figure(
            {_row(one): one.subsets[name].first_error for one in result.scores if name in one.subsets},
            "first error accuracy",
        ),
        f"{name}: share of runs whose first error is found at its step, with 95 % intervals.",
    )


def _row(score: AgentScore) -> str:
    rule = f", {score.rule}" if score.kind == "scores" else ""
    return f"floor: {score.system}" if score.kind == "floor" else score.system + rule


def _monitoring_table(report: Report, scores: Sequence[AgentScore]) -> None:
    report.heading("Alarms").text(
        "An alarm is a step predicted −1. It is false at a step labelled 0 or +1. A failed run is warned of "
        "if a step labelled −1 gives an alarm; the lead time is counted from the first such step to the end. "
        "Recovery: the first +1 after a −1, scored above it. Loopholes are steps whose label says so; found "
        "are those that give an alarm."
    )
    report.records(
        "Over the subsets of which the source has records; to be warned of are failed runs with a wrong step",
        scores,
        {
            "source": _row,
            "runs": "monitoring.runs",
            "to be warned of": "monitoring.warnable",
            "recoveries": "monitoring.recoveries",
            "false alarms per run": "monitoring.false_alarms",
            "failed runs warned of": "monitoring.warned",
            "lead time in steps": "monitoring.lead_time",
            "recoveries scored higher": "monitoring.recovery_credit",
            "loopholes": "monitoring.loopholes",
            "loopholes found": "monitoring.loopholes_found",
        },
        spec=".3g",
    )
