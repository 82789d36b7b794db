"""Search the lab's problems under the guidance of its reward model, count the cost, and print a tree."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from surefoot import load_prm
from surefoot.answers import AnswerChecker, Grader
from surefoot.io import write_records
from surefoot.lab import POLICY, generate_problems
from surefoot.policies import load_policy
from surefoot.records import Usage
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

SEARCHES: dict[str, SearchMethod] = {
    "majority of 8": MajoritySearch(n=8),
    "best of 8": BestOfNSearch(n=8, rule="best_of_n"),
    "beam 4 x 2": BeamSearch(width=4, expand=2, rule="best_of_n"),
    "REBASE 8": Rebase(n=8),
}

problems = generate_problems(20, seed=2)
policy, prm = load_policy(POLICY), load_prm("lab")
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
                policy,
                prm,
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
