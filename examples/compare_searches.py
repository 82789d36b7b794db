"""Search the lab's problems under the guidance of step scores, count the cost, and print a tree.

Steps come from a scripted solver that gets one line in four wrong, scores from the lab's exact checker with
some noise put on: no model is needed, and the numbers say nothing about models. The solver has no memory:
it reads the problem and the solution so far for each step again, which a model's key-value cache saves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surefoot.answers import AnswerChecker, Grader
from surefoot.io import write_records
from surefoot.lab import Difficulty, NoisySolver, check_steps, generate_problems
from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores, Usage, content_id
from surefoot.search import (
    BeamSearch,
    BestOfNSearch,
    MajoritySearch,
    Rebase,
    SavedTree,
    SearchMethod,
    SearchResult,
    Space,
    draw_text,
    run_search,
    save_tree,
)
from surefoot.stats import bootstrap_mean


@dataclass(frozen=True, kw_only=True)
class NoisyChecker:
    """Scores correct steps near 0.8 and wrong steps near 0.3; equal prefixes get equal scores."""

    name: str = "noisy-checker"

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """One record per trace."""
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=tuple(
                    self._score(item.problem.id + item.trace.prefix(step + 1), verdict.value)
                    for step, verdict in enumerate(check_steps(item.problem, item.trace))
                ),
                usage=Usage(verifier_tokens=len(item.trace.steps), calls=1),
            )
            for item in items
        ]

    def _score(self, prefix: str, verdict: int | None) -> float:
        noise = np.random.default_rng(int(content_id("noise", prefix), 16)).normal(scale=0.1)
        return float(np.clip((0.3 if verdict == -1 else 0.8) + noise, 0.0, 1.0))


SEARCHES: dict[str, SearchMethod] = {
    "majority of 16": MajoritySearch(n=16),
    "best of 16": BestOfNSearch(n=16, rule="best_of_n"),
    "beam 4 x 4": BeamSearch(width=4, expand=4, rule="best_of_n"),
    "REBASE 16": Rebase(n=16),
}

problems = generate_problems(40, seed=2, difficulty=Difficulty(min_operations=6, max_operations=10))
trees: list[SavedTree] = []


def keep(space: Space, result: SearchResult) -> None:
    """Save the tree of a finished beam search."""
    if result.method.startswith("beam"):
        trees.append(save_tree(space, result))


with AnswerChecker("exact") as checker:
    for name, search in SEARCHES.items():
        results = asyncio.run(
            run_search(
                search,
                problems,
                NoisySolver(error_rate=0.25),
                NoisyChecker(),
                grader=Grader(checker=checker, styles=("phrase",)),
                seed=1,
                watch=keep,
            )
        )
        correct = bootstrap_mean([bool(result.outcome) for result in results], rng=np.random.default_rng(0))
        usage = sum((result.usage for result in results), Usage())
        merged = sum(result.counts.merged for result in results)
        print(
            f"{name:15} correct {correct.value:.2f} [{correct.low:.2f}, {correct.high:.2f}]  "
            f"tokens per problem: {usage.completion_tokens / len(problems):4.0f} written, "
            f"{usage.prompt_tokens / len(problems):4.0f} read  {merged} equal steps merged"
        )

smallest = min(trees, key=lambda tree: tree.size)
print(f"\n{draw_text(smallest, width=80)}")
write_records(Path("trees.jsonl"), trees)
print(f"{len(trees)} trees in trees.jsonl")
