"""What prm800k.py reports: step AUC and ProcessBench F1 of several scorers, and their paired differences."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import numpy as np
from _prm800k_rows import SEED, StepLists, first_bad, halves, rated_rows
from numpy.typing import NDArray

from surefoot.evaluation.benchmarks import best_threshold, processbench_f1
from surefoot.protocols import LabelledTrace
from surefoot.stats import Interval, Resample, bootstrap_statistic, roc_auc, roc_auc_within

DRAWS = 1000
BASELINE = "length"

Arms = Mapping[str, StepLists]
"""Scores of every step of every trace, by scorer; the first is the one that is put forward."""
Figure = dict[str, object]
Labels = NDArray[np.int64]
AucOf = Callable[[NDArray[np.float64], Labels, Resample], float]


def auc_figures(items: Sequence[LabelledTrace], arms: Arms, *, draws: int = DRAWS) -> list[Figure]:
    """AUC over held-out rated steps, three ways; intervals over problems.

    A step that an arm has not scored is left out for all, so that they are compared on the same steps; the
    figures count such steps.
    """
    rows = rated_rows(items)
    number = {item.trace.id: index for index, item in enumerate(items)}
    scores = {
        arm: np.array([lists[number[trace.id]][step] for _, trace, step in rows.items], dtype=float)
        for arm, lists in arms.items()
    }
    unscored = np.any([np.isnan(values) for values in scores.values()], axis=0)
    for values in scores.values():
        values[unscored] = np.nan
    not_bad, positive = np.where(rows.ratings >= 0, 1, -1), np.where(rows.ratings > 0, 1, -1)
    groups = rows.siblings.max() + 1

    def pooled(values: NDArray[np.float64], labels: Labels, draw: Resample) -> float:
        return roc_auc(values[draw.items], labels[draw.items]).value

    def among_siblings(values: NDArray[np.float64], labels: Labels, draw: Resample) -> float:
        group = draw.clusters * groups + rows.siblings[draw.items]
        return roc_auc_within(values[draw.items], labels[draw.items], group).value

    figures = []
    for name, auc, labels in (
        ("step AUC, good or neutral against bad", pooled, not_bad),
        ("step AUC, good against neutral or bad", pooled, positive),
        ("step AUC among continuations of one prefix, good or neutral against bad", among_siblings, not_bad),
    ):

        def statistic(arm: str, draw: Resample, auc: AucOf = auc, labels: Labels = labels) -> float:
            return auc(scores[arm], labels, draw)

        figures.append(
            figure(name, "AUC", list(arms), statistic, rows.problems, draws)
            | {"steps": len(rows.items), "unscored_steps": int(unscored.sum())}
        )
    return figures


def f1_figures(
    subset: str, items: Sequence[LabelledTrace], arms: Arms, *, draws: int = DRAWS
) -> list[Figure]:
    """ProcessBench F1 of one subset, thresholds from problems that are not reported; intervals over problems.

    First on one half of the problems, with the threshold of the other; then on both halves, each with the
    other's threshold.
    """
    labels = [first_bad(item) for item in items]
    half = halves(items)
    cuts = {
        arm: (_cut(scores, labels, half == 0), _cut(scores, labels, half == 1))
        for arm, scores in arms.items()
    }
    shifted = {
        arm: [
            [None if s is None else s - cuts[arm][1 - side] for s in scores]
            for scores, side in zip(lists, half, strict=True)
        ]
        for arm, lists in arms.items()
    }
    figures = []
    for name, chosen in (
        (f"ProcessBench {subset} F1, threshold from the other half", np.flatnonzero(half == 1)),
        (f"ProcessBench {subset} F1, both halves, each with the other's threshold", np.arange(len(items))),
    ):

        def statistic(arm: str, draw: Resample, chosen: NDArray[np.intp] = chosen) -> float:
            drawn = chosen[draw.items]
            return processbench_f1([shifted[arm][i] for i in drawn], [labels[i] for i in drawn], 0.0).f1

        parts = {
            arm: asdict(processbench_f1([shifted[arm][i] for i in chosen], [labels[i] for i in chosen], 0.0))
            | {"thresholds": [cuts[arm][1 - side] for side in sorted({int(half[i]) for i in chosen})]}
            for arm in arms
        }
        problems = [items[i].problem.id for i in chosen.tolist()]
        figures.append(figure(name, "F1", list(arms), statistic, problems, draws) | {"parts": parts})
    return figures


def figure(
    name: str,
    unit: str,
    arms: Sequence[str],
    statistic: Callable[[str, Resample], float],
    clusters: Sequence[Hashable],
    draws: int,
) -> Figure:
    """Each arm, each difference of two and the first arm's ratio to the baseline, with 95 % intervals.

    The same problems are drawn for all arms, so that what makes a problem hard for both cancels.
    """

    def interval(function: Callable[[Resample], float]) -> Interval:
        return bootstrap_statistic(clusters, function, draws=draws, rng=np.random.default_rng(SEED))

    def ratio(draw: Resample) -> float:
        below = statistic(BASELINE, draw)
        return statistic(arms[0], draw) / below if below else float("nan")

    own = {arm: interval(lambda draw, arm=arm: statistic(arm, draw)) for arm in arms}  # type: ignore[misc]
    differences = {
        f"{one} - {other}": interval(
            lambda draw, one=one, other=other: statistic(one, draw) - statistic(other, draw)  # type: ignore[misc]
        )
        for one, other in combinations(arms, 2)
    }
    ratios = interval(ratio)
    return {
        "name": name,
        "value": own[arms[0]].value,
        "unit": unit,
        "ratio": ratios.value,
        "low": ratios.low,
        "high": ratios.high,
        "arms": {arm: asdict(found) for arm, found in own.items()},
        "differences": {pair: asdict(found) for pair, found in differences.items()},
    }


def report(figures: list[Figure], setting: dict[str, object], path: Path | None) -> None:
    """Print the figures, and write JSON if asked."""
    for one in figures:
        print(one["name"])
        for kind in ("arms", "differences"):
            found = one[kind]
            assert isinstance(found, dict)  # noqa: S101  (for the type checker)
            for name, values in found.items():
                print(f"    {name:18} {values['value']:6.3f} [{values['low']:.3f}, {values['high']:.3f}]")
    print(json.dumps(setting, indent=2))
    if path:
        path.write_text(json.dumps({"figures": figures, "setting": setting}, indent=2) + "\n")


def _cut(scores: StepLists, labels: Sequence[int], chosen: NDArray[np.bool_]) -> float:
    """The threshold fitted on the chosen traces."""
    fit = np.flatnonzero(chosen).tolist()
    return best_threshold([scores[i] for i in fit], [labels[i] for i in fit]).threshold
