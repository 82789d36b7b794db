"""Searches written as text (``beam:width=8,expand=2``), and the plan that assigns one to each difficulty."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from surefoot.errors import RunError
from surefoot.records import FrozenModel
from surefoot.search.method import Search, SearchMethod
from surefoot.search.optimal import SEARCHES, BinResult, ComputeOptimal, Measure, OptimalFit, Probe
from surefoot.search.selection import Rule


def search_of(text: str) -> Search:
    """The search that ``METHOD`` or ``METHOD:setting=value,…`` describes; the text becomes its name.

    Raises ``RunError`` for an unknown method or setting, or an invalid value.
    """
    name, _, options = text.partition(":")
    kinds = {key.replace("_", "-"): kind for key, kind in SEARCHES.items() if kind is not ComputeOptimal}
    kind = kinds.get(name.replace("_", "-"))
    if kind is None:
        raise RunError(f"{text!r}: unknown search {name!r}; choose from {', '.join(kinds)}")
    settings = dict(part.partition("=")[::2] for part in options.split(",")) if options else {}
    fields = [setting for setting in kind.model_fields if setting not in SearchMethod.model_fields]
    allowed = [*fields, "rule"]
    for setting in settings:
        if setting not in allowed:
            raise RunError(
                f"{text!r}: unknown setting {setting!r} of {name}; choose from {', '.join(allowed)}"
            )
    try:
        search: Search = kind.model_validate({**settings, "name": text})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise RunError(f"{text!r}: {where + ': ' if where else ''}{message}") from error
    return search


class SearchPlan(FrozenModel):
    """A file that assigns a search to each bin of predicted difficulty; see ``ComputeOptimal``."""

    edges: tuple[float, ...]
    searches: tuple[str, ...]
    """One per bin, easiest first, in the syntax of :func:`search_of`."""
    probe: int = 4
    measure: Measure = "score"
    rule: Rule = "weighted_vote"
    bins: tuple[Mapping[str, BinResult], ...] = ()
    """Results behind the choice; not needed to search."""
    unknown: int = 0
    """Development problems whose difficulty could not be predicted."""

    @classmethod
    def of(cls, fit: OptimalFit) -> SearchPlan:
        """The plan of a fitted choice."""
        return cls(
            edges=fit.search.edges,
            searches=tuple(search.name for search in fit.search.searches),
            probe=fit.search.probe.n,
            measure=fit.search.probe.measure,
            rule=fit.search.rule,
            bins=fit.bins,
            unknown=fit.unknown,
        )

    def search(self) -> ComputeOptimal:
        """The search that follows the plan. Raises ``RunError`` or ``ValueError``."""
        return ComputeOptimal(
            edges=self.edges,
            searches=tuple(search_of(text) for text in self.searches),
            probe=Probe(n=self.probe, measure=self.measure),
            rule=self.rule,
        )
