"""A run as one HTML page, and several runs side by side; offline, with plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from surefoot.evaluation.report import Report
from surefoot.rl.figures import (
    accuracy_figure,
    mean_accuracy,
    rollouts_figure,
    runs_figure,
    time_figure,
    trace_error_figure,
    truth_figure,
)
from surefoot.rl.log import Alarm, EvaluationRow, RLLog, SampleRow, curve_samples_to, read_samples, samples_to
from surefoot.stats.intervals import Cell


def write_report(
    log: RLLog,
    path: Path,
    *,
    samples: Path | None = None,
    settings: Mapping[str, object] | None = None,
    each: int = 4,
) -> None:
    """One page: findings, alarms, proxy and gold, accuracy, rollouts, time, numbers, and rollouts to read.

    ``samples`` is the folder of kept rollouts: at most ``each`` of its first, middle and last round are
    shown. ``settings`` are printed as given. Raises ``RecordError`` for a broken file of samples.
    """
    report = Report("Reinforcement learning on step rewards")
    for sentence in findings(log):
        report.text(sentence)
    _alarms(report, log)
    if log.evaluations:
        _evaluations(report, log)
    if log.updates:
        report.heading("Training rollouts")
        report.figure(rollouts_figure(log), "What the guards watch; a dotted line is where an alarm began")
        _time(report, log)
        _counts(report, log)
    for row in _kept(samples, each) if samples else []:
        _sample(report, row)
    if settings:
        report.heading("Settings")
        rows = [
            [name, json.dumps(value, ensure_ascii=False, default=str)] for name, value in settings.items()
        ]
        report.table(["setting", "value"], rows)
    report.write(path)


def findings(log: RLLog) -> list[str]:
    """A run in plain sentences."""
    drawn = log.updates[-1].samples if log.updates else 0
    told = [f"{len(log.updates)} updates on {drawn} rollouts."]
    if log.stopped:
        told.append(f"Ended early: {log.stopped}")
    if not log.evaluations or not log.best:
        return [*told, "The policy was not evaluated."]
    first, last, best = log.evaluations[0], log.evaluations[-1], log.best
    told.append(
        f"Held-out accuracy {first.accuracy:.1%} at the start, {last.accuracy:.1%} at the end, on "
        f"{last.problems} problems; best {best.accuracy:.1%}, after update {best.update}."
    )
    if first.trace_error and last.trace_error:
        told.append(
            f"Right answers with a wrong step: {first.trace_error.value:.1%} at the start, "
            f"{last.trace_error.value:.1%} at the end."
        )
    if first.proxy and last.proxy:
        told.append(f"The proxy went from {first.proxy.value:.3g} to {last.proxy.value:.3g}.")
    return told


def compare_runs(runs: Mapping[str, Sequence[RLLog]], path: Path, *, accuracy: float | None = None) -> None:
    """One page: held-out accuracy against samples of several runs; each name has one log a seed.

    ``accuracy`` is what the samples are counted to; by default the accuracy that the runs of the first name
    end with, on average. Raises ``ValueError`` for no run, or one without evaluation.
    """
    if not runs or not all(logs and all(log.evaluations for log in logs) for logs in runs.values()):
        raise ValueError("'runs' needs at least one log for each name, and an evaluation in each log")
    ends = [log.evaluations[-1].accuracy.value for log in next(iter(runs.values()))]
    goal = sum(ends) / len(ends) if accuracy is None else accuracy
    report = Report("Reinforcement learning: runs side by side")
    report.text(
        f"Samples to an accuracy of {goal:.1%}: training rollouts until it is first reached, linear between "
        "evaluations; n/a where it never is. Intervals are 95 %, over problems, of one run."
    )
    report.figure(runs_figure(runs), "Held-out accuracy against training rollouts")
    rows: list[list[Cell]] = []
    for name, logs in runs.items():
        for number, log in enumerate(logs):
            last = log.evaluations[-1]
            reached = samples_to(log.evaluations, goal)
            alarms = ", ".join(dict.fromkeys(alarm.name for alarm in log.alarms)) or "none"
            label = name if len(logs) == 1 else f"{name}, run {number + 1}"
            rows.append([label, last.update, last.samples, last.accuracy, reached, last.trace_error, alarms])
        mean = mean_accuracy(logs)
        if len(logs) > 1 and mean:
            end = list(mean)[-1]
            reached = curve_samples_to(mean, goal)
            rows.append([f"{name}, mean of {len(logs)}", None, end, mean[end], reached, None, ""])
    heads = ["run", "updates", "samples", "final accuracy", "samples to it", "trace error", "alarms"]
    report.table(heads, rows, "At each run's last evaluation; a mean is at the last that its runs share")
    report.write(path)


def _alarms(report: Report, log: RLLog) -> None:
    report.heading("Alarms")
    if not log.alarms:
        report.text("None.")
        return
    columns: dict[str, Callable[[Alarm], Cell]] = {
        "alarm": lambda alarm: alarm.name,
        "began at": lambda alarm: alarm.update,
        "raised at": lambda alarm: alarm.raised,
        "held until": lambda alarm: "the end" if alarm.until is None else str(alarm.until),
        "measured": lambda alarm: alarm.measured,
        "threshold": lambda alarm: alarm.threshold,
        "what it says": lambda alarm: alarm.message,
    }
    report.table(
        list(columns), [[cell(alarm) for cell in columns.values()] for alarm in log.alarms], "Updates"
    )


def _evaluations(report: Report, log: RLLog) -> None:
    rows = log.evaluations
    report.heading("Held-out problems")
    if any(row.proxy for row in rows):
        report.figure(
            truth_figure(log), "Proxy and gold on the same traces, with 95 % intervals over problems"
        )
    report.figure(accuracy_figure(log), "Accuracy, with 95 % intervals over problems")
    if any(row.trace_error for row in rows):
        report.figure(trace_error_figure(log), "Trace error: right answers with at least one wrong step")
    columns: dict[str, Callable[[EvaluationRow], Cell]] = {
        "update": lambda row: row.update,
        "samples": lambda row: row.samples,
        "accuracy": lambda row: row.accuracy,
        "proxy": lambda row: row.proxy,
        "trace error": lambda row: row.trace_error,
        "tokens": lambda row: row.shape.tokens,
        "steps": lambda row: row.shape.steps,
        "empty steps": lambda row: row.shape.empty,
        "repeated steps": lambda row: row.shape.repeated,
        "failed": lambda row: row.failed,
        "ungraded": lambda row: row.ungraded,
        "unscored": lambda row: row.unscored,
        "unjudged": lambda row: row.unjudged,
    }
    report.table(list(columns), [[cell(row) for cell in columns.values()] for row in rows], "Evaluations")


def _time(report: Report, log: RLLog) -> None:
    spent = {
        part: sum(getattr(row.seconds, part) for row in log.updates)
        for part in ("generation", "scoring", "update")
    }
    total = sum(spent.values())
    if total <= 0:
        return
    drawn = sum(row.shape.traces for row in log.updates)
    report.figure(time_figure(log), "Time of each round")
    report.table(
        ["stage", "seconds", "share"],
        [[part, seconds, seconds / total] for part, seconds in spent.items()],
        f"{drawn / total:.4g} rollouts a second; evaluations and checkpoints are not counted",
    )


def _counts(report: Report, log: RLLog) -> None:
    counts = {
        "samples that did not come": sum(row.failed for row in log.updates),
        "rollouts without a reward": sum(row.dropped for row in log.updates),
        "rollouts outside the accuracy band": sum(row.filtered for row in log.updates),
        "steps without a score": sum(row.unscored_steps for row in log.updates),
        "updates from which nothing was learned": sum(row.loss is None for row in log.updates),
        "policy tokens read": log.usage.prompt_tokens,
        "policy tokens written": log.usage.completion_tokens,
        "verifier tokens": log.usage.verifier_tokens,
    }
    report.table(["what", "count"], list(counts.items()), "Counts; tokens include those of evaluations")


def _kept(folder: Path, each: int) -> list[SampleRow]:
    """Rollouts of the first, the middle and the last round that kept any."""
    files = sorted(folder.glob("*.jsonl"))
    chosen = sorted({0, len(files) // 2, len(files) - 1}) if files else []
    return [row for at in chosen for row in read_samples(files[at])[:each]]


def _sample(report: Report, row: SampleRow) -> None:
    trace = row.trace
    outcome = {True: "right", False: "wrong", None: "not judged"}[trace.outcome]
    report.heading(f"A rollout of update {row.update}: {outcome}")
    report.text(row.problem.text)
    report.table(
        ["step", "text", "score", "advantage"],
        [
            [index + 1, _visible(trace.step_text(index)), _at(row.scores, index), _at(row.advantages, index)]
            for index in range(len(trace.steps))
        ],
        f"{trace.usage.completion_tokens} tokens, {trace.finish_reason}; an advantage is a mean over tokens",
    )


def _at(values: Sequence[float | None], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _visible(text: str) -> str:
    """Line breaks as a sign, so that an empty step shows."""
    return text.replace("\n", "↵")
