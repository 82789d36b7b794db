"""The shop: labellers of an agent's steps against the truth, and choosing among 16 runs."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import spmatrix, vstack
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks.common.figures import Figure, Figures, figure, over_seeds
from benchmarks.common.gates import gate_figures
from benchmarks.worlds.shop import FAMILIES, Shop, ShopAgent, StepTruth, generate_tasks, judge_steps
from surefoot import run_sync
from surefoot.labelling import (
    CallResult,
    JudgeLabeller,
    JudgePrompt,
    RunMonteCarloLabeller,
    StateReplayVerifier,
    ToolCallVerifier,
    VerifierLabeller,
    call_results,
)
from surefoot.policies import TransformersPolicy, sample_runs
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Problem, StepLabel
from surefoot.stats import Interval, StepFacts, bootstrap_totals, step_facts

SEEDS = tuple(range(3_000, 3_008))
ROLLOUTS = (8, 32)
LONG = 256
KINDS = ("wrong", "policy", "loophole")
READOUTS: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "last": lambda scores: float(scores[-1]),
    "min": lambda scores: float(scores.min()),
    "mean": lambda scores: float(scores.mean()),
    "product": lambda scores: float(np.log(scores).sum()),
}
Family = Literal["refund", "cancel", "address", "two-requests"]
Bad = list[list[bool]]
"""Whether each step of each run is called wrong."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Runs of the tasks of one seed, with the truth of their steps."""

    tasks: list[Problem]
    items: list[ProblemTrace]
    truth: list[list[StepTruth]]

    @classmethod
    def sampled(cls, seed: int, *, tasks: int, n: int, families: Sequence[Family] = FAMILIES) -> Runs:
        problems = generate_tasks(tasks, seed=seed, families=families)
        of_tasks = run_sync(sample_runs(ShopAgent(), problems, Shop, n=n, seed=seed))
        items = [
            ProblemTrace(problem=problem, trace=run)
            for problem, runs in zip(problems, of_tasks, strict=True)
            for run in runs
        ]
        return cls(tasks=problems, items=items, truth=[judge_steps(item) for item in items])

    def split(self, tasks: int) -> tuple[Runs, Runs]:
        """Runs of the first ``tasks`` tasks, and runs of the others."""
        end = self.groups.index(tasks)
        return (
            Runs(tasks=self.tasks[:tasks], items=self.items[:end], truth=self.truth[:end]),
            Runs(tasks=self.tasks[tasks:], items=self.items[end:], truth=self.truth[end:]),
        )

    @property
    def groups(self) -> list[int]:
        """Number of each run's task."""
        number = {task.id: at for at, task in enumerate(self.tasks)}
        return [number[item.problem.id] for item in self.items]


def bad_steps(labels: Sequence[Sequence[StepLabel]]) -> Bad:
    """Steps labelled -1; unknown is not bad."""
    return [[label.value == -1 for label in row] for row in labels]


def label_sources(runs: Runs, rollouts: Sequence[int]) -> dict[str, tuple[Bad, float, float]]:
    """Wrong steps by source, with tokens and milliseconds a step."""
    steps = sum(map(len, runs.truth))
    traces = [item.trace for item in runs.items]
    found: dict[str, tuple[Bad, float, float]] = {
        "all_good": ([[False] * len(trace.steps) for trace in traces], 0.0, 0.0),
        "last_wrong_iff_failed": (
            [[False] * (len(trace.steps) - 1) + [not trace.outcome] for trace in traces],
            0.0,
            0.0,
        ),
    }
    rules, replay = ToolCallVerifier(), StateReplayVerifier(environment=Shop)
    verifiers = {
        "rules": (rules,),
        "replay": (replay,),
        "replay_in_order": (StateReplayVerifier(environment=Shop, order="gold"),),
        "replay_rules": (replay, rules),
        "replay_in_order_rules": (StateReplayVerifier(environment=Shop, order="gold"), rules),
    }
    for name, verifier in verifiers.items():
        started = time.perf_counter()
        labels = run_sync(VerifierLabeller(verifiers=verifier).label(runs.items))
        found[name] = (bad_steps(labels), 0.0, 1000 * (time.perf_counter() - started) / steps)
    for k in rollouts:
        started = time.perf_counter()
        labels = monte_carlo(runs.items, k)
        seconds = time.perf_counter() - started
        cost = sum(label.evidence.usage.tokens for row in labels for label in row) / steps
        hard = [[label.value == 0 for label in row] for row in labels]
        found[f"mc_hard_{k}"] = (hard, cost, 1000 * seconds / steps)
    return found


def monte_carlo(items: Sequence[ProblemTrace], k: int, seed: int = 0) -> list[list[StepLabel]]:
    labeller = RunMonteCarloLabeller(policy=ShopAgent(), environment=Shop, rollouts=k, seed=seed)
    return run_sync(labeller.label(items))


def counted(runs: Runs, bad: Bad) -> NDArray[np.float64]:
    """Counts of each task, in the order of :func:`rates`."""
    counts = np.zeros((len(runs.tasks), 6 + 2 * len(KINDS)))
    for group, row, truth in zip(runs.groups, bad, runs.truth, strict=True):
        wrong = [item.value < 0 for item in truth]
        good_alarms = sum(called for called, true in zip(row, wrong, strict=True) if not true)
        counts[group, :6] += (
            len(row),
            sum(called == true for called, true in zip(row, wrong, strict=True)),
            1,
            first(row) == first(wrong),
            len(wrong) - sum(wrong),
            good_alarms,
        )
        for at, kind in enumerate(KINDS):
            of_kind = [called for called, item in zip(row, truth, strict=True) if item.kind == kind]
            counts[group, 6 + 2 * at : 8 + 2 * at] += (len(of_kind), sum(of_kind))
    return counts


def rates(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ratios of neighbouring counts, over all seeds: totals [n, seeds, C] to [n, C / 2]."""
    summed = totals.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(summed[:, 1::2] / summed[:, ::2])


def first(row: Sequence[bool]) -> int:
    return row.index(True) if True in row else -1


def measure_labels(tasks: int, draws: int) -> Figures:
    """Every source against the truth."""
    seeds = [Runs.sampled(seed, tasks=tasks, n=4) for seed in SEEDS]
    sources = [label_sources(runs, ROLLOUTS) for runs in seeds]
    figures = []
    for name in sources[0]:
        strata = [counted(runs, source[name][0]) for runs, source in zip(seeds, sources, strict=True)]
        intervals = bootstrap_totals(strata, rates, draws=draws, rng=np.random.default_rng(0))
        per_seed = np.array([rates(counts.sum(axis=0)[None, None])[0] for counts in strata])
        names = ["step", "first_error", "false_alarms", *(f"found_{kind}" for kind in KINDS)]
        for at, metric in enumerate(names):
            values = " ".join(f"{100 * value:.1f}" for value in per_seed[:, at])
            figures.append(noted(f"{metric}_{name}", intervals[at], "%", scale=100, note=values))
        for at, what in ((1, "cost"), (2, "ms")):
            mean = float(np.mean([source[name][at] for source in sources]))
            figures.append(noted(f"{what}_{name}", mean, "a step"))
    return figures + value_errors(seeds, max(1, tasks // 6), draws)


def measure_judge(model: Path, tasks: int, draws: int) -> Figures:
    """A language model as judge."""
    policy = TransformersPolicy.from_pretrained(str(model))
    prompts = {
        "judge_failures": JudgePrompt(name_failures=True),
        "judge_first_error": JudgePrompt(mode="first-error"),
    }
    seeds = [Runs.sampled(seed, tasks=tasks, n=1) for seed in SEEDS]
    floors = [label_sources(runs, ()) for runs in seeds]
    strata = {
        "judge_floor": [
            counted(runs, floor["all_good"][0]) for runs, floor in zip(seeds, floors, strict=True)
        ],
        "judge_rules": [counted(runs, floor["rules"][0]) for runs, floor in zip(seeds, floors, strict=True)],
    }
    figures = []
    steps = sum(len(row) for runs in seeds for row in runs.truth)
    for name, prompt in prompts.items():
        judge = JudgeLabeller(
            policy=policy, prompt=prompt, sampling=Sampling(temperature=0.0, max_tokens=256)
        )
        started = time.perf_counter()
        labels = [run_sync(judge.label(runs.items)) for runs in seeds]
        seconds = time.perf_counter() - started
        strata[name] = [counted(runs, bad_steps(rows)) for runs, rows in zip(seeds, labels, strict=True)]
        every = [label for rows in labels for row in rows for label in row]
        unread = 100 * sum(judge.failures.values()) / sum(len(runs.items) for runs in seeds)
        tokens = sum(label.evidence.usage.tokens for label in every)
        figures += [
            figure(f"unread_{name}", unread, "% of replies") | {"note": str(dict(judge.failures))},
            figure(f"cost_{name}", tokens / steps, "a step"),
            figure(f"ms_{name}", 1000 * seconds / steps, "a step"),
        ]
    for name, counts in strata.items():
        intervals = bootstrap_totals(counts, rates, draws=draws, rng=np.random.default_rng(0))
        for at, metric in enumerate(("step", "first_error", "false_alarms")):
            figures.append(noted(f"{metric}_{name}", intervals[at], "%", scale=100))
    return figures


def value_errors(seeds: Sequence[Runs], tasks: int, draws: int) -> Figures:
    """Distance of values by few rollouts from values by many, a mean over each task's steps."""
    errors: dict[int, list[list[float]]] = {k: [] for k in ROLLOUTS}
    for runs in seeds:
        items = [item for item, group in zip(runs.items, runs.groups, strict=True) if group < tasks][::4]
        many = monte_carlo(items, LONG, seed=1)
        for k, per_seed in errors.items():
            few = monte_carlo(items, k)
            per_seed.append(
                [
                    float(np.mean([abs((a.value or 0) - (b.value or 0)) for a, b in zip(x, y, strict=True)]))
                    for x, y in zip(few, many, strict=True)
                ]
            )
    rng = np.random.default_rng(0)
    return [
        noted(f"mc_value_error_{k}", over_seeds(error, draws=draws, rng=rng), "of 1")
        for k, error in errors.items()
    ]


WORDS = HashingVectorizer(
    n_features=1 << 13, token_pattern=r"\S+", lowercase=False, norm=None, alternate_sign=False
)
CONFIRMATION = re.compile(r"CN-\d+")


def features(items: Sequence[ProblemTrace]) -> list[spmatrix]:
    """One matrix [steps, words] for each run: the calls up to a step and their results, in words."""
    return [WORDS.transform(_step_words(item)) for item in items]


def _step_words(item: ProblemTrace) -> list[str]:
    """Of each step: the step, its predecessor, all earlier steps, and pairs with them."""
    results = {(result.message, result.number): result for result in call_results(item.trace.messages)}
    issued = {number for result in results.values() for number in CONFIRMATION.findall(_result(result))}
    rows, before, last, seen = [], dict[str, None](), "start", Counter[str]()
    for step in item.trace.steps:
        one = results.get((step.message or 0, step.call)) if step.call is not None else None
        if one is None:
            text = item.trace.messages[step.message or 0].content or ""
            now, more = "answer", "invents" if set(CONFIRMATION.findall(text)) - issued else "knows"
        else:
            call = f"{one.call.name}:{one.call.arguments}"
            now, more = f"{one.call.name}:{_went(one)}", f"again:{min(seen[call], 2)}"
            seen[call] += 1
        words = [now, more, f"{now}&{more}", f"{last}>{now}", *before, *(f"{had}&{now}" for had in before)]
        rows.append(" ".join(words))
        before |= {f"had:{now}": None, f"had:{more}": None}
        last = now
    return rows


def _went(one: CallResult) -> str:
    result = _result(one)
    known = (word for word in ("valid", "forged", "shipped", "processing") if f'"{word}"' in result)
    return next(known, "ok") if one.succeeded else "error"


def _result(one: CallResult) -> str:
    return (one.result.content or "") if one.result else ""


@dataclass(kw_only=True)
class Rows:
    """Steps as the reading gate compares them."""

    facts: list[StepFacts] = field(default_factory=list)
    good: list[bool] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, runs: Runs) -> None:
        for item, truth in zip(runs.items, runs.truth, strict=True):
            self.facts += step_facts(item.problem, item.trace)
            self.good += [step.value >= 0 for step in truth]
            self.problems += [item.problem.id] * len(truth)


def measure_choice(
    tasks: int, draws: int, learn: Sequence[Family], choose: Sequence[Family], ending: str
) -> Figures:
    """How often the chosen one of 16 runs is a success, on tasks of families that scorers have learned or
    not."""
    success: dict[str, list[list[float]]] = defaultdict(list)
    loopholes: dict[str, list[list[float]]] = defaultdict(list)
    best: dict[str, Counter[str]] = defaultdict(Counter)
    learned_from, gated = Rows(), Rows()
    of_steps: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for seed in SEEDS:
        learned = Runs.sampled(100 + seed, tasks=5 * tasks // 2, n=4, families=learn)
        fitted, held_out = learned.split(3 * tasks // 2)
        chosen = Runs.sampled(200 + seed, tasks=tasks, n=16, families=choose)
        scores = plain_scores(chosen)
        for model, learned_score in learned_scores(fitted, held_out).items():
            for readout, read in READOUTS.items():
                picked = pick(held_out, list(map(read, learned_score)), outcomes(held_out))
                best[model][readout] += sum(picked)
        learned_from.add(learned)
        gated.add(chosen)
        for model, learned_score in learned_scores(learned, chosen).items():
            of_steps[model] += learned_score
            for readout, read in READOUTS.items():
                scores[f"{model}_{readout}"] = list(map(read, learned_score))
        for name, of_runs in scores.items():
            success[name].append(pick(chosen, of_runs, outcomes(chosen)))
            used = [float(any(item.kind == "loophole" for item in row)) for row in chosen.truth]
            loopholes[name].append(pick(chosen, of_runs, used))
        success["any"].append(pick(chosen, outcomes(chosen), outcomes(chosen)))
    rng = np.random.default_rng(0)
    mean_of = partial(over_seeds, draws=draws, rng=rng)

    figures = [
        noted(f"chosen_{name}{ending}", mean_of(values), "%", scale=100, note=_per_seed(values))
        for name, values in success.items()
    ]
    heads = {model: f"{model}_{counts.most_common(1)[0][0]}" for model, counts in best.items()}
    for name in ("random", "majority", "resolved", "rules", *heads.values()):
        figures.append(noted(f"loopholes_chosen_{name}{ending}", mean_of(loopholes[name]), "%", scale=100))
    difference = [
        np.subtract(prm, orm)
        for prm, orm in zip(success[heads["prm_replay_rules"]], success[heads["orm"]], strict=True)
    ]
    note = f"{heads['prm_replay_rules']} less {heads['orm']}"
    figures.append(
        noted(f"prm_vs_orm_best_of_16{ending}", mean_of(difference), "points", scale=100, note=note)
    )
    return figures + gate_figures(
        {model: np.concatenate(values) for model, values in of_steps.items()},
        gated.facts,
        gated.good,
        gated.problems,
        training=(learned_from.facts, learned_from.good),
        draws=draws,
        ending=ending,
    )


def _per_seed(values: Sequence[Sequence[float]]) -> str:
    return " ".join(f"{100 * np.mean(value):.1f}" for value in values)


def outcomes(runs: Runs) -> list[float]:
    return [float(bool(item.trace.outcome)) for item in runs.items]


def pick(runs: Runs, scores: Sequence[float], values: Sequence[float]) -> list[float]:
    """By task: the value of the run with the highest score, the mean where several have it."""
    of_task: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for group, score, value in zip(runs.groups, scores, values, strict=True):
        of_task[group].append((score, value))
    return [
        float(np.mean([value for score, value in item if score == max(item)[0]])) for item in of_task.values()
    ]


def plain_scores(runs: Runs) -> dict[str, list[float]]:
    """Scores that nothing was learned for."""
    verdicts = ToolCallVerifier().verify(runs.items)
    ends, resolved = [], []
    for item in runs.items:
        shop = Shop()
        shop.reset(item.problem)
        for message in item.trace.messages:
            for call in message.tool_calls:
                shop.step(call)
        ends.append(json.dumps(shop.state(), sort_keys=True))
        resolved.append(float(shop.resolved))
    common = Counter(zip(runs.groups, ends, strict=True))
    return {
        "random": [0.0] * len(ends),
        "majority": [float(common[group, end]) for group, end in zip(runs.groups, ends, strict=True)],
        "resolved": resolved,
        "rules": [-float(sum(item.value == -1 for item in row)) for row in verdicts],
    }


def learned_scores(learned: Runs, chosen: Runs) -> dict[str, list[NDArray[np.float64]]]:
    """Step scores of the runs to choose among, by each model."""
    both = VerifierLabeller(verifiers=(StateReplayVerifier(environment=Shop), ToolCallVerifier()))
    targets = {
        "orm": [[bool(item.trace.outcome)] * len(item.trace.steps) for item in learned.items],
        "prm_truth": [[item.value >= 0 for item in row] for row in learned.truth],
        "prm_replay_rules": [
            [not bad for bad in row] for row in bad_steps(run_sync(both.label(learned.items)))
        ],
    }
    own, other = vstack(features(learned.items)), features(chosen.items)
    found = {}
    for name, target in targets.items():
        model = LogisticRegression(C=1.0, max_iter=2000).fit(own, np.concatenate(target))
        found[name] = [np.clip(model.predict_proba(rows)[:, 1], 1e-6, 1.0) for rows in other]
    return found


def noted(name: str, value: Interval | float, unit: str, *, scale: float = 1.0, note: str = "") -> Figure:
    """A line, with how it came about."""
    return figure(name, scale * value, unit, note=note)


def lab_figures(quick: bool, model: Path | None) -> Figures:
    """Labels, then choosing."""
    tasks, draws = (15, 200) if quick else (40, 2000)
    return [
        *(measure_judge(model, 1 if quick else 8, draws) if model is not None else ()),
        *measure_labels(tasks, draws),
        *measure_choice(tasks, draws, FAMILIES, FAMILIES, ""),
        *measure_choice(tasks, draws, FAMILIES[:-1], FAMILIES[-1:], "_new_family"),
    ]
