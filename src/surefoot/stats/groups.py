"""Groups, such as the problems that steps belong to, as numbers from 0 in the order of their first item."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def group_numbers(groups: Sequence[Hashable] | NDArray[np.generic]) -> NDArray[np.intp]:
    """[items] → [items]: the number of each item's group. An array makes no Python object for each item."""
    if isinstance(groups, np.ndarray):
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.intp)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[inverse]
    index: dict[Hashable, int] = {}
    return np.array([index.setdefault(group, len(index)) for group in groups], dtype=np.intp)
