"""Figures of a run and of several side by side. matplotlib is imported where a figure is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from surefoot.rl.log import EvaluationRow, RLLog, UpdateRow
from surefoot.stats.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAMPLES = "rollouts trained on"


def truth_figure(log: RLLog) -> Figure:
    """Gold (left axis) and proxy (right) on held-out problems; the best gold ringed, their parting marked."""
    figure, axes = _figure("held-out accuracy (gold)")
    right = axes.twinx()
    right.set_ylabel("held-out score (proxy), broken line")
    _band(axes, log.evaluations, lambda row: row.accuracy, "C0", "gold")
    _band(right, log.evaluations, lambda row: row.proxy, "C1", "proxy", "--")
    if best := log.best:
        axes.plot(best.samples, best.accuracy.value, "o", ms=12, mfc="none", color="C0", label="best gold")
    at = {row.update: row.samples for row in log.evaluations}
    for number, alarm in enumerate(alarm for alarm in log.alarms if alarm.name == "parted"):
        label = "they part" if number == 0 else None
        axes.axvline(at[alarm.update], color="#000000", linestyle=":", label=label)
    _legend(figure)
    return figure


def accuracy_figure(log: RLLog) -> Figure:
    """Held-out accuracy with its 95 % band, and the share of right answers among training rollouts."""
    figure, axes = _figure("share of right answers")
    _line(axes, log.updates, lambda row: row.outcome, "C7", "training rollouts", alpha=0.6)
    _band(axes, log.evaluations, lambda row: row.accuracy, "C0", "held-out problems")
    _legend(figure)
    return figure


def trace_error_figure(log: RLLog) -> Figure:
    """Share of right answers that have a wrong step, with its 95 % band."""
    figure, axes = _figure("right answers with a wrong step")
    _band(axes, log.evaluations, lambda row: row.trace_error, "C3", "held-out problems")
    _legend(figure)
    return figure


def rollouts_figure(log: RLLog) -> Figure:
    """Six panels of what guards watch in training; a dotted line is where an alarm of that panel began."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, 8.5), layout="constrained")
    panels = figure.subplots(3, 2, sharex=True)
    share = {
        "cut at max_tokens": lambda row: None if row.shape.finished is None else 1 - row.shape.finished,
        "empty steps": lambda row: row.shape.empty,
        "repeated steps": lambda row: row.shape.repeated,
    }
    parts: list[tuple[str, dict[str, _Quantity], set[str]]] = [
        ("tokens a rollout", {"": lambda row: row.shape.tokens}, {"length"}),
        ("steps a rollout", {"": lambda row: row.shape.steps}, {"one_step"}),
        ("share", share, {"cut", "empty", "repeated"}),
        ("entropy, nats a token", {"": lambda row: row.entropy}, {"entropy"}),
        ("KL to the reference, nats a token", {"": lambda row: row.kl}, set()),
        ("norm of the gradient", {"": lambda row: row.gradient_norm}, set()),
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
    figure.supxlabel(_SAMPLES, fontsize="medium")
    return figure


def time_figure(log: RLLog) -> Figure:
    """Share of each round's time in generation, scoring and update, stacked."""
    figure, axes = _figure("share of the time")
    rows = [row for row in log.updates if row.seconds.total > 0]
    parts = ("generation", "scoring", "update")
    shares = [[getattr(row.seconds, part) / row.seconds.total for row in rows] for part in parts]
    axes.stackplot([row.samples for row in rows], shares, labels=parts, alpha=0.7)
    axes.set_ylim(0, 1)
    _legend(figure)
    return figure


def runs_figure(runs: Mapping[str, Sequence[RLLog]]) -> Figure:
    """Held-out accuracy against samples: a colour a name; a band for one run, a mean line for several."""
    figure, axes = _figure("held-out accuracy", lines=len(runs))
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
    _legend(figure)
    return figure


def mean_accuracy(logs: Sequence[RLLog]) -> dict[int, float]:
    """Mean held-out accuracy by samples, where every run was evaluated."""
    curves = [{row.samples: row.accuracy.value for row in log.evaluations} for log in logs]
    shared = set.intersection(*map(set, curves)) if curves else set()
    return {at: math.fsum(curve[at] for curve in curves) / len(curves) for at in sorted(shared)}


_Quantity = Callable[[UpdateRow], float | None]


def _band(
    axes: Axes,
    rows: Iterable[EvaluationRow],
    quantity: Callable[[EvaluationRow], Interval | None],
    colour: str,
    label: str,
    style: str = "-",
) -> None:
    """A line with its interval, over the evaluations that measured it."""
    known = [(row.samples, found) for row in rows if (found := quantity(row)) is not None]
    x = [samples for samples, _ in known]
    low, high = [found.low for _, found in known], [found.high for _, found in known]
    axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
    values = [found.value for _, found in known]
    axes.plot(x, values, style, color=colour, marker="o", markersize=3, label=label)


def _line(
    axes: Axes, rows: Sequence[UpdateRow], quantity: _Quantity, colour: str, label: str, *, alpha: float = 1
) -> None:
    """A line that is broken where an update measured nothing."""
    values = [math.nan if (value := quantity(row)) is None else value for row in rows]
    axes.plot([row.samples for row in rows], values, color=colour, label=label, lw=1, alpha=alpha)


def _figure(ylabel: str, *, lines: int = 1) -> tuple[Figure, Axes]:
    """A figure that is high enough for a legend of so many lines beside it."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, max(4.2, 0.5 + 0.22 * lines)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(_SAMPLES)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


def _legend(figure: Figure) -> None:
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
