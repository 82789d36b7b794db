"""Area under the ROC curve, pooled or within groups, from ranks.

``None`` or NaN means "not known" and is never read as a low score.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.errors import LabelError
from surefoot.stats.groups import group_numbers


@dataclass(frozen=True, kw_only=True)
class Auc:
    """Share of (good, bad) pairs in which the good step has the higher score; a tie counts one half."""

    value: float
    """In [0, 1]; NaN if there is no pair."""
    pairs: int
    positives: int
    negatives: int
    dropped: int
    """Steps left out because the score or the label is unknown."""


def roc_auc(scores: ArrayLike, labels: ArrayLike) -> Auc:
    """Area under the ROC curve over all steps pooled; both arguments have shape [steps].

    A label of +1 is good; anything else (0, -1) is bad; ``None`` or NaN is unknown and dropped. Raises
    ``LabelError`` if the lengths differ.
    """
    return roc_auc_within(scores, labels, np.zeros(np.shape(scores)[0], dtype=int))


def roc_auc_within(scores: ArrayLike, labels: ArrayLike, groups: Sequence[Hashable] | NDArray[Any]) -> Auc:
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
    positives = np.bincount(group[good], minlength=1).astype(float)
    negatives = np.bincount(group[~good], minlength=len(positives)).astype(float)
    positives = np.pad(positives, (0, len(negatives) - len(positives)))
    pairs = float(positives @ negatives)
    # a group of one class adds nothing: its rank sum is the least possible one, or zero
    concordant = float(_rank_sum(score, group, good) - (positives * (positives + 1) / 2).sum())
    return Auc(
        value=concordant / pairs if pairs else math.nan,
        pairs=int(pairs),
        positives=int(positives.sum()),
        negatives=int(negatives.sum()),
        dropped=int((~usable).sum()),
    )


def _rank_sum(score: NDArray[np.float64], group: NDArray[np.intp], good: NDArray[np.bool_]) -> float:
    """Sum over good steps of their rank (from 1, ties averaged) inside their group."""
    if not len(score):
        return 0.0
    order = np.lexsort((score, group))
    score, group, good = score[order], group[order], good[order]
    new_group = np.r_[True, group[1:] != group[:-1]]
    new_block = new_group | np.r_[True, score[1:] != score[:-1]]
    starts = np.flatnonzero(new_block)
    stops = np.r_[starts[1:], len(score)]
    group_start = np.maximum.accumulate(np.where(new_group, np.arange(len(score)), 0))[starts]
    rank = (starts + stops + 1) / 2 - group_start
    return float(rank @ np.add.reduceat(good.astype(float), starts))
