"""PRM against ORM against majority vote in the digit world, on the same traces and samples."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.figures import Figure, Figures, arguments, show, write
from benchmarks.common.figures import figure as one_figure
from benchmarks.prm_vs_orm.curves import MODELS, READINGS, RULES, ScoredTraces, accuracy_curves, step_aucs
from benchmarks.worlds.digits import POLICY, TRUNK, ExactLabeller, generate_problems
from surefoot.evaluation import sizes_up_to
from surefoot.io import read_records, write_records
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepScores, Trace
from surefoot.stats import bootstrap_mean, mean_over_runs

FULL = {"train_problems": 750, "test_problems": 300, "samples": 64}
"""Sizes of the published figures."""
QUICK = {"train_problems": 200, "test_problems": 150, "samples": 16}
TRAINING = ("--base", TRUNK, "--epochs", "4", "--max-length", "256", "--validation", "0")
"""Settings of every model."""
POLICY_OF = ("--policy", POLICY, "--max-tokens", "96", "--extract", "phrase", "--equality", "exact")


def surefoot(*words: object, quick: bool = False) -> None:
    """Run a command, with ``quick`` on one thread."""
    environment = os.environ | ({"OMP_NUM_THREADS": "1"} if quick else {})
    subprocess.run([sys.executable, "-m", "surefoot", *map(str, words)], check=True, env=environment)


def finish_run(runs: Path, seed: int, *, quick: bool, test_seed: int = 1_000_000) -> Path:
    """Train the PRM of a seed and score test samples, with ``quick`` fewer on one thread; the directory.

    What is there is not made again.
    """
    out, size = runs / f"{'quick' if quick else 'seed'}-{seed}", QUICK if quick else FULL
    out.mkdir(parents=True, exist_ok=True)
    test_problems = generate_problems(size["test_problems"], seed=test_seed)
    problems = generate_problems(size["train_problems"], seed=seed, exclude=test_problems)
    write_records(out / "test-problems.jsonl", test_problems)
    write_records(out / "train-problems.jsonl", problems)
    data, test = (
        (out / f"{name}-traces.jsonl", "--problems", out / f"{name}-problems.jsonl")
        for name in ("train", "test")
    )
    labels, prm = out / "train-labels.jsonl", out / "prm"
    samples = ("--n", size["samples"], "--seed", seed + test_seed)
    commands: list[tuple[Path, tuple[object, ...]]] = [
        (data[0], ("sample", data[2], *POLICY_OF, "--n", 2, "--seed", seed)),
        (labels, ("label", data[0], "mc:rollouts=4", *data[1:], *POLICY_OF, "--seed", seed, "--workers", 2)),
        (prm, ("train", "prm", *data, "--labels", labels, *TRAINING, "--seed", seed)),
        (test[0], ("sample", test[2], *POLICY_OF, *samples)),
        (scores_of(out, "prm", 0), ("score", *test, "--prm", prm)),
    ]
    for result, words in commands:
        if not (result / "done" / "train.json" if result == prm else result).exists():
            surefoot(*words, "--out", result, quick=quick)
    return out


def trained_prm(runs: Path, seed: int, *, quick: bool) -> Path:
    """Directory of the PRM of a seed, which is trained if it is not there.

    A quick measurement takes that of a full run where there is one.
    """
    for name in (f"seed-{seed}", f"quick-{seed}")[: 1 + quick]:
        if (runs / name / "prm" / "done" / "train.json").exists():
            return runs / name / "prm"
    return finish_run(runs, seed, quick=quick) / "prm"


def add_rivals(out: Path, seed: int, *, training_seeds: int, quick: bool) -> None:
    """Train and score the ORM and the PRM on exact labels, and the models of further training seeds."""
    problems = {problem.id: problem for problem in read_records(out / "train-problems.jsonl", Problem)}
    traces = read_records(out / "train-traces.jsonl", Trace)
    items = [ProblemTrace(problem=problems[trace.problem_id], trace=trace) for trace in traces]
    exact = asyncio.run(ExactLabeller(after_error="wrong").label(items))
    write_records(out / "train-labels-exact.jsonl", [label for row in exact for label in row])
    labels = {"prm": "train-labels.jsonl", "prm_gold": "train-labels-exact.jsonl"}
    data = (out / "train-traces.jsonl", "--problems", out / "train-problems.jsonl")
    test = (out / "test-traces.jsonl", "--problems", out / "test-problems.jsonl")
    for kind in MODELS:
        for number in range(training_seeds):
            model, scores = out / folder(kind, number), scores_of(out, kind, number)
            if not (model / "done" / "train.json").exists():
                given = ("--labels", out / labels[kind]) if kind in labels else ()
                command = ("train", "orm" if kind == "orm" else "prm", *data, *given, *TRAINING)
                surefoot(*command, "--seed", seed + number, "--out", model, quick=quick)
            if not scores.exists():
                surefoot("score", *test, "--prm", model, "--out", scores, quick=quick)


def folder(kind: str, number: int) -> str:
    """Directory of a model; the first of a kind is called by it."""
    return f"{kind}-{number}" if number else kind


def scores_of(out: Path, kind: str, number: int) -> Path:
    """The scores of a model; ``finish_run`` has written those of its PRM."""
    name = folder(kind, number)
    return out / ("scores.jsonl" if name == "prm" else f"scores-{name}.jsonl")


def read_scored(out: Path, training_seeds: int) -> ScoredTraces:
    """The test traces of a run with all scores."""
    return ScoredTraces(
        problems=list(read_records(out / "test-problems.jsonl", Problem)),
        traces=list(read_records(out / "test-traces.jsonl", Trace)),
        scores={
            kind: [
                list(read_records(scores_of(out, kind, number), StepScores))
                for number in range(training_seeds)
            ]
            for kind in MODELS
        },
    )


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
    interval = bootstrap_mean(np.mean(per_seed, axis=0), rng=np.random.default_rng(0))
    each = ", ".join(f"{100 * values.mean():+.1f}" for values in per_seed)
    level = "level; " if interval.includes(0) else ""
    return one_figure(name, 100 * interval, "points", ratio, note=f"{level}by seed {each}")


def of_one_seed(
    curves: Mapping[str, np.ndarray], scored: ScoredTraces, sizes: list[int], seed: int
) -> dict[str, Any]:
    """Curves, differences at the largest N and step AUCs of one seed, over problems and training seeds."""

    def mean(values: np.ndarray) -> dict[str, float]:
        interval = mean_over_runs(values, rng=np.random.default_rng(seed))
        return {"value": interval.value, "low": interval.low, "high": interval.high}

    differences = {f"prm - {rival}": curves["prm"] - curves[rival] for rival in ("orm", "orm_lowest_step")}
    differences |= {f"{name} - majority": curves[name] - curves["majority"] for name in ("prm", "orm")}
    differences |= {f"prm - orm, {rule}": curves[f"prm {rule}"] - curves[f"orm {rule}"] for rule in RULES}
    result = {
        "curves": {
            name: {size: mean(values[:, :, at]) for at, size in enumerate(sizes)}
            for name, values in curves.items()
        },
        "differences": {
            name: mean(values[:, :, -1]) | {"by_seed": values[:, :, -1].mean(axis=1).tolist()}
            for name, values in differences.items()
        },
        "step_auc": {
            name: {"pooled": pooled, "less_position": vars(gap)}
            for name, (pooled, gap) in step_aucs(scored, seed=seed).items()
        },
    }
    for name, row in result["differences"].items():
        each = ", ".join(f"{100 * value:+.1f}" for value in row["by_seed"])
        low, value, high = (100 * row[part] for part in ("low", "value", "high"))
        print(f"{name} @ {sizes[-1]}: {value:+.1f} [{low:+.1f}, {high:+.1f}]; by training seed {each}")
    return result


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "one smaller seed, on one thread: a few minutes")
    parser.add_argument("--seeds", type=int, help="3; with --quick 1")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--test-seed", type=int, default=1_000_000, help="seed of the test problems")
    parser.add_argument("--training-seeds", type=int, default=1, help="models of each kind on equal labels")
    parser.add_argument("--out", type=Path, default=Path("runs/prm_vs_orm"))
    parser.add_argument("--rivals", type=Path, metavar="DIR", help="only add the rivals to a run")
    options = parser.parse_args()
    if options.rivals:
        add_rivals(options.rivals, options.first_seed, training_seeds=1, quick=False)
        return
    number = options.seeds or (1 if options.quick else 3)
    seeds = range(options.first_seed, options.first_seed + number)
    sizes = sizes_up_to((QUICK if options.quick else FULL)["samples"])
    curves, of_seeds = [], []
    for seed in seeds:
        out = finish_run(options.out, seed, quick=options.quick, test_seed=options.test_seed)
        add_rivals(out, seed, training_seeds=options.training_seeds, quick=options.quick)
        scored = read_scored(out, options.training_seeds)
        found = accuracy_curves(scored, sizes, seed=seed)
        of_seeds.append(of_one_seed(found, scored, sizes, seed))
        curves.append({name: values.mean(axis=0) for name, values in found.items()})
    for name in ("pass_at", "majority", *READINGS):
        row = "  ".join(
            f"N={size} {100 * np.mean([c[name][:, i].mean() for c in curves]):.1f}"
            for i, size in enumerate(sizes)
        )
        print(f"{name:9} {row}")
    about = {"seeds": list(seeds), "training_seeds": options.training_seeds, "by_seed": of_seeds}
    write(options, show(figures(curves, sizes)), **about)


if __name__ == "__main__":
    main()
