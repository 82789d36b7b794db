"""Choosing among programs: 82 tasks of HumanEval, 100 real completions each, judged by hidden tests.

    python benchmarks/code.py [--data DIR] [--quick] [--cache FILE] [--json FILE]

DIR has ``HumanEval.jsonl.gz`` (github.com/openai/human-eval), ``codet_humaneval_problems.jsonl.gz`` and
``codet_humaneval_samples.jsonl.gz`` (github.com/microsoft/CodeT: completions of a model of 16 billion
weights). Programs run in bubblewrap. How many verdicts a second, and beside which runners:
``benchmarks/sandbox.py``.

- ``verdicts_that_differ``: of HumanEval's 164 reference solutions, between three runs.
- ``pass_at_1`` and ``pass_at_100`` of the samples.
- ``chosen_RULE_N``: how often the sample that RULE chooses among N passes the hidden tests: mean over tasks,
  95 % interval by bootstrap over them; random subsets where N is below 100. Ties are broken at random.

  - ``random``, ``shortest``;
  - ``examples``: the most examples of the problem's text passed;
  - ``majority``: the largest group of equal behaviour on the inputs of the examples and on inputs made of
    them; exceptions are behaviour, too;
  - ``clean_majority``: the same among those that raise nothing and return something, if there are any;
  - ``agreement``: CodeT's rule (arXiv 2207.10397) with the examples as tests: the group with the highest
    square root of its size times the examples that it passes;
  - ``examples_majority``: the most examples, then the largest group;
  - ``oracle_inputs_majority``: the majority on the inputs of the hidden tests, which no rule may know;
  - ``any``: the ceiling.

- ``first_wrong_line_accuracy``: how often ``execution-trace`` names the faulty step of mutants of reference
  solutions, two a problem, that fail the hidden tests (saying nothing is wrong, too); beside it what one gets
  who names the first, the last or the longest step, and ``visible_false_pass``: mutants that pass the visible
  examples, of those whose problem has some.
- ``fused_vs_best_rival_at_100``: ``examples_majority`` minus the best of the others, over the same tasks.

Nothing is learned or chosen on these data. Equal programs of a task are run once.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)  # pdb, which others import, imports the standard library's module of this file's name

import argparse
import ast
import gzip
import hashlib
import json
import os
import platform
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefoot import __version__
from surefoot.formats import read_humaneval
from surefoot.labelling import labelled_mutants, open_verifier
from surefoot.protocols import ProblemTrace
from surefoot.records import CodeTask
from surefoot.sandbox import Limits, NamedTest, PythonTask, Sandbox, TaskVerdict, grade_python, open_sandbox

DATA = Path(__file__).parents[1] / "../shared/data/code"
SIZES = (1, 4, 16, 64, 100)
SUBSETS = 20
INPUTS = 12
"""On which behaviour is compared, at most."""
LIMITS = Limits(wall_s=3.0, cpu_s=3)
DIGEST = re.compile("[0-9a-f]{64}")
"""Of a returned value. Messages of exceptions can be as long."""
SHOW = (
    "import hashlib\n"
    "def _plain(v):\n"
    "    if isinstance(v, (set, frozenset)):\n"
    "        return sorted(map(_plain, v), key=repr)\n"
    "    if isinstance(v, dict):\n"
    "        return sorted(((_plain(k), _plain(w)) for k, w in v.items()), key=repr)\n"
    "    if isinstance(v, (list, tuple)):\n"
    "        return [type(v).__name__, *map(_plain, v)]\n"
    "    return v\n"
    "def _show(v):\n"
    "    told = 'None' if v is None else hashlib.sha256(repr(_plain(v)).encode()).hexdigest()\n"
    "    raise AssertionError(told)\n"
)
"""The tests' process sees what a candidate returns; what it says of it is the reason of a test that fails."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion, with all that the rules may know, and whether it is right."""

    length: int
    right: bool
    examples: int
    """Visible examples that it passes."""
    behaviour: tuple[str, ...]
    oracle: tuple[str, ...]
    """The same on the hidden tests' inputs."""

    @property
    def clean(self) -> bool:
        """Whether it raises nothing and returns something, everywhere."""
        return all(DIGEST.fullmatch(one) for one in self.behaviour)


class Cache:
    """Results by their programs, tests and limits, in a file of JSON lines."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, list[str]] = {}
        if path and path.exists():
            with path.open() as stream:
                self._known = dict(map(json.loads, stream))

    def outcomes(self, sandbox: Sandbox, jobs: Sequence[tuple[str, PythonTask]]) -> list[list[str]]:
        """Of each test of each job: ``passed``, or what it said. The same job is run once."""
        keys = [
            hashlib.sha256(f"{text}\0{task.model_dump_json()}\0{LIMITS}".encode()).hexdigest()
            for text, task in jobs
        ]
        new = {key: job for key, job in zip(keys, jobs, strict=True) if key not in self._known}
        for at in range(0, len(new), 500):
            part = list(new)[at : at + 500]
            verdicts = grade_python(sandbox, [new[key] for key in part], limits=LIMITS)
            found = {key: _said(verdict) for key, verdict in zip(part, verdicts, strict=True)}
            self._known |= found
            if self._path:
                with self._path.open("a") as stream:
                    stream.writelines(json.dumps([key, said]) + "\n" for key, said in found.items())
            print(f"\r{at + len(part)} of {len(new)} programs", end="", file=sys.stderr)
        return [self._known[key] for key in keys]


def _said(verdict: TaskVerdict) -> list[str]:
    if verdict.passed is None:
        raise SystemExit(f"nothing is known of a program: {verdict.reason}")
    return [
        "passed" if test.outcome == "passed" else f"{test.reason or test.outcome}"[-64:]
        for test in verdict.tests
    ]


def calls_of(texts: Sequence[str], name: str) -> list[list[Any]]:
    """Plain arguments of the calls of ``name``, or of ``candidate``, in pieces of Python."""
    found = []
    for text in texts:
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except SyntaxError:
            continue
        for node in nodes:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in (name, "candidate")
            ):
                try:
                    found.append([ast.literal_eval(argument) for argument in node.args])
                except ValueError:
                    continue
    return [args for at, args in enumerate(found) if args and args not in found[:at]]


def varied(value: Any, rng: random.Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([value + 1, abs(value - 1), value * 2, value + 7])
    if isinstance(value, float):
        return rng.choice([value + 0.5, value * 2, -value])
    if isinstance(value, str):
        return rng.choice(
            [value[::-1], value + value, value[: len(value) // 2], value.swapcase(), "".join(sorted(value))]
        )
    if isinstance(value, list | tuple):
        items = [varied(one, rng) if rng.random() < 0.5 else one for one in value]
        rng.shuffle(items)
        return type(value)(items + items[:1] if rng.random() < 0.3 else items)
    return value


def behaviour_task(task: CodeTask, calls: Sequence[list[Any]]) -> PythonTask | None:
    """Says what a candidate returns for each of the calls."""
    if not calls:
        return None
    tests = tuple(
        NamedTest(name=f"call {at}", code=f"_show(candidate(*{args!r}))") for at, args in enumerate(calls)
    )
    return PythonTask(entry_points=(task.entry_point,), setup=SHOW, tests=tests)


def visible_task(task: CodeTask) -> PythonTask | None:
    """The examples of the problem's text as tests."""
    tests = tuple(NamedTest(name=one.name, code=one.code) for one in task.that_are("visible"))
    if not tests:
        return None
    return PythonTask(entry_points=(task.entry_point,), setup=task.setup, tests=tests, visibility="visible")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a gzip file of JSON lines."""
    with gzip.open(path, "rt") as stream:
        return [json.loads(line) for line in stream]


def samples_of(data: Path, sandbox: Sandbox, cache: Cache, tasks_used: int | None) -> list[list[Sample]]:
    """The samples of each task, judged."""
    problems = {problem.id: problem for problem in read_humaneval(data / "HumanEval.jsonl.gz")}
    checks = {row["task_id"]: row for row in rows_of(data / "HumanEval.jsonl.gz")}
    ids = {row["prompt"]: row["task_id"] for row in rows_of(data / "codet_humaneval_problems.jsonl.gz")}
    jobs: list[tuple[str, PythonTask]] = []
    places: list[tuple[int, int, str]] = []
    texts: list[list[str]] = []
    for number, row in enumerate(rows_of(data / "codet_humaneval_samples.jsonl.gz")[:tasks_used]):
        check = checks[ids[row["prompt"]]]
        task = CodeTask.of(problems[check["task_id"]])
        if task is None:
            raise SystemExit(f"{check['task_id']} has no tests")
        rng = random.Random(check["task_id"])
        shown = calls_of([one.code for one in task.that_are("visible")], task.entry_point)
        calls = [*shown]
        for _ in range(200):
            if len(calls) >= INPUTS or not shown:
                break
            args = [varied(one, rng) for one in rng.choice(shown)]
            if args not in calls:
                calls.append(args)
        judges = {
            "hidden": PythonTask.from_check(task.entry_point, check["test"], prompt=check["prompt"]),
            "visible": visible_task(task),
            "behaviour": behaviour_task(task, calls[:INPUTS]),
            "oracle": behaviour_task(task, calls_of([check["test"]], task.entry_point)[: 2 * INPUTS]),
        }
        texts.append([row["prompt"] + sample for sample in row["samples"]])
        for at, text in enumerate(texts[-1]):
            for kind, judge in judges.items():
                if judge is not None:
                    jobs.append((text, judge))
                    places.append((number, at, kind))
    found: dict[tuple[int, int], dict[str, list[str]]] = defaultdict(dict)
    for (number, at, kind), said in zip(places, cache.outcomes(sandbox, jobs), strict=True):
        found[number, at][kind] = said
    return [
        [
            Sample(
                length=len(text),
                right=found[number, at]["hidden"] == ["passed"],
                examples=found[number, at].get("visible", []).count("passed"),
                behaviour=tuple(found[number, at].get("behaviour", ())),
                oracle=tuple(found[number, at].get("oracle", ())),
            )
            for at, text in enumerate(some)
        ]
        for number, some in enumerate(texts)
    ]


Rule = Callable[[Sequence[Sample]], list[Sample]]
"""Those among which one is drawn."""


def best(samples: Sequence[Sample], score: Callable[[Sample], float]) -> list[Sample]:
    """The samples of the highest score."""
    scores = [score(one) for one in samples]
    return [one for one, value in zip(samples, scores, strict=True) if value == max(scores)]


def by_group(samples: Sequence[Sample], key: Callable[[Sample], tuple[str, ...]]) -> list[Sample]:
    """The samples of the largest groups."""
    sizes = Counter(map(key, samples))
    return best(samples, lambda one: sizes[key(one)])


def agreement(samples: Sequence[Sample]) -> list[Sample]:
    """CodeT's rule."""
    sizes = Counter(one.behaviour for one in samples)
    return best(samples, lambda one: sizes[one.behaviour] ** 0.5 * one.examples)


RULES: dict[str, Rule] = {
    "random": list,
    "shortest": lambda samples: best(samples, lambda one: -one.length),
    "examples": lambda samples: best(samples, lambda one: one.examples),
    "majority": lambda samples: by_group(samples, lambda one: one.behaviour),
    "clean_majority": lambda samples: by_group(
        [one for one in samples if one.clean] or samples, lambda one: one.behaviour
    ),
    "agreement": agreement,
    "examples_majority": lambda samples: by_group(
        best(samples, lambda one: one.examples), lambda one: one.behaviour
    ),
    "oracle_inputs_majority": lambda samples: by_group(samples, lambda one: one.oracle),
    "any": lambda samples: [one for one in samples if one.right] or list(samples),
}


FUSED = "examples_majority"
RIVALS = ("random", "shortest", "examples", "majority", "clean_majority", "agreement")


def accuracy(samples: Sequence[Sample], rule: Rule, n: int, rng: random.Random) -> float:
    """Chance that what the rule draws among ``n`` is right; the mean over subsets."""
    whole = n >= len(samples)
    shares = []
    for _ in range(1 if whole else SUBSETS):
        chosen = rule(samples if whole else rng.sample(list(samples), n))
        shares.append(sum(one.right for one in chosen) / len(chosen))
    return sum(shares) / len(shares)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval, by bootstrap over tasks."""
    draws = np.random.default_rng(0).choice(np.array(values), (2000, len(values))).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.mean(values)), float(low), float(high)


def differing_verdicts(data: Path, sandbox: Sandbox) -> int:
    """Reference solutions whose verdict is not the same in three runs."""
    jobs = [
        (
            row["prompt"] + row["canonical_solution"],
            PythonTask.from_check(row["entry_point"], row["test"], prompt=row["prompt"]),
        )
        for row in rows_of(data / "HumanEval.jsonl.gz")
    ]
    return sum(verdict.flaky for verdict in grade_python(sandbox, jobs, repeats=3))


def first_wrong_lines(data: Path, sandbox: Sandbox, quick: bool) -> list[dict[str, Any]]:
    """Naming the fault of mutants."""
    problems = list(read_humaneval(data / "HumanEval.jsonl.gz"))[: 30 if quick else None]
    items = list(labelled_mutants(problems, sandbox, per_problem=2))
    faults = [[label.value for label in item.labels].index(-1.0) for item in items]
    verifier = open_verifier("execution-trace")
    with verifier if isinstance(verifier, AbstractContextManager) else nullcontext():
        rows = verifier.verify([ProblemTrace(problem=item.problem, trace=item.trace) for item in items])
    named = [next((at for at, verdict in enumerate(row) if verdict.value == -1), None) for row in rows]
    lengths = [[step.end - step.start for step in item.trace.steps] for item in items]
    guesses: dict[str, list[int | None]] = {
        "first_wrong_line_accuracy": named,
        "first_wrong_line_floor_first": [0] * len(items),
        "first_wrong_line_floor_last": [len(some) - 1 for some in lengths],
        "first_wrong_line_floor_longest": [some.index(max(some)) for some in lengths],
    }
    figures = []
    for name, guess in guesses.items():
        by_problem = defaultdict(list)
        for item, one, fault in zip(items, guess, faults, strict=True):
            by_problem[item.problem.id].append(float(one == fault))
        value, low, high = interval([sum(some) / len(some) for some in by_problem.values()])
        figures.append(figure(name, value, f"of {len(items)} mutants", low=low, high=high))
    tasks = [(item.trace.text or "", CodeTask.of(item.problem)) for item in items]
    jobs = [(task.prompt + text, judge) for text, task in tasks if task and (judge := visible_task(task))]
    passed = [verdict.passed is True for verdict in grade_python(sandbox, jobs, limits=LIMITS)]
    return [*figures, figure("visible_false_pass", sum(passed) / len(passed), f"of {len(passed)} mutants")]


def figure(name: str, value: float, unit: str, **more: float | None) -> dict[str, Any]:
    """One line of the output file."""
    between = f" [{more['low']:.3f}, {more['high']:.3f}]" if more.get("low") is not None else ""
    print(
        f"{name}: {value:.3f} {unit}{between}" + (f", ratio {more['ratio']:.2f}" if more.get("ratio") else "")
    )
    return {"name": name, "value": value, "unit": unit, "ratio": None, "low": None, "high": None} | more


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the three files")
    parser.add_argument("--quick", action="store_true", help="16 of the 82 tasks")
    parser.add_argument("--cache", type=Path, help="file in which verdicts are kept for the next run")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"--data: there is no folder {options.data}; get the three files named above")
    with open_sandbox() as sandbox:
        figures = [figure("verdicts_that_differ", differing_verdicts(options.data, sandbox), "of 164")]
        figures += first_wrong_lines(options.data, sandbox, options.quick)
        tasks = samples_of(options.data, sandbox, Cache(options.cache), 16 if options.quick else None)
    pass_at_1 = interval([sum(one.right for one in some) / len(some) for some in tasks])
    pass_at_all = interval([float(any(one.right for one in some)) for some in tasks])
    for name, (value, low, high) in (("pass_at_1", pass_at_1), ("pass_at_100", pass_at_all)):
        figures.append(figure(name, value, "of tasks", low=low, high=high))
    by_task: dict[str, list[float]] = {}
    for name, rule in RULES.items():
        for n in SIZES:
            rng = random.Random(n)
            by_task[name] = [accuracy(some, rule, n, rng) for some in tasks]  # those of the largest N stay
            value, low, high = interval(by_task[name])
            figures.append(figure(f"chosen_{name}_{n}", value, "of tasks", low=low, high=high))
    rival = max(RIVALS, key=lambda name: sum(by_task[name]))
    gains = [100 * (one - other) for one, other in zip(by_task[FUSED], by_task[rival], strict=True)]
    value, low, high = interval(gains)
    figures.append(figure("fused_vs_best_rival_at_100", value, f"points above {rival}", low=low, high=high))
    setting = {"version": __version__, "quick": options.quick, "tasks": len(tasks), "cores": os.cpu_count()}
    if options.json:
        options.json.write_text(
            json.dumps({"figures": figures, "setting": setting | {"machine": platform.machine()}}, indent=2)
        )


if __name__ == "__main__":
    main()
