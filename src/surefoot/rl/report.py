"""A run as one HTML page, offline, with plots."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.errors import counted
from surefoot.evaluation.report import GREY, SERIES, FirstScreen, Origin, Report, legend, new_figure, shade
from surefoot.evaluation.verdict import SMALLEST_GAIN, Conclusion, headline, measured
from surefoot.io import read_records
from surefoot.rl.log import EvaluationRow, RLLog, SampleRow
from surefoot.stats.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_report(
    log: RLLog,
    path: Path,
    *,
    samples: Path | None = None,
    settings: Mapping[str, object] | None = None,
    origin: Origin | None = None,
) -> None:
    """One page: first screen, findings, alarms, proxy and gold, rollouts, numbers, and rollouts to read.

    ``samples`` is the folder of stored rollouts: at most four of its first, middle and last round are
    shown. ``settings`` are printed unchanged. Raises ``RecordError`` for a broken file of samples.
    """
    report = Report("Reinforcement learning on step rewards", first_screen(log, origin or Origin()))
    for finding in findings(log):
        report.text(finding)
    report.heading("Alarms")
    if log.alarms:
        report.tables({"alarms": log.alarms})
    else:
        report.text("None.")
    if log.evaluations:
        report.heading("Held-out problems")
        report.figure(
            partial(truth_figure, log),
            "Held-out accuracy, errors in right answers, and proxy, with 95% intervals",
        )
        report.tables({"evaluations": log.evaluations})
    if log.updates:
        report.heading("Training rollouts")
        counts: dict[str, float] = {
            "failed samples": sum(row.failed for row in log.updates),
            "rollouts without a reward": sum(row.dropped for row in log.updates),
            "rollouts outside the accuracy band": sum(row.filtered for row in log.updates),
            "steps without a score": sum(row.unscored_steps for row in log.updates),
            "updates from which nothing was learned": sum(row.loss is None for row in log.updates),
            "policy tokens read": log.usage.prompt_tokens,
            "policy tokens written": log.usage.completion_tokens,
            "verifier tokens": log.usage.verifier_tokens,
        }
        for stage in ("generation", "scoring", "update"):
            counts[f"seconds of {stage}"] = sum(row.seconds.get(stage, 0.0) for row in log.updates)
        about = "Counts; tokens include evaluations"
        report.table(["what", "number"], list(counts.items()), about)
    for row in _stored_samples(samples) if samples else []:
        _sample(report, row)
    if settings:
        report.heading("Settings")
        rows = [
            [name, json.dumps(value, ensure_ascii=False, default=str)] for name, value in settings.items()
        ]
        report.table(["setting", "value"], rows)
    report.write(path)


def first_screen(log: RLLog, origin: Origin) -> FirstScreen:
    """Whether the policy answers more problems at the end, and how far it fell from its best."""
    verdicts: list[Conclusion] = []
    problems = log.evaluations[-1].problems if log.evaluations else 0
    if len(log.evaluations) > 1 and log.best:
        start, end, best = log.evaluations[0].accuracy, log.evaluations[-1].accuracy, log.best
        alarms = [alarm.update for alarm in log.alarms if alarm.name == "overoptimization"]
        gain = f"of problems: accuracy at the end ({end.value:.1%}) less the start's ({start.value:.1%})."
        fall = (
            f"of problems are lost from the best evaluation, after update {best.update}, to the end. "
            "The best is chosen in hindsight, which raises this number."
        )
        options: Any = {"smallest": SMALLEST_GAIN, "spec": "+.1p"}
        update = (alarms or [best.update])[0]
        verdicts = [
            measured("learns", end.less(start), gain, problems, **options),
            measured("peak", best.accuracy.less(end), fall, problems, harm=True, update=update, **options),
        ]
    sentence = headline("the policy", verdicts) if verdicts else "the policy was not evaluated twice."
    return FirstScreen(
        sentence=sentence[0].upper() + sentence[1:],
        verdicts=verdicts,
        limits=[
            f"{counted(problems, 'held-out problem')}; one training run: another seed gives another policy.",
            "Intervals of differences treat the evaluations as independent; as they share problems, they are "
            "too wide rather than too narrow.",
        ],
        origin=origin,
    )


def findings(log: RLLog) -> list[str]:
    """The run in sentences."""
    rollouts = log.updates[-1].samples if log.updates else 0
    sentences = [f"{counted(len(log.updates), 'update')} on {counted(rollouts, 'rollout')}."]
    if log.stopped:
        sentences.append(f"Ended early: {log.stopped}")
    if log.channels:
        sentences.append(f"Rewards: {log.channels}.")
    if gaps := [row.server_gap for row in log.updates if row.server_gap is not None]:
        sentences.append(
            f"The server's log-probabilities differ from the trainer's by {sum(gaps) / len(gaps):.3g} nats "
            f"per token on average and by {max(gaps):.3g} in the worst update."
        )
    if not log.evaluations:
        sentences.append("The policy was not evaluated.")
    return sentences


def _stored_samples(folder: Path) -> list[SampleRow]:
    """Rollouts of the first, the middle and the last round that stored any."""
    files = sorted(folder.glob("*.jsonl"))
    chosen = sorted({0, len(files) // 2, len(files) - 1}) if files else []
    return [row for at in chosen for row in islice(read_records(files[at], SampleRow), 4)]


def _sample(report: Report, row: SampleRow) -> None:
    trace = row.trace
    outcome = {True: "correct", False: "wrong", None: "not judged"}[trace.outcome]
    report.heading(f"A rollout of update {row.update}: {outcome}").text(row.problem.text)
    # line breaks as a symbol, so that an empty step is visible
    texts = [trace.step_text(index).replace("\n", "↵") for index in range(len(trace.steps))]
    scores = row.scores or (None,) * len(texts)
    report.table(
        ["step", "text", "score", "advantage"],
        list(zip(range(1, len(texts) + 1), texts, scores, row.advantages, strict=False)),
        f"{counted(trace.usage.completion_tokens, 'token')}, {trace.finish_reason}; advantages are means",
    )


def truth_figure(log: RLLog) -> Figure:
    """Shares of right answers and of those with a wrong step (left axis), and the proxy (right) on held-out
    problems; best accuracy and overoptimization marked."""
    figure, axes = new_figure("rollouts trained on", "share of correct answers", height=4.2)
    shares = [math.nan if row.outcome is None else row.outcome for row in log.updates]  # nan: a gap
    samples = [row.samples for row in log.updates]
    axes.plot(samples, shares, color=GREY, label="training rollouts", lw=1, alpha=0.6)
    _band(axes, log.evaluations, lambda row: row.accuracy, SERIES[0], "held-out problems (gold)")
    if any(row.trace_error for row in log.evaluations):
        _band(axes, log.evaluations, lambda row: row.trace_error, SERIES[3], "right with a wrong step")
    if any(row.proxy for row in log.evaluations):
        right = axes.twinx()
        right.set_ylabel("held-out score (proxy), broken line")
        _band(right, log.evaluations, lambda row: row.proxy, SERIES[1], "proxy", "--")
    if best := log.best:
        axes.plot(
            best.samples, best.accuracy.value, "o", ms=12, mfc="none", color=SERIES[0], label="best accuracy"
        )
    at = {row.update: row.samples for row in log.evaluations}
    for number, alarm in enumerate(alarm for alarm in log.alarms if alarm.name == "overoptimization"):
        label = "overoptimization" if number == 0 else None
        axes.axvline(at[alarm.update], color="#000000", linestyle=":", label=label)
    legend(figure)
    return figure


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
