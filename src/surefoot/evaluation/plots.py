"""Plots that reports share. A scorer keeps its colour throughout a page.

matplotlib is imported when a figure is made, so that importing this module is cheap.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.stats.calibration import Reliability
from surefoot.stats.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE_WIDTH = 36
"""Characters that fit over a small panel."""

Curve = tuple[Sequence[float], Sequence[Interval]]
"""x and y of a line, with y's intervals."""


def curve_figure(
    curves: Mapping[str, Mapping[int, Interval]], *, xlabel: str = "samples (N)", ylabel: str = "accuracy"
) -> Figure:
    """Accuracy against the number of samples on a log2 axis: one line per name, with a shaded interval.

    Raises ``ValueError`` if there is no curve, a curve is empty, or a size is below 1.
    """
    sizes = sorted({size for curve in curves.values() for size in curve})
    if not sizes or sizes[0] < 1 or not all(curves.values()):
        raise ValueError("'curves' needs at least one point in each curve, at sizes of 1 or more")
    lines = {name: (sorted(curve), [curve[n] for n in sorted(curve)]) for name, curve in curves.items()}
    figure = paired_lines(xlabel, ylabel, {name: [line] for name, line in lines.items()}, log=True)
    size_ticks(figure.axes[0], sizes)
    return figure


def paired_lines(
    xlabel: str, ylabel: str, curves: Mapping[str, Sequence[Curve]], *, log: bool = False
) -> Figure:
    """For each name a solid line and, if it has a second curve, a dashed one; intervals are shaded."""
    figure, axes = new_figure(xlabel, ylabel, lines=len(curves))
    for number, (name, lines) in enumerate(curves.items()):
        for (x, values), style, label in zip(lines, ("-", "--"), (name, None), strict=False):
            shade(axes, x, values, colour(number), alpha=0.12)
            y = [value.value for value in values]
            axes.plot(x, y, style, marker="o", markersize=3, label=label, color=colour(number))
    if log:
        axes.set_xscale("log", base=2)
    legend(figure)
    return figure


def position_figure(curves: Mapping[str, Mapping[str, float]], ylabel: str) -> Figure:
    """One line per scorer against the position of the step, in the order of ``curves``."""
    figure, axes = new_figure("step", ylabel, lines=len(curves))
    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(list(curve), list(curve.values()), label=name, **line_style(number))
    legend(figure)
    return figure


def interval_figure(rows: Mapping[str, Interval], xlabel: str) -> Figure:
    """A dot with its interval for each row, the first at the top; undefined rows stay empty."""
    return marks_figure([wrapped(name) for name in rows], {"": list(rows.values())}, xlabel)


def marks_figure(
    rows: Sequence[str], scorers: Mapping[str, Sequence[Interval]], xlabel: str, *, zero: bool = False
) -> Figure:
    """A dot with its interval for each row and scorer; ``zero`` draws a line at 0."""
    height = 1.5 + 0.32 * max(len(rows), 4)
    figure, axes = new_figure(xlabel, "", height=height, lines=len(scorers))
    for number, (name, values) in enumerate(scorers.items()):
        shift = 0.6 * ((number + 1) / (len(scorers) + 1) - 0.5)
        defined = [(row + shift, v) for row, v in enumerate(values) if not math.isnan(v.value)]
        # rounding may put a mean slightly outside its interval, and error bars must not be negative
        errors = [
            [max(v.value - v.low, 0) for _, v in defined],
            [max(v.high - v.value, 0) for _, v in defined],
        ]
        x, y = [v.value for _, v in defined], [height_at for height_at, _ in defined]
        axes.errorbar(x, y, xerr=errors, fmt="o", markersize=4, color=colour(number), label=name)
    if zero:
        axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    if "" not in scorers:
        legend(figure)
    return figure


def reliability_figure(panels: Mapping[str, Mapping[str, Reliability]]) -> Figure:
    """Share of good steps against the mean score of each bin: calibrated scores lie on the diagonal."""
    figure, grid = panel_grid(len(panels), columns=min(3, len(panels)))
    for (title, lines), axes in zip(panels.items(), grid, strict=True):
        axes.plot([0, 1], [0, 1], color="#888888", linestyle="--", label="calibrated")
        for number, (name, line) in enumerate(lines.items()):
            x = [row.mean_score for row in line.bins]
            axes.plot(x, [row.good for row in line.bins], label=name, **line_style(number))
        axes.set_title(textwrap.fill(title, _TITLE_WIDTH), fontsize="x-small")
    figure.supxlabel("mean score in the bin", fontsize="medium")
    figure.supylabel("share of good steps", fontsize="medium")
    panel_legend(figure, grid)
    return figure


def heat_map(
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    label: str,
    *,
    low: float,
    high: float,
) -> Figure:
    """A matrix [rows, columns] in colours from ``low`` to ``high``, with its numbers."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(3 + 1.1 * len(columns), 1.6 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values, vmin=low, vmax=high, cmap="RdBu", aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=90 if len(columns) > 5 else 0)
    axes.set_yticks(range(len(rows)), rows)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            text = "n/a" if math.isnan(value) else f"{value:.2f}"
            # both ends of the colour map are dark
            ink = "white" if abs(value - (low + high) / 2) > 0.3 * (high - low) else "black"
            axes.text(x, y, text, ha="center", va="center", color=ink)
    figure.colorbar(image, label=label)
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


def panel_grid(count: int, *, columns: int) -> tuple[Figure, list[Axes]]:
    """``count`` panels that share their axes."""
    from matplotlib.figure import Figure as NewFigure

    rows = -(-count // columns)
    figure = NewFigure(figsize=(3.2 * columns + 1.6, 3.0 * rows + 0.6), layout="constrained")
    grid = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[:count]:
        axes.grid(alpha=0.3)
    return figure, grid[:count]


def legend(figure: Figure) -> None:
    """A legend to the right of the panels."""
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")


def panel_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for several panels, with each label once."""
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    location = "outside right upper"
    figure.legend(list(handles.values()), list(handles), loc=location, frameon=False, fontsize="small")


def size_ticks(axes: Axes, sizes: Sequence[int]) -> None:
    """Plain numbers at ``sizes`` of a logarithmic axis."""
    from matplotlib.ticker import NullLocator

    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())


def shade(axes: Axes, x: Sequence[float], values: Sequence[Interval], colour: str, *, alpha: float) -> None:
    """The band between the bounds."""
    axes.fill_between(x, [v.low for v in values], [v.high for v in values], color=colour, alpha=alpha, lw=0)


def colour(number: int) -> str:
    """One of ten, by the scorer's number on the page."""
    return f"C{number % 10}"


def line_style(number: int) -> dict[str, Any]:
    """Ten colours, then the same ten with another marker."""
    return {"color": colour(number), "marker": "os^Dv"[number // 10 % 5], "markersize": 4}


def wrapped(name: str) -> str:
    """A long name on several lines, so that the figure keeps its width."""
    return "\n".join(textwrap.wrap(name, 40))
