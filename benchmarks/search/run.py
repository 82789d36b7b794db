"""Search guided by a step scorer against best-of-N and majority vote, at equal total tokens, in the lab."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common.figures import Figure, Figures, arguments, figure, over_draws, show, write
from benchmarks.prm_vs_orm.run import trained_prm
from benchmarks.worlds.named import WORLDS, World
from surefoot.answers import AnswerChecker, Grader
from surefoot.io import read_records, write_records
from surefoot.models import IncrementalScorer, RewardModel
from surefoot.policies import TransformersPolicy
from surefoot.protocols import Candidate
from surefoot.records import Problem
from surefoot.scores import AGGREGATORS, Aggregator, aggregate
from surefoot.search import (
    DVTS,
    MCTS,
    SELECTORS,
    BeamSearch,
    BestOfNSearch,
    ParticleFilter,
    Rebase,
    SearchMethod,
    SearchResult,
    StepResampling,
    run_search,
)
from surefoot.stats import bootstrap_mean

Array = NDArray[np.float64]

REMEMBER = 300_000
SAMPLES = (1, 2, 4, 8, 16, 32, 64)
SIZES = (4, 8, 16)
DEVELOPED = 16
"""Size at which the methods are compared on development problems."""
QUICK_SAMPLES, QUICK_PROBLEMS = (1, 2, 4, 8, 16, 32), 60
QUICK_METHODS: dict[str, Aggregator] = {"resample": "min"}
"""What the development problems chose in the published run; a quick run does not choose again."""


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


def tree_methods(size: int) -> dict[str, SearchMethod]:
    """The methods that search a tree, with ``size`` draws a round or ``size`` solutions in all."""
    expand = 2 if size < 8 else 4
    return {
        "beam": BeamSearch(width=size // expand, expand=expand),
        "beam_aside": BeamSearch(width=size // expand, expand=expand, retire_finished=True),
        "dvts": DVTS(n=size, expand=expand),
        "rebase": Rebase(n=size),
        "particle": ParticleFilter(n=size, rule="weighted_vote"),
        "gibbs": ParticleFilter(n=size // 2, sweeps=2, rule="weighted_vote"),
        "mcts": MCTS(paths=size, expand=expand),
        "resample": StepResampling(n=max(1, size // 2), retries=3),
        "adaptive": BestOfNSearch(n=size, batch=max(2, size // 8), rule="weighted_vote"),
    }


class Bench:
    """The searches of one seed; what is done is kept in a directory."""

    def __init__(self, world: World, prm: Path, out: Path, problems: Sequence[Problem]) -> None:
        self.out, self.problems, self.steps = out, problems, world.steps
        self.policy = TransformersPolicy.from_pretrained(world.policy)
        self.scorer = IncrementalScorer(RewardModel.load(prm), name="prm")

    def search(self, name: str, method: SearchMethod, how: Aggregator, seed: int) -> list[SearchResult]:
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
                        steps=self.steps,
                        aggregation=how,
                        grader=Grader(checker=checker, styles=("phrase",)),
                        seed=seed,
                    )
                )
            write_records(file, found)
            print(f"  {file}: {np.mean([r.outcome is True for r in found]):.3f}", flush=True)
        return list(read_records(file, SearchResult))

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
    world: World, bench: Bench, seed: int, ways: dict[str, Aggregator], samples: Sequence[int]
) -> dict[str, dict[int, tuple[Array, Array]]]:
    """Outcomes and tokens of every method and size for one seed."""
    found: dict[str, dict[int, tuple[Array, Array]]] = {}
    for n in samples:
        results = bench.search(f"samples-{n}", BestOfNSearch(n=n, rule="best_of_n"), "min", seed)
        for rule, how in {"best_of_n": "min", "weighted_vote": world.vote, "majority": "min"}.items():
            found.setdefault(rule, {})[n] = baseline(results, rule, how)
    for size in SIZES:
        for name, method in ((name, tree_methods(size)[name]) for name in ways):
            results = bench.search(f"{name}-{size}", method, ways[name], seed)
            found.setdefault(name, {})[size] = outcomes(results)
    return found


def outcomes(results: Sequence[SearchResult]) -> tuple[Array, Array]:
    """Whether each problem was solved, and its tokens."""
    right = np.array([result.outcome is True for result in results], dtype=float)
    return right, np.array([result.usage.tokens for result in results], dtype=float)


def table(points: dict[str, dict[int, Point]]) -> None:
    """All methods and sizes."""
    for name, sizes in points.items():
        for size, point in sizes.items():
            interval = bootstrap_mean(np.mean(point.right, axis=0), rng=np.random.default_rng(0))
            each = ", ".join(f"{100 * right.mean():.1f}" for right in point.right)
            print(f"{name:14} {size:3} {point.cost:8.0f} tokens  {interval:.1%}  ({each})")


def figures(points: dict[str, dict[int, Point]], best: str) -> Figures:
    """The figures of the best tree method."""
    rival = points["best_of_n"][DEVELOPED]
    within = [point for point in points[best].values() if point.cost <= rival.cost]
    if not within:
        raise SystemExit(f"no size of {best} costs as little as best-of-{DEVELOPED}: give smaller sizes")
    tree = max(within, key=lambda point: point.cost)
    return [
        points_figure("accuracy_vs_best_of_16", tree, rival),
        points_figure("accuracy_vs_majority", tree, points["majority"][DEVELOPED]),
        tokens_figure("tokens_at_equal_accuracy", tree, points["best_of_n"]),
        tokens_figure("tokens_at_equal_accuracy_of_weighted_vote", tree, points["weighted_vote"]),
    ]


def points_figure(name: str, ours: Point, rival: Point) -> Figure:
    """Difference in points, paired by problem."""
    gaps = [a - b for a, b in zip(ours.right, rival.right, strict=True)]
    found = bootstrap_mean(np.mean(gaps, axis=0), rng=np.random.default_rng(0))
    note = f"{ours.cost:.0f} against {rival.cost:.0f} tokens"
    return figure(name, 100 * found, "points", ours.accuracy / rival.accuracy, note=note)


def tokens_figure(name: str, tree: Point, sizes: dict[int, Point]) -> Figure:
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
    best = max(point.accuracy for point in curve)
    note = f"{100 * tree.accuracy:.1f} % for {tree.cost:.0f} tokens"
    if best < tree.accuracy:
        note += f"; never reached up to {max(sizes)} samples, at best {100 * best:.1f} %"
    return figure(name, over_draws(value, draws), "times", value, note=note)


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
    parser = arguments(
        __doc__, "one seed: step resampling alone, on 60 problems and one thread; nothing is chosen again"
    )
    parser.add_argument("--world", choices=list(WORLDS), default="digits")
    parser.add_argument(
        "--every", action="store_true", help="every method by the lowest step; none is chosen"
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
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/prm_vs_orm"), help="runs of prm_vs_orm, one a seed"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    options = parser.parse_args()
    if options.quick:
        torch.set_num_threads(1)
    prefix = "quick-" if options.quick else ""
    count = options.problems or (QUICK_PROBLEMS if options.quick else 100)
    world = WORLDS[options.world]
    made = world.problems(count + options.development, 20_261 + options.first_seed)
    seeds: list[dict[str, dict[int, tuple[Array, Array]]]] = []
    ways = dict(QUICK_METHODS)
    if options.every:
        ways = dict.fromkeys(tree_methods(DEVELOPED), "min")
    chosen_before = options.quick or options.every or options.first_seed > 0
    for seed in range(
        options.first_seed, options.first_seed + (options.seeds or (1 if options.quick else 3))
    ):
        prm = options.runs / world.trained.format(seed=seed)
        if not prm.exists():
            prm = trained_prm(options.runs, seed, quick=options.quick)
        if not chosen_before and not seeds:
            ways = develop(Bench(world, prm, folder(options.out / "development"), made[count:]))
        testing = Bench(world, prm, folder(options.out / f"{prefix}seed-{seed}"), made[:count])
        seeds.append(measure(world, testing, seed, ways, QUICK_SAMPLES if options.quick else SAMPLES))
    points = {
        name: {
            size: Point(right=[s[name][size][0] for s in seeds], tokens=[s[name][size][1] for s in seeds])
            for size in seeds[0][name]
        }
        for name in seeds[0]
    }
    table(points)
    best = next(iter(ways))
    whose = "published" if chosen_before else "best on development problems"
    print(f"tree method ({whose}): {best}, by {ways[best]}")
    curves = {
        name: {size: {"tokens": p.cost, "accuracy": p.accuracy} for size, p in sizes.items()}
        for name, sizes in points.items()
    }
    found = show(figures(points, best))
    about = {"seeds": len(seeds), "problems": count, "method": best, "aggregation": ways, "curves": curves}
    write(options, found, **about)


def folder(path: Path) -> Path:
    """The directory, made if it is not there."""
    path.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    main()
