"""Plots of reports. A scorer keeps its colour throughout a page.

matplotlib is imported when a figure is made, so that importing this module is cheap.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.printable import printable
from surefoot.stats.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from surefoot.evaluation.report import Measures, Plot

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Colours of lines in order, which all readers can tell apart (Okabe and Ito 2008) on white and on dark; the
ninth line starts again with another marker. Blue means yes, orange no, and each has a word or a mark."""
GREY = SERIES[-1]
MAX_LINES = 20
"""The most lines that a figure shows, so that it stays readable; further lines are left out."""
_SHADED = 6
"""With more lines the intervals would overlap, so only the tables show them."""

Line = tuple[list[Any], list[Interval]]
"""x and y."""


def curve_figure(curves: Mapping[str, Mapping[int, Interval]]) -> Figure:
    """Accuracy against the number of samples on a log2 axis: one line per name, up to six with intervals.

    Raises ``ValueError`` for no curves, an empty curve, or a size below 1.
    """
    sizes = {size for curve in curves.values() for size in curve}
    if not sizes or min(sizes) < 1 or not all(curves.values()):
        raise ValueError("'curves' needs at least one point in each curve, at sizes of 1 or more")
    lines = {name: [(sorted(curve), [curve[n] for n in sorted(curve)])] for name, curve in curves.items()}
    return _lines(lines, "samples (N)", "accuracy", log=True)


def plot_figure(plot: Plot, tables: Mapping[str, Sequence[Measures]]) -> Figure | None:
    """The figure of the rows that ``plot`` names; ``None`` if there is nothing to draw."""
    across = {tuple(row.keys.values()): row.values for row in tables.get(plot.x, ())}
    rows = [
        row
        for row in tables.get(plot.rows, ())
        if all(row.keys[key] in allowed for key, allowed in plot.where.items())
    ]
    same = {plot.x, *(key for key, allowed in plot.where.items() if len(allowed) == 1)}
    if plot.y and not plot.x:
        return _dots(rows, plot.y[0]) if rows else None
    lines: dict[str, list[Line]] = {}
    for row in rows:
        cells = row.keys | row.values
        names = [str(key) for at, key in row.keys.items() if at not in same and key is not None]
        name = ", ".join(names) or str(next(iter(row.keys.values())))
        if plot.y:
            points = [(cells[plot.x], [cells[y] for y in plot.y])]
        else:
            x_of = across.get(tuple(row.keys.values()), {}) if plot.x else {at: int(at) for at in row.values}
            points = [(x_of[at], [value]) for at, value in row.values.items() if at in x_of]
        for x, values in points:
            for line, value in zip(lines.setdefault(name, [([], []) for _ in values]), values, strict=True):
                line[0].append(x)
                line[1].append(_interval(value))
    xlabel = plot.x.rpartition(".")[2].replace("_", " ") or "N"
    ylabel = ", ".join(plot.y or [plot.rows.rpartition(".")[2]]).replace("_", " ")
    return _lines(lines, xlabel, ylabel, log=plot.log, diagonal=plot.diagonal) if lines else None


def _interval(value: Any) -> Interval:
    """A number as an interval without width."""
    return value if isinstance(value, Interval) else Interval(value=value, low=value, high=value)


def _lines(
    curves: Mapping[str, Sequence[Line]], xlabel: str, ylabel: str, *, log: bool, diagonal: bool = False
) -> Figure:
    """For each name a solid line and, if it has a second curve, a dashed one; intervals are shaded."""
    figure, axes = new_figure(xlabel, ylabel, lines=min(len(curves), MAX_LINES))
    if diagonal:
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":")
    for number, (name, lines) in enumerate(list(curves.items())[:MAX_LINES]):
        colour, marker = colour_of(number), "os^"[number // len(SERIES)]
        for (x, values), style, label in zip(lines, ("-", "--"), (wrapped(name), None), strict=False):
            if len(curves) <= _SHADED:
                shade(axes, x, values, colour, alpha=0.12)
            y = [value.value for value in values]
            axes.plot(x, y, style, marker=marker, markersize=3, label=label, color=colour)
    if log:
        from matplotlib.ticker import NullLocator

        sizes = sorted({size for lines in curves.values() for x, _ in lines for size in x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
    legend(figure)
    return figure


def _dots(rows: Sequence[Measures], measure: str) -> Figure:
    """A dot with its interval for each row, the first at the top; the first of several keys has a colour.

    With more values than colours, the first key names the rows and the others have the colours. Keys that
    follow from the first key, such as a scorer's rule, are left out.
    """
    first = list(dict.fromkeys(next(iter(row.keys.values())) for row in rows))
    combined = {at: {(next(iter(row.keys.values())), row.keys[at]) for row in rows} for at in rows[0].keys}
    telling = [
        at
        for number, (at, pairs) in enumerate(combined.items())
        if not number or len(pairs) > len(first) or len({value for _, value in pairs}) == 1
    ]
    several = len(telling) > 1
    placed = []
    for row in rows:
        colour, *names = [str(row.keys[at]) for at in telling if row.keys[at] is not None]
        name = ", ".join(names)
        placed.append((name, colour) if several and len(first) <= len(SERIES) else (colour, name))
    names, colours = (list(dict.fromkeys(pair[side] for pair in placed)) for side in (0, 1))
    figure, axes = new_figure(
        measure.replace("_", " "), "", height=1.5 + 0.32 * max(len(names), 4), lines=len(colours)
    )
    for number, colour in enumerate(colours):
        shift = 0.6 * ((number + 1) / (len(colours) + 1) - 0.5)
        values = [
            (names.index(name) + shift, _interval(row.values[measure]))
            for (name, of_colour), row in zip(placed, rows, strict=True)
            if of_colour == colour
        ]
        values = [(at, v) for at, v in values if not math.isnan(v.value)]
        # rounding may put a mean slightly outside its interval, and error bars must not be negative
        errors = [[max(v.value - v.low, 0) for _, v in values], [max(v.high - v.value, 0) for _, v in values]]
        x, y = [v.value for _, v in values], [at for at, _ in values]
        axes.errorbar(
            x, y, xerr=errors, fmt="o", markersize=4, color=colour_of(number), label=wrapped(colour)
        )
    axes.set_yticks(range(len(names)), [wrapped(name, 60) for name in names], fontsize="small")
    axes.invert_yaxis()
    if several:
        legend(figure)
    return figure


def new_figure(xlabel: str, ylabel: str, *, lines: int = 0, height: float = 4.5) -> tuple[Figure, Axes]:
    """A figure with one panel, high enough for a legend of ``lines`` lines to its right."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, max(height, 0.5 + 0.22 * lines)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


def colour_of(number: int) -> str:
    """The colour of line ``number``, from 0."""
    return SERIES[number % len(SERIES)]


def legend(figure: Figure) -> None:
    """A legend to the right of the panels."""
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")


def shade(axes: Axes, x: Sequence[float], values: Sequence[Interval], colour: str, *, alpha: float) -> None:
    """The band between the bounds."""
    axes.fill_between(x, [v.low for v in values], [v.high for v in values], color=colour, alpha=alpha, lw=0)


def wrapped(name: str, width: int = 40) -> str:
    """A long name on several lines, so that the figure keeps its width; control characters are escaped."""
    return "\n".join(textwrap.wrap(printable(name), width))
