"""From matrix cells to the array that ``surefoot.stats.agreement`` takes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from surefoot.annotation.database.annotation import MatrixCell


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """Ratings [raters, units]; NaN where a rater gave a unit no value."""

    raters: tuple[str, ...]
    """Pseudonyms, sorted."""
    units: tuple[tuple[int, str, int], ...]
    """(item, trace, step), sorted."""
    matrix: tuple[tuple[float, ...], ...]
    unknown: int
    """Labels without a value ("cannot tell"), which are NaN in the matrix."""


def ratings(cells: Iterable[MatrixCell]) -> Ratings:
    """The array of ``cells``; for one annotator, position or item role, filter the cells first."""
    given = {((c.item_id, c.trace_id, c.step), c.annotator): c.value for c in cells}
    units = sorted({unit for unit, _ in given})
    raters = sorted({rater for _, rater in given})
    values = [[given.get((unit, rater)) for unit in units] for rater in raters]
    return Ratings(
        raters=tuple(raters),
        units=tuple(units),
        matrix=tuple(tuple(math.nan if v is None else float(v) for v in row) for row in values),
        unknown=sum(value is None for value in given.values()),
    )
