"""Choosing among N samples a problem: pools of answers with a long tail, and what commands need against N."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.scale.growth import Cost, measured
from surefoot import Step, StepScores, Trace
from surefoot.io import write_records
from surefoot.records import Usage

SIZES = (10, 100, 1000)
QUICK_SIZES = (10, 100)
PROBLEMS = 100
QUICK_PROBLEMS = 20
RULES = ("majority", "best_of_n", "weighted_vote")
STEPS = 4


def write_pools(folder: Path, samples: int, problems: int) -> None:
    """Traces with outcomes, and scores in [0, 1] that tell right from wrong somewhat."""
    folder.mkdir(parents=True)
    write_records(folder / "traces.jsonl", _traces(samples, problems))
    rng = random.Random(1)
    scores = (_scores(trace, rng) for trace in _traces(samples, problems))
    write_records(folder / "scores.jsonl", scores)


def commands(pools: Path) -> dict[str, list[str]]:
    """``select`` by each rule, and ``evaluate --as best-of-n``, which reads scores by five aggregations."""
    traces, scores = ["--traces", str(pools / "traces.jsonl")], str(pools / "scores.jsonl")
    found = {}
    for rule in RULES:
        given = [] if rule == "majority" else ["--scores", scores]
        out = ["--out", str(pools / f"{rule}.jsonl"), "--force"]
        found[f"select_{rule}"] = ["select", traces[1], *given, "--rule", rule, *out]
    for rule in RULES[1:]:
        out = ["--out", str(pools / f"curves-{rule}"), "--force"]
        measure = f"--as=best-of-n:rule={rule}"
        found[f"evaluate_{rule}"] = ["evaluate", measure, f"made={scores}", *traces, *out]
    return found


def costs_at_n(folder: Path, sizes: Sequence[int], problems: int) -> dict[str, list[Cost]]:
    """Costs of each command, for each number of samples."""
    costs: dict[str, list[Cost]] = {}
    for samples in sizes:
        pools = folder / f"pools-{samples}"
        write_pools(pools, samples, problems)
        for name, command in commands(pools).items():
            cost = measured([sys.executable, "-m", "surefoot", *command], pools)
            print(f"{name}, N = {samples}: {cost.cpu_s:.1f} s, {cost.peak_mb:.0f} MB", flush=True)
            costs.setdefault(name, []).append(cost)
    return costs


def _traces(samples: int, problems: int) -> Iterator[Trace]:
    rng = random.Random(0)
    text = "".join(f"Step {number}: so we go on.\n" for number in range(STEPS))
    width = len(text) // STEPS
    steps = tuple(Step(start=at * width, end=(at + 1) * width) for at in range(STEPS))
    for problem in range(problems):
        right, share = problem % 17 + 2, rng.uniform(0.05, 0.8)
        for sample in range(samples):
            value = right if rng.random() < share else right + 1 + int(rng.paretovariate(0.8)) % 400
            yield Trace(
                problem_id=f"p{problem}",
                sample=sample,
                text=text,
                steps=steps,
                answer=None if rng.random() < 0.02 else _written(value, rng.randrange(6)),
                outcome=value == right,
                usage=Usage(prompt_tokens=50 if sample == 0 else 0, completion_tokens=rng.randrange(50, 400)),
            )


def _written(value: int, form: int) -> str:
    """An answer in one of its forms: for odd values half of an integer, a root or a polynomial."""
    if value % 5 == 1:
        return (f"{value}\\sqrt{{2}}", f"\\sqrt{{{2 * value * value}}}")[form % 2]
    if value % 5 == 2:
        return (f"x^2 + {value}", f"{value} + x^{{2}}", f"x^2+{value}")[form % 3]
    if value % 2:
        return (f"\\frac{{{value}}}{{2}}", f"\\dfrac{{{value}}}{{2}}", f"{value}/2", str(value / 2))[form % 4]
    return (str(value), f"{value}.0", f"${value}$", f"\\boxed{{{value}}}")[form % 4]


def _scores(trace: Trace, rng: random.Random) -> StepScores:
    centre = 0.7 if trace.outcome else 0.5
    row = tuple(round(min(max(rng.gauss(centre, 0.2), 0.0), 1.0), 3) for _ in range(STEPS))
    return StepScores(trace_id=trace.id, scorer="made", scores=row, usage=Usage(verifier_tokens=120))
