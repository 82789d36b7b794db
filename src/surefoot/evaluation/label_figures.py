"""Figures of the label audit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surefoot.evaluation.label_audit import LabelAudit
from surefoot.evaluation.label_truth import PARTS, AgainstTruth
from surefoot.stats.calibration import Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Judged = tuple[str, AgainstTruth]

FURTHEST = 6
"""Offsets of the first error beyond this are drawn as this."""


def position_figure(judged: Sequence[Judged]) -> Figure:
    """Precision and recall of bad steps in each fifth of the traces."""
    figure, axes = _figure("fifth of the trace", "share", lines=len(judged) + 2)
    fifths = list(range(1, PARTS + 1))
    for number, (name, found) in enumerate(judged):
        counts = [found.by_fifth[fifth] for fifth in range(PARTS)]
        look = _look(number)
        axes.plot(fifths, [c.precision for c in counts], **look, label=name)
        axes.plot(fifths, [c.recall for c in counts], **look, linestyle="--")
    axes.plot([], [], color="#888888", label="precision")
    axes.plot([], [], color="#888888", linestyle="--", label="recall")
    axes.set_xticks(fifths)
    axes.set_ylim(-0.02, 1.02)
    _legend(figure)
    return figure


def offset_figure(judged: Sequence[Judged]) -> Figure:
    """Share of traces by called minus true index of the first error, where both have one."""
    figure, axes = _figure("called minus true index of the first error", "share of traces", lines=len(judged))
    places = range(-FURTHEST, FURTHEST + 1)
    for number, (name, found) in enumerate(judged):
        counts = dict.fromkeys(places, 0)
        for offset, count in found.first_error.offsets.items():
            counts[max(-FURTHEST, min(FURTHEST, offset))] += count
        total = sum(counts.values())
        shares = [count / total if total else math.nan for count in counts.values()]
        axes.plot(places, shares, **_look(number), label=name)
    axes.set_xticks(list(places))
    _legend(figure)
    return figure


def reliability_figure(curves: Mapping[str, Reliability]) -> Figure:
    """Share of good steps against the mean score of each bin; calibrated scores lie on the diagonal."""
    figure, axes = _figure("mean score in the bin", "share of good steps", lines=len(curves) + 1)
    for number, (name, curve) in enumerate(curves.items()):
        scores, good = [b.mean_score for b in curve.bins], [b.good for b in curve.bins]
        axes.plot(scores, good, **_look(number), label=name)
    axes.plot([0, 1], [0, 1], color="#888888", linestyle="--", label="calibrated")
    _legend(figure)
    return figure


def matrix_figure(audit: LabelAudit) -> Figure:
    """Cohen's kappa of the steps between every two sources."""
    from matplotlib.figure import Figure as NewFigure

    names = list(dict.fromkeys(name for pair in audit.pairs for name in (pair.first, pair.second)))
    kappa = {(pair.first, pair.second): pair.kappa.value for pair in audit.pairs}
    kappa |= {(second, first): value for (first, second), value in kappa.items()}
    rows = [[1.0 if a == b else kappa[a, b] for b in names] for a in names]
    side = max(4.0, 1.5 + 0.45 * len(names))
    figure = NewFigure(figsize=(side + 1, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(rows, vmin=-1, vmax=1, cmap="RdBu")
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            shown = "n/a" if math.isnan(value) else f"{value:.2f}"
            axes.text(x, y, shown, ha="center", va="center", fontsize="x-small", color=_ink(value))
    figure.colorbar(image, label="Cohen's kappa")
    return figure


def _figure(xlabel: str, ylabel: str, *, lines: int) -> tuple[Figure, Axes]:
    """A figure that is high enough for a legend of so many lines beside it."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, max(4.5, 0.5 + 0.22 * lines)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


def _legend(figure: Figure) -> None:
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")


def _look(number: int) -> dict[str, Any]:
    """Ten colours, then the same ten with another marker."""
    return {"color": f"C{number % 10}", "marker": "os^Dv"[number // 10 % 5], "markersize": 4}


def _ink(kappa: float) -> str:
    return "white" if abs(kappa) > 0.6 else "black"
