"""Dense step rewards against outcome reward, in the lab: accuracy on new problems against policy samples.

    python benchmarks/rl.py [--quick] [--runs DIR] [--quickstarts DIR] [--trl-python PYTHON] [--json FILE]

For each seed, the lab's policy is trained with every method from the same weights, on the same problems, with
the same number of samples and updates. Step rewards are those of the exact checker of the lab, or of the PRM
of a quickstart (``--quickstarts DIR`` holds ``seed-0``, ``seed-1`` … as ``prm_vs_orm.py`` leaves them). Runs
are kept in ``--runs`` and not repeated; ``runs.html`` there has all curves.

``samples_to_outcome_accuracy``: samples after which outcome-only training has its final accuracy (mean of its
last three evaluations), by those after which the best dense method has it, both read off the curves averaged
over the seeds; low and high are the least and the most of a single seed. ``final_accuracy_difference``: best
dense method less outcome-only at the end, in points, on held-out problems, several samples each; interval
over seeds and problems. Which method is best is decided on other problems (``development``), at the end, on
the first seed. ``trace_error_difference``: share of right answers that have a wrong step, outcome-only less
best dense. ``throughput_vs_trl``: samples a second of the whole loop, ours by TRL's GRPO trainer, same policy,
prompts, group size and updates, by the CPU time of one thread, in turn.

``hacking``: summed raw PRM rewards without a baseline against clip and delta and min-form, same budget: proxy
(sum of scores) and gold accuracy at start and end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot import __version__
from surefoot.answers import AnswerChecker, Grader
from surefoot.evaluation.intervals import bootstrap_seeds
from surefoot.lab.checkpoints import POLICY
from surefoot.lab.world import Difficulty, ExactLabeller, generate_problems
from surefoot.models.causal import load_causal
from surefoot.models.label_scorer import LabelScorer
from surefoot.models.scorer import load_prm
from surefoot.policies.prompts import PromptFormat
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Sampling, StepScorer
from surefoot.records import Problem
from surefoot.rl.audit import Reduction, audit_policy
from surefoot.rl.config import RLConfig
from surefoot.rl.guards import Guards
from surefoot.rl.log import EvaluationRow, RLLog, samples_to
from surefoot.rl.loop import train_policy
from surefoot.rl.presets import PRESETS
from surefoot.rl.report import compare_runs
from surefoot.rl.task import Task
from surefoot.segment import Line
from surefoot.store import write_json

Array = NDArray[np.float64]

METHODS: dict[str, dict[str, Any]] = {
    "outcome": {"credit": {"rule": "outcome"}},
    "summed": {"credit": {"rule": "summed"}},
    "process-grpo": {"credit": {"rule": "summed"}, "advantage": {"kind": "group"}},
    "min-form": {"credit": {"rule": "min-form"}},
    "clip-delta": {"credit": {"rule": "mixed", "of": {"rule": "clip-delta"}}},
    "pav": {"credit": {"rule": "effective"}},
    "prime": {
        "credit": PRESETS["prime"].credit.model_dump(),
        "advantage": PRESETS["prime"].advantage.model_dump(),
        "accuracy_band": PRESETS["prime"].accuracy_band,
    },
}
"""Changes to the common settings; the advantage is leave-one-out where nothing else is said."""

WITHOUT_SCORES = ("outcome", "prime")
HACKING: dict[str, dict[str, Any]] = {
    "summed": {"credit": {"rule": "summed"}, "advantage": {"kind": "none"}},
    "clip-delta": {"credit": {"rule": "clip-delta"}, "advantage": {"kind": "none"}},
    "min-form": {"credit": {"rule": "min-form"}, "advantage": {"kind": "none"}},
}
COMMON: dict[str, Any] = {
    "problems": 16,
    "samples": 8,
    "max_tokens": 96,
    "learning_rate": 1e-4,
    "warmup": 10,
    "tokens_per_pass": 4096,
    "evaluate_every": 5,
    "checkpoint_every": 20,
    "keep_samples": 2,
    "guards": Guards(stop_on=()),
}
DIFFICULTY = Difficulty()
TRAIN, HELD_OUT, DEVELOPMENT = 2_000, 300, 300
FINAL_SAMPLES = 4
"""Samples a held-out problem at the end."""
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

    def settings(self, seed: int, updates: int, table: dict[str, dict[str, Any]]) -> RLConfig:
        """Of one run."""
        return RLConfig.model_validate(COMMON | {"seed": seed, "updates": updates} | self._changes(table))

    def _changes(self, table: dict[str, dict[str, Any]]) -> dict[str, Any]:
        changes = dict(table[self.method])
        if self.method == "pav":
            # the checker's value before the first step is 1; the PRM's prover is best-of-4 of the policy
            own = {"start": 1.0} if self.rewards == "checker" else {"best_of": 4}
            changes["credit"] = changes["credit"] | own
        return changes


CONDITIONS = [
    Condition(method=method, rewards=rewards)
    for method in METHODS
    for rewards in (("none",) if method in WITHOUT_SCORES else ("checker", "prm"))
]


@dataclass(frozen=True, kw_only=True)
class World:
    """Problems of all runs, and those who judge."""

    held_out: list[Problem]
    development: list[Problem]
    grader: Grader
    quickstarts: Path
    runs: Path

    def task(self, condition: Condition, seed: int, *, aggregation: Reduction = "min") -> Task:
        """What a run learns from."""
        exclude = [*self.held_out, *self.development]
        return Task(
            problems=generate_problems(TRAIN, seed=seed, difficulty=DIFFICULTY, exclude=exclude),
            held_out=self.held_out,
            segmenter=Line(),
            grader=self.grader,
            scorer=self._scorer(condition, seed),
            gold=ExactLabeller(after_error="step"),
            aggregation=aggregation,
        )

    def _scorer(self, condition: Condition, seed: int) -> StepScorer | None:
        if condition.rewards == "prm":
            return load_prm(self.quickstarts / f"seed-{seed}" / "prm")
        if condition.rewards == "checker":
            # a value stays 0 after an error; the other rules take each step by itself
            after = "wrong" if condition.method == "pav" else "step"
            return LabelScorer(ExactLabeller(after_error=after), name="checker")  # type: ignore[arg-type]
        return None


def train(world: World, condition: Condition, seed: int, updates: int) -> RLLog:
    """One run, or what is there of it."""
    directory = world.runs / f"seed-{seed}" / f"{condition.method}-{condition.rewards}"
    model, tokenizer = load_causal(POLICY, dtype="float32", trust_remote_code=False)
    start = time.process_time()
    log = train_policy(
        model, tokenizer, world.task(condition, seed), condition.settings(seed, updates, METHODS), directory
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
    """Share right of each problem [P]."""
    trace_error: float


def final(world: World, condition: Condition, seed: int, problems: Sequence[Problem]) -> Final:
    """Measured with samples of its own."""
    policy = TransformersPolicy.from_pretrained(
        world.runs / f"seed-{seed}" / f"{condition.method}-{condition.rewards}" / "policy"
    )
    audit = asyncio.run(
        audit_policy(
            policy,
            problems,
            update=0,
            samples=0,
            n=FINAL_SAMPLES,
            seed=77,
            segmenter=Line(),
            grader=world.grader,
            prompt=PromptFormat(),
            sampling=Sampling(max_tokens=COMMON["max_tokens"]),
            gold=ExactLabeller(after_error="step"),
        )
    )
    right = {problem.id: [0, 0] for problem in problems}
    for trace in audit.traces:
        right[trace.problem_id][0] += trace.outcome is True
        right[trace.problem_id][1] += 1
    error = audit.row.trace_error
    return Final(
        accuracy=np.array([hits / count for hits, count in right.values()]),
        trace_error=error.value if error else float("nan"),
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
    world: World, seeds: Sequence[int], updates: int
) -> tuple[list[dict[str, object]], dict[str, Any]]:
    """All methods of all seeds; the figures, and a table for the settings."""
    logs: dict[str, list[RLLog]] = {condition.name: [] for condition in CONDITIONS}
    for seed in seeds:
        for condition in CONDITIONS:
            logs[condition.name].append(train(world, condition, seed, updates))
    compare_runs(logs, world.runs / "runs.html")
    ends = {
        condition.name: [final(world, condition, seed, world.held_out) for seed in seeds]
        for condition in CONDITIONS
    }
    developed = {
        condition.name: float(final(world, condition, seeds[0], world.development).accuracy.mean())
        for condition in CONDITIONS
        if condition.method != "outcome"
    }
    best = max(developed, key=developed.__getitem__)
    table = {name: describe(logs[name], logs["outcome"], ends[name], ends["outcome"]) for name in logs}
    for name, row in table.items():
        print(f"{name:22} {json.dumps(row)}", flush=True)
    single = [
        ratio
        for mine, theirs in zip(logs[best], logs["outcome"], strict=True)
        if (ratio := samples_ratio(theirs.evaluations, mine.evaluations)) is not None
    ]
    ratio = samples_ratio(mean_curve(logs["outcome"]), mean_curve(logs[best]))
    gap = difference(ends[best], ends["outcome"])
    errors = [
        outcome.trace_error - dense.trace_error
        for outcome, dense in zip(ends["outcome"], ends[best], strict=True)
    ]
    figures: list[dict[str, object]] = [
        {
            "name": "samples_to_outcome_accuracy",
            "value": ratio,
            "unit": "times fewer",
            "ratio": ratio,
            "low": min(single, default=None),
            "high": max(single, default=None),
        },
        {"name": "final_accuracy_difference", "unit": "points", **gap},
        {
            "name": "trace_error_difference",
            "value": 100 * float(np.mean(errors)),
            "unit": "points",
            "ratio": None,
            "low": 100 * min(errors),
            "high": 100 * max(errors),
        },
    ]
    return figures, {"best": best, "development": developed, "methods": table}


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
        "over outcome": [round(float(gap[name]), 1) for name in ("value", "low", "high")],  # type: ignore[arg-type]
        "trace error": round(100 * float(np.mean([one.trace_error for one in ends])), 1),
        "times fewer samples": samples_ratio(mean_curve(outcome), mean_curve(logs)),
        "tokens": round(float(np.mean([log.evaluations[-1].shape.tokens or 0 for log in logs])), 1),
    }


def difference(dense: Sequence[Final], outcome: Sequence[Final]) -> dict[str, object]:
    """Accuracy at the end less that of outcome-only training, in points, paired by problem."""
    apart = [mine.accuracy - theirs.accuracy for mine, theirs in zip(dense, outcome, strict=True)]
    found = bootstrap_seeds(apart, same_problems=True, rng=np.random.default_rng(0))
    base = float(np.mean([one.accuracy.mean() for one in outcome]))
    return {
        "value": 100 * found.value,
        "ratio": (base + found.value) / base if base else None,
        "low": 100 * found.low,
        "high": 100 * found.high,
    }


def hacking(world: World, seed: int, updates: int) -> dict[str, Any]:
    """What becomes of proxy and gold where the PRM's scores are all the reward there is."""
    found: dict[str, Any] = {}
    for method in HACKING:
        condition = Condition(method=method, rewards="prm")
        model, tokenizer = load_causal(POLICY, dtype="float32", trust_remote_code=False)
        log = train_policy(
            model,
            tokenizer,
            world.task(condition, seed, aggregation="sum"),
            condition.settings(seed, updates, HACKING),
            world.runs / f"seed-{seed}" / f"hacking-{method}",
        )
        found[method] = [
            {
                "samples": row.samples,
                "gold": round(row.accuracy.value, 3),
                "proxy": None if row.proxy is None else round(row.proxy.value, 3),
                "steps": row.shape.steps,
                "repeated": row.shape.repeated,
                "finished": row.shape.finished,
            }
            for row in log.evaluations
        ]
        alarms = [alarm.name for alarm in log.alarms]
        print(f"hacking, {method}: {found[method][0]} -> {found[method][-1]}; alarms {alarms}", flush=True)
        found[method].append({"alarms": alarms})
    return found


def throughput(options: argparse.Namespace, world: World) -> tuple[dict[str, object], dict[str, Any]]:
    """Samples a second, ours and TRL's in turn; outcome reward, one step of the optimiser a round."""
    updates = 4 if options.quick else 10
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
    figure: dict[str, object] = {
        "name": "throughput_vs_trl",
        "value": median(ratios),
        "unit": "times",
        "ratio": median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }
    return figure, {"ours": ours, "trl": theirs, "shares of time": shares[0]}


_WARM = 2
"""Rounds that are not timed."""


def rate(task: Task, updates: int) -> dict[str, Any]:
    """Our samples a second of CPU, and the shares of the time."""
    model, tokenizer = load_causal(POLICY, dtype="float32", trust_remote_code=False)
    changes = COMMON | {"updates": updates, "evaluate_every": 10**6, "keep_samples": 0}
    config = RLConfig.model_validate(changes | {"checkpoint_every": 10**6, "credit": {"rule": "outcome"}})
    times: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        log = train_policy(
            model,
            tokenizer,
            task,
            config,
            Path(directory),
            # the last round is evaluated within it, so it is not timed
            progress=lambda *_: times.append(time.process_time()),
        )
    rounds = updates - _WARM - 1
    seconds = times[-2] - times[_WARM - 1]
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
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory) / "settings.json"
        settings.write_text(json.dumps(given))
        worker = Path(__file__).with_name("_trl_grpo_worker.py")
        done = subprocess.run(
            [options.trl_python, str(worker), str(settings)],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(options.threads)},
        )
    if done.returncode:
        raise SystemExit(f"TRL's process ended:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return float(found["samples_per_second"]["cpu"])


def main() -> None:
    """Command line."""
    options = _options()
    torch.set_num_threads(options.threads)
    seeds = range(1 if options.quick else options.seeds)
    updates = 6 if options.quick else options.updates
    for seed in seeds:
        require_quickstart(options.quickstarts, seed, quick=options.quick)
    sizes = (20, 20) if options.quick else (HELD_OUT, DEVELOPMENT)
    made = generate_problems(sum(sizes), seed=5_000_000, difficulty=DIFFICULTY)
    with AnswerChecker("exact") as checker:
        world = World(
            held_out=made[: sizes[0]],
            development=made[sizes[0] :],
            grader=Grader(checker=checker, styles=("phrase",)),
            quickstarts=options.quickstarts,
            runs=options.runs,
        )
        figures, setting = compare(world, seeds, updates)
        setting["hacking"] = hacking(world, 0, 6 if options.quick else options.hacking_updates)
        if options.trl_python:
            figure, about = throughput(options, world)
            figures.append(figure)
            setting["throughput"] = about
    for one in figures:
        print(f"{one['name']}: {one['value']} {one['unit']} [{one['low']}, {one['high']}]")
    if options.json:
        setting |= {
            "version": __version__,
            "torch": torch.__version__,
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": options.threads,
            "seeds": list(seeds),
            "updates": updates,
            "quick": options.quick,
            "common": RLConfig.model_validate(COMMON).model_dump(mode="json"),
        }
        write_json(options.json, {"figures": figures, "setting": setting})


def require_quickstart(quickstarts: Path, seed: int, *, quick: bool) -> None:
    """Run the quickstart whose PRM gives step rewards, if it is not there."""
    directory = quickstarts / f"seed-{seed}"
    if (directory / "done" / "train-prm.json").exists():
        return
    small = ["--train-problems", "60", "--rollouts", "2", "--test-problems", "20", "--test-samples", "4"]
    command = [sys.executable, "-m", "surefoot", "quickstart", "--seed", str(seed), "--out", str(directory)]
    subprocess.run([*command, *(small if quick else [])], check=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("rl-runs"), help="directory of the runs")
    parser.add_argument("--quickstarts", type=Path, default=Path("runs"), help="quickstarts, for the PRMs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--hacking-updates", type=int, default=60)
    parser.add_argument("--trl-python", help="interpreter that has TRL 1.13; else it is not compared")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="checks that it runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
