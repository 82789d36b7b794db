"""Dense step rewards against outcome reward, in the lab: accuracy on new problems against policy samples."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common.figures import Figure, Figures, arguments, figure, show, times, write
from benchmarks.common.processes import has_trl, worker
from benchmarks.prm_vs_orm.run import trained_prm
from benchmarks.worlds.digits import POLICY, ExactLabeller, NoisySolver, generate_problems
from benchmarks.worlds.digits.train import RECIPES
from benchmarks.worlds.digits.train import train as train_start
from surefoot.answers import AnswerChecker, Grader
from surefoot.models import LabelScorer, load_causal, load_prm
from surefoot.policies import PromptFormat, TransformersPolicy
from surefoot.protocols import ProblemTrace, Sampling, StepScorer
from surefoot.records import Problem, StepScores
from surefoot.rl import (
    PRESETS,
    EvaluationRow,
    Guards,
    RLConfig,
    RLLog,
    Task,
    audit_policy,
    samples_to,
    train_policy,
)
from surefoot.segment import Line
from surefoot.stats import bootstrap_mean

Array = NDArray[np.float64]

METHODS: dict[str, dict[str, Any]] = {
    "outcome": {"credit": {"rule": "outcome"}},
    "outcome, half the rate": {"credit": {"rule": "outcome"}, "learning_rate": 5e-5},
    "summed": {"credit": {"rule": "summed"}},
    "process-grpo": {"credit": {"rule": "summed"}, "advantage": {"kind": "group"}},
    "min-form": {"credit": {"rule": "min-form"}},
    "clip-delta": {"credit": {"rule": "mixed", "of": {"rule": "clip-delta"}}},
    "pav": {"credit": {"rule": "effective"}},
    "prime": {
        "credit": PRESETS["prime"]["credit"].model_dump(),
        "advantage": PRESETS["prime"]["advantage"].model_dump(),
        "accuracy_band": PRESETS["prime"]["accuracy_band"],
    },
    "summed + outcome": {"credit": {"rule": "mixed", "of": {"rule": "summed"}}},
    "min-form + outcome": {"credit": {"rule": "mixed", "of": {"rule": "min-form"}}},
}
"""Changes to the common settings; the advantage is leave-one-out where nothing else is said."""

OUTCOMES = ("outcome", "outcome, half the rate")
WITHOUT_SCORES = (*OUTCOMES, "prime")
LEARNED_ONLY = ("summed + outcome", "min-form + outcome")
"""Run with the PRM's rewards alone: what outcomes do against gaming (Gao et al., arXiv 2410.15115; PURE)."""
COMMON: dict[str, Any] = {
    "problems": 16,
    "samples": 8,
    "max_tokens": 96,
    "learning_rate": 1e-4,
    "warmup": 10,
    "microbatch_tokens": 4096,
    "evaluate_every": 5,
    "evaluation_temperature": 0.0,
    "checkpoint_every": 20,
    "keep_samples": 2,
    "guards": Guards(stop_on=()),
}
START_ACCURACY = 0.39
"""Greedy accuracy at which the start policy's training is stopped. Equal updates and seeds give policies of
39 % on one machine and 70 % on another, because training amplifies rounding."""
START_EVERY = 10
"""Updates between two policies to choose from."""
PROVER_ERROR = 0.25
TRAIN, HELD_OUT, DEVELOPMENT, TEST = 2_000, 300, 300, 600
QUICK_SIZES = (100, 20, 300)
"""Held-out, development and test problems of ``--quick``."""
LAST = 3
"""Evaluations whose mean is the final accuracy that others are timed to."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A method with its rewards."""

    method: str
    rewards: str
    """checker, prm, or none."""

    @property
    def name(self) -> str:
        """As it is printed."""
        return self.method if self.rewards == "none" else f"{self.method}, {self.rewards}"

    def settings(self, seed: int, updates: int) -> RLConfig:
        """Of one run."""
        return RLConfig.model_validate(COMMON | {"seed": seed, "updates": updates} | self._changes())

    def _changes(self) -> dict[str, Any]:
        changes = dict(METHODS[self.method])
        if self.method == "pav":
            # the PRM knows the policy's own values: its prover is best-of-4 of the policy
            changes["credit"] = changes["credit"] | ({"best_of": 4} if self.rewards == "prm" else {})
        return changes


CONDITIONS = [
    Condition(method=method, rewards=rewards)
    for method in METHODS
    for rewards in (
        ("none",) if method in WITHOUT_SCORES else ("prm",) if method in LEARNED_ONLY else ("checker", "prm")
    )
]

PUBLISHED = [
    Condition(method="outcome, half the rate", rewards="none"),
    Condition(method="min-form", rewards="checker"),
]


@dataclass(frozen=True, kw_only=True)
class World:
    """Problems of all runs, and those who judge."""

    start: Path
    """The policy that all methods start from."""
    held_out: list[Problem]
    development: list[Problem]
    test: list[Problem]
    grader: Grader
    prms: Path
    runs: Path

    def directory(self, condition: Condition, seed: int) -> Path:
        """Of one run."""
        method = condition.method.replace(", ", "-").replace(" ", "-")
        return self.runs / f"seed-{seed}" / f"{method}-{condition.rewards}"

    def task(self, condition: Condition, seed: int) -> Task:
        """What a run learns from."""
        exclude = [*self.held_out, *self.development, *self.test]
        return Task(
            problems=generate_problems(TRAIN, seed=seed, exclude=exclude),
            held_out=self.held_out,
            segmenter=Line(),
            grader=self.grader,
            scorer=self._scorer(condition, seed),
            gold=ExactLabeller(after_error="step"),
        )

    def _scorer(self, condition: Condition, seed: int) -> StepScorer | None:
        if condition.rewards == "prm":
            return load_prm(trained_prm(self.prms, seed, quick=False))
        if condition.rewards == "checker":
            if condition.method == "pav":
                return Prover(NoisySolver(error_rate=PROVER_ERROR))
            return LabelScorer(ExactLabeller(after_error="step"), name="checker")
        return None


@dataclass(frozen=True)
class Prover:
    """A step scorer with the exact values of a solver's own success after each step."""

    solver: NoisySolver

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """One record an item."""
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer=self.solver.name,
                scores=tuple(
                    self.solver.value(item.problem, item.trace.prefix(step + 1))
                    for step in range(len(item.trace.steps))
                ),
            )
            for item in items
        ]


def train(world: World, condition: Condition, seed: int, updates: int) -> RLLog:
    """One run, or what is there of it."""
    directory = world.directory(condition, seed)
    model, tokenizer = load_causal(world.start)
    start = time.process_time()
    log = train_policy(
        model, tokenizer, world.task(condition, seed), condition.settings(seed, updates), directory
    )
    last = log.evaluations[-1]
    print(
        f"seed {seed} {condition.name:22} accuracy {last.accuracy.value:.3f} trace error "
        f"{last.trace_error.value if last.trace_error else float('nan'):.3f} "
        f"({time.process_time() - start:.0f} s of CPU)",
        flush=True,
    )
    return log


@dataclass(frozen=True, kw_only=True)
class Final:
    """A trained policy on problems that it has not seen."""

    accuracy: Array
    """Whether the greedy answer of each problem is right [P]."""
    trace_error: float
    """Share of right greedy solutions with a wrong step."""
    sampled: float
    """Accuracy of one sample a problem at the training temperature."""


def final(world: World, condition: Condition, seed: int, problems: Sequence[Problem]) -> Final:
    """Greedy and sampled."""
    policy = TransformersPolicy.from_pretrained(world.directory(condition, seed) / "policy")
    task = Task(
        problems=world.held_out,
        held_out=problems,
        segmenter=Line(),
        grader=world.grader,
        gold=ExactLabeller(after_error="step"),
    )
    greedy, sampled = (
        asyncio.run(
            audit_policy(
                policy,
                task,
                update=0,
                samples=0,
                n=1,
                seed=77,
                sampling=Sampling(max_tokens=COMMON["max_tokens"], temperature=temperature),
            )
        )
        for temperature in (0.0, 1.0)
    )
    right = {trace.problem_id: float(trace.outcome is True) for trace in greedy[1]}
    error = greedy[0].trace_error
    return Final(
        accuracy=np.array([right[problem.id] for problem in problems]),
        trace_error=error.value if error else float("nan"),
        sampled=sampled[0].accuracy.value,
    )


def mean_curve(logs: Sequence[RLLog]) -> list[EvaluationRow]:
    """Evaluations with the accuracy averaged over seeds; intervals are those of the first."""
    rows = []
    for same in zip(*(log.evaluations for log in logs), strict=True):
        mean = float(np.mean([row.accuracy.value for row in same]))
        first = same[0]
        accuracy = first.accuracy.__class__(value=mean, low=first.accuracy.low, high=first.accuracy.high)
        rows.append(first.model_copy(update={"accuracy": accuracy}))
    return rows


def samples_ratio(outcome: Sequence[EvaluationRow], dense: Sequence[EvaluationRow]) -> float | None:
    """How many times fewer samples ``dense`` takes to the accuracy with which ``outcome`` ends."""
    goal = float(np.mean([row.accuracy.value for row in outcome[-LAST:]]))
    own, others = samples_to(outcome, goal), samples_to(dense, goal)
    if not own or not others:
        return None
    return own / others


def compare(
    world: World, conditions: Sequence[Condition], seeds: Sequence[int], updates: int
) -> tuple[Figures, dict[str, Any]]:
    """All conditions of all seeds; the figures, and a table for the settings."""
    logs = {
        condition.name: [train(world, condition, seed, updates) for seed in seeds] for condition in conditions
    }
    ends = {
        condition.name: [final(world, condition, seed, world.test) for seed in seeds]
        for condition in conditions
    }
    rivals = [name for name in OUTCOMES if name in ends]
    base = max(rivals, key=lambda name: float(np.mean([one.accuracy.mean() for one in ends[name]])))
    developed = {
        condition.name: float(
            np.mean([final(world, condition, seed, world.development).accuracy.mean() for seed in seeds])
        )
        for condition in conditions
        if condition.method not in OUTCOMES
    }
    best = max(developed, key=developed.__getitem__)
    table = {name: describe(logs[name], logs[base], ends[name], ends[base]) for name in logs}
    for name, row in table.items():
        print(f"{name:22} {json.dumps(row)}", flush=True)
    single = [
        ratio
        for mine, theirs in zip(logs[best], logs[base], strict=True)
        if (ratio := samples_ratio(theirs.evaluations, mine.evaluations)) is not None
    ]
    ratio = samples_ratio(mean_curve(logs[base]), mean_curve(logs[best]))
    errors = [
        outcome.trace_error - dense.trace_error for outcome, dense in zip(ends[base], ends[best], strict=True)
    ]
    bounds = {"low": min(single, default=None), "high": max(single, default=None)}
    gap = difference(ends[best], ends[base])
    error = 100 * float(np.mean(errors))
    figures = [
        figure("samples_to_outcome_accuracy", ratio, "times fewer", ratio, **bounds),
        figure("final_accuracy_difference", gap.pop("value"), "points", **gap),
        figure("trace_error_difference", error, "points", low=100 * min(errors), high=100 * max(errors)),
    ]
    setting = {"best": best, "outcome": base, "development": developed, "methods": table}
    return figures, setting | {"gaming": gaming(conditions, logs)}


def describe(
    logs: Sequence[RLLog], outcome: Sequence[RLLog], ends: Sequence[Final], outcome_ends: Sequence[Final]
) -> dict[str, object]:
    """One method in numbers; points and shares are means over the seeds."""
    first = [log.evaluations[0] for log in logs]
    gap = difference(ends, outcome_ends)
    return {
        "start": round(100 * float(np.mean([row.accuracy.value for row in first])), 1),
        "end": round(100 * float(np.mean([one.accuracy.mean() for one in ends])), 1),
        "ends": [round(100 * float(one.accuracy.mean()), 1) for one in ends],
        "over outcome": [round(float(gap[name]), 1) for name in ("value", "low", "high")],
        "sampled": round(100 * float(np.mean([one.sampled for one in ends])), 1),
        "trace error": round(100 * float(np.mean([one.trace_error for one in ends])), 1),
        "times fewer samples": samples_ratio(mean_curve(outcome), mean_curve(logs)),
        "tokens": round(float(np.mean([log.evaluations[-1].shape.tokens or 0 for log in logs])), 1),
    }


def difference(dense: Sequence[Final], outcome: Sequence[Final]) -> dict[str, Any]:
    """Accuracy at the end less that of outcome-only training, in points, paired by problem."""
    apart = [mine.accuracy - theirs.accuracy for mine, theirs in zip(dense, outcome, strict=True)]
    found = bootstrap_mean(np.mean(apart, axis=0), rng=np.random.default_rng(0))
    base = float(np.mean([one.accuracy.mean() for one in outcome]))
    return {
        "value": 100 * found.value,
        "ratio": (base + found.value) / base if base else None,
        "low": 100 * found.low,
        "high": 100 * found.high,
    }


def gaming(conditions: Sequence[Condition], logs: dict[str, list[RLLog]]) -> dict[str, Any]:
    """Gold and proxy where the PRM rewards, by seed: at the start, at the best evaluation, at the end."""
    found: dict[str, Any] = {}
    for condition in conditions:
        if condition.rewards != "prm":
            continue
        rows = []
        for log in logs[condition.name]:
            best = max(log.evaluations, key=lambda row: row.accuracy.value)
            shown = {"start": log.evaluations[0], "best": best, "end": log.evaluations[-1]}
            row: dict[str, Any] = {
                when: {
                    "samples": one.samples,
                    "gold": round(one.accuracy.value, 3),
                    "proxy": None if one.proxy is None else round(one.proxy.value, 3),
                    "steps": None if one.shape.steps is None else round(one.shape.steps, 2),
                }
                for when, one in shown.items()
            }
            rows.append(row | {"alarms": [f"{alarm.name} at {alarm.raised}" for alarm in log.alarms]})
        found[condition.name] = rows
    return found


def throughput(options: argparse.Namespace, world: World) -> tuple[Figure, dict[str, Any]]:
    """Samples a second, ours and TRL's in turn; outcome reward, one step of the optimiser a round."""
    updates = 10
    condition = Condition(method="outcome", rewards="none")
    task = world.task(condition, 0)
    ours, theirs, shares = [], [], []
    for _ in range(1 if options.quick else 3):
        mine = rate(task, updates)
        ours.append(mine["rate"])
        shares.append(mine["shares"])
        theirs.append(rival(options, task, updates))
        print(f"ours {ours[-1]:.1f}, TRL {theirs[-1]:.1f} samples a second of CPU", flush=True)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    about = {"ours": ours, "trl": theirs, "shares of time": shares[0]}
    return times("throughput_vs_trl", ratios), about


_WARM = 2
"""Rounds that are not timed."""


def rate(task: Task, updates: int) -> dict[str, Any]:
    """Our samples a second of CPU, and the shares of the time."""
    model, tokenizer = load_causal(POLICY)
    changes = COMMON | {"updates": updates, "evaluate_every": 10**6, "keep_samples": 0}
    config = RLConfig.model_validate(changes | {"checkpoint_every": 10**6, "credit": {"rule": "outcome"}})
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        log = train_policy(
            model,
            tokenizer,
            task,
            config,
            Path(directory),
            # the last round is evaluated within it, so it is not timed
            progress=lambda *_: ends.append(time.process_time()),
        )
    rounds = updates - _WARM - 1
    seconds = ends[-2] - ends[_WARM - 1]
    parts = {
        name: sum(getattr(row.seconds, name) for row in log.updates)
        for name in ("generation", "scoring", "update")
    }
    return {
        "rate": rounds * config.problems * config.samples / seconds,
        "shares": {name: round(part / sum(parts.values()), 3) for name, part in parts.items()},
    }


def rival(options: argparse.Namespace, task: Task, updates: int) -> float:
    """TRL's samples a second of CPU."""
    given = {
        "model": str(POLICY),
        "prompts": [
            {"prompt": PromptFormat().template.format(problem=one.text), "answer": one.answer}
            for one in task.problems[: COMMON["problems"] * updates]
        ],
        "updates": updates,
        "warm": _WARM,
        "threads": options.threads,
        # about as many tokens a pass as ours have: larger ones are slower on a CPU
        "rows_per_pass": 32,
    } | {name: COMMON[name] for name in ("problems", "samples", "max_tokens", "learning_rate")}
    found = worker(options.trl_python, Path(__file__).with_name("trl_worker.py"), given, options.threads)
    return float(found["samples_per_second"]["cpu"])


def main() -> None:
    """Command line."""
    options = _options()
    torch.set_num_threads(options.threads)
    seeds = range(options.first_seed, options.first_seed + (options.seeds or (1 if options.quick else 3)))
    conditions = PUBLISHED if options.quick or options.first_seed else CONDITIONS
    sizes = QUICK_SIZES if options.quick else (HELD_OUT, DEVELOPMENT, TEST)
    made = generate_problems(sum(sizes), seed=5_000_000 + options.first_seed)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        world = World(
            start=start_policy(options.runs, made[:100], grader),
            held_out=made[: sizes[0]],
            development=made[sizes[0] : sizes[0] + sizes[1]],
            test=made[sizes[0] + sizes[1] :],
            grader=grader,
            prms=options.prms,
            runs=options.runs / "quick" if options.quick else options.runs,
        )
        if options.part:
            share(world, conditions, seeds, options.updates, options.part)
            return
        figures, setting = compare(world, conditions, seeds, options.updates)
        if has_trl(options.trl_python):
            speed, setting["throughput"] = throughput(options, world)
            figures.append(speed)
    common = RLConfig.model_validate(COMMON).model_dump(mode="json")
    about = {"seeds": list(seeds), "updates": options.updates, "common": common}
    write(options, show(figures), **setting, **about)


def share(
    world: World, conditions: Sequence[Condition], seeds: Sequence[int], updates: int, part: str
) -> None:
    """Train every N-th run, from the K-th on, for ``part`` = K/N."""
    first, step = (int(number) for number in part.split("/"))
    jobs = [(condition, seed) for seed in seeds for condition in conditions]
    for condition, seed in jobs[first::step]:
        train(world, condition, seed, updates)


def start_policy(runs: Path, problems: Sequence[Problem], grader: Grader) -> Path:
    """The policy that all methods start from, made if it is not there.

    Of the lab policy's training it is the one whose greedy accuracy on ``problems`` is nearest to
    ``START_ACCURACY``.
    """
    directory = runs / "start"
    if not (directory / "recipe.json").exists():
        print("training the start policy", flush=True)
        training = runs / "start-training"
        if not (training / "recipe.json").exists():
            train_start(RECIPES["policy"], training, save_every=START_EVERY)
        distances = {}
        for policy in sorted(training.glob("update-*"), key=lambda path: int(path.name.rpartition("-")[2])):
            accuracy = greedy_accuracy(policy, problems, grader)
            print(f"{policy.name}: {accuracy:.3f}", flush=True)
            distances[policy] = abs(accuracy - START_ACCURACY)
        shutil.copytree(min(distances, key=lambda path: distances[path]), directory)
        shutil.rmtree(training)
    return directory


def greedy_accuracy(policy: Path, problems: Sequence[Problem], grader: Grader) -> float:
    """Share of ``problems`` that ``policy`` solves greedily."""
    unused = generate_problems(1, seed=1, exclude=problems)
    task = Task(problems=unused, held_out=problems, segmenter=Line(), grader=grader)
    row, _ = asyncio.run(
        audit_policy(
            TransformersPolicy.from_pretrained(policy),
            task,
            update=0,
            samples=0,
            n=1,
            seed=77,
            sampling=Sampling(max_tokens=COMMON["max_tokens"], temperature=0.0),
        )
    )
    return row.accuracy.value


def _options() -> argparse.Namespace:
    parser = arguments(__doc__, "one seed and 20 updates of the published pair of methods")
    parser.add_argument("--runs", type=Path, default=Path("rl-runs"), help="directory of the runs")
    parser.add_argument("--prms", type=Path, default=Path("runs"), help="runs of prm_vs_orm, for the PRMs")
    parser.add_argument("--seeds", type=int, help="3; with --quick 1")
    parser.add_argument(
        "--first-seed",
        type=int,
        default=0,
        help="confirm the published pair of methods with these seeds, on other problems; methods were chosen "
        "with seeds 0 to 2",
    )
    parser.add_argument("--part", help="K/N: train every N-th run from the K-th on, and stop")
    parser.add_argument("--updates", type=int, help="40; with --quick 20")
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter that has TRL 1.13")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.updates = options.updates or (20 if options.quick else 40)
    return options


if __name__ == "__main__":
    main()
