"""Rows of figures with intervals over problems, which benchmarks and audits have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.stats.bootstrap import Bootstrap, FloatArray, group_sums


class Measured(dict[str, Any]):
    """The figures of a row by name: ``row.f1`` is ``row["f1"]``; ``row["values"]`` is read by its key alone.

    Texts that come first name the row in tables. A figure may be a row, rows by group, or a list of rows.
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"no figure is called {name!r}; there are {', '.join(self)}")


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Ratios of counts of items, which make one row."""

    names: Sequence[str]
    of: Callable[[FloatArray], Any]
    """From totals [n, strata, C] to one array [n] for each name; 0/0 is NaN."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Columns whose sums are figures, too."""

    def row(
        self, bootstrap: Bootstrap, counts: ArrayLike, problems: ArrayLike, strata: ArrayLike | None = None
    ) -> Measured:
        """The row of items with ``counts`` [items, C]; ``problems`` and ``strata`` have shape [items].

        Problems are resampled within each stratum. Raises ``ValueError`` without items.
        """
        numbers, owners = np.asarray(counts, dtype=float), np.asarray(problems)
        groups = np.zeros(len(numbers)) if strata is None else np.asarray(strata)
        parts = [groups == group for group in dict.fromkeys(groups.tolist())]

        def statistics(totals: FloatArray) -> FloatArray:
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.stack(list(self.of(totals)), axis=1)

        rows = bootstrap.totals([group_sums(numbers[part], owners[part]) for part in parts], statistics)
        sums = numbers.sum(axis=0)
        return Measured(
            zip(self.names, rows, strict=True),
            **{name: int(sums[column]) for name, column in self.totals.items()},
        )


def members_by(keys: Sequence[Any]) -> dict[Any, list[int]]:
    """Indices of the items of each key, in the order of their first items."""
    groups: dict[Any, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return groups


def known_mean(values: ArrayLike | Sequence[float | None]) -> float:
    """The mean of ``values`` that are not NaN or ``None``; NaN without any."""
    numbers = np.array(values, dtype=float)
    finite = numbers[~np.isnan(numbers)]
    return float(finite.mean()) if len(finite) else math.nan


def means(
    bootstrap: Bootstrap, problems: Sequence[Hashable], **values: Sequence[float | None] | NDArray[Any]
) -> Measured:
    """The mean over problems of each of ``values`` [items]; ``None`` and NaN are left out."""
    columns = {name: np.array(column, dtype=float) for name, column in values.items()}
    return Measured({name: bootstrap.mean(column, problems) for name, column in columns.items()})
