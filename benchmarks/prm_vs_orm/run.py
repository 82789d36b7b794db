"""PRM against ORM against majority vote on several seeds of the quickstart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.common.figures import Figure, Figures, arguments, show, write
from benchmarks.common.figures import figure as one_figure
from surefoot.evaluation import sizes_up_to
from surefoot.io import read_records
from surefoot.quickstart import FULL, MODELS, READINGS, RULES, QuickstartConfig, ScoredTraces, accuracy_curves
from surefoot.records import Problem, StepScores, Trace
from surefoot.stats import bootstrap_seeds

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


def figures(curves: list[dict[str, np.ndarray]], sizes: list[int]) -> Figures:
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
    for rule in RULES:
        gaps = [curve[f"prm {rule}"][:, -1] - curve[f"orm {rule}"][:, -1] for curve in curves]
        prm, orm = (
            np.mean([curve[f"{name} {rule}"][:, -1].mean() for curve in curves]) for name in ("prm", "orm")
        )
        slug = rule.lower().replace("-", "_").replace(" ", "_")
        found.append(figure(f"prm_minus_orm_by_{slug}_at_{sizes[-1]}", gaps, ratio=float(prm / orm)))
    return found


def figure(name: str, per_seed: list[np.ndarray], ratio: float | None) -> Figure:
    """Mean over seeds with its interval over problems, in points."""
    interval = bootstrap_seeds(per_seed, same_problems=True, rng=np.random.default_rng(0))
    each = ", ".join(f"{100 * values.mean():+.1f}" for values in per_seed)
    level = "level; " if interval.includes(0) else ""
    return one_figure(name, 100 * interval, "points", ratio, note=f"{level}by seed {each}")


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "one seed of a smaller quickstart, on one thread: a few minutes")
    parser.add_argument("--seeds", type=int, help="3; with --quick 1")
    parser.add_argument("--out", type=Path, default=Path("runs/prm_vs_orm"))
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
    about = {"seeds": seeds, "quickstart": config.model_dump(mode="json")}
    write(options, show(figures(curves, sizes)), **about)


if __name__ == "__main__":
    main()
