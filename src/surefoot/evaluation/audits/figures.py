"""Figures of the audits. A scorer keeps its colour through a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.evaluation.audits.attack import AttackAudit, Point
from surefoot.evaluation.audits.clean import GROUPS, CleanAudit
from surefoot.evaluation.audits.gaming import GamingAudit
from surefoot.evaluation.audits.outcome import OutcomeAudit
from surefoot.evaluation.audits.over_optimisation import OverOptimisationAudit
from surefoot.evaluation.audits.transfer import TransferAudit
from surefoot.stats.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def effects_figure(audits: Sequence[GamingAudit]) -> Figure:
    """Mean change of the trace's score by edit, one mark a scorer, with its interval."""
    names = [f"{e.edit} ({e.kind}, {e.on})" for e in audits[0].effects]
    figure, axes = _figure(
        "change of the trace's score", "", height=1.5 + 0.32 * len(names), lines=len(audits)
    )
    for number, audit in enumerate(audits):
        shift = (number + 1) / (len(audits) + 1) - 0.5
        places = [row + 0.6 * shift for row in range(len(audit.effects))]
        _bars(axes, [e.trace for e in audit.effects], places, number, audit.scorer, upright=False)
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    _legend(figure)
    return figure


def climb_figure(audits: Sequence[AttackAudit]) -> Figure:
    """Proxy and gold by round."""
    figure, axes = _figure("round", "proxy (solid), gold (dashed)", lines=len(audits))
    for number, audit in enumerate(audits):
        _pair(axes, audit.climb, list(audit.climb), number, audit.scorer)
    _legend(figure)
    return figure


def best_of_figure(audits: Sequence[AttackAudit]) -> Figure:
    """Proxy and gold by the number of versions chosen from."""
    figure, axes = _figure("versions (N)", "proxy (solid), gold (dashed)", lines=len(audits))
    for number, audit in enumerate(audits):
        _pair(axes, audit.best_of, list(audit.best_of), number, audit.scorer)
    axes.set_xscale("log", base=2)
    _legend(figure)
    return figure


def around_error_figure(audits: Sequence[OutcomeAudit]) -> Figure:
    """Mean step score by distance from the first error."""
    figure, axes = _figure("steps from the first error", "mean step score", lines=len(audits))
    for number, audit in enumerate(audits):
        for (_, found), style in zip(audit.around_error.items(), ("-", "--"), strict=True):
            label = audit.scorer if style == "-" else None
            _line(axes, list(found.by_offset), list(found.by_offset.values()), number, label, style)
    _legend(figure)
    return figure


def groups_figure(audits: Sequence[CleanAudit]) -> Figure:
    """Mean trace score of the three groups."""
    figure, axes = _figure("", "mean trace score", lines=len(audits))
    for number, audit in enumerate(audits):
        shift = 0.5 * ((number + 1) / (len(audits) + 1) - 0.5)
        places = [place + shift for place in range(len(GROUPS))]
        _bars(axes, [audit.groups[name].mean for name in GROUPS], places, number, audit.scorer, upright=True)
    axes.set_xticks(range(len(GROUPS)), GROUPS)
    _legend(figure)
    return figure


def matrix_figure(audit: TransferAudit) -> Figure:
    """AUC of every scorer on every set."""
    from matplotlib.figure import Figure as NewFigure

    values = [[audit.cell(train, test).auc.value for test in audit.tested] for train in audit.trained]
    figure = NewFigure(
        figsize=(3 + 1.1 * len(audit.tested), 1.6 + 0.4 * len(audit.trained)), layout="constrained"
    )
    axes = figure.add_subplot()
    image = axes.imshow(values, vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    axes.set_xticks(range(len(audit.tested)), audit.tested)
    axes.set_yticks(range(len(audit.trained)), audit.trained)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            shown = "n/a" if math.isnan(value) else f"{value:.2f}"
            ink = "white" if abs(value - 0.5) > 0.3 else "black"
            axes.text(x, y, shown, ha="center", va="center", color=ink)
    figure.colorbar(image, label="AUC")
    return figure


def pressure_figure(audits: Sequence[OverOptimisationAudit]) -> Figure:
    """Gold and proxy against sqrt KL; gold's peak is ringed."""
    figure, axes = _figure("sqrt KL of best-of-N", "gold (solid), proxy (dashed)", lines=len(audits))
    for number, audit in enumerate(audits):
        distance = [math.sqrt(point.kl) for point in audit.points]
        _line(axes, distance, [p.gold for p in audit.points], number, audit.scorer, "-")
        _line(axes, distance, [p.proxy for p in audit.points], number, None, "--")
        at = next(place for place, point in enumerate(audit.points) if point.n == audit.peak)
        axes.plot(distance[at], audit.points[at].gold.value, "o", ms=11, mfc="none", color=_colour(number))
    _legend(figure)
    return figure


def _pair(axes: Axes, points: Mapping[int, Point], places: Sequence[float], number: int, name: str) -> None:
    _line(axes, places, [point.proxy for point in points.values()], number, name, "-")
    _line(axes, places, [point.gold for point in points.values()], number, None, "--")


def _line(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[Interval],
    number: int,
    label: str | None,
    style: str,
) -> None:
    look: dict[str, Any] = {"color": _colour(number)}
    axes.fill_between(places, [v.low for v in values], [v.high for v in values], alpha=0.12, lw=0, **look)
    axes.plot(places, [v.value for v in values], style, marker="o", markersize=3, label=label, **look)


def _bars(
    axes: Axes, values: Sequence[Interval], places: Sequence[float], number: int, name: str, *, upright: bool
) -> None:
    known = [(v, place) for v, place in zip(values, places, strict=True) if not math.isnan(v.value)]
    middle = [v.value for v, _ in known]
    # rounding may put a mean a hair outside its interval, and an error bar must not be negative
    error = [
        [max(v.value - v.low, 0) for v, _ in known],
        [max(v.high - v.value, 0) for v, _ in known],
    ]
    at = [place for _, place in known]
    look: dict[str, Any] = {"fmt": "o", "markersize": 4, "color": _colour(number), "label": name}
    if upright:
        axes.errorbar(at, middle, yerr=error, **look)
    else:
        axes.errorbar(middle, at, xerr=error, **look)


def _figure(xlabel: str, ylabel: str, *, lines: int, height: float = 4.5) -> tuple[Figure, Axes]:
    """A figure that is high enough for a legend of so many lines beside it."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, max(height, 0.5 + 0.22 * lines)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


def _legend(figure: Figure) -> None:
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")


def _colour(number: int) -> str:
    return f"C{number % 10}"
