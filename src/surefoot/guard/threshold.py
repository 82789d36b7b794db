"""A threshold with a bound on the share of good calls that it blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from surefoot.errors import GuardError


def calibrated_threshold(good_scores: Sequence[float], max_false_blocks: float) -> float:
    """The highest threshold below which a good call scores with probability at most ``max_false_blocks``.

    ``good_scores`` are scores of calls known to be good, exchangeable with those to come; none of the calls
    may have been used to train or choose the scorer. The threshold is the one of rank
    floor(``max_false_blocks`` (n + 1)) of the n in order (split conformal prediction; Vovk, Gammerman and
    Shafer 2005).

    Raises ``GuardError`` for too few scores, one that is not finite, or a share outside (0, 1).
    """
    if not 0 < max_false_blocks < 1:
        raise GuardError(f"'max_false_blocks' must lie in (0, 1), not {max_false_blocks}")
    if not all(math.isfinite(score) for score in good_scores):
        raise GuardError("'good_scores' has a score that is not finite; leave out calls without a score")
    rank = math.floor(max_false_blocks * (len(good_scores) + 1) + 1e-9)  # 0.1 * 30 must count as 3
    if rank < 1:
        needed = math.ceil(1 / max_false_blocks) - 1
        raise GuardError(
            f"'good_scores' has {len(good_scores)} scores, and a share of {max_false_blocks:g} needs {needed}"
        )
    return sorted(good_scores)[rank - 1]
