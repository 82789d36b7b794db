"""Figures of a benchmark: their form, the options that all benchmarks have, printing and writing."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from surefoot import __version__
from surefoot.errors import MissingExtraError
from surefoot.stats import Interval, bootstrap_mean, bootstrap_totals

ROOT = Path(__file__).parents[2]
DATA = ROOT / "../shared/data"
"""Where data sets lie that a benchmark finds without being told."""

Figure = dict[str, Any]
Figures = list[Figure]


def figure(
    name: str, value: Interval | float | None, unit: str = "%", ratio: float | None = None, **more: Any
) -> Figure:
    """One line of the output file; ``more`` are further fields, such as ``low``, ``high`` and ``note``."""
    bounds: Figure = {"value": value, "low": None, "high": None}
    if isinstance(value, Interval):
        bounds = {"value": value.value, "low": value.low, "high": value.high}
    return {"name": name.replace(" ", "_"), "unit": unit, "ratio": ratio, **bounds, **more}


def over_rounds(name: str, values: Sequence[float], unit: str, **more: Any) -> Figure:
    """The median over rounds, with their range."""
    return figure(name, median(values), unit, **{"low": min(values), "high": max(values), **more})


def times(name: str, ratios: Sequence[float], value: float | None = None, **more: Any) -> Figure:
    """How many times ours a rival takes: ``value``, or the median of the ratios, with their range."""
    value = median(ratios) if value is None else value
    return figure(name, value, "times", ratio=value, low=min(ratios), high=max(ratios), **more)


def over_seeds(
    per_seed: Sequence[Sequence[float]], *, draws: int = 10_000, rng: np.random.Generator
) -> Interval:
    """Mean over the problems of several seeds, [problems] each; each seed resamples problems of its own."""
    counts = [np.column_stack([values, np.ones(len(values))]) for values in per_seed]

    def mean(totals: NDArray[np.float64]) -> NDArray[np.float64]:
        sums, sizes = totals.sum(axis=1).T
        return (sums / sizes)[:, None]

    return bootstrap_totals(counts, mean, draws=draws, rng=rng)[0]


def shown(one: Figure) -> str:
    """A line as people read it."""
    between = "" if one.get("low") is None else f" [{one['low']:.3g}, {one['high']:.3g}]"
    above = "" if one.get("ratio") is None else f", ratio {one['ratio']:.2f}"
    note = f" ({one['note']})" if one.get("note") else ""
    value = "n/a" if one["value"] is None else f"{one['value']:.4g}"
    return f"{one['name']}: {value} {one['unit']}{between}{above}{note}"


def show(figures: Sequence[Figure]) -> Sequence[Figure]:
    """Print figures as they are made, and return them."""
    if figures:
        print(*map(shown, figures), sep="\n", flush=True)
    return figures


def arguments(
    description: str | None, quick: str = "less of the same, in some minutes"
) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    return parser


def write(options: argparse.Namespace, figures: Sequence[Figure], **setting: Any) -> None:
    """The output file, if one is asked for: the figures, and what they depend on."""
    if not options.json:
        return
    about = {
        **{"version": __version__, "quick": options.quick},
        **{"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
    }
    if torch := sys.modules.get("torch"):
        about |= {"torch": torch.__version__, "threads": torch.get_num_threads()}
    found = {"figures": list(figures), "setting": about | setting}
    options.json.write_bytes(to_json(found, indent=2, inf_nan_mode="null") + b"\n")


def measure(
    parser: argparse.ArgumentParser, parts: Mapping[str, Callable[[argparse.Namespace], Figures]]
) -> None:
    """Measure the chosen parts, print and write the figures.

    A part that raises ``MissingExtraError`` lacks its input or a rival, and is left out.
    """
    parser.add_argument(
        "--only", nargs="+", choices=list(parts), default=list(parts), help="these parts alone"
    )
    options = parser.parse_args()
    figures: Figures = []
    seconds: dict[str, float] = {}
    for name in options.only:
        started = time.perf_counter()
        try:
            part = parts[name](options)
        except MissingExtraError as missing:
            left_out(name, str(missing))
            continue
        seconds[name] = round(time.perf_counter() - started, 1)
        figures += show(part)
    if not figures:
        parser.error("nothing could be measured")
    write(options, figures, seconds=seconds)


def left_out(what: str, reason: str) -> None:
    """Say what is not measured here, and how that could be changed."""
    print(f"left out: {what}: {reason}", flush=True)


def over_draws(value: float, draws: Sequence[float]) -> Interval:
    """A value with the range of 95 % of its bootstrap draws."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(value=value, low=float(low), high=float(high))


def over_tasks(name: str, values: Sequence[float] | NDArray[np.float64], unit: str, **more: Any) -> Figure:
    """The mean over tasks, with its 95 % interval by bootstrap over them."""
    mean = bootstrap_mean(values, draws=2000, rng=np.random.default_rng(0))
    return figure(name, mean, unit, **more)
