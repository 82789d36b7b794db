"""A run as one HTML page, and several runs side by side; offline, with plots."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.evaluation.plots import legend, new_figure, shade
from surefoot.evaluation.report import Column, Report
from surefoot.io import read_records
from surefoot.rl.log import (
    Alarm,
    EvaluationRow,
    RLLog,
    SampleRow,
    UpdateRow,
    curve_samples_to,
    samples_to,
)
from surefoot.stats.intervals import Cell, Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Quantity = Callable[[UpdateRow], float | None]


def write_report(
    log: RLLog,
    path: Path,
    *,
    samples: Path | None = None,
    settings: Mapping[str, object] | None = None,
    each: int = 4,
) -> None:
    """One page: findings, alarms, proxy and gold, accuracy, rollouts, time, numbers, and rollouts to read.

    ``samples`` is the folder of stored rollouts: at most ``each`` of its first, middle and last round are
    shown. ``settings`` are printed unchanged. Raises ``RecordError`` for a broken file of samples.
    """
    report = Report("Reinforcement learning on step rewards")
    for sentence in findings(log):
        report.text(sentence)
    _alarms(report, log)
    if log.evaluations:
        _evaluations(report, log)
    if log.updates:
        report.heading("Training rollouts")
        report.figure(rollouts_figure(log), "What the guards watch; dotted lines mark where alarms began")
        _time(report, log)
        _counts(report, log)
    for row in _stored_samples(samples, each) if samples else []:
        _sample(report, row)
    if settings:
        report.heading("Settings")
        rows = [
            [name, json.dumps(value, ensure_ascii=False, default=str)] for name, value in settings.items()
        ]
        report.table(["setting", "value"], rows)
    report.write(path)


def findings(log: RLLog) -> list[str]:
    """The run in sentences."""
    rollouts = log.updates[-1].samples if log.updates else 0
    sentences = [f"{len(log.updates)} updates on {rollouts} rollouts."]
    if log.stopped:
        sentences.append(f"Ended early: {log.stopped}")
    if not log.evaluations or not log.best:
        return [*sentences, "The policy was not evaluated."]
    first, last, best = log.evaluations[0], log.evaluations[-1], log.best
    sentences.append(
        f"Held-out accuracy {first.accuracy:.1%} at the start, {last.accuracy:.1%} at the end, on "
        f"{last.problems} problems; best {best.accuracy:.1%}, after update {best.update}."
    )
    if first.trace_error and last.trace_error:
        sentences.append(
            f"Correct answers with a wrong step: {first.trace_error.value:.1%} at the start, "
            f"{last.trace_error.value:.1%} at the end."
        )
    if first.proxy and last.proxy:
        sentences.append(f"The proxy went from {first.proxy.value:.3g} to {last.proxy.value:.3g}.")
    return sentences


def compare_runs(runs: Mapping[str, Sequence[RLLog]], path: Path, *, accuracy: float | None = None) -> None:
    """One page: held-out accuracy by samples of several runs; each name has one log per seed.

    Samples are counted up to ``accuracy``, by default the mean final accuracy of the runs of the first name.
    Raises ``ValueError`` without runs, or for a run without an evaluation.
    """
    if not runs or not all(logs and all(log.evaluations for log in logs) for logs in runs.values()):
        raise ValueError("'runs' needs at least one log for each name, and an evaluation in each log")
    ends = [log.evaluations[-1].accuracy.value for log in next(iter(runs.values()))]
    goal = sum(ends) / len(ends) if accuracy is None else accuracy
    report = Report("Reinforcement learning: runs side by side")
    report.text(
        f"Samples to an accuracy of {goal:.1%}: training rollouts until it is first reached, linear between "
        "evaluations; n/a where it never is. Intervals are 95%, over problems, of one run."
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
    report.table(
        heads, rows, "At each run's last evaluation; means are at the last evaluation that the runs share"
    )
    report.write(path)


def _alarms(report: Report, log: RLLog) -> None:
    report.heading("Alarms")
    if not log.alarms:
        report.text("None.")
        return
    columns: dict[str, Column[Alarm]] = {
        "alarm": "name",
        "began at": "update",
        "raised at": "raised",
        "held until": lambda alarm: "the end" if alarm.until is None else str(alarm.until),
        "measured": "measured",
        "threshold": "threshold",
        "message": "message",
    }
    report.records("Updates", log.alarms, columns)


def _evaluations(report: Report, log: RLLog) -> None:
    rows = log.evaluations
    report.heading("Held-out problems")
    if any(row.proxy for row in rows):
        report.figure(
            truth_figure(log), "Proxy and gold on the same traces, with 95% intervals over problems"
        )
    report.figure(accuracy_figure(log), "Accuracy, with 95% intervals over problems")
    if any(row.trace_error for row in rows):
        report.figure(trace_error_figure(log), "Trace error: correct answers with at least one wrong step")
    columns: dict[str, Column[EvaluationRow]] = {
        "update": "update",
        "samples": "samples",
        "accuracy": "accuracy",
        "proxy": "proxy",
        "trace error": "trace_error",
        "tokens": "shape.tokens",
        "steps": "shape.steps",
        "empty steps": "shape.empty",
        "repeated steps": "shape.repeated",
        "failed": "failed",
        "ungraded": "ungraded",
        "unscored": "unscored",
        "unjudged": "unjudged",
    }
    report.records("Evaluations", rows, columns)


def _time(report: Report, log: RLLog) -> None:
    spent = {
        part: sum(getattr(row.seconds, part) for row in log.updates)
        for part in ("generation", "scoring", "update")
    }
    total = sum(spent.values())
    if total <= 0:
        return
    rollouts = sum(row.shape.traces for row in log.updates)
    report.figure(time_figure(log), "Time of each round")
    report.table(
        ["stage", "seconds", "share"],
        [[part, seconds, seconds / total] for part, seconds in spent.items()],
        f"{rollouts / total:.4g} rollouts per second; evaluations and checkpoints are not counted",
    )


def _counts(report: Report, log: RLLog) -> None:
    counts = {
        "failed samples": sum(row.failed for row in log.updates),
        "rollouts without a reward": sum(row.dropped for row in log.updates),
        "rollouts outside the accuracy band": sum(row.filtered for row in log.updates),
        "steps without a score": sum(row.unscored_steps for row in log.updates),
        "updates from which nothing was learned": sum(row.loss is None for row in log.updates),
        "policy tokens read": log.usage.prompt_tokens,
        "policy tokens written": log.usage.completion_tokens,
        "verifier tokens": log.usage.verifier_tokens,
    }
    report.table(["what", "count"], list(counts.items()), "Counts; tokens include evaluations")


def _stored_samples(folder: Path, each: int) -> list[SampleRow]:
    """Rollouts of the first, the middle and the last round that stored any."""
    files = sorted(folder.glob("*.jsonl"))
    chosen = sorted({0, len(files) // 2, len(files) - 1}) if files else []
    return [row for at in chosen for row in islice(read_records(files[at], SampleRow), each)]


def _sample(report: Report, row: SampleRow) -> None:
    trace = row.trace
    outcome = {True: "correct", False: "wrong", None: "not judged"}[trace.outcome]
    report.heading(f"A rollout of update {row.update}: {outcome}")
    report.text(row.problem.text)
    report.table(
        ["step", "text", "score", "advantage"],
        [
            [index + 1, _visible(trace.step_text(index)), _at(row.scores, index), _at(row.advantages, index)]
            for index in range(len(trace.steps))
        ],
        f"{trace.usage.completion_tokens} tokens, {trace.finish_reason}; advantages are means over tokens",
    )


def _at(values: Sequence[float | None], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _visible(text: str) -> str:
    """Line breaks as a symbol, so that an empty step is visible."""
    return text.replace("\n", "↵")


def truth_figure(log: RLLog) -> Figure:
    """Accuracy (left axis) and proxy (right) on held-out problems; best accuracy and overoptimization
    marked."""
    figure, axes = new_figure("rollouts trained on", "held-out accuracy (gold)", height=4.2)
    right = axes.twinx()
    right.set_ylabel("held-out score (proxy), broken line")
    _band(axes, log.evaluations, lambda row: row.accuracy, "C0", "gold")
    _band(right, log.evaluations, lambda row: row.proxy, "C1", "proxy", "--")
    if best := log.best:
        axes.plot(
            best.samples, best.accuracy.value, "o", ms=12, mfc="none", color="C0", label="best accuracy"
        )
    at = {row.update: row.samples for row in log.evaluations}
    for number, alarm in enumerate(alarm for alarm in log.alarms if alarm.name == "overoptimization"):
        label = "overoptimization" if number == 0 else None
        axes.axvline(at[alarm.update], color="#000000", linestyle=":", label=label)
    legend(figure)
    return figure


def accuracy_figure(log: RLLog) -> Figure:
    """Held-out accuracy with its 95% band, and the share of correct answers among training rollouts."""
    figure, axes = new_figure("rollouts trained on", "share of correct answers", height=4.2)
    _line(axes, log.updates, lambda row: row.outcome, "C7", "training rollouts", alpha=0.6)
    _band(axes, log.evaluations, lambda row: row.accuracy, "C0", "held-out problems")
    legend(figure)
    return figure


def trace_error_figure(log: RLLog) -> Figure:
    """Share of correct answers that have a wrong step, with its 95% band."""
    figure, axes = new_figure("rollouts trained on", "correct answers with a wrong step", height=4.2)
    _band(axes, log.evaluations, lambda row: row.trace_error, "C3", "held-out problems")
    legend(figure)
    return figure


def rollouts_figure(log: RLLog) -> Figure:
    """Six panels of what the guards watch in training; dotted lines mark where alarms began."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, 8.5), layout="constrained")
    panels = figure.subplots(3, 2, sharex=True)
    share = {
        "truncated at max_tokens": lambda row: None if row.shape.finished is None else 1 - row.shape.finished,
        "empty steps": lambda row: row.shape.empty,
        "repeated steps": lambda row: row.shape.repeated,
    }
    parts: list[tuple[str, dict[str, _Quantity], set[str]]] = [
        ("tokens per rollout", {"": lambda row: row.shape.tokens}, {"length"}),
        ("steps per rollout", {"": lambda row: row.shape.steps}, {"one_step"}),
        ("share", share, {"cut", "empty", "repeated"}),
        ("entropy, nats per token", {"": lambda row: row.entropy}, {"entropy"}),
        ("KL to the reference, nats per token", {"": lambda row: row.kl}, set()),
        ("gradient norm", {"": lambda row: row.gradient_norm}, set()),
    ]
    at = {row.update: row.samples for row in log.updates}
    for axes, (title, lines, alarms) in zip(panels.flat, parts, strict=True):
        for number, (name, quantity) in enumerate(lines.items()):
            _line(axes, log.updates, quantity, f"C{number}", name)
        for alarm in log.alarms:
            if alarm.name in alarms:
                axes.axvline(at[alarm.update], color="#000000", linestyle=":")
        axes.set_title(title, fontsize="medium")
        axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))  # KL from single tokens may be negative
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize="small")
    figure.supxlabel("rollouts trained on", fontsize="medium")
    return figure


def time_figure(log: RLLog) -> Figure:
    """Shares of generation, scoring and update in the time of each round, stacked."""
    figure, axes = new_figure("rollouts trained on", "share of the time", height=4.2)
    rows = [row for row in log.updates if row.seconds.total > 0]
    parts = ("generation", "scoring", "update")
    shares = [[getattr(row.seconds, part) / row.seconds.total for row in rows] for part in parts]
    axes.stackplot([row.samples for row in rows], shares, labels=parts, alpha=0.7)
    axes.set_ylim(0, 1)
    legend(figure)
    return figure


def runs_figure(runs: Mapping[str, Sequence[RLLog]]) -> Figure:
    """Held-out accuracy by samples: one color per name; a band for one run, a mean line for several."""
    figure, axes = new_figure("rollouts trained on", "held-out accuracy", lines=len(runs), height=4.2)
    for number, (name, logs) in enumerate(runs.items()):
        colour, style = f"C{number % 10}", "-" if number < 10 else "--"
        if len(logs) == 1:
            _band(axes, logs[0].evaluations, lambda row: row.accuracy, colour, name, style)
            continue
        for log in logs:
            values = [row.accuracy.value for row in log.evaluations]
            axes.plot(
                [row.samples for row in log.evaluations], values, style, color=colour, lw=0.7, alpha=0.5
            )
        mean = mean_accuracy(logs)
        axes.plot(list(mean), list(mean.values()), style, color=colour, lw=2, label=f"{name}, mean")
    legend(figure)
    return figure


def mean_accuracy(logs: Sequence[RLLog]) -> dict[int, float]:
    """Mean held-out accuracy by samples, where every run was evaluated."""
    curves = [{row.samples: row.accuracy.value for row in log.evaluations} for log in logs]
    shared = set.intersection(*map(set, curves)) if curves else set()
    return {at: math.fsum(curve[at] for curve in curves) / len(curves) for at in sorted(shared)}


def _band(
    axes: Axes,
    rows: Iterable[EvaluationRow],
    quantity: Callable[[EvaluationRow], Interval | None],
    colour: str,
    label: str,
    style: str = "-",
) -> None:
    """A line with its interval, over the evaluations that measured it."""
    points = [(row.samples, interval) for row in rows if (interval := quantity(row)) is not None]
    x = [samples for samples, _ in points]
    shade(axes, x, [interval for _, interval in points], colour, alpha=0.15)
    values = [interval.value for _, interval in points]
    axes.plot(x, values, style, color=colour, marker="o", markersize=3, label=label)


def _line(
    axes: Axes, rows: Sequence[UpdateRow], quantity: _Quantity, colour: str, label: str, *, alpha: float = 1
) -> None:
    """A line with gaps where an update measured nothing."""
    values = [math.nan if (value := quantity(row)) is None else value for row in rows]
    axes.plot([row.samples for row in rows], values, color=colour, label=label, lw=1, alpha=alpha)
