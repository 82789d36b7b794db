"""Geometry of the curves; a template draws them as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Points = Sequence[tuple[float, float]]

WIDTH: Final = 320
HEIGHT: Final = 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 8, 10, 22
_MOST: Final = 400
"""Points per line; longer curves are thinned, keeping first and last."""
_BAND = ("low", "high")
_FIRST = ("accuracy", "validation_auc", "loss", "proxy", "trace_error", "outcome", "reward", "kl", "entropy")
"""Curves that come first; the others follow in their own order."""


def charts(series: Mapping[str, Points]) -> list[dict[str, Any]]:
    """A chart per curve of two points or more; ``x_low`` and ``x_high`` are a band around ``x_value``."""
    drawings = []
    for name, points in series.items():
        stem, _, end = name.rpartition("_")
        if end in _BAND and f"{stem}_value" in series:
            continue
        low, high = (series.get(f"{stem}_{side}") if end == "value" else None for side in _BAND)
        if len(points) > 1:
            title = stem if low and high else name
            # updates have a number of the same name
            drawings.append(
                chart(
                    f"{stem} (evaluation)" if title != name and stem in series else title, points, low, high
                )
            )
    return sorted(drawings, key=lambda one: _place(one["name"]))


def chart(name: str, points: Points, low: Points | None = None, high: Points | None = None) -> dict[str, Any]:
    """Geometry of one chart in a box of ``WIDTH`` by ``HEIGHT``, and the figures beside it."""
    visible = _thinned(points)
    band = [*(low or ()), *(high or ())]
    xs = [x for x, _ in points]
    ys = [y for _, y in (*points, *band)]
    frame = _Frame(min(xs), max(xs), min(ys), max(ys))
    values = [y for _, y in points]
    return {
        "name": name,
        "line": frame.line(visible),
        "box": {"left": _LEFT, "right": WIDTH - _RIGHT, "top": _TOP, "bottom": HEIGHT - _BOTTOM},
        "band": frame.line([*_thinned(low), *reversed(_thinned(high))]) if low and high else None,
        "x_low": frame.x_low,
        "x_high": frame.x_high,
        "y_low": frame.y_low,
        "y_high": frame.y_high,
        "first": values[0],
        "last": values[-1],
        "least": min(values),
        "most": max(values),
        "points": len(points),
        "end": frame.place(*points[-1]),
    }


def _place(name: str) -> int:
    stem = name.removesuffix(" (evaluation)")
    return _FIRST.index(stem) if stem in _FIRST else len(_FIRST)


class _Frame:
    """Maps values to positions in the box."""

    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        self.x_low, self.x_high, self.y_low, self.y_high = x_low, x_high, y_low, y_high

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x_low) / (self.x_high - self.x_low or 1.0)
        # half each, so that the span of two huge values of opposite sign is still a number
        span = self.y_high / 2 - self.y_low / 2
        up = (y / 2 - self.y_low / 2) / span if span else 0.5
        return (
            round(_LEFT + across * (WIDTH - _LEFT - _RIGHT), 1),
            round(HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM), 1),
        )

    def line(self, points: Points) -> str:
        return " ".join("{},{}".format(*self.place(x, y)) for x, y in points)


def _thinned(points: Points) -> list[tuple[float, float]]:
    if len(points) <= _MOST:
        return list(points)
    step = (len(points) - 1) / (_MOST - 1)
    return [points[round(index * step)] for index in range(_MOST)]
