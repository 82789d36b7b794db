"""The gateway's monitor: alarms, shares, and signals against their reference, with intervals."""

from __future__ import annotations

import math
from typing import Any, Final, get_args

from starlette.responses import Response

from surefoot.evaluation.verdict import bound_verdict
from surefoot.server.gateway.monitor import Monitor, Share
from surefoot.server.pages.page import Page

_SHARES: Final[dict[Share, str]] = {
    "accepted": "Steps accepted",
    "abstained": "Answers withheld or missing",
    "unparsed": "Answers without a final answer",
    "unscored": "Answers with an unscored step",
}


def monitor_page(page: Page) -> Response:
    """The state of the monitor. ``curves`` of the JSON twin has a value for each of the latest requests."""
    monitor = page.pages.monitor
    state = None if monitor is None else _state(monitor)
    return page.show("monitor.html", {"state": state}, shares=_SHARES)


def _state(monitor: Monitor) -> dict[str, Any]:
    chart, settings = monitor.chart, monitor.settings
    evidence = [math.log10(max(value, 1e-3)) for value in chart.evidence]
    return {
        "fitted": chart.fitted,
        "settings": settings,
        "change": chart.change,
        "shares": {share: _share(monitor, share) for share in get_args(Share)},
        "signals": {
            name: {"reference": reference, "latest": latest}
            for name, (reference, latest) in chart.compared().items()
        },
        "curves": {
            "Evidence (log10)": {"values": evidence, "limit": math.log10(settings.run_length)},
            "Score of the answer": {"values": list(chart.scores), "limit": None},
        },
    }


def _share(monitor: Monitor, share: Share) -> dict[str, Any]:
    above, interval = share != "accepted", monitor.interval(share)
    where = "above" if above else "below"
    bound: float = getattr(monitor.settings, f"{share}_{where}")
    verdict = interval and bound_verdict(interval, bound, above=above, alarm=monitor.alarm(share))
    return {"interval": interval, "verdict": verdict, "bound": f"{where} {bound:.0%}"}
