"""Choose among stored solutions, and estimate how each way of choosing does with k samples.

Nothing is sampled here: the pools are made from random numbers, so the numbers say nothing about models.
"""

from __future__ import annotations

import numpy as np

from surefoot.protocols import Candidate
from surefoot.scores import AGGREGATORS, aggregate
from surefoot.search import SELECTORS, Pool, selection_curve
from surefoot.stats import bootstrap_mean

# One trace, four numbers: name the rule, for the rules do not agree.
step_scores = [0.9, 0.4, 0.8]
for how in AGGREGATORS:
    print(f"{how:8} of {step_scores}: {aggregate(step_scores, how):.3f}")

# One problem: the majority is for "5", the best score is on a "4".
candidates = [
    Candidate(answer="5", score=0.30),
    Candidate(answer="5", score=0.20),
    Candidate(answer="4", score=0.90),
    Candidate(answer=None, score=0.10),
]
for name, selector in SELECTORS.items():
    chosen = selector.select(candidates)
    print(f"{name:13} chooses candidate {chosen}, answer {candidates[chosen].answer}")


def made_up_pool(rng: np.random.Generator, samples: int = 16) -> Pool:
    """A problem of random difficulty, and a scorer that is right more often than not."""
    correct = rng.random(samples) < rng.beta(1, 2)
    scores = np.clip(0.5 + 0.15 * correct + 0.2 * rng.standard_normal(samples), 0, 1)
    wrong = rng.integers(0, 4, samples)
    answers = ["right" if good else f"wrong {w}" for good, w in zip(correct, wrong, strict=True)]
    return Pool(answers=answers, correct=correct.tolist(), scores=scores.tolist())


rng = np.random.default_rng(0)
pools = [made_up_pool(rng) for _ in range(200)]
sizes = [1, 2, 4, 8, 16]
# The same seed for each method: the same subsets, so that differences are less noisy than the values.
methods = ("pass", "best_of_n", "weighted_vote", "majority")
curves = {name: selection_curve(pools, name, sizes, rng=np.random.default_rng(1)) for name in methods}

print(f"\naccuracy with 95 % intervals over {len(pools)} problems")
for name, curve in curves.items():
    cells = []
    for column, size in enumerate(sizes):
        e = bootstrap_mean(curve[:, column], rng=np.random.default_rng(2))
        cells.append(f"k={size}: {e.value:.3f} [{e.low:.3f}, {e.high:.3f}]")
    print(f"{name:13} {'  '.join(cells)}")

gap = bootstrap_mean(curves["best_of_n"][:, -1] - curves["majority"][:, -1], rng=np.random.default_rng(2))
print(f"best of 16 less majority of 16, paired: {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]")
