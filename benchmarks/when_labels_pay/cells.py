"""Cells of the map from measurements of several seeds: figures, and a picture."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from benchmarks.common.figures import Figures, figure
from benchmarks.when_labels_pay.chain_length import COMPARISONS, LENGTHS, NOISES, SAMPLES, TRUNKS, Measured
from benchmarks.when_labels_pay.traces import OPERATIONS
from surefoot.stats import Interval, mean_over_runs

PRM_COLOUR, ORM_COLOUR = "#0072b2", "#d55e00"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """PRM less ORM in one cell, by trunk and comparison; intervals are over problems and seeds."""

    length: int
    recoverability: str
    noise: str
    samples: int
    recovered: float
    wrong_labels: float
    differences: Mapping[tuple[str, str], Interval]

    def verdict(self, trunk: str, comparison: str) -> str:
        """Which is ahead: "prm", "orm", or "none" if the interval includes 0."""
        difference = self.differences[trunk, comparison]
        return "prm" if difference.low > 0 else "orm" if difference.high < 0 else "none"

    def agreed(self, comparison: str) -> str:
        """The verdict if both trunks give it; else "one"."""
        verdicts = {self.verdict(trunk, comparison) for trunk in TRUNKS}
        return verdicts.pop() if len(verdicts) == 1 else "one"


def cells_of(rows: Iterable[Measured], draws: int = 2000) -> list[Cell]:
    """One cell for each length, recoverability, label noise and number of samples, in this order."""
    groups: dict[tuple[int, str, str, int], list[Measured]] = defaultdict(list)
    for row in rows:
        groups[row.length, row.recoverability, row.noise, row.samples].append(row)
    cells = []
    for (length, level, noise, samples), members in groups.items():
        differences = {}
        for trunk in TRUNKS:
            of = [row for row in members if row.trunk == trunk]
            for comparison in COMPARISONS:
                gaps = np.array([np.subtract(row.prm, row.orm[comparison]) for row in of])
                differences[trunk, comparison] = mean_over_runs(
                    gaps, draws=draws, rng=np.random.default_rng(0)
                )
        cells.append(
            Cell(
                length=length,
                recoverability=level,
                noise=noise,
                samples=samples,
                recovered=float(np.mean([row.recovered for row in members])),
                wrong_labels=float(np.mean([row.wrong_labels for row in members])),
                differences=differences,
            )
        )
    return cells


def map_figures(cells: Sequence[Cell], seeds: Sequence[int]) -> Figures:
    """Counts of cells; those without a trunk's name need the same verdict with both trunks."""
    counts: dict[str, int] = {"map_cells": len(cells)}
    for comparison in COMPARISONS:
        suffix = "" if comparison == "labels" else f"_equal_{comparison}"
        agreed = Counter(cell.agreed(comparison) for cell in cells)
        for kind, name in (("prm", "prm_ahead"), ("none", "no_difference"), ("orm", "orm_ahead")):
            counts[f"cells_{name}{suffix}"] = agreed[kind]
        counts[f"cells_one_trunk_only{suffix}"] = agreed["one"]
        for trunk in TRUNKS:
            by_trunk = Counter(cell.verdict(trunk, comparison) for cell in cells)
            counts |= {f"cells_{kind}{suffix}_{trunk}": by_trunk[kind] for kind in ("prm", "none", "orm")}
    figures = [figure(name, count, "cells") for name, count in counts.items()]
    return [*figures, figure("map_seeds", len(seeds), "seeds")]


def averages(rows: Sequence[Measured]) -> Figures:
    """Mean PRM less ORM over the cells with each kind of labels; with exact labels also by each coordinate.

    Intervals are over seeds. By chain length, they show where the two converge.
    """
    groups: dict[str, list[Measured]] = defaultdict(list)
    for row in rows:
        groups[f"{row.noise}_labels"].append(row)
        if row.noise == "exact":
            groups[f"length_{row.length}"].append(row)
            groups[f"recoverability_{row.recoverability}"].append(row)
            groups[f"samples_{row.samples}"].append(row)
    figures = []
    for (name, members), trunk, comparison in itertools.product(groups.items(), TRUNKS, COMPARISONS):
        by_seed: dict[int, list[float]] = defaultdict(list)
        for row in members:
            if row.trunk == trunk:
                by_seed[row.seed].append(float(np.mean(np.subtract(row.prm, row.orm[comparison]))))
        means = np.array([[np.mean(gaps)] for gaps in by_seed.values()])
        gap = 100 * mean_over_runs(means, rng=np.random.default_rng(0))
        key = f"prm_minus_orm_{name}_equal_{comparison}_{trunk}".replace(" %", "").replace(" ", "_")
        figures.append(figure(key, gap if len(means) > 1 else gap.value, "points"))
    return figures


def draw_map(cells: Sequence[Cell], file: Path) -> None:
    """A panel for each comparison and trunk: the difference in points where it excludes 0, else a dot."""
    figure = Figure(figsize=(13, 13), layout="constrained")
    axes = figure.subplots(len(COMPARISONS), len(TRUNKS), sharex=True, sharey=True)
    rows = [(length, level) for length in LENGTHS for level in OPERATIONS]
    columns = [(noise, samples) for noise in NOISES for samples in SAMPLES]
    colours = LinearSegmentedColormap.from_list("ahead", [ORM_COLOUR, "#ffffff", PRM_COLOUR])
    titles = {"traces": "the same traces", "labels": "equally many labels", "cost": "equal cost"}
    by_place = {((c.length, c.recoverability), (c.noise, c.samples)): c for c in cells}
    for row, comparison in enumerate(COMPARISONS):
        for column, trunk in enumerate(TRUNKS):
            panel = axes[row, column]
            values = np.zeros((len(rows), len(columns)))
            for y, place in enumerate(rows):
                for x, at in enumerate(columns):
                    cell = by_place[place, at]
                    value = 100 * cell.differences[trunk, comparison].value
                    ahead = cell.verdict(trunk, comparison) != "none"
                    values[y, x] = value if ahead else 0
                    if ahead:
                        colour = "white" if abs(value) > 15 else "black"
                        panel.text(x, y, f"{value:+.0f}", ha="center", va="center", fontsize=7, color=colour)
            panel.plot(*np.nonzero(values.T == 0), ".", color="#7f7f7f", markersize=2)
            image = panel.imshow(values, cmap=colours, vmin=-25, vmax=25, aspect="auto")
            panel.set_title(f"{titles[comparison]}; trunk: {trunk}", fontsize=10)
            panel.set_yticks(range(len(rows)), [f"{a} steps, {b}" for a, b in rows], fontsize=7)
            panel.set_xticks(
                range(len(columns)), [f"{a}, N={b}" for a, b in columns], fontsize=7, rotation=90
            )
    figure.supylabel("chain length, recoverability of errors")
    figure.supxlabel("step labels, number of samples")
    bar = figure.colorbar(image, ax=axes, shrink=0.4)
    bar.set_label("PRM less ORM, points (blue: step labels pay; orange: outcomes are better; ·: none found)")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "map"}):
        figure.savefig(file, metadata={"Date": None})
