"""Reward models of every kind on the same traces, against the exact truth of each step.

    python benchmarks/kinds.py [--quick] [--seeds 3] [--traces 40 200 1000] [--out DIR] [--json FILE]

In the lab, each seed has its own problems: for training (two traces of the policy each), for the thresholds,
for the test. The same first N traces train a model of each kind from the same trunk. Monte Carlo labels are
four rollouts a prefix, and all kinds that need values share them. Truth is the exact checker's, up to and
with the first error; later steps are not looked at. AUC is of right against wrong steps of all test traces;
"rivals" is the same among steps that continue one prefix. F1 is ProcessBench's, at the threshold that is best
on the development traces. Intervals are over the problems of all seeds. A run that is killed goes on where
it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _kinds_lab import PROVER, QUICK, ROLLOUTS, Lab, Sizes, Split
from _kinds_models import KINDS, Scores, read
from numpy.typing import NDArray

from surefoot import __version__
from surefoot.answers import AnswerChecker, Grader
from surefoot.evaluation.benchmarks import best_threshold, first_error_below, harmonic_mean
from surefoot.io import Run
from surefoot.lab import POLICY
from surefoot.policies import TransformersPolicy
from surefoot.stats import Interval, Resample, bootstrap_statistic, roc_auc, roc_auc_within

Floats = NDArray[np.float64]

READINGS = {
    "constant": "no model: all steps alike",
    "position": "no model: the earlier the better",
    "length": "no model: the shorter the better",
    "deepconf": "the policy's confidence (DeepConf)",
    "self-certainty": "the policy's self-certainty",
    "entropy": "the policy's entropy, the lower the better",
    "orm": "ORM, its score",
    "orm_change": "ORM, score less the one before",
    "hard": "PRM on hard Monte Carlo labels",
    "soft": "PRM on soft Monte Carlo labels",
    "soft_change": "the same, score less the one before",
    "pqm": "PRM on hard Monte Carlo labels, ranked (PQM)",
    "progress": "PRM on labels by relative progress (GenPRM)",
    "pairwise": "PRM on pairs of rival steps",
    "pav": "PAV, advantage",
    "effective": "PAV, Q + ½ A with the soft PRM as Q",
    "implicit_step": "implicit PRM, step reward",
    "implicit_prefix": "implicit PRM, sum up to the step",
    "generative": "generative verifier",
    "exact": "PRM on exact labels",
}
RIVAL = "hard"
"""Differences are to this one."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One reading of one model on the test traces of one seed: T traces, S steps up to the first errors."""

    steps: Floats
    """[S]; NaN = not scored."""
    hits: Floats
    """[T]: 1 = the first error named, or a right trace cleared; NaN = a trace not given to the model."""
    unscored: int
    """Traces given to the model that have no score; they count as wrong in F1 and are left out of AUC."""


def column(held: Mapping[str, Split], dev: Scores, test: Scores) -> Column:
    """Put the scores beside the truth. Without ``dev`` the threshold is ½."""
    threshold, tuning, known = 0.5, held["dev"], held["test"]
    if dev:
        threshold = best_threshold([dev[item.trace.id] for item in tuning.items], tuning.firsts).threshold
    steps: list[float] = []
    hits: list[float] = []
    unscored = 0
    for item, truth, meant in zip(known.items, known.truth, known.firsts, strict=True):
        row = test.get(item.trace.id)
        pairs = zip(row or [None] * len(truth), truth, strict=True)
        steps += [np.nan if score is None else score for score, label in pairs if label is not None]
        if row is None:
            hits.append(np.nan)
            continue
        empty = all(score is None for score in row)
        unscored += empty
        hits.append(float(not empty and first_error_below(row, threshold) == meant))
    return Column(steps=np.array(steps), hits=np.array(hits), unscored=unscored)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Truth of all seeds, one after the other: S steps, T traces."""

    labels: Floats
    step_problems: list[tuple[int, str]]
    prefixes: NDArray[np.int64]
    """Number of the prefix that a step continues; steps of one number are rivals."""
    wrong: NDArray[np.bool_]
    trace_problems: list[tuple[int, str]]


def gather(held: list[Split]) -> Truth:
    """Join the test sets of the seeds."""
    rows = [
        (seed, item.problem.id, item.trace, truth, first)
        for seed, split in enumerate(held)
        for item, truth, first in zip(split.items, split.truth, split.firsts, strict=True)
    ]
    steps = [
        ((seed, problem), trace.prefix(step), label)
        for seed, problem, trace, truth, _ in rows
        for step, label in enumerate(truth)
        if label is not None
    ]
    numbers: dict[tuple[tuple[int, str], str], int] = {}
    return Truth(
        labels=np.array([label for _, _, label in steps]),
        step_problems=[problem for problem, _, _ in steps],
        prefixes=np.array([numbers.setdefault(step[:2], len(numbers)) for step in steps]),
        wrong=np.array([first >= 0 for *_, first in rows]),
        trace_problems=[(seed, problem) for seed, problem, *_ in rows],
    )


Statistic = Callable[[Floats, NDArray[Any], NDArray[np.int64]], float]
"""Of values, their truth, and the number of the prefix or trace that each belongs to."""


def auc(values: Floats, labels: NDArray[Any], _: NDArray[np.int64]) -> float:
    """Of all right against all wrong steps."""
    return roc_auc(values, labels).value


def rivals(values: Floats, labels: NDArray[Any], prefixes: NDArray[np.int64]) -> float:
    """Of right against wrong steps that continue the same prefix, which is what a search compares."""
    return roc_auc_within(values, labels, prefixes).value


def f1(hits: Floats, wrong: NDArray[Any], _: NDArray[np.int64]) -> float:
    """ProcessBench's F1 from hits; NaN without a wrong or without a right trace."""
    known = ~np.isnan(hits)
    sides = [hits[known & (wrong == side)] for side in (True, False)]
    return harmonic_mean(*(float(side.mean()) for side in sides)) if all(map(len, sides)) else np.nan


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A statistic with the truth that it needs, for the values of all seeds."""

    statistic: Statistic
    field: str
    """Of :class:`Column`."""
    truth: NDArray[Any]
    problems: list[tuple[int, str]]
    groups: NDArray[np.int64]

    def measure(
        self, values: Floats, draws: int, rival: Floats | None = None
    ) -> tuple[Interval, list[float]]:
        """Mean over the seeds (less the rival's, where both are known), and each seed's own."""
        seeds = np.array([seed for seed, _ in self.problems])
        if rival is not None:
            unknown = np.isnan(values) | np.isnan(rival)
            rival, values = np.where(unknown, np.nan, rival), np.where(unknown, np.nan, values)

        def one(items: NDArray[np.intp], groups: NDArray[np.int64]) -> float:
            found = self.statistic(values[items], self.truth[items], groups)
            return found if rival is None else found - self.statistic(rival[items], self.truth[items], groups)

        def each(draw: Resample) -> list[float]:
            # a problem that is drawn twice is two problems: no step is a rival of its copy's
            groups = draw.clusters * len(self.groups) + self.groups[draw.items]
            places = [np.flatnonzero(seeds[draw.items] == seed) for seed in np.unique(seeds)]
            return [one(draw.items[at], groups[at]) for at in places]

        interval = bootstrap_statistic(
            self.problems, lambda draw: float(np.mean(each(draw))), draws=draws, rng=np.random.default_rng(0)
        )
        everything = np.arange(len(seeds))
        return interval, each(Resample(items=everything, clusters=np.zeros_like(everything)))


def metrics(truth: Truth) -> dict[str, Metric]:
    """The three of the tables."""
    steps = {"field": "steps", "truth": truth.labels, "problems": truth.step_problems}
    traces = {"field": "hits", "truth": truth.wrong, "problems": truth.trace_problems}
    return {
        "auc": Metric(statistic=auc, groups=truth.prefixes, **steps),  # type: ignore[arg-type]
        "rivals": Metric(statistic=rivals, groups=truth.prefixes, **steps),  # type: ignore[arg-type]
        "f1": Metric(statistic=f1, groups=np.arange(len(truth.wrong)), **traces),  # type: ignore[arg-type]
    }


def figures(truth: Truth, columns: dict[tuple[str, int], list[Column]], sizes: Sizes) -> list[dict[str, Any]]:
    """Every metric of every reading and size, and at the largest size the difference to the rival's."""
    found = []
    for (reading, count), of_seeds in columns.items():
        for metric, by in metrics(truth).items():
            values, name = joined(of_seeds, by.field), f"{metric}_{reading}_at_{count}"
            found.append(figure(name, *by.measure(values, sizes.draws)))
            if count == max(sizes.traces) and reading != RIVAL:
                rival = joined(columns[RIVAL, count], by.field)
                found.append(figure(f"{name}_less_{RIVAL}", *by.measure(values, sizes.draws, rival)))
    return found


def joined(columns: list[Column], field: str) -> Floats:
    """One field of the columns of all seeds."""
    return np.concatenate([getattr(one, field) for one in columns])


def figure(name: str, interval: Interval, each: list[float]) -> dict[str, Any]:
    """One line of the output file."""
    return {
        "name": name,
        "value": interval.value,
        "unit": "fraction",
        "ratio": None,
        "low": interval.low,
        "high": interval.high,
        "seeds": each,
    }


def plain(value: Any) -> Any:
    """NaN → ``None``, which JSON has."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and np.isnan(value) else value


def table(found: list[dict[str, Any]], traces: tuple[int, ...], metric: str) -> str:
    """Markdown: mean (range over the seeds) [interval over problems]."""
    by_name = {one["name"]: one for one in found}
    heads = [f"{count} traces" for count in traces]
    lines = [f"| {metric.upper()} | {' | '.join(heads)} | less {RIVAL}, {max(traces)} |"]
    lines.append("|---" * (len(traces) + 2) + "|")
    for reading, words in READINGS.items():
        cells = [cell(by_name[f"{metric}_{reading}_at_{count}"]) for count in traces]
        gap = by_name.get(f"{metric}_{reading}_at_{max(traces)}_less_{RIVAL}")
        cells.append("" if gap is None else cell(gap, "+", seeds=False))
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(one: dict[str, Any], sign: str = "", *, seeds: bool = True) -> str:
    """A figure in three decimals without the leading zero."""
    if np.isnan(one["value"]):
        return "undefined"
    low, value, high = (short(one[name], sign) for name in ("low", "value", "high"))
    each = f" ({short(min(one['seeds']))} to {short(max(one['seeds']))})" if seeds else ""
    return f"{value}{each} [{low}, {high}]"


def short(value: float, sign: str = "") -> str:
    """0.9541 → .954"""
    text = f"{value:{sign}.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 0.9995 else text


def run_seed(
    seed: int, out: Path, sizes: Sizes, policy: TransformersPolicy, grader: Grader
) -> tuple[Split, dict[tuple[str, int], Column], dict[str, Any]]:
    """Do or finish one seed: its test set, a column for each reading and size, and what it took."""
    config = {"seed": seed, **{name: getattr(sizes, name) for name in sizes.__dataclass_fields__}}
    config["traces"] = list(sizes.traces)
    with Run.open(out / f"seed-{seed}", command="benchmarks/kinds", config=config) as run:
        lab = Lab(run, seed, sizes, policy, grader)
        columns = {}
        for count in sizes.traces:
            dev, test = (read(lab, count, split) for split in ("dev", "test"))
            for reading in READINGS:
                columns[reading, count] = column(lab.held, dev.get(reading, {}), test[reading])
        trained = {f"{k}-{n}": run.result(f"{k}-{n}") for k in KINDS for n in sizes.traces}
        held = lab.held["test"]
        notes = {
            "trained": trained,
            "seconds": run.seconds,
            "test_traces": len(held.items),
            "test_wrong": sum(first >= 0 for first in held.firsts),
            "unscored": {f"{name}-{n}": c.unscored for (name, n), c in columns.items() if c.unscored},
            "generative_traces": len(held.heads()),
        }
    return held, columns, notes


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, 100 labelled traces, on one thread")
    parser.add_argument("--seeds", type=int, help="3; with --quick 1")
    parser.add_argument("--traces", type=int, nargs="+", help="labelled traces, each an even number")
    parser.add_argument("--out", type=Path, default=Path("runs/kinds"))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes(traces=tuple(sorted(options.traces or Sizes.traces)))
    if options.quick:
        torch.set_num_threads(1)
    out = options.out / "quick" if options.quick else options.out
    policy = TransformersPolicy.from_pretrained(POLICY)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        count = options.seeds or (1 if options.quick else 3)
        seeds = [run_seed(seed, out, sizes, policy, grader) for seed in range(count)]
    columns = {key: [of_seed[key] for _, of_seed, _ in seeds] for key in seeds[0][1]}
    found = figures(gather([held for held, _, _ in seeds]), columns, sizes)
    for metric in ("auc", "rivals", "f1"):
        print(f"\n{table(found, sizes.traces, metric)}")
    if options.json:
        setting = {
            "version": __version__,
            "quick": options.quick,
            "seeds": len(seeds),
            "rollouts": ROLLOUTS,
            "prover": PROVER,
        }
        setting |= {"sizes": vars(sizes), "each_seed": [notes for _, _, notes in seeds]}
        setting |= {"machine": platform.machine(), "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"figures": plain(found), "setting": setting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
