"""Lines of the output of benchmarks/agents.py."""

from __future__ import annotations

from typing import Any

from surefoot.stats import Interval


def figure(name: str, value: Interval | float, unit: str = "%", ratio: float | None = None) -> dict[str, Any]:
    """One line of the output file."""
    bounds = {"value": value, "low": None, "high": None}
    if isinstance(value, Interval):
        bounds = {"value": value.value, "low": value.low, "high": value.high}
    return {"name": name.replace(" ", "_"), "unit": unit, "ratio": ratio, **bounds}
