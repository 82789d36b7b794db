"""Choosing among programs: 82 tasks of HumanEval, 100 real completions each, judged by hidden tests."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.code import mutants
from benchmarks.common.figures import DATA, Figure, Figures, arguments, figure, over_tasks, show, write
from surefoot.formats import read_humaneval
from surefoot.labelling import Behaviour, grade_traces, literal_calls, observe_programs
from surefoot.protocols import ProblemTrace
from surefoot.records import CodeTask, Problem, Trace
from surefoot.sandbox import Limits, Program, ProgramResult, PythonTask, Sandbox, grade_python, open_sandbox
from surefoot.search import Method, Pool, selection_curve

SIZES = (1, 4, 16, 64, 100)
SEED = 0
LIMITS = Limits(wall_s=3.0, cpu_s=3)
ORACLE_INPUTS = 24
Floats = NDArray[np.float64]


class CachedSandbox:
    """A sandbox whose results are kept in a file of JSON lines, by program, so that each runs once."""

    def __init__(self, sandbox: Sandbox, path: Path | None) -> None:
        self._sandbox, self._path = sandbox, path
        self._known: dict[str, str] = {}
        if path and path.exists():
            with path.open() as stream:
                self._known = dict(map(json.loads, stream))

    def run(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """As the sandbox does; progress is shown on standard error."""
        keys = [hashlib.sha256(program.model_dump_json().encode()).hexdigest() for program in programs]
        new = {key: one for key, one in zip(keys, programs, strict=True) if key not in self._known}
        for at in range(0, len(new), 500):
            part = list(new)[at : at + 500]
            found = dict(zip(part, self._sandbox.run([new[key] for key in part]), strict=True))
            self._known |= {key: result.model_dump_json() for key, result in found.items()}
            if self._path:
                with self._path.open("a") as stream:
                    stream.writelines(json.dumps([key, self._known[key]]) + "\n" for key in found)
        return [ProgramResult.model_validate_json(self._known[key]) for key in keys]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The n samples of one task, with all that rules may know, and whether they are right."""

    problem: Problem
    texts: list[str]
    right: NDArray[np.bool_]
    behaviours: list[Behaviour]
    oracle: list[str | None]
    """Answers on the hidden tests' inputs."""

    @property
    def examples(self) -> Floats | None:
        """Visible examples that each passes, [n]; ``None``: there are none."""
        if not self.behaviours[0].visible:
            return None
        return np.array([one.visible_passed for one in self.behaviours], dtype=float)

    def pool(
        self,
        *,
        answers: Sequence[str | None] | None = None,
        scores: Floats | None = None,
        gated: bool = False,
    ) -> Pool:
        """For a rule that reads these."""
        n = len(self.texts)
        return Pool(
            answers=[""] * n if answers is None else answers,
            correct=self.right,
            scores=np.zeros(n) if scores is None else scores,
            gate=self.examples if gated else None,
        )


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a gzip file of JSON lines."""
    with gzip.open(path, "rt") as stream:
        return [json.loads(line) for line in stream]


def samples_of(data: Path, sandbox: Sandbox, tasks_used: int | None, seed: int = SEED) -> Iterator[Samples]:
    """The samples of each task, run and judged; ``seed`` draws the inputs."""
    problems = {problem.id: problem for problem in read_humaneval(data / "HumanEval.jsonl.gz")}
    ids = {row["prompt"]: row["task_id"] for row in rows_of(data / "codet_humaneval_problems.jsonl.gz")}
    rows = rows_of(data / "codet_humaneval_samples.jsonl.gz")[:tasks_used]
    for number, row in enumerate(rows, start=1):
        problem = problems[ids[row["prompt"]]]
        yield samples_of_task(problem, row["samples"], sandbox, seed)
        print(f"\r{number} of {len(rows)} tasks run", end="", file=sys.stderr)


def samples_of_task(problem: Problem, texts: Sequence[str], sandbox: Sandbox, seed: int = SEED) -> Samples:
    """Run and judge the samples of one task."""
    task = CodeTask.of(problem)
    if task is None:
        raise SystemExit(f"{problem.id} has no tests")
    traces = [Trace(problem_id=problem.id, text=text, sample=at) for at, text in enumerate(texts)]
    items = [ProblemTrace(problem=problem, trace=trace) for trace in traces]
    found = observe_programs(sandbox, items, seed=seed)
    graded = grade_traces(sandbox, items, limits=LIMITS)
    if unknown := [one.reason for one in graded if one is not None and one.passed is None]:
        raise SystemExit(f"{problem.id}: nothing is known of a program: {unknown[0]}")

    def hidden_inputs(task: CodeTask) -> list[list[Any]]:
        return literal_calls([test.code for test in task.that_are("hidden")], task.entry_point)[
            :ORACLE_INPUTS
        ]

    oracle = observe_programs(sandbox, items, inputs=ORACLE_INPUTS, calls=hidden_inputs)
    return Samples(
        problem=problem,
        texts=list(texts),
        right=np.array([one is not None and one.passed is True for one in graded]),
        behaviours=[one for one in found if one is not None],
        oracle=[None if one is None else one.answer("vote") for one in oracle],
    )


def rules_of(task: Samples, scores: Mapping[str, Floats]) -> dict[str, tuple[Pool, Method]]:
    """Each rule: what it reads, and the selector. ``scores`` [n], by scorer, all above 0."""
    every = [one.answer("vote") for one in task.behaviours]
    clean = [one.answer("abstain") for one in task.behaviours]
    none = np.full(len(every), np.nan)
    examples = none if task.examples is None else task.examples
    rules: dict[str, tuple[Pool, Method]] = {
        "random": (task.pool(), "best_of_n"),
        "examples": (task.pool(gated=True), "best_of_n"),
        "majority": (task.pool(answers=every), "majority"),
        "clean_majority": (task.pool(answers=clean), "majority"),
        "agreement": (task.pool(answers=every, scores=examples), "agreement"),
        "examples_majority": (task.pool(answers=every, gated=True), "majority"),
        "examples_clean_majority": (task.pool(answers=clean, gated=True), "majority"),
        "oracle_inputs_majority": (task.pool(answers=task.oracle), "majority"),
        "any": (task.pool(), "pass"),
    }
    for name, values in scores.items():
        rules[name] = task.pool(scores=values), "best_of_n"
        rules[f"{name}_vote"] = task.pool(answers=clean, scores=values), "weighted_vote"
        rules[f"examples_{name}"] = task.pool(scores=values, gated=True), "best_of_n"
        rules[f"examples_{name}_vote"] = task.pool(answers=clean, scores=values, gated=True), "weighted_vote"
    return rules


ALONE = ("random", "shortest", "examples", "majority", "clean_majority")
"""Rules that use outcomes or a majority alone."""
FUSED = "examples_clean_majority"


def accuracies(tasks: Sequence[Samples], scores: Mapping[str, Sequence[Floats]]) -> dict[str, Floats]:
    """By rule: the chance that what it chooses is right, [tasks, sizes]."""
    by_rule: dict[str, list[tuple[Pool, Method]]] = defaultdict(list)
    for at, task in enumerate(tasks):
        for name, rule in rules_of(task, {scorer: some[at] for scorer, some in scores.items()}).items():
            by_rule[name].append(rule)
    return {
        name: selection_curve(
            [pool for pool, _ in rules], rules[0][1], SIZES, rng=np.random.default_rng(SEED)
        )
        for name, rules in by_rule.items()
    }


def auc_of_task(scores: Floats, right: NDArray[np.bool_]) -> float:
    """Chance that a right sample has a higher score than a wrong one; NaN without one of each."""
    if right.all() or not right.any():
        return float("nan")
    gaps = scores[right][:, None] - scores[~right][None, :]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def figures_of(tasks: Sequence[Samples], scores: Mapping[str, Sequence[Floats]]) -> Iterator[Figure]:
    """All figures of the samples."""
    by_rule = accuracies(tasks, scores)
    for name, column in (("pass_at_1", 0), ("pass_at_100", -1)):
        yield over_tasks(name, by_rule["any"][:, column], "of tasks")
    for name, values in by_rule.items():
        for column, size in enumerate(SIZES):
            yield over_tasks(f"chosen_{name}_{size}", values[:, column], "of tasks")
    at_all = {name: values[:, -1] for name, values in by_rule.items()}
    rival = max(ALONE, key=lambda name: at_all[name].mean())
    comparisons = [
        ("fused_vs_best_rival_at_100", FUSED, rival),
        ("fused_vs_agreement_at_100", FUSED, "agreement"),
    ]
    for name, one, other in comparisons:
        yield over_tasks(name, 100 * (at_all[one] - at_all[other]), f"points of {one} above {other}")
    aucs = {
        name: np.array([auc_of_task(one, task.right) for one, task in zip(some, tasks, strict=True)])
        for name, some in scores.items()
    }
    mixed = [not np.isnan(value) for value in next(iter(aucs.values()))]
    for name, value in aucs.items():
        yield over_tasks(f"auc_{name}", value[mixed], f"mean of {sum(mixed)} tasks")


def fresh_figures(
    data: Path, sandbox: Sandbox, tasks_used: int | None, seeds: Sequence[int]
) -> Iterator[Figure]:
    """The fused rule against its rivals on inputs of other seeds."""
    gaps: dict[str, list[Floats]] = {"examples": [], "agreement": []}
    for seed in seeds:
        by_rule = accuracies(list(samples_of(data, sandbox, tasks_used, seed)), {})
        for rival, of_seeds in gaps.items():
            of_seeds.append(100 * (by_rule[FUSED] - by_rule[rival])[:, -1])
    for rival, of_seeds in gaps.items():
        each = ", ".join(f"{gap.mean():+.1f}" for gap in of_seeds)
        yield over_tasks(f"fused_vs_{rival}_at_100", np.mean(of_seeds, axis=0), f"points ({each})")


def reference_figures(data: Path, sandbox: Sandbox) -> Iterator[Figure]:
    """Verdicts on the reference solutions, three runs of each."""
    jobs = [
        (
            row["prompt"] + row["canonical_solution"],
            PythonTask.from_check(row["entry_point"], row["test"], prompt=row["prompt"]),
        )
        for row in rows_of(data / "HumanEval.jsonl.gz")
    ]
    runs = [[verdict.passed for verdict in grade_python(sandbox, jobs)] for _ in range(3)]
    passed = [set(of_one) for of_one in zip(*runs, strict=True)]
    yield figure("reference_solutions_passed", passed.count({True}), f"of {len(jobs)}")
    yield figure("verdicts_that_differ", sum(len(of_one) > 1 for of_one in passed), f"of {len(jobs)}")


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "16 of the 82 tasks, 30 of the 164 problems")
    parser.add_argument("--data", type=Path, default=DATA / "code", help="folder of the files")
    parser.add_argument("--model", type=Path, help="checkpoint of a small language model")
    parser.add_argument("--features", type=Path, help="folder for what the model computes, kept between runs")
    parser.add_argument("--fresh", type=int, metavar="N", help="the fused rule on inputs of N other seeds")
    parser.add_argument("--cache", type=Path, help="file in which results of programs are kept")
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"--data: there is no folder {options.data}; see README.md")
    if (options.model is None) != (options.features is None):
        parser.error("--model and --features go together")
    used = 16 if options.quick else None
    with open_sandbox() as own:
        sandbox = CachedSandbox(own, options.cache)
        if options.fresh:
            seeds = range(100, 100 + options.fresh)
            write(options, shown_one_by_one(fresh_figures(options.data, sandbox, used, seeds)))
            return
        figures = shown_one_by_one(reference_figures(options.data, own))
        figures += shown_one_by_one(
            mutants.figures_of(options.data, sandbox, options.model, options.features, quick=options.quick)
        )
        tasks = list(samples_of(options.data, sandbox, used))
    judged = ((task.problem, task.texts, task.right.tolist()) for task in tasks)
    figures += shown_one_by_one(mutants.real_failure_figures(judged))
    scores: dict[str, Sequence[Floats]] = {
        "shortest": [np.array([1.0 / (1 + len(text)) for text in task.texts]) for task in tasks]
    }
    figures += shown_one_by_one(figures_of(tasks, scores))
    write(options, figures)


def shown_one_by_one(figures: Iterator[Figure]) -> Figures:
    """All figures; each is printed when it is there."""
    return [one for each in figures for one in show([each])]


if __name__ == "__main__":
    main()
