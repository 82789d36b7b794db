"""PRM against ORM against majority vote on several seeds of the quickstart.

    python -m benchmarks.prm_vs_orm.run [--quick] [--out DIR] [--json FILE]

Runs ``surefoot quickstart`` once per seed (runs that are there already are used) and pools the paired
differences: same test problems, new training problems, samples and models for each seed, one model of each
kind. ``ratio`` is the accuracy of the PRM divided by the rival's. Every rule of reading and voting is given
to both models. ``surefoot quickstart --full`` has the same on one seed of data with five training seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

from surefoot import __version__
from surefoot.evaluation import sizes_up_to
from surefoot.io import read_records
from surefoot.quickstart import FULL, MODELS, READINGS, RULES, QuickstartConfig, ScoredTraces, accuracy_curves
from surefoot.records import Problem, StepScores, Trace
from surefoot.stats import Interval, bootstrap_seeds

QUICK = {"train_problems": 200, "test_problems": 150, "test_samples": 16}
"""Sizes of ``--quick``; other settings are as in the full quickstart."""
SIZES = FULL | {"training_seeds": 1}


def finish_quickstart(runs: Path, seed: int, *, quick: bool) -> Path:
    """Run or resume the quickstart of a seed, with ``quick`` a smaller one on one thread; its directory."""
    out = runs / f"{'quick' if quick else 'seed'}-{seed}"
    runs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "surefoot", "quickstart", "--seed", str(seed), "--out", str(out)]
    environment = dict(os.environ)
    config = runs / ("quick.json" if quick else "full.json")
    config.write_text(json.dumps(QUICK if quick else SIZES))
    command += ["--config", str(config)]
    if quick:
        environment["OMP_NUM_THREADS"] = "1"
    subprocess.run(command, check=True, env=environment)
    return out


def trained_prm(runs: Path, seed: int, *, quick: bool) -> Path:
    """Directory of the PRM of a seed's quickstart, which is run if it is not there.

    A quick measurement takes the PRM of a full quickstart where there is one.
    """
    for name in (f"seed-{seed}", f"quick-{seed}")[: 1 + quick]:
        if (runs / name / "done" / "train-prm.json").exists():
            return runs / name / "prm"
    return finish_quickstart(runs, seed, quick=quick) / "prm"


def curves_of(out: Path, seed: int) -> dict[str, np.ndarray]:
    """Accuracy per problem and number of samples in one quickstart, by selection rule."""
    scored = ScoredTraces(
        problems=list(read_records(out / "test-problems.jsonl", Problem)),
        traces=list(read_records(out / "test-traces.jsonl", Trace)),
        scores={name: [list(read_records(out / f"scores-{name}.jsonl", StepScores))] for name in MODELS},
    )
    curves = accuracy_curves(scored, sizes_up_to(len(scored.traces) // len(scored.problems)), seed=seed)
    return {name: values[0] for name, values in curves.items()}


def figures(curves: list[dict[str, np.ndarray]], sizes: list[int]) -> list[dict[str, object]]:
    """Pooled differences between the PRM and its rivals, at 4 samples and at the most."""
    found = []
    for rival in ("orm", "orm_lowest_step", "majority"):
        for size in (4, sizes[-1]):
            column = sizes.index(size)
            gaps = [curve["prm"][:, column] - curve[rival][:, column] for curve in curves]
            means = [np.mean([curve[name][:, column].mean() for curve in curves]) for name in ("prm", rival)]
            found.append(figure(f"prm_minus_{rival}_at_{size}", gaps, ratio=float(means[0] / means[1])))
    growth = []
    for curve in curves:
        gap = curve["prm"] - curve["orm"]
        growth.append(gap[:, -1] - gap[:, sizes.index(4)])
    found.append(figure(f"gap_to_orm_at_{sizes[-1]}_less_at_4", growth, ratio=None))
    print(f"PRM less ORM by the same rule, N={sizes[-1]}; level where the interval includes 0")
    for rule in RULES:
        gaps = [curve[f"prm {rule}"][:, -1] - curve[f"orm {rule}"][:, -1] for curve in curves]
        prm, orm = (
            np.mean([curve[f"{name} {rule}"][:, -1].mean() for curve in curves]) for name in ("prm", "orm")
        )
        slug = rule.lower().replace("-", "_").replace(" ", "_")
        found.append(figure(f"prm_minus_orm_by_{slug}_at_{sizes[-1]}", gaps, ratio=float(prm / orm)))
    return found


def figure(name: str, per_seed: list[np.ndarray], ratio: float | None) -> dict[str, object]:
    """Mean over seeds with its interval over problems, in points."""
    interval: Interval = bootstrap_seeds(per_seed, same_problems=True, rng=np.random.default_rng(0))
    each = ", ".join(f"{100 * values.mean():+.1f}" for values in per_seed)
    level = ", level" if interval.includes(0) else ""
    print(f"{name}: {interval:+.1p}{level}; by seed {each}")
    return {
        "name": name,
        "value": 100 * interval.value,
        "unit": "points",
        "ratio": ratio,
        "low": 100 * interval.low,
        "high": 100 * interval.high,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one seed of a smaller quickstart, on one thread: a few minutes"
    )
    parser.add_argument("--seeds", type=int, help="3; with --quick 1")
    parser.add_argument("--out", type=Path, default=Path("runs/prm_vs_orm"))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    seeds = options.seeds or (1 if options.quick else 3)
    runs = [finish_quickstart(options.out, seed, quick=options.quick) for seed in range(seeds)]
    curves = [curves_of(out, seed) for seed, out in enumerate(runs)]
    config = QuickstartConfig.model_validate(QUICK if options.quick else SIZES)
    sizes = sizes_up_to(config.test_samples)
    for name in ("pass_at", "majority", *READINGS):
        row = "  ".join(
            f"N={size} {100 * np.mean([c[name][:, i].mean() for c in curves]):.1f}"
            for i, size in enumerate(sizes)
        )
        print(f"{name:9} {row}")
    result = figures(curves, sizes)
    if options.json:
        setting = {
            "version": __version__,
            "seeds": seeds,
            "quick": options.quick,
            "quickstart": config.model_dump(mode="json"),
        }
        setting |= {"machine": platform.machine(), "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"figures": result, "setting": setting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
