"""What an edit is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from surefoot.evaluation.audits.pieces import Edited
from surefoot.records import Trace

Kind = Literal["breaks", "style"]
"""breaks: the logic is broken, the score must fall; style: nothing is said that was not, it must not move."""


class Edit(Protocol):
    """One kind of edit."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    def places(self, trace: Trace) -> Sequence[int]:
        """Steps of a text trace where the edit can be made; none if it does not apply."""
        ...

    def at(self, trace: Trace, place: int) -> Edited:
        """The edit made at one of ``places``."""
        ...


def edited(edit: Edit, trace: Trace, rng: np.random.Generator) -> Edited | None:
    """``edit`` made at a place drawn with ``rng``; ``None`` if it does not apply (always so for chats)."""
    places = edit.places(trace) if trace.text is not None else ()
    return edit.at(trace, int(rng.choice(places))) if len(places) else None
