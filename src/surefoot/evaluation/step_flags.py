"""PRMBench's metric (Song et al., arXiv 2501.03124): steps kept or flagged, against steps valid or wrong.

The positive class is the valid step: TP valid and kept, FN valid but flagged, FP wrong but kept, TN wrong and
flagged. PRMScore = 0.5 F1 + 0.5 F1_neg, where F1_neg is the F1 of the wrong steps. Guards: F1 = 2 TP /
(2 TP + FP + FN), which is 0 without a hit and NaN for 0/0 (no such step, and none said to be); the published
script has −1 for an undefined precision or recall, which can get into its F1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError

FloatArray = NDArray[np.float64]

TP, FP, FN, TN = range(4)
"""Columns of the counts."""


def count_flags(kept: Sequence[bool | None], good: Sequence[bool]) -> list[int]:
    """TP, FP, FN and TN of a trace's steps; both have shape [steps], a step of ``None`` is not counted.

    Raises ``LabelError`` if the lengths differ.
    """
    if len(kept) != len(good):
        raise LabelError(f"'kept' has {len(kept)} steps and 'good' has {len(good)}")
    counts = [0, 0, 0, 0]
    for said, true in zip(kept, good, strict=True):
        if said is not None:
            counts[(TP if true else FP) if said else (FN if true else TN)] += 1
    return counts


def f1(counts: FloatArray) -> FloatArray:
    """F1 of the valid steps; ``counts`` is [..., 4], the result [...]."""
    return _f1(counts[..., TP], counts[..., FP] + counts[..., FN])


def f1_negative(counts: FloatArray) -> FloatArray:
    """F1 of the wrong steps; ``counts`` is [..., 4], the result [...]."""
    return _f1(counts[..., TN], counts[..., FP] + counts[..., FN])


def prm_score(counts: FloatArray) -> FloatArray:
    """0.5 F1 + 0.5 F1_neg; ``counts`` is [..., 4], the result [...]."""
    return (f1(counts) + f1_negative(counts)) / 2


def best_flag_threshold(scores: Sequence[float], good: Sequence[bool]) -> float:
    """The threshold with the highest PRMScore, a step being kept if its score is above it; [steps] both.

    Cuts lie midway between neighbouring distinct scores; among equals the lowest wins. O(steps log steps).
    Raises ``LabelError`` if lengths differ or a class (valid, wrong) is absent: the score is then undefined
    or 0 at every cut.
    """
    if len(scores) != len(good):
        raise LabelError(f"'scores' has {len(scores)} steps and 'good' has {len(good)}")
    valid = np.array(good, dtype=bool)
    if not valid.any() or valid.all():
        raise LabelError("a threshold needs both valid and wrong steps")
    distinct, place = np.unique(np.array(scores, dtype=float), return_inverse=True)
    # flagged at cut j: the j lowest distinct scores
    flagged_good = np.r_[0, np.bincount(place[valid], minlength=len(distinct)).cumsum()]
    flagged_bad = np.r_[0, np.bincount(place[~valid], minlength=len(distinct)).cumsum()]
    counts = np.empty((len(distinct) + 1, 4))
    counts[:, TP], counts[:, FN] = valid.sum() - flagged_good, flagged_good
    counts[:, FP], counts[:, TN] = (~valid).sum() - flagged_bad, flagged_bad
    found = prm_score(counts)
    cut = int(np.flatnonzero(found >= np.nanmax(found) - 1e-12)[0])
    if cut == 0:
        return math.nextafter(float(distinct[0]), -math.inf)
    if cut == len(distinct):
        return float(distinct[-1])
    below, above = float(distinct[cut - 1]), float(distinct[cut])
    middle = below / 2 + above / 2
    return middle if below <= middle < above else below


def _f1(hits: FloatArray, misses: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):  # 0/0 is NaN here, and means it
        result: FloatArray = 2 * hits / (2 * hits + misses)
    return result
