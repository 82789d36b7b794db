"""Plots that several reports share. A scorer keeps its colour through a page.

matplotlib is imported where a figure is made, so that loading this module costs nothing.
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

# Okabe and Ito's colours, which stay apart for colour-blind readers
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_TITLE_WIDTH = 36
"""Characters that fit over a small panel."""


def curve_figure(
    curves: Mapping[str, Mapping[int, Interval]], *, xlabel: str = "samples (N)", ylabel: str = "accuracy"
) -> Figure:
    """Accuracy against the number of samples on a log2 axis: one line per name, its interval shaded.

    Raises ``ValueError`` if there is no curve, a curve is empty, or a size is below 1.
    """
    from matplotlib.figure import Figure as NewFigure

    sizes = sorted({size for curve in curves.values() for size in curve})
    if not sizes or sizes[0] < 1 or not all(curves.values()):
        raise ValueError("'curves' needs at least one point in each curve, at sizes of 1 or more")
    figure = NewFigure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, curve) in enumerate(curves.items()):
        colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
        x = sorted(curve)
        shade(axes, x, [curve[n] for n in x], colour, alpha=0.15)
        axes.plot(x, [curve[n].value for n in x], color=colour, marker=marker, markersize=5, label=name)
    axes.set_xscale("log", base=2)
    size_ticks(axes, sizes)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def position_figure(curves: Mapping[str, Mapping[str, float]], ylabel: str) -> Figure:
    """One line per scorer against the position of the step, in the order given."""
    figure, axes = new_figure("step", ylabel, lines=len(curves))
    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(list(curve), list(curve.values()), label=name, **line_style(number))
    legend(figure)
    return figure


def interval_figure(rows: Mapping[str, Interval], xlabel: str) -> Figure:
    """A dot with its interval for each row, the first at the top; what is undefined is not drawn."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, 1 + 0.24 * max(8, len(rows))), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(rows.values()):
        axes.plot([row.low, row.high], [place, place], color="C0", linewidth=1.5)
        axes.plot([row.value], [place], color="C0", marker="o", markersize=4)
    axes.set_yticks(range(len(rows)), [wrapped(name) for name in rows], fontsize="x-small")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(xlabel)
    axes.grid(alpha=0.3, axis="x")
    return figure


def reliability_figure(panels: Mapping[str, Mapping[str, Reliability]]) -> Figure:
    """Share of good steps against mean score in each bin: calibrated scores lie on the diagonal."""
    from matplotlib.figure import Figure as NewFigure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = NewFigure(figsize=(3.2 * columns + 1.6, 3.0 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for (title, lines), axes in zip(panels.items(), grid.flat, strict=False):
        axes.plot([0, 1], [0, 1], color="#888888", linestyle="--", label="calibrated")
        for number, (name, line) in enumerate(lines.items()):
            x = [row.mean_score for row in line.bins]
            axes.plot(x, [row.good for row in line.bins], label=name, **line_style(number))
        axes.set_title(textwrap.fill(title, _TITLE_WIDTH), fontsize="x-small")
        axes.grid(alpha=0.3)
    figure.supxlabel("mean score in the bin", fontsize="medium")
    figure.supylabel("share of good steps", fontsize="medium")
    handles = {
        label: handle
        for axes in grid.flat[: len(panels)]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()), list(handles), loc="outside right upper", frameon=False, fontsize="small"
    )
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
    """A matrix [rows, columns] in colours from ``low`` to ``high``, its numbers written in."""
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
    """A figure with one panel, high enough for a legend of so many lines beside it."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, max(height, 0.5 + 0.22 * lines)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


def legend(figure: Figure) -> None:
    """A legend beside the panels."""
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")


def size_ticks(axes: Axes, sizes: Sequence[int]) -> None:
    """Plain numbers at these sizes of a logarithmic axis."""
    from matplotlib.ticker import NullLocator

    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())


def shade(axes: Axes, x: Sequence[float], values: Sequence[Interval], colour: str, *, alpha: float) -> None:
    """The band between the bounds."""
    axes.fill_between(x, [v.low for v in values], [v.high for v in values], color=colour, alpha=alpha, lw=0)


def banded_line(
    axes: Axes, x: Sequence[float], values: Sequence[Interval], number: int, label: str | None, style: str
) -> None:
    """A line with its band, in the colour of scorer ``number``."""
    shade(axes, x, values, colour(number), alpha=0.12)
    middle = [value.value for value in values]
    axes.plot(x, middle, style, marker="o", markersize=3, label=label, color=colour(number))


def interval_marks(
    axes: Axes, values: Sequence[Interval], places: Sequence[float], number: int, name: str, *, upright: bool
) -> None:
    """A mark with its interval at each place; what is undefined is left out."""
    known = [(v, place) for v, place in zip(values, places, strict=True) if not math.isnan(v.value)]
    middle = [v.value for v, _ in known]
    # rounding may put a mean a hair outside its interval, and an error bar must not be negative
    error = [
        [max(v.value - v.low, 0) for v, _ in known],
        [max(v.high - v.value, 0) for v, _ in known],
    ]
    at = [place for _, place in known]
    look: dict[str, Any] = {"fmt": "o", "markersize": 4, "color": colour(number), "label": name}
    if upright:
        axes.errorbar(at, middle, yerr=error, **look)
    else:
        axes.errorbar(middle, at, xerr=error, **look)


def colour(number: int) -> str:
    """One of ten, by the scorer's number on the page."""
    return f"C{number % 10}"


def line_style(number: int) -> dict[str, Any]:
    """Ten colours, then the same ten with another marker."""
    return {"color": colour(number), "marker": "os^Dv"[number // 10 % 5], "markersize": 4}


def wrapped(name: str) -> str:
    """A long name on several lines, so that it leaves a figure its width."""
    return "\n".join(textwrap.wrap(name, 40))
