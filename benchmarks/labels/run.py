"""What step labels cost and how often they find the first error, by way of getting them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.common.figures import Figures, arguments, figure, over_seeds, show, write
from benchmarks.worlds.named import WORLDS, World
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import counted
from surefoot.io import write_json
from surefoot.labelling import MonteCarloLabeller, MonteCarloSettings, OmegaPRMLabeller, TreeSettings
from surefoot.labels import first_error
from surefoot.policies import PromptFormat, TransformersPolicy, sample_traces
from surefoot.protocols import Labeller, Policy, ProblemTrace
from surefoot.records import Evidence, StepLabel, Usage
from surefoot.segment import Line
from surefoot.stats import Interval, Resample, bootstrap_statistic

ROLLOUTS = 8
BRUTE = "brute force"
SHARED = "brute force, shared prefill"
OURS = "hard, until error"
TREE = "OmegaPRM tree"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One labeller on the traces of one seed; arrays have shape [problems]."""

    read: np.ndarray
    written: np.ndarray
    labels: np.ndarray
    """Labelled steps of the given traces."""
    distinct: np.ndarray
    """Distinct labelled prefixes; of a tree, those of all its solutions."""
    found: np.ndarray
    """Share of a problem's traces whose first error is the true one."""
    seconds: float

    @property
    def tokens(self) -> np.ndarray:
        """All tokens through the policy."""
        return self.read + self.written


def as_lists(outcome: Outcome) -> dict[str, object]:
    """For a file."""
    return {name: np.asarray(value).tolist() for name, value in vars(outcome).items()}


def from_lists(row: dict[str, object]) -> Outcome:
    """From a file."""
    return Outcome(
        **{name: np.array(value) if isinstance(value, list) else value for name, value in row.items()}  # type: ignore[arg-type]
    )


def builders(world: World, seed: int) -> dict[str, object]:
    """Labellers by name: each takes a policy and a grader."""

    def monte_carlo(settings: MonteCarloSettings, order: str) -> object:
        ordered = settings.model_copy(update={"order": order})
        return lambda policy, grader: MonteCarloLabeller(
            policy=policy, grader=grader, settings=ordered, sampling=world.steps.sampling, seed=seed
        )

    def tree(policy: Policy, grader: Grader) -> OmegaPRMLabeller:
        settings = TreeSettings(rollouts=ROLLOUTS)
        return OmegaPRMLabeller(
            policy=policy,
            grader=grader,
            segmenter=Line(),
            settings=settings,
            estimate="hard",
            sampling=world.steps.sampling,
            seed=seed,
        )

    hard = MonteCarloSettings(estimate="hard", rollouts=ROLLOUTS)
    return {
        "hard, every step": monte_carlo(hard, "every"),
        OURS: monte_carlo(hard, "until-error"),
        "hard, binary search": monte_carlo(hard, "bisect"),
        TREE: tree,
    }


def run_seed(
    world: World, policy: TransformersPolicy, grader: Grader, seed: int, problems: int
) -> dict[str, Outcome]:
    """Label the same traces in every way."""
    made, sampling = world.problems(problems, 500 + seed), world.steps.sampling
    sampled = asyncio.run(
        sample_traces(policy, made, n=4, seed=seed, segmenter=Line(), grader=grader, sampling=sampling)
    )
    items = [
        ProblemTrace(problem=problem, trace=trace)
        for problem, traces in zip(made, sampled, strict=True)
        for trace in traces
        if trace.steps
    ]
    truth = world.first_errors(items)
    results = brute_force(world, policy, grader, items, truth, seed)
    for name, build in builders(world, seed + 100).items():
        start = time.perf_counter()
        labeller: Labeller = build(policy, grader)  # type: ignore[operator]
        if isinstance(labeller, OmegaPRMLabeller):
            rows, distinct = run_tree(labeller, items)
        else:
            rows, distinct = asyncio.run(labeller.label(items)), None
        seconds = time.perf_counter() - start
        results[name] = measure(items, rows, truth, seconds, distinct)
    return results


def run_tree(
    labeller: OmegaPRMLabeller, items: Sequence[ProblemTrace]
) -> tuple[list[list[StepLabel]], dict[str, int]]:
    """Labels of the given traces, and the number of labelled prefixes in each problem's whole tree."""
    problems = {item.problem.id: item.problem for item in items}
    seeds = {name: [item.trace for item in items if item.problem.id == name] for name in problems}
    trees = asyncio.run(labeller.grow(list(problems.values()), seeds))
    labelled = {tree.problem.id: labeller.labelled_traces(tree) for tree in trees}
    known = {
        (name, item.trace.prefix(label.step + 1)): label
        for name, of_tree in labelled.items()
        for item in of_tree
        for label in item.labels
    }
    costs = {tree.problem.id: tree.usage for tree in trees}
    rows = []
    for item in items:
        row = []
        for step in range(len(item.trace.steps)):
            label = known.get((item.problem.id, item.trace.prefix(step + 1)))
            usage = costs.pop(item.problem.id, Usage())
            row.append(
                StepLabel(
                    trace_id=item.trace.id,
                    step=step,
                    kind="value",
                    value=None if label is None else label.value,
                    reason="unknown" if label is None else None,
                    source=f"omegaprm-{labeller.estimate}",
                    evidence=Evidence(usage=usage),
                )
            )
        rows.append(row)
    return rows, {name: sum(len(item.labels) for item in of_tree) for name, of_tree in labelled.items()}


def brute_force(
    world: World,
    policy: TransformersPolicy,
    grader: Grader,
    items: Sequence[ProblemTrace],
    truth: Sequence[int | None],
    seed: int,
) -> dict[str, Outcome]:
    """Nothing is shared: equal prefixes of two traces are rolled out twice, as if of two problems."""
    start = time.perf_counter()
    apart = [
        ProblemTrace(
            problem=item.problem.model_copy(update={"id": f"{item.problem.id}-{number}"}), trace=item.trace
        )
        for number, item in enumerate(items)
    ]
    settings = MonteCarloSettings(rollouts=ROLLOUTS)
    labeller = MonteCarloLabeller(
        policy=policy, grader=grader, settings=settings, sampling=world.steps.sampling, seed=seed + 100
    )
    rows = asyncio.run(labeller.label(apart))
    outcome = measure(items, rows, truth, time.perf_counter() - start)
    # the policy reads equal prompts of a batch once and counts them so; here each rollout reads its own
    read = dict.fromkeys([item.problem.id for item in items], 0)
    for item in items:
        for place in range(1, len(item.trace.steps) + item.trace.cut_off):
            text = f"{PromptFormat().render(item.problem)}{item.trace.prefix(place)}"
            read[item.problem.id] += len(policy.tokenizer(text)["input_ids"])
    once = np.array(list(read.values()), dtype=float)

    def reading(times: int) -> Outcome:
        fields = {name: getattr(outcome, name) for name in ("written", "labels", "distinct", "found")}
        return Outcome(read=times * once, seconds=outcome.seconds, **fields)

    return {BRUTE: reading(ROLLOUTS), SHARED: reading(1)}


def measure(
    items: Sequence[ProblemTrace],
    rows: Sequence[Sequence[StepLabel]],
    truth: Sequence[int | None],
    seconds: float,
    distinct: dict[str, int] | None = None,
) -> Outcome:
    """Sum costs, labels and hits by problem."""
    names = list(dict.fromkeys(item.problem.id for item in items))
    usage = dict.fromkeys(names, Usage())
    labels, hits, traces = (dict.fromkeys(names, 0) for _ in range(3))
    prefixes: dict[str, set[str]] = {name: set() for name in names}
    for item, row, meant in zip(items, rows, truth, strict=True):
        name = item.problem.id
        for label in row:
            usage[name] += label.evidence.usage
            if label.value is not None:
                labels[name] += 1
                prefixes[name].add(item.trace.prefix(label.step + 1))
        hits[name] += first_error_above(row, 0.0) == meant
        traces[name] += 1
    whole = distinct or {name: len(found) for name, found in prefixes.items()}
    return Outcome(
        read=np.array([usage[name].prompt_tokens for name in names], dtype=float),
        written=np.array([usage[name].completion_tokens for name in names], dtype=float),
        labels=np.array([labels[name] for name in names], dtype=float),
        distinct=np.array([whole[name] for name in names], dtype=float),
        found=np.array([hits[name] / traces[name] for name in names]),
        seconds=seconds,
    )


def first_error_above(row: Sequence[StepLabel], above: float) -> int | None:
    """First step whose value is not above ``above``; -1 = none, ``None`` = open."""
    return first_error([None if label.value is None else label.value > above for label in row])


def ratio(first: list[Outcome], second: list[Outcome], top: str, bottom: str) -> Interval:
    """(top / bottom) of ``first`` by that of ``second``, over all problems; NaN where it is infinite."""
    columns = [
        np.concatenate([getattr(outcome, name) for outcome in outcomes])
        for outcomes, name in ((first, top), (first, bottom), (second, top), (second, bottom))
    ]

    def statistic(draw: Resample) -> float:
        a, b, c, d = (float(column[draw.items].sum()) for column in columns)
        return a / b * (d / c) if b and c else np.nan

    return bootstrap_statistic(range(len(columns[0])), statistic, rng=np.random.default_rng(0))


def figures(runs: list[dict[str, Outcome]]) -> Figures:
    """The published figures, then the same for every other labeller."""
    of = {name: [run[name] for run in runs] for name in runs[0]}

    def fewer(name: str, ours: str, rival: str = BRUTE, tokens: str = "tokens", each: str = "labels") -> None:
        found = ratio(of[rival], of[ours], tokens, each)
        note = f"{counted(found.undefined, 'draw')} without tokens or labels" * (found.undefined > 0)
        made.append(figure(name, found, "times", found.value, note=note or None))

    def gained(name: str, ours: str) -> None:
        gaps = [100 * (run[ours].found - run[BRUTE].found) for run in runs]
        found = over_seeds(gaps, rng=np.random.default_rng(0))
        made.append(figure(name, found, "points"))

    made: Figures = []
    fewer("tokens_vs_brute_force", OURS)
    gained("first_error_accuracy_difference", OURS)
    fewer("omegaprm_labels_per_token_vs_brute_force", TREE, each="distinct")
    fewer("tokens_vs_brute_force_with_shared_prefill", OURS, SHARED)
    fewer("written_tokens_vs_brute_force", OURS, tokens="written")
    fewer("omegaprm_labels_per_token_vs_brute_force_with_shared_prefill", TREE, SHARED, each="distinct")
    for name in of:
        if name not in (BRUTE, SHARED, OURS):
            slug = name.replace(",", "").replace(" ", "_").lower()
            fewer(f"tokens_vs_brute_force_{slug}", name)
            gained(f"first_error_accuracy_difference_{slug}", name)
    return made


@np.errstate(divide="ignore", invalid="ignore")  # some may label nothing
def table(runs: list[dict[str, Outcome]]) -> None:
    """Means over the seeds; first-error accuracy of each seed beside."""
    head = f"{'labeller':28} {'tok/label':>9} {'written':>8} {'labels':>7} {'tok/prefix':>10}"
    print(f"{head} {'first error':>24} {'seconds':>8}")
    for name in runs[0]:
        all_of = [run[name] for run in runs]
        tokens, written, labels, distinct = (
            np.sum([getattr(outcome, field).sum() for outcome in all_of])
            for field in ("tokens", "written", "labels", "distinct")
        )
        found = [100 * float(outcome.found.mean()) for outcome in all_of]
        each = ", ".join(f"{value:.1f}" for value in found)
        print(
            f"{name:28} {tokens / labels:9.1f} {written / labels:8.1f} {labels / len(runs):7.0f} "
            f"{tokens / distinct:10.1f} {np.mean(found):6.1f} ({each}) "
            f"{sum(outcome.seconds for outcome in all_of):8.1f}"
        )


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "one seed of 30 problems, on one thread")
    parser.add_argument("--world", choices=list(WORLDS), default="digits")
    parser.add_argument("--seeds", type=int, help="3; with --quick 1")
    parser.add_argument("--first-seed", type=int, default=0, help="the methods were developed on 0, 1 and 2")
    parser.add_argument("--problems", type=int, help="per seed, with 4 traces each: 100; with --quick 30")
    parser.add_argument("--out", type=Path, help="keep each seed's counts here, and read those that are here")
    options = parser.parse_args()
    count = options.problems or (30 if options.quick else 100)
    first, last = options.first_seed, options.first_seed + (options.seeds or (1 if options.quick else 3)) - 1
    if options.quick:
        torch.set_num_threads(1)
    world = WORLDS[options.world]
    policy = TransformersPolicy.from_pretrained(world.policy)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        runs = []
        for seed in range(first, last + 1):
            kept = options.out / f"seed-{seed}-of-{count}.json" if options.out else None
            if kept is None or not kept.exists():
                runs.append(run_seed(world, policy, grader, seed, count))
                if kept is not None:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    write_json(kept, {name: as_lists(outcome) for name, outcome in runs[-1].items()})
            else:
                runs.append({name: from_lists(row) for name, row in json.loads(kept.read_text()).items()})
            print(f"seed {seed} done", flush=True)
    table(runs)
    about = {
        "world": options.world,
        "seeds": [first, last],
        "problems": count,
        "traces": 4,
        "rollouts": ROLLOUTS,
    }
    write(options, show(figures(runs)), **about)


if __name__ == "__main__":
    main()
