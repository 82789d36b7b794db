"""Figures of the best-of-N curves and of a scorer's calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from surefoot.evaluation.best_of_n import SelectorCurve
from surefoot.stats.calibration import Reliability
from surefoot.stats.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE_WIDTH = 36
"""Characters that fit over a small panel."""
_AGGREGATIONS = {"min": "C0", "product": "C1", "last": "C2", "mean": "C3"}
_RULES: Mapping[str, dict[str, Any]] = {
    "pass": {"color": "#000000", "marker": "o", "linestyle": ":"},
    "majority": {"color": "#777777", "marker": "X", "linestyle": "-", "linewidth": 2.2},
    "best_of_n": {"marker": "s", "linestyle": "-"},
    "weighted_vote": {"marker": "^", "linestyle": "--"},
}


def selector_figure(curves: Sequence[SelectorCurve]) -> Figure:
    """Accuracy against N: colour is the aggregation, a broken line the weighted vote; majority is shaded.

    The other intervals overlap so much that they are in the table alone.
    """
    figure, axes = _log_figure("samples (N)", "accuracy")
    for curve in curves:
        axes.plot(list(curve.accuracy), _values(curve.accuracy), label=curve.name, **_look(curve))
        if curve.rule == "majority":
            _shade(axes, list(curve.accuracy), curve.accuracy, "#777777")
    _ticks(axes, sorted({size for curve in curves for size in curve.accuracy}))
    _legend(figure)
    return figure


def token_figure(curves: Sequence[SelectorCurve]) -> Figure:
    """Accuracy against mean tokens a problem, for the curves whose tokens are known."""
    figure, axes = _log_figure("mean tokens a problem, policy and verifier", "accuracy")
    for curve in curves:
        if curve.tokens:
            x = [curve.tokens[size] for size in curve.accuracy]
            axes.plot(x, _values(curve.accuracy), label=curve.name, **_look(curve))
    _legend(figure)
    return figure


def difference_figure(curves: Sequence[SelectorCurve]) -> Figure:
    """Accuracy less that of majority, paired by problem, with 95 % intervals; below 0 majority is better."""
    figure, axes = _log_figure("samples (N)", "accuracy less majority's")
    axes.axhline(0, color="#777777", linewidth=1)
    for number, curve in enumerate(curves):
        # side by side, so that the bars of one N can be told apart
        shift = 2 ** (0.06 * (number - (len(curves) - 1) / 2))
        gaps = curve.minus_majority
        errors = [
            [gap.value - gap.low for gap in gaps.values()],
            [gap.high - gap.value for gap in gaps.values()],
        ]
        x = [size * shift for size in gaps]
        axes.errorbar(x, _values(gaps), yerr=errors, label=curve.name, capsize=2, **_look(curve))
    _ticks(axes, sorted({size for curve in curves for size in curve.minus_majority}))
    _legend(figure)
    return figure


def side_by_side_figure(curves: Sequence[SelectorCurve]) -> Figure:
    """Best-of-N of all scorers, one panel an aggregation; a colour and marker a scorer."""
    from matplotlib.figure import Figure as NewFigure

    rules = [how for how in _AGGREGATIONS if any(curve.aggregation == how for curve in curves)]
    scorers = list(dict.fromkeys(curve.scorer for curve in curves if curve.scorer))
    figure = NewFigure(figsize=(9, 7 if len(rules) > 2 else 4), layout="constrained")
    panels = figure.subplots(
        1 + (len(rules) > 2), min(2, len(rules)), sharex=True, sharey=True, squeeze=False
    )
    for how, axes in zip(rules, panels.flat, strict=False):
        axes.set_title(f"best-of-N, {how}")
        for curve in curves:
            if curve.rule in ("pass", "majority"):
                axes.plot(list(curve.accuracy), _values(curve.accuracy), label=curve.name, **_look(curve))
            elif curve.rule == "best_of_n" and curve.aggregation == how:
                look = _numbered(scorers.index(curve.scorer or ""))
                axes.plot(list(curve.accuracy), _values(curve.accuracy), label=curve.scorer, **look)
        axes.set_xscale("log", base=2)
        _ticks(axes, sorted({size for curve in curves for size in curve.accuracy}))
        axes.grid(alpha=0.3)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize="small")
    return figure


def reliability_panels(panels: Mapping[str, Mapping[str, Reliability]]) -> Figure:
    """Share of good steps against mean score in each bin: one panel a scorer, one line a map."""
    from matplotlib.figure import Figure as NewFigure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = NewFigure(figsize=(3.2 * columns + 1.6, 3.0 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    for (scorer, lines), place in zip(panels.items(), axes.flat, strict=False):
        place.plot([0, 1], [0, 1], color="#888888", linestyle="--", label="calibrated")
        for number, (name, found) in enumerate(lines.items()):
            x = [row.mean_score for row in found.bins]
            place.plot(x, [row.good for row in found.bins], label=name, **_numbered(number))
        place.set_title(fill(scorer, _TITLE_WIDTH), fontsize="x-small")
        place.grid(alpha=0.3)
    figure.supxlabel("mean score in the bin", fontsize="medium")
    figure.supylabel("share of good steps", fontsize="medium")
    lines_of = [place.get_legend_handles_labels() for place in axes.flat[: len(panels)]]
    by_label = {label: handle for found in lines_of for handle, label in zip(*found, strict=True)}
    figure.legend(
        list(by_label.values()), list(by_label), loc="outside right upper", frameon=False, fontsize="small"
    )
    return figure


def position_figure(curves: Mapping[str, Mapping[str, float]], ylabel: str) -> Figure:
    """One line a scorer against the step's position, given in its order."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, max(4.5, 0.5 + 0.22 * len(curves))), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(list(curve), list(curve.values()), label=name, **_numbered(number))
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    _legend(figure)
    return figure


def _log_figure(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


def _ticks(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xticks(list(sizes), [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())


def _shade(axes: Axes, x: Sequence[float], curve: Mapping[int, Interval], colour: str) -> None:
    low, high = [e.low for e in curve.values()], [e.high for e in curve.values()]
    axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)


def _look(curve: SelectorCurve) -> dict[str, Any]:
    colour = {"color": _AGGREGATIONS[curve.aggregation]} if curve.aggregation else {}
    return {"markersize": 4, **_RULES[curve.rule], **colour}


def _numbered(number: int) -> dict[str, Any]:
    """Ten colours, then the same ten with another marker."""
    return {"color": f"C{number % 10}", "marker": "os^Dv"[number // 10 % 5], "markersize": 4}


def _values(curve: Mapping[int, Interval]) -> list[float]:
    return [interval.value for interval in curve.values()]


def _legend(figure: Figure) -> None:
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
