"""Figures of a benchmark, and the loop that measures them part by part."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from surefoot import __version__
from surefoot.errors import MissingExtraError
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


def measure(
    parser: argparse.ArgumentParser, parts: Mapping[str, Callable[[argparse.Namespace], list[dict[str, Any]]]]
) -> None:
    """Add the options that both benchmarks have, measure the chosen parts, print and write the figures.

    A part that raises ``MissingExtraError`` lacks its input and is left out.
    """
    parser.add_argument(
        "--only", nargs="+", choices=list(parts), default=list(parts), help="these parts alone"
    )
    parser.add_argument("--quick", action="store_true", help="less of the same, in some minutes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    for name in options.only:
        started = time.perf_counter()
        try:
            part = parts[name](options)
        except MissingExtraError as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)
            continue
        seconds[name] = round(time.perf_counter() - started, 1)
        figures += part
        print(*map(shown, part), sep="\n", flush=True)
    if not figures:
        parser.error("nothing could be measured")
    if options.json:
        machine = {"machine": platform.machine(), "cores": os.cpu_count()}
        setting = {"version": __version__, "quick": options.quick, "seconds": seconds, **machine}
        options.json.write_text(json.dumps({"figures": figures, "setting": setting}, indent=2) + "\n")
