"""The gateway hour by hour, from the counters of its request log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from surefoot.errors import StoreError
from surefoot.records import now
from surefoot.server.pages.access import SiteReader, pages_of
from surefoot.server.pages.forms import query_of
from surefoot.server.pages.render import show, twin

router = APIRouter()

_HOURS: Final = 7 * 24
_MOST_HOURS: Final = 366 * 24
_SHARES: Final = ("accepted", "abstained", "unparsed", "unscored")
BOX: Final = {"width": 320, "height": 150, "left": 60, "right": 312, "top": 10, "bottom": 128}
"""Geometry of a chart in pixels; the template draws it as SVG."""
_MOST_POINTS: Final = 400
"""Points per line; longer curves are thinned, keeping first and last."""


@twin(router, "/monitor")
def monitor(request: Request, visitor: SiteReader) -> Response:
    """Requests, mean step score and rates of the last ``?hours=`` (default: a week), by full hours."""
    hours = query_of(request).natural("hours", default=_HOURS)
    if not 1 <= hours <= _MOST_HOURS:
        raise StoreError(f"'hours' must be 1 to {_MOST_HOURS}")
    since = (now() - timedelta(hours=hours)).replace(minute=0, second=0, microsecond=0)
    by_hour: dict[datetime, dict[str, float]] = defaultdict(dict)
    for counter in pages_of(request).db.gateway.counters(since=since):
        by_hour[counter.hour][counter.name] = counter.value
    rows = [{"hour": hour, **_figures(counted)} for hour, counted in sorted(by_hour.items())]
    data = {"hours": hours, "rows": rows}
    extra = {"charts": _charts(rows), "query": f"hours={hours}", "box": BOX}
    return show(request, visitor, "monitor.html", data, extra=extra)


def _figures(counted: Mapping[str, float]) -> dict[str, Any]:
    """Figures of one hour; ``None`` = nothing to count."""
    return {
        "answered": int(counted.get("answered", 0)),
        "failed": int(counted.get("failed", 0)),
        "mean_score": _share(counted, "score_sum", "scores"),
        **{name: _share(counted, name, f"{name}_of") for name in _SHARES},
    }


def _share(counted: Mapping[str, float], part: str, total: str) -> float | None:
    return counted.get(part, 0.0) / counted[total] if counted.get(total) else None


def _charts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A curve for each figure that at least two hours have; the x axis is hours since the first."""
    charts = []
    for name in ("answered", "failed", "mean_score", *_SHARES):
        values = [(row["hour"], float(row[name])) for row in rows if row[name] is not None]
        if len(values) > 1:
            first, last = values[0][0], values[-1][0]
            points = [((hour - first) / timedelta(hours=1), value) for hour, value in values]
            charts.append({**chart(name.replace("_", " "), points), "from": first, "to": last})
    return charts


def chart(name: str, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The line of a chart in ``BOX``, and its figures."""
    xs, ys = zip(*points, strict=True)
    low, high = min(ys), max(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[-1] - xs[0])
        up = (y - low) / (high - low) if high > low else 0.5
        return (
            round(BOX["left"] + across * (BOX["right"] - BOX["left"]), 1),
            round(BOX["bottom"] - up * (BOX["bottom"] - BOX["top"]), 1),
        )

    step = max(1.0, (len(points) - 1) / (_MOST_POINTS - 1))
    visible = [points[round(index * step)] for index in range(min(len(points), _MOST_POINTS))]
    return {
        "name": name,
        "line": " ".join("{},{}".format(*place(x, y)) for x, y in visible),
        "end": place(*points[-1]),
        "first": ys[0],
        "last": ys[-1],
        "low": low,
        "high": high,
    }
