"""Searches as words (``beam:width=8,expand=2``), and the plan that names one for each difficulty."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from surefoot.cli._shared import settings_file
from surefoot.errors import RunError
from surefoot.search import SEARCHES, ComputeOptimal, OptimalFit, Probe, Search
from surefoot.search.method import SearchMethod
from surefoot.search.optimal import Measure
from surefoot.search.selection import Rule


class Cell(BaseModel):
    """How a search did on the development problems of one bin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accuracy: float | None
    """``None`` = no outcome is known."""
    tokens: float
    problems: int


class Plan(BaseModel):
    """Which search for which predicted difficulty, as a file; see ``ComputeOptimal``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    edges: tuple[float, ...]
    searches: tuple[str, ...]
    """One a bin, from the easiest; written as :func:`search_of` reads them."""
    probe: int = 4
    measure: Measure = "score"
    rule: Rule = "weighted_vote"
    bins: tuple[Mapping[str, Cell], ...] = ()
    """What the choice rests on; not needed to search."""
    unknown: int = 0
    """Development problems whose difficulty could not be told."""

    @classmethod
    def of(cls, fit: OptimalFit) -> Plan:
        """A fitted choice, whose searches are named by their words."""
        return cls(
            edges=fit.search.edges,
            searches=tuple(search.name for search in fit.search.searches),
            probe=fit.search.probe.n,
            measure=fit.search.probe.measure,
            rule=fit.search.rule,
            bins=tuple(
                {
                    name: Cell(
                        accuracy=showing.accuracy if showing.problems else None,
                        tokens=showing.tokens,
                        problems=showing.problems,
                    )
                    for name, showing in row.items()
                }
                for row in fit.bins
            ),
            unknown=fit.unknown,
        )

    def search(self) -> ComputeOptimal:
        """The search that follows the plan. Raises ``RunError`` for words, ``ValueError`` for numbers."""
        return ComputeOptimal(
            edges=self.edges,
            searches=tuple(search_of(words) for words in self.searches),
            probe=Probe(n=self.probe, measure=self.measure),
            rule=self.rule,
        )


def read_plan(path: str) -> Plan:
    """A plan from its JSON file. Raises ``RunError`` for a file that is none."""
    return settings_file("--plan", path, Plan)


def search_of(words: str) -> Search:
    """A search from ``METHOD`` or ``METHOD:setting=value,…``; the words are its name.

    Raises ``RunError`` for an unknown method or setting, or a value that makes no search.
    """
    name, _, rest = words.partition(":")
    kinds = {key.replace("_", "-"): kind for key, kind in SEARCHES.items() if kind is not ComputeOptimal}
    kind = kinds.get(name.replace("_", "-"))
    if kind is None:
        raise RunError(f"{words!r}: there is no search {name!r}; choose from {', '.join(kinds)}")
    settings = dict(part.partition("=")[::2] for part in rest.split(",")) if rest else {}
    own = [setting for setting in kind.model_fields if setting not in SearchMethod.model_fields]
    known = [*own, "rule"]
    for setting in settings:
        if setting not in known:
            raise RunError(f"{words!r}: {name} has no setting {setting!r}; choose from {', '.join(known)}")
    try:
        search: Search = kind.model_validate({**settings, "name": words})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise RunError(f"{words!r}: {where + ': ' if where else ''}{said}") from error
    return search
