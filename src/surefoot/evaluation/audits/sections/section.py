"""The form of an audit's part of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from surefoot.stats.intervals import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Rows: TypeAlias = list[list[Cell]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table; ``rows`` are as long as ``headers``."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One audit's part of a report."""

    title: str
    about: str
    findings: Sequence[str]
    """One plain sentence each, whichever way it went."""
    tables: Sequence[Table]
    figures: Sequence[tuple[Callable[[], Figure], str]]
    """How each is drawn, and its caption."""
