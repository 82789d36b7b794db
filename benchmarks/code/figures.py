"""Figures of ``benchmarks/code/run.py``, shown as they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.stats import bootstrap_mean


def figure(name: str, value: float, unit: str, **more: float | None) -> dict[str, Any]:
    """One line of the output file."""
    between = f" [{more['low']:.3f}, {more['high']:.3f}]" if more.get("low") is not None else ""
    print(f"{name}: {value:.3f} {unit}{between}", flush=True)
    return {"name": name, "value": value, "unit": unit, "ratio": None, "low": None, "high": None} | more


def interval_figure(name: str, values: Sequence[float] | NDArray[np.float64], unit: str) -> dict[str, Any]:
    """The mean over tasks, with its 95 % interval by bootstrap over them."""
    mean = bootstrap_mean(values, draws=2000, rng=np.random.default_rng(0))
    return figure(name, mean.value, unit, low=mean.low, high=mean.high)
