"""Searches as text: ``METHOD:setting=value,…``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import ValidationError

from surefoot.errors import RunError
from surefoot.search.beam import DVTS, BeamSearch
from surefoot.search.best_of_n_search import BestOfNSearch
from surefoot.search.mcts import MCTS
from surefoot.search.method import Search, SearchMethod
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.revise import Revise

SEARCHES: Mapping[str, type[SearchMethod]] = MappingProxyType(
    {
        "best_of_n": BestOfNSearch,
        "beam": BeamSearch,
        "dvts": DVTS,
        "rebase": Rebase,
        "particle": ParticleFilter,
        "mcts": MCTS,
        "resample": StepResampling,
        "revise": Revise,
    }
)
"""Searches by the name of the command line and the reports; all work with their defaults."""


def search_of(text: str) -> Search:
    """The search that ``METHOD`` or ``METHOD:setting=value,…`` describes; the text becomes its name.

    Raises ``RunError`` for an unknown method or setting, or an invalid value.
    """
    name, _, options = text.partition(":")
    kinds = {key.replace("_", "-"): kind for key, kind in SEARCHES.items()}
    alias = {"rule": "majority"} if name == "majority" else {}
    kind = kinds.get("best-of-n" if alias else name.replace("_", "-"))
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
        search: Search = kind.model_validate({**alias, **settings, "name": text})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise RunError(f"{text!r}: {where + ': ' if where else ''}{message}") from error
    return search
