"""Area under the ROC curve, pooled or within groups, from ranks.

``None`` or NaN means "not known" and is never read as a low score.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.errors import LabelError
from surefoot.stats.bootstrap import group_numbers


def auc_by_problem(scores: ArrayLike, labels: ArrayLike, problems: Sequence[Hashable]) -> NDArray[np.float64]:
    """One value per problem, in the order of their first items, whose mean is the AUC over all steps pooled.

    A mean over problems has the intervals, also paired ones, of the other functions. A problem's value is the
    AUC plus its influence on it (Obuchowski 1997, eq. 4). ``scores`` and ``labels`` have shape [steps]; a
    label of 1 is good. NaN if a class is absent or a score is unknown.
    """
    score, good = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float) == 1
    problem = group_numbers(problems)
    count = int(problem.max(initial=-1)) + 1
    above_bad = _share_below(score[good], score[~good])
    below_good = 1 - _share_below(score[~good], score[good])
    if np.isnan(score).any() or not (len(above_bad) and len(below_good)):
        return np.full(count, math.nan)
    area, influence = above_bad.mean(), np.zeros(count)
    np.add.at(influence, problem[good], (above_bad - area) / len(above_bad))
    np.add.at(influence, problem[~good], (below_good - area) / len(below_good))
    return np.asarray(area + count * influence)


def _share_below(scores: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each score the share of the others below it; a tie counts one half."""
    ordered = np.sort(others)
    low, high = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    return (low + high) / max(2 * len(others), 1)


def roc_auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Area under the ROC curve over all steps pooled; both arguments have shape [steps].

    It is the share of (good, bad) pairs in which the good step scores higher; a tie counts one half; NaN
    without pairs. A label of +1 is good; anything else (0, -1) is bad; ``None`` or NaN is unknown and
    dropped. Raises ``LabelError`` if the lengths differ.
    """
    return roc_auc_within(scores, labels, np.zeros(np.shape(scores)[0], dtype=int))


def roc_auc_within(scores: ArrayLike, labels: ArrayLike, groups: Sequence[Hashable] | NDArray[Any]) -> float:
    """AUC from the pairs inside one group only, over all groups; all arguments have shape [steps].

    Grouping by step position takes away what position alone predicts; grouping by problem, what difficulty
    predicts. Groups count by their pairs; one with a single class has none. Labels as in ``roc_auc``.
    """
    score, label = np.asarray(scores, dtype=float), np.asarray(labels, dtype=float)
    group = group_numbers(groups)
    if not len(score) == len(label) == len(group):
        raise LabelError(
            f"'scores', 'labels', 'groups' have lengths {len(score)}, {len(label)}, {len(group)}"
        )
    usable = ~(np.isnan(score) | np.isnan(label))
    score, group, good = score[usable], group[usable], label[usable] == 1
    _, rank = np.unique(score, return_inverse=True)
    bad = np.sort((group * len(score) + rank)[~good])  # in order of the group, then of the score
    first = group[good] * len(score)
    start, stop = np.searchsorted(bad, first), np.searchsorted(bad, first + len(score))
    low, high = (np.searchsorted(bad, first + rank[good], side) for side in ("left", "right"))
    pairs = int((stop - start).sum())
    return float((low + high - 2 * start).sum()) / (2 * pairs) if pairs else math.nan
