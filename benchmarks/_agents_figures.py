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


def shown(one: dict[str, Any]) -> str:
    """A line as people read it."""
    between = "" if one.get("low") is None else f" [{one['low']:.3g}, {one['high']:.3g}]"
    above = "" if one.get("ratio") is None else f", ratio {one['ratio']:.2f}"
    note = f" ({one['note']})" if one.get("note") else ""
    value = "n/a" if one["value"] is None else f"{one['value']:.3g}"
    return f"{one['name']}: {value} {one['unit']}{between}{above}{note}"
