"""Search guided by a step scorer against best-of-N and majority vote, at equal total tokens, in the lab.

    python -m benchmarks.search.run [--quick] [--runs DIR] [--out DIR] [--json FILE]

For each seed: the lab's policy, the PRM of a quickstart (``--runs DIR`` holds ``seed-0``, ``seed-1`` … as
``prm_vs_orm.py`` leaves them; what is missing is run), and new problems, which neither training nor the
quickstart's test has seen. Every method runs at several sizes (draws a round, or solutions). A run costs all
its tokens: read and written by the policy, which does not read again what it remembers of a prefix, and
pushed through the PRM, each distinct token once. All methods have the same accounting, sampling and PRM.

How each tree method aggregates step scores, and which of them is "the best tree method", is decided on
development problems with the first seed's PRM; the figures are of test problems. ``accuracy_vs_best_of_16``
and ``accuracy_vs_majority``: that method at its largest size that costs no more than best-of-16, less
best-of-16 by the PRM's lowest step, and less the majority of 16, in points; ``ratio`` is the quotient of the
accuracies. ``tokens_at_equal_accuracy``: the tokens at which best-of-N is as accurate as that, divided by
its tokens; ``tokens_at_equal_accuracy_of_weighted_vote`` the same of the vote weighted by the PRM's product.
Compute-optimal search chooses among five tree methods and the weighted vote, at several sizes and all with
one aggregation, by predicted difficulty. Its plans are fitted on the development problems: for each N a plan
may spend on average what best-of-N costs there, its probe included. What a search is worth is measured with
the first seed's PRM, like all that is decided there; how difficult a problem is, each PRM says itself.
``accuracy_of_optimal_vs_best_tree``: its accuracy less the best tree method's at equal tokens;
``accuracy_of_optimal_vs_best_of_16`` and ``tokens_at_equal_accuracy_of_optimal`` as above.
Their curves are read off between their sizes; where one never gets there, the tokens of its largest
size stand for it, which is a lower bound and is said so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.prm_vs_orm.run import trained_prm
from surefoot import __version__
from surefoot.answers import AnswerChecker, Grader
from surefoot.io import read_records, write_json, write_records
from surefoot.lab import POLICY, generate_problems
from surefoot.models import IncrementalScorer, RewardModel
from surefoot.policies import TransformersPolicy
from surefoot.protocols import Candidate, Sampling
from surefoot.records import Problem
from surefoot.scores import AGGREGATORS, Aggregator, aggregate
from surefoot.search import (
    DVTS,
    MCTS,
    SELECTORS,
    BeamSearch,
    BestOfNSearch,
    DifficultyEstimate,
    OptimalFit,
    ParticleFilter,
    Probe,
    Rebase,
    Search,
    SearchMethod,
    SearchResult,
    StepResampling,
    Steps,
    Trial,
    fit_optimal,
    predict_difficulties,
    run_search,
)
from surefoot.stats import bootstrap_seeds

Array = NDArray[np.float64]

STEPS = Steps(step_tokens=24, max_steps=14, sampling=Sampling(temperature=1.0, max_tokens=96))
REMEMBER = 300_000
SAMPLES = (1, 2, 4, 8, 16, 32, 64)
SIZES = (4, 8, 16)
DEVELOPED = 16
"""Size at which the methods are compared on development problems."""
QUICK_SAMPLES, QUICK_PROBLEMS = (1, 2, 4, 8, 16, 32), 60
QUICK_METHODS: dict[str, Aggregator] = {"resample": "min"}
"""What the development problems chose in the published run; a quick run does not choose again."""
PROBE = Probe(n=4)
BINS = 3
"""Of 60 development problems each holds 20: five, as published, would choose by chance."""
PLANNED = ("beam", "dvts", "rebase", "particle", "resample")
"""Left out: variants of these (a beam with lookahead or with finished solutions set aside, Gibbs), and MCTS,
which costs more tokens for less."""
VOTES = (1, 2, 4, 8, 16)
BUDGETS = (8, 16, 32)
"""A plan for the cost of each of these best-of-N; at 4 the probe alone would take it all."""
BASELINES: dict[str, Aggregator] = {"best_of_n": "min", "weighted_vote": "product", "majority": "min"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A method at one size, on the P problems of each seed."""

    right: list[Array]
    tokens: list[Array]

    @property
    def cost(self) -> float:
        """Mean tokens a problem."""
        return float(np.concatenate(self.tokens).mean())

    @property
    def accuracy(self) -> float:
        """Share of problems solved."""
        return float(np.concatenate(self.right).mean())


def tree_methods(size: int) -> dict[str, Search]:
    """The methods that search a tree, with ``size`` draws a round or ``size`` solutions in all."""
    expand = 2 if size < 8 else 4
    return {
        "beam": BeamSearch(width=size // expand, expand=expand),
        "beam_aside": BeamSearch(width=size // expand, expand=expand, retire_finished=True),
        "lookahead": BeamSearch(width=size // expand, expand=expand, lookahead=1),
        "dvts": DVTS(n=size, expand=expand),
        "rebase": Rebase(n=size),
        "particle": ParticleFilter(n=size, rule="weighted_vote"),
        "gibbs": ParticleFilter(n=size // 2, sweeps=2, rule="weighted_vote"),
        "mcts": MCTS(paths=size, expand=expand),
        "resample": StepResampling(n=max(1, size // 2), retries=3),
    }


class Bench:
    """The searches of one seed; what is done is kept in a directory."""

    def __init__(self, prm: Path, out: Path, problems: Sequence[Problem]) -> None:
        self.out, self.problems = out, problems
        self.policy = TransformersPolicy.from_pretrained(POLICY)
        self.scorer = IncrementalScorer(RewardModel.load(prm), name="prm")

    def search(self, name: str, method: Search, aggregation: Aggregator, seed: int) -> list[SearchResult]:
        """Results of all problems, from disk if they are there."""
        file = self.out / f"{name}.jsonl"
        if not file.exists():
            with AnswerChecker("exact") as checker:
                found = asyncio.run(
                    run_search(
                        method,
                        self.problems,
                        self._afresh(),
                        self.scorer,
                        steps=STEPS,
                        aggregation=aggregation,
                        grader=Grader(checker=checker, styles=("phrase",)),
                        seed=seed,
                    )
                )
            write_records(file, found, record=SearchResult)
            print(f"  {file}: {np.mean([r.outcome is True for r in found]):.3f}", flush=True)
        return list(read_records(file, SearchResult))

    def probe(self, probe: Probe, aggregation: Aggregator, seed: int) -> list[DifficultyEstimate]:
        """Predicted difficulty of each problem and its cost, from disk if it is there."""
        file = self.out / f"probe-{aggregation}.json"
        if not file.exists():
            with AnswerChecker("exact") as checker:
                found = asyncio.run(
                    predict_difficulties(
                        probe,
                        self.problems,
                        self._afresh(),
                        self.scorer,
                        steps=STEPS,
                        aggregation=aggregation,
                        grader=Grader(checker=checker, styles=("phrase",)),
                        seed=seed,
                    )
                )
            write_json(file, {"probed": [asdict(one) for one in found]})
        return [DifficultyEstimate(**one) for one in json.loads(file.read_text())["probed"]]

    def _afresh(self) -> TransformersPolicy:
        """The policy, with nothing in its memory or the scorer's: each method begins so."""
        self.scorer.clear()
        return TransformersPolicy(
            self.policy.model, self.policy.tokenizer, name=self.policy.name, remember=REMEMBER
        )


def chosen(result: SearchResult, rule: str, how: Aggregator) -> bool:
    """Whether ``rule`` would have chosen a right one of the candidates, each as often as it was drawn."""
    places = [place for place, weight in enumerate(result.weights) for _ in range(weight)]
    candidates = [
        Candidate(
            answer=result.candidates[at].answer,
            score=None if None in result.scores[at].scores else aggregate(result.scores[at].scores, how),
        )
        for at in places
    ]
    return result.candidates[places[SELECTORS[rule].select(candidates)]].outcome is True


def baseline(results: Sequence[SearchResult], rule: str, how: Aggregator) -> tuple[Array, Array]:
    """Outcomes and tokens of a selection rule on samples; majority has no use for scores."""
    right = np.array([chosen(result, rule, how) for result in results], dtype=float)
    unused = [result.usage.verifier_tokens if rule == "majority" else 0 for result in results]
    tokens = [result.usage.tokens - more for result, more in zip(results, unused, strict=True)]
    return right, np.array(tokens, dtype=float)


def develop(bench: Bench) -> dict[str, Aggregator]:
    """The best aggregation of each tree method, the best method first."""
    best: dict[str, tuple[float, Aggregator]] = {}
    for name, method in tree_methods(DEVELOPED).items():
        for how in AGGREGATORS:
            results = bench.search(f"{name}-{how}", method, how, seed=0)
            accuracy = float(np.mean([result.outcome is True for result in results]))
            print(f"development: {name:9} {how:8} {100 * accuracy:.1f} %")
            best[name] = max(best.get(name, (-1.0, how)), (accuracy, how), key=lambda found: found[0])
    return {name: best[name][1] for name in sorted(best, key=lambda name: -best[name][0])}


def measure(
    bench: Bench,
    seed: int,
    ways: dict[str, Aggregator],
    samples: Sequence[int],
    plans: dict[int, OptimalFit],
    planned: Aggregator,
) -> dict[str, dict[int, tuple[Array, Array]]]:
    """Outcomes and tokens of every method and size for one seed; ``plans`` aggregate by ``planned``."""
    found: dict[str, dict[int, tuple[Array, Array]]] = {}
    for n in samples:
        results = bench.search(f"samples-{n}", BestOfNSearch(n=n, rule="best_of_n"), "min", seed)
        for rule, how in BASELINES.items():
            found.setdefault(rule, {})[n] = baseline(results, rule, how)
    for size in SIZES:
        for name, method in ((name, tree_methods(size)[name]) for name in ways):
            results = bench.search(f"{name}-{size}", method, ways[name], seed)
            found.setdefault(name, {})[size] = outcomes(results)
    for n, fit in plans.items():
        results = bench.search(f"optimal-{n}", fit.search, planned, seed)
        found.setdefault("optimal", {})[n] = outcomes(results)
    return found


def outcomes(results: Sequence[SearchResult]) -> tuple[Array, Array]:
    """Whether each problem was solved, and its tokens."""
    right = np.array([result.outcome is True for result in results], dtype=float)
    return right, np.array([result.usage.tokens for result in results], dtype=float)


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What the searches gave on the development problems."""

    tried: list[Trial]
    costs: dict[int, float]
    """Mean tokens of best-of-N, by N."""


def gather(
    bench: Bench, methods: Callable[[int], Mapping[str, SearchMethod]], sizes: Sequence[int], how: Aggregator
) -> Trials:
    """Run what is not there yet; ``how`` aggregates step scores."""
    tried = []
    for size in sizes:
        for name, method in ((name, methods(size)[name]) for name in PLANNED):
            # the reference size is there already, under the name that the choice of aggregations gave it
            stored = f"{name}-{how}" + ("" if size == max(sizes) else f"-{size}")
            named = method.model_copy(update={"name": f"{name}-{size}"})
            tried.append(Trial(search=named, results=bench.search(stored, method, how, seed=0)))
    costs = {}
    for n in sorted({*VOTES, *BUDGETS}):
        vote = BestOfNSearch(n=n, rule="weighted_vote", name=f"vote-{n}")
        results = bench.search(f"vote-{how}-{n}", vote, how, seed=0)
        costs[n] = float(np.mean([result.usage.tokens for result in results]))
        if n in VOTES:
            tried.append(Trial(search=vote, results=results))
    return Trials(tried=tried, costs=costs)


def fit_plans(trials: Trials, probed: Sequence[DifficultyEstimate]) -> dict[int, OptimalFit]:
    """N → the plan that costs, with its probe, at most what best-of-N does on these problems.

    An N whose cost leaves no room for any search after the probe has no plan.
    """
    probing = float(np.mean([one.tokens for one in probed]))
    return {
        n: fit_optimal(trials.tried, probed, tokens=trials.costs[n], bins=BINS, slack=0.0, probe=PROBE)
        for n in BUDGETS
        if trials.costs[n] - probing >= max(trials.costs[1], 1)
    }


def described(plans: Mapping[int, OptimalFit]) -> dict[int, dict[str, Any]]:
    """For the JSON file: edges, and the search of each bin with its showing on the development problems."""
    return {
        n: {
            "edges": list(fit.search.edges),
            "searches": [
                {
                    "name": search.name,
                    "accuracy": row[search.name].accuracy,
                    "tokens": row[search.name].tokens,
                    "problems": row[search.name].problems,
                }
                for search, row in zip(fit.search.searches, fit.bins, strict=True)
            ],
        }
        for n, fit in plans.items()
    }


def table(points: dict[str, dict[int, Point]]) -> None:
    """All methods and sizes."""
    for name, sizes in points.items():
        for size, point in sizes.items():
            interval = bootstrap_seeds(point.right, same_problems=True, rng=np.random.default_rng(0))
            each = ", ".join(f"{100 * right.mean():.1f}" for right in point.right)
            print(f"{name:14} {size:3} {point.cost:8.0f} tokens  {interval:.1%}  ({each})")


def figures(points: dict[str, dict[int, Point]], best: str) -> list[dict[str, object]]:
    """The figures of the best tree method, and of compute-optimal search beside it."""
    rival = points["best_of_n"][DEVELOPED]
    tree = largest_within(points, best, rival.cost)
    if tree is None:
        raise SystemExit(f"no size of {best} costs as little as best-of-{DEVELOPED}: give smaller sizes")
    majority = points["majority"][DEVELOPED]
    found = [
        points_figure("accuracy_vs_best_of_16", tree, rival),
        points_figure("accuracy_vs_majority", tree, majority),
        tokens_figure("tokens_at_equal_accuracy", tree, points["best_of_n"]),
        tokens_figure("tokens_at_equal_accuracy_of_weighted_vote", tree, points["weighted_vote"]),
    ]
    optimal = largest_within(points, "optimal", rival.cost)
    if optimal is not None:
        for point in points["optimal"].values():
            gap = gap_figure("accuracy_of_optimal_vs_best_tree", point, points[best])
            if point is optimal:
                found.append(gap)
        found.append(points_figure("accuracy_of_optimal_vs_best_of_16", optimal, rival))
        found.append(tokens_figure("tokens_at_equal_accuracy_of_optimal", optimal, points["best_of_n"]))
    return found


def largest_within(points: dict[str, dict[int, Point]], name: str, cost: float) -> Point | None:
    """The method's point that costs most among those of at most ``cost`` tokens."""
    within = [point for point in points.get(name, {}).values() if point.cost <= cost]
    return max(within, key=lambda point: point.cost, default=None)


def points_figure(name: str, ours: Point, rival: Point) -> dict[str, object]:
    """Difference in points, paired by problem."""
    gaps = [a - b for a, b in zip(ours.right, rival.right, strict=True)]
    found = bootstrap_seeds(gaps, same_problems=True, rng=np.random.default_rng(0))
    costs = f"{ours.cost:.0f} against {rival.cost:.0f} tokens"
    print(f"{name}: {found:+.1p} at {costs}")
    points = 100 * found
    ratio = ours.accuracy / rival.accuracy
    return {
        "name": name,
        "value": points.value,
        "unit": "points",
        "ratio": ratio,
        "low": points.low,
        "high": points.high,
    }


def gap_figure(name: str, ours: Point, sizes: dict[int, Point]) -> dict[str, object]:
    """Difference in points from a method's curve at equal tokens; resampled over problems.

    The curve is straight between its sizes in the logarithm of tokens, and flat beyond them.
    """
    curve = sorted(sizes.values(), key=lambda point: point.cost)
    count, rng = len(ours.right[0]), np.random.default_rng(0)

    def both(rows: NDArray[np.intp]) -> tuple[float, float]:
        def mean(values: list[Array]) -> float:
            return float(np.mean([one[rows].mean() for one in values]))

        costs = np.log([mean(point.tokens) for point in curve])
        theirs = np.interp(np.log(mean(ours.tokens)), costs, [mean(point.right) for point in curve])
        return mean(ours.right), float(theirs)

    mine, theirs = both(np.arange(count))
    draws = [100 * float(np.subtract(*both(rng.integers(count, size=count)))) for _ in range(2000)]
    low, high = (float(np.quantile(draws, level)) for level in (0.025, 0.975))
    value = 100 * (mine - theirs)
    print(
        f"{name}: {value:+.1f} points [{low:+.1f}, {high:+.1f}] ({100 * mine:.1f} %, {ours.cost:.0f} tokens)"
    )
    return {
        "name": name,
        "value": value,
        "unit": "points",
        "ratio": mine / theirs,
        "low": low,
        "high": high,
    }


def tokens_figure(name: str, tree: Point, sizes: dict[int, Point]) -> dict[str, object]:
    """How many times the tokens a selection rule needs to be as accurate; resampled over problems."""
    curve = list(sizes.values())
    count, rng = len(tree.right[0]), np.random.default_rng(0)

    def ratio(rows: NDArray[np.intp]) -> float:
        def mean(values: list[Array]) -> float:
            return float(np.mean([one[rows].mean() for one in values]))

        goal, cost = mean(tree.right), mean(tree.tokens)
        return tokens_at([(mean(p.tokens), mean(p.right)) for p in curve], goal) / cost

    value = ratio(np.arange(count))
    draws = [ratio(rng.integers(count, size=count)) for _ in range(2000)]
    low, high = (float(np.quantile(draws, level)) for level in (0.025, 0.975))
    best = max(curve, key=lambda point: point.accuracy)
    how = (
        ""
        if best.accuracy >= tree.accuracy
        else f"; never reached up to {max(sizes)} samples, at best {100 * best.accuracy:.1f} %"
    )
    print(
        f"{name}: {value:.1f} times [{low:.1f}, {high:.1f}] "
        f"({100 * tree.accuracy:.1f} % for {tree.cost:.0f} tokens{how})"
    )
    return {"name": name, "value": value, "unit": "times", "ratio": value, "low": low, "high": high}


def tokens_at(curve: list[tuple[float, float]], goal: float) -> float:
    """Tokens at which the curve (tokens, accuracy) gets to ``goal``, straight in the logarithm of tokens.

    A curve that never gets there gives its last tokens: at least so many would be needed.
    """
    before: tuple[float, float] | None = None
    for cost, accuracy in curve:
        if accuracy >= goal:
            if before is None or accuracy == before[1]:
                return cost
            share = (goal - before[1]) / (accuracy - before[1])
            return float(np.exp(np.log(before[0]) + share * np.log(cost / before[0])))
        before = (cost, accuracy)
    return curve[-1][0]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one seed: step resampling against best-of-N and majority on 60 problems, one thread; no "
        "development problems and no compute-optimal search",
    )
    parser.add_argument("--seeds", type=int, help="3; with --quick 1")
    parser.add_argument(
        "--first-seed",
        type=int,
        default=0,
        help="confirm the published method with these seeds, on other problems; it was chosen with seed 0",
    )
    parser.add_argument("--problems", type=int, help="of each seed, the same for all: 100; with --quick 60")
    parser.add_argument("--development", type=int, default=60, help="problems to choose methods on")
    parser.add_argument("--runs", type=Path, default=Path("runs/prm_vs_orm"), help="quickstarts, one a seed")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.quick:
        torch.set_num_threads(1)
    prefix = "quick-" if options.quick else ""
    count = options.problems or (QUICK_PROBLEMS if options.quick else 100)
    made = generate_problems(count + options.development, seed=20_261 + options.first_seed)
    seeds: list[dict[str, dict[int, tuple[Array, Array]]]] = []
    ways = dict(QUICK_METHODS)
    plans: list[dict[int, OptimalFit]] = []
    trials: Trials | None = None
    chosen_before = options.quick or options.first_seed > 0
    for seed in range(
        options.first_seed, options.first_seed + (options.seeds or (1 if options.quick else 3))
    ):
        prm = trained_prm(options.runs, seed, quick=options.quick)
        plan: dict[int, OptimalFit] = {}
        if not chosen_before:
            beside = options.out / ("development" if seed == 0 else f"development-{seed}")
            trying = Bench(prm, folder(beside), made[count:])
            if trials is None:
                ways = develop(trying)
                trials = gather(trying, tree_methods, SIZES, next(iter(ways.values())))
            plan = fit_plans(trials, trying.probe(PROBE, next(iter(ways.values())), seed))
        plans.append(plan)
        testing = Bench(prm, folder(options.out / f"{prefix}seed-{seed}"), made[:count])
        samples = QUICK_SAMPLES if options.quick else SAMPLES
        seeds.append(measure(testing, seed, ways, samples, plan, next(iter(ways.values()))))
    points = {
        name: {
            size: Point(right=[s[name][size][0] for s in seeds], tokens=[s[name][size][1] for s in seeds])
            for size in seeds[0][name]
            if all(size in s.get(name, {}) for s in seeds)  # a plan may not fit the cost for every PRM
        }
        for name in seeds[0]
    }
    for seed, fits in enumerate(plans):
        for n, plan in described(fits).items():
            names = ", ".join(search["name"] for search in plan["searches"])
            print(f"plan of seed {seed} at the cost of best-of-{n}: {names}, easiest first")
    table(points)
    best = next(iter(ways))
    whose = "published" if chosen_before else "best on development problems"
    print(f"tree method ({whose}): {best}, by {ways[best]}")
    found = figures(points, best)
    if options.json:
        setting = {
            "version": __version__,
            "seeds": len(seeds),
            "quick": options.quick,
            "problems": count,
            "method": best,
            "aggregation": ways,
            "plans": [described(fits) for fits in plans],
            "curves": {
                name: {size: {"tokens": p.cost, "accuracy": p.accuracy} for size, p in sizes.items()}
                for name, sizes in points.items()
            },
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        }
        options.json.write_text(json.dumps({"figures": found, "setting": setting}, indent=2) + "\n")


def folder(path: Path) -> Path:
    """The directory, made if it is not there."""
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    main()
