"""Do step labels pay for traces like these? Looked up on the map of ``docs/when-step-labels-pay.md``.

``benchmarks/questions/run.py`` measures the map and writes ``step_label_map.json``: PRM less ORM in points
by chain length, recoverability of errors, kind of labels and number of samples.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from surefoot.errors import RunError
from surefoot.evaluation.report import JSONResult
from surefoot.formats.imports import ImportedTrace
from surefoot.labels import LabelRule
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.intervals import UNKNOWN, Interval

COMPARISONS: Final = ("traces", "labels", "cost")
"""What the ORM has as much of as the PRM; a step label costs four completions of its prefix."""
_BEYOND, _BEYOND_SHARE = 1.5, 0.1
"""Factor, and amount, by which a coordinate may lie outside the map."""
_SMALLEST = 5.0
"""A gain of fewer points does not pay."""


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """One coordinate of the traces; its interval is over problems."""

    value: Interval = UNKNOWN
    count: int = 0  # of traces, problems or pairs of labels
    note: str = ""  # why it is unknown, or that it lies outside the map


@dataclass(frozen=True, kw_only=True)
class Advice(JSONResult):
    """Where traces lie on the map, and who is ahead there."""

    coordinates: Mapping[str, Coordinate]
    cells: int  # of the map that fit, each measured with several trunks
    differences: Mapping[str, tuple[float, float]]
    """By comparison, the smallest and the largest PRM less ORM in these cells, in points."""
    answers: Mapping[str, str]
    """By comparison, whether step labels pay: "yes", "no" or "cannot tell", with the reason."""


def advise(
    items: Iterable[ImportedTrace], *, samples: int | None = None, draws: int = 1000, seed: int = 0
) -> Advice:
    """Measure the coordinates and look them up. ``samples``: per problem, by default as in the data.

    Raises ``RunError`` if no trace has steps.
    """
    traces: dict[str, tuple[str, int, float]] = {}  # problem, steps and outcome
    marks: dict[tuple[str, int], dict[str, bool]] = defaultdict(dict)  # of a step, by rater
    monte_carlo = False
    for item in items:
        if item.trace is not None and item.trace.steps:
            outcome = math.nan if item.trace.outcome is None else float(item.trace.outcome)
            traces[item.trace.id] = (item.trace.problem_id, len(item.trace.steps), outcome)
        for label in item.labels:
            if (good := LabelRule(neutral="good").good(label)) is not None:
                marks[label.trace_id, label.step][label.evidence.rater or label.source] = good
                monte_carlo |= label.kind == "value"
    if not traces:
        raise RunError("no trace has 'steps': give traces, or cut them with `surefoot segment`")
    bootstrap = Bootstrap(draws=draws, seed=seed)

    def mean(rows: Sequence[tuple[str, float]], missing: str) -> Coordinate:
        """Of (trace, value) pairs."""
        measured = [(traces[name][0], value) for name, value in rows if not math.isnan(value)]
        if not measured:
            return Coordinate(note=f"cannot tell: the files lack {missing}")
        return Coordinate(
            value=bootstrap.mean([v for _, v in measured], [p for p, _ in measured]), count=len(measured)
        )

    ours = {key: list(raters.values()) for key, raters in marks.items() if key[0] in traces}
    wrong = dict.fromkeys(name for (name, _), good in ours.items() if sum(good) * 2 < len(good))
    pairs = [(name, float(a != b)) for (name, _), good in ours.items() for a, b in combinations(good, 2)]
    noise = mean(pairs, "a second label of the same step, by another 'rater'")
    if monte_carlo:
        noise = Coordinate(note="Monte Carlo labels: the map has their errors")
    problems = len({problem for problem, *_ in traces.values()})
    count = len(traces) / problems if samples is None else samples
    return _look_up(
        {
            "steps per trace": mean([(name, row[1]) for name, row in traces.items()], ""),
            "wrong traces with a right answer": mean(
                [(name, traces[name][2]) for name in wrong],
                "'outcome' of traces with a wrong step" if wrong else "'labels' with a wrong step",
            ),
            "wrong labels": replace(noise, value=_noise(noise.value)),
            "samples per problem": Coordinate(
                value=Interval(value=count, low=count, high=count), count=problems
            ),
            "accuracy": mean([(name, row[2]) for name, row in traces.items()], "'outcome'"),
        },
        monte_carlo,
    )


def _noise(disagreement: Interval) -> Interval:
    """Share p of wrong labels of two independent raters who disagree so often: 2 p (1 - p)."""
    shares = np.array([disagreement.value, *disagreement.bounds])
    value, low, high = ((1 - np.sqrt(np.maximum(1 - 2 * shares, 0))) / 2).tolist()
    return Interval(value=value, low=low, high=high)


def _look_up(measured: dict[str, Coordinate], monte_carlo: bool) -> Advice:
    cells: list[dict[str, Any]] = json.loads(Path(__file__).with_name("step_label_map.json").read_text())[
        "cells"
    ]
    cells = [cell for cell in cells if (cell["labels"] == "Monte Carlo") is monte_carlo]
    outside = []
    for name, key in (
        ("steps per trace", "length"),
        ("samples per problem", "samples"),
        ("wrong labels", "flipped"),
        ("wrong traces with a right answer", "recovered"),
    ):
        interval, values = measured[name].value, [cell[key] for cell in cells]
        low, high = min(values) / _BEYOND - _BEYOND_SHARE, max(values) * _BEYOND + _BEYOND_SHARE
        if interval.high < low or interval.low > high:
            outside.append(name)
            measured[name] = replace(
                measured[name], note=f"outside the map ({min(values):g} to {max(values):g})"
            )
        if not math.isnan(interval.value):
            cells = [cell for cell in cells if _fits(cell, key, cells, interval)]
    differences, answers = {}, {}
    for comparison in COMPARISONS:
        gaps = [gap for cell in cells for gap in cell["differences"][comparison]]
        differences[comparison] = min(gap[0] for gap in gaps), max(gap[0] for gap in gaps)
        prm, orm = sum(low > 0 for _, low, _ in gaps), sum(high < 0 for *_, high in gaps)
        if outside:
            answers[comparison] = f"cannot tell: {outside[0]} lies outside the map"
        elif prm == len(gaps):
            answers[comparison] = "yes"
        elif all(high < _SMALLEST for *_, high in gaps):
            answers[comparison] = f"no: a gain of {_SMALLEST:g} points is excluded"
        else:
            answers[comparison] = (
                f"cannot tell: of {len(gaps)} measurements the PRM is ahead in {prm}, the ORM in {orm}"
            )
    return Advice(coordinates=measured, cells=len(cells), differences=differences, answers=answers)


def _fits(cell: dict[str, Any], key: str, cells: Sequence[dict[str, Any]], interval: Interval) -> bool:
    """Whether the cell's coordinate is in the interval, or of its length's the nearest to the estimate."""
    values = {other[key] for other in cells if key != "recovered" or other["length"] == cell["length"]}
    nearest = min(values, key=lambda value: abs(value - interval.value))
    return bool(cell[key] == nearest or interval.includes(cell[key]))
