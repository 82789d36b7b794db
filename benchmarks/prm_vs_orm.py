"""PRM against ORM against majority vote on several seeds of the quickstart.

    python benchmarks/prm_vs_orm.py [--quick] [--out DIR] [--json FILE]

Runs ``surefoot quickstart`` once per seed (runs that are there already are used) and pools the paired
differences: same test problems, new training problems, samples and models for each seed. ``ratio`` is the
accuracy of the PRM divided by the rival's. Every rule of reading and voting is given to both models.
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
from surefoot.quickstart import MODELS, READINGS, RULES, QuickstartConfig, ScoredTraces, accuracy_curves
from surefoot.records import Problem, StepScores, Trace
from surefoot.stats import Interval, bootstrap_seeds

QUICK = {"train_problems": 60, "rollouts": 2, "test_problems": 20, "test_samples": 16}


def run_seed(seed: int, out: Path, config: Path) -> dict[str, np.ndarray]:
    """Do or finish one quickstart; accuracy per problem and number of samples, by selection rule."""
    command = [sys.executable, "-m", "surefoot", "quickstart", "--seed", str(seed), "--out", str(out)]
    subprocess.run([*command, "--config", str(config)], check=True)
    scored = ScoredTraces(
        problems=list(read_records(out / "test-problems.jsonl", Problem)),
        traces=list(read_records(out / "test-traces.jsonl", Trace)),
        scores={name: list(read_records(out / f"scores-{name}.jsonl", StepScores)) for name in MODELS},
    )
    return accuracy_curves(scored, sizes_up_to(len(scored.traces) // len(scored.problems)), seed=seed)


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
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that it runs, shows nothing")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/prm_vs_orm"))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sizes_file = options.out / "config.json"
    sizes_file.write_text(json.dumps(QUICK if options.quick else {}))
    curves = [run_seed(seed, options.out / f"seed-{seed}", sizes_file) for seed in range(options.seeds)]
    config = QuickstartConfig.model_validate_json(sizes_file.read_text())
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
            "seeds": options.seeds,
            "quickstart": config.model_dump(mode="json"),
        }
        setting |= {"machine": platform.machine(), "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"figures": result, "setting": setting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
