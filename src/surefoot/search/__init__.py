"""Choosing among solutions: selection rules, and unbiased estimates of how well they do with k samples."""

from surefoot.search.estimators import Pool, best_of_n, pass_at_k, selection_curve, vote_at_k
from surefoot.search.selection import SELECTORS, BestOfN, Majority, WeightedVote

__all__ = [
    "SELECTORS",
    "BestOfN",
    "Majority",
    "Pool",
    "WeightedVote",
    "best_of_n",
    "pass_at_k",
    "selection_curve",
    "vote_at_k",
]
