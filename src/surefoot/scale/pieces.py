"""Items cut into numbered pieces: what one process does at a time, and what is saved when it is done."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any, Generic, TypeVar

from surefoot.io.joins import Joined

T = TypeVar("T")


class Pieces(Generic[T]):
    """``items`` in pieces of ``size``; with ``by_problem``, of as many stretches of one problem's neighbours.

    A piece is read when it is asked for. Where the items are on disk, what is pickled is their paths.
    """

    def __init__(self, items: Sequence[T], size: int, *, by_problem: bool = False) -> None:
        self.items = items
        if not by_problem:
            last = -len(items) // size * -size  # the first multiple of the size that holds them all
            self._ends: Sequence[int] = range(size, last + size, size)
            return
        ends = accumulate(sum(1 for _ in stretch) for _, stretch in groupby(_problem_ids(items)))
        self._ends = array("Q", (end for number, end in enumerate(ends, 1) if number % size == 0))
        if not self._ends or self._ends[-1] < len(items):
            self._ends.append(len(items))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> Sequence[T]:
        return self.items[self._start(number) : self._ends[number]]

    def length(self, number: int) -> int:
        """Items of a piece."""
        return min(self._ends[number], len(self.items)) - self._start(number)

    def _start(self, number: int) -> int:
        return self._ends[number - 1] if number else 0


def _problem_ids(items: Sequence[Any]) -> Iterator[str]:
    return items.problem_ids() if isinstance(items, Joined) else (item.problem.id for item in items)
