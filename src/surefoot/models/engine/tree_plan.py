"""Which keys each token of a tree sees, as intervals, made in time linear in the tokens of a pass.

Depth first, the tokens of a pass are rows 0, 1, 2 …; what a token's descendants are is then an interval of
rows. So a key (a new token, or an ancestor of earlier passes) needs two numbers: the first row that sees it
and the row after the last. A mask is a comparison of rows with these, and is made on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TokenBranch:
    """New tokens of one sequence: those at depths ``start`` to ``stop`` - 1."""

    ids: tuple[int, ...]
    """The whole sequence."""
    path: Slots
    """Slot of each of its tokens, valid up to ``stop``."""
    start: int
    stop: int
    jump: bool
    """Whether its ancestors include tokens that are neither new nor ancestors of the branch before."""


@dataclass(frozen=True, kw_only=True)
class KeyIntervals:
    """The keys of one pass: row q sees key k if ``begin[k] <= q < end[k]``. All of shape [K]."""

    slots: Slots
    begin: NDArray[np.int64]
    """Never falls from one key to the next."""
    end: NDArray[np.int64]
    rows: int

    def of_rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Which keys rows ``first`` to ``last`` - 1 see."""
        behind = int(np.searchsorted(self.begin, last))
        return np.flatnonzero(self.end[:behind] > first)


def key_intervals(branches: Sequence[TokenBranch]) -> KeyIntervals:
    """The keys of a pass over ``branches``, which come depth first."""
    slots: list[Slots] = []
    begin: list[NDArray[np.int64]] = []
    closed: list[tuple[NDArray[np.int64], int]] = []
    path = numbers = np.zeros(
        0, dtype=np.int64
    )  # slots of the tokens that are open, and their numbers as keys
    row = keys = 0
    for branch in branches:
        above = branch.path[: branch.start]
        both = min(len(path), len(above))
        equal = path[:both] == above[:both]
        common = both if equal.all() else int(equal.argmin())
        closed.append((numbers[common:], row))
        fresh, new = above[common:], branch.stop - branch.start
        slots += [fresh, branch.path[branch.start : branch.stop]]
        begin += [np.full(len(fresh), row), np.arange(row, row + new)]
        path = branch.path[: branch.stop]
        numbers = np.concatenate([numbers[:common], np.arange(keys, keys + len(fresh) + new)])
        row, keys = row + new, keys + len(fresh) + new
    end = np.full(keys, row)
    for interval, at in closed:
        end[interval] = at
    return KeyIntervals(slots=np.concatenate(slots), begin=np.concatenate(begin), end=end, rows=row)


def row_blocks(branches: Sequence[TokenBranch], *, size: int, free: float) -> Iterator[tuple[int, int, bool]]:
    """Rows that one call of attention takes: first, last + 1, and whether they are one branch from the root.

    ``size``: most rows of a branch in one. ``free``: masked scores that cost as much as a further call.
    """
    first = rows = above = pieces = 0
    for branch in branches:
        for start in range(branch.start, branch.stop, size) if branch.start else [0]:
            stop = min(branch.stop, start + size) if branch.start else branch.stop
            jump = branch.jump and start == branch.start
            new = stop - start
            unseen = new * (above + rows - start) + rows * new if pieces else 0
            if pieces and (jump or not above or not start or unseen > free):
                yield first, first + rows, not above and pieces == 1
                first, rows, pieces = first + rows, 0, 0
            if not pieces:
                above = start
            rows, pieces = rows + new, pieces + 1
    if pieces:
        yield first, first + rows, not above and pieces == 1
