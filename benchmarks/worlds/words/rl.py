"""Exact step rewards against outcome-only rewards on word problems: samples to the same held-out accuracy.

Both arms start from the same policy and get the same problems, samples and updates. The settings of each are
chosen on seed 0, four for each arm, by the accuracy at the end; the seeds after it are the figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from benchmarks.common.figures import Figures, arguments, figure, show, write
from surefoot.answers import AnswerChecker, Grader
from surefoot.lab import POLICY, LabVerifier, generate_problems
from surefoot.labelling import VerifierLabeller
from surefoot.models import LabelScorer, load_causal
from surefoot.rl import EvaluationRow, Guards, RLConfig, Task, samples_to, train_policy
from surefoot.segment import Line
from surefoot.stats import Interval

ARMS: dict[str, dict[str, dict[str, Any]]] = {
    "outcome": {
        "leave-one-out": {"credit": {"rule": "outcome"}},
        "group": {"credit": {"rule": "outcome"}, "advantage": {"kind": "group"}},
    },
    "steps": {
        "min-form": {"credit": {"rule": "min-form"}},
        "turn-difference": {"credit": {"rule": "turn-difference"}},
    },
}
"""Two ways of each arm; every one is tried at every rate."""
RATES = (2e-4, 5e-4)
COMMON: dict[str, Any] = {
    "problems": 8,
    "samples": 8,
    "max_tokens": 120,
    "warmup": 3,
    "bf16": True,
    "microbatch_tokens": 4096,
    "evaluate_every": 2,
    "checkpoint_every": 6,
    "keep_samples": 0,
    "guards": Guards(stop_on=()),
}
TRAIN, HELD_OUT = 2_000, 150
UPDATES = 18
SMOOTHED = 3
"""Evaluations whose mean is a point of a curve; the last such point is the accuracy at the end."""

Setting = tuple[str, float]
"""Name of a way, and learning rate."""
Curves = Sequence[Sequence[EvaluationRow]]


def train(
    policy: Path, out: Path, arm: str, setting: Setting, *, seed: int, updates: int
) -> list[EvaluationRow]:
    """Evaluations of one run, or of what is there of it, smoothed."""
    held_out = generate_problems(HELD_OUT, seed=3_000_000)
    verifier = VerifierLabeller(verifiers=(LabVerifier(),))
    way, rate = setting
    changes = {"learning_rate": rate, "seed": seed, "updates": updates} | ARMS[arm][way]
    model, tokenizer = load_causal(policy)
    with AnswerChecker("exact") as checker:
        task = Task(
            problems=generate_problems(TRAIN, seed=100 + seed, exclude=held_out),
            held_out=held_out,
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
            scorer=LabelScorer(verifier, name="checker") if arm == "steps" else None,
            gold=verifier,
        )
        directory = out / f"seed-{seed}" / f"{way}-{rate:g}"
        log = train_policy(model, tokenizer, task, RLConfig.model_validate(COMMON | changes), directory)
    rows = log.evaluations
    print(seed, way, rate, [round(100 * row.accuracy.value, 1) for row in rows], flush=True)
    return smooth(rows)


def smooth(rows: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """Each accuracy as the mean of the last few."""
    smoothed = []
    for end, row in enumerate(rows, start=1):
        mean = float(np.mean([one.accuracy.value for one in rows[max(0, end - SMOOTHED) : end]]))
        accuracy = Interval(value=mean, low=mean, high=mean)
        smoothed.append(row.model_copy(update={"accuracy": accuracy}))
    return smoothed


def times_fewer(outcome: Sequence[EvaluationRow], steps: Sequence[EvaluationRow]) -> float:
    """Samples of ``outcome`` to its own accuracy at the end, by those of ``steps``; at least an evaluation's.

    Steps that never reach it count as if they did after as many samples again as there were.
    """
    goal, least, total = outcome[-1].accuracy.value, steps[1].samples, steps[-1].samples
    own, mine = samples_to(outcome, goal), samples_to(steps, goal)
    return max(least, own or 0) / (2 * total if mine is None else max(least, mine))


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean with Student's 95 % interval; without bounds for one seed."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(value=mean, low=math.nan, high=math.nan)
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return Interval(value=mean, low=mean - half, high=mean + half)


def compare(outcome: Curves, steps: Curves) -> tuple[Figures, dict[str, Any]]:
    """The figures of one curve a seed of each arm, and what each seed gave."""
    ratios = [times_fewer(*pair) for pair in zip(outcome, steps, strict=True)]
    times = over_seeds(np.log(ratios).tolist())
    ends = [[100 * curve[-1].accuracy.value for curve in curves] for curves in (outcome, steps)]
    apart = over_seeds([mine - other for other, mine in zip(*ends, strict=True)])
    low, middle, high = np.exp([times.low, times.value, times.high]).tolist()
    figures = [
        figure("samples_to_outcome_accuracy", middle, "times fewer", middle, low=low, high=high),
        figure("final_accuracy_difference", apart, "points"),
    ]
    return figures, {"ratios": ratios, "outcome": ends[0], "steps": ends[1]}


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "one seed, four updates")
    parser.add_argument("--policy", type=Path, default=POLICY, help="what both arms start from")
    parser.add_argument("--out", type=Path, required=True, help="runs; finished ones are not repeated")
    parser.add_argument("--seeds", type=int, help="5; with --quick 1")
    options = parser.parse_args()
    torch.set_num_threads(1)
    updates = 4 if options.quick else UPDATES
    chosen: dict[str, Setting] = {}
    for arm, ways in ARMS.items():
        ends = {
            setting: train(options.policy, options.out, arm, setting, seed=0, updates=updates)[-1].accuracy
            for setting in product(ways, RATES)
        }
        chosen[arm] = max(ends, key=lambda setting: ends[setting].value)
    curves = {
        arm: [
            train(options.policy, options.out, arm, setting, seed=seed, updates=updates)
            for seed in range(1, 1 + (options.seeds or (1 if options.quick else 5)))
        ]
        for arm, setting in chosen.items()
    }
    figures, by_seed = compare(curves["outcome"], curves["steps"])
    write(options, show(figures), chosen=chosen, by_seed=by_seed, updates=updates)


if __name__ == "__main__":
    main()
