"""Edits that break the logic: the score must fall."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.evaluation.audits.edits.edit import Kind
from surefoot.evaluation.audits.pieces import Edited, Piece, cores, pieces, rebuilt, replaced, visible
from surefoot.records import Trace, content_id

_NUMBER = re.compile(r"(?<![\w.])\d+(?!\w)", re.ASCII)
_ORDINAL = re.compile(r"\s*(?:step\s*)?\d+\s*[.:)](?!\d)", re.ASCII | re.IGNORECASE)
"""The number of a step at its beginning, which says nothing: "Step 3:", "2." """


@dataclass(frozen=True, kw_only=True)
class SwapNumber:
    """Another last digit for the last number of step ``place``, which usually is its result.

    ``shift`` is what is added to the digit, modulo ten; without it, which of the nine others it is depends on
    the trace's id and the place, and on nothing else.
    """

    shift: int | None = None
    name: str = "swapped number"
    kind: Kind = "breaks"

    def places(self, trace: Trace) -> Sequence[int]:
        """Steps with a number other than their own."""
        return [number for number, piece in enumerate(pieces(trace)) if _numbers(piece.text)]

    def at(self, trace: Trace, place: int) -> Edited:
        """Compared with the step itself."""
        text = pieces(trace)[place].text
        last = _numbers(text)[-1].end() - 1
        shift = self.shift or 1 + int(content_id(self.name, trace.id, place), 16) % 9
        digit = (int(text[last]) + shift) % 10
        return replaced(trace, self.name, place, f"{text[:last]}{digit}{text[last + 1 :]}")


def _numbers(text: str) -> list[re.Match[str]]:
    """Numbers of a step, without the one that only counts it."""
    ordinal = _ORDINAL.match(text)
    return list(_NUMBER.finditer(text, ordinal.end() if ordinal else 0))


@dataclass(frozen=True, kw_only=True)
class DeletePremise:
    """Step ``place`` left out."""

    name: str = "deleted premise"
    kind: Kind = "breaks"

    def places(self, trace: Trace) -> Sequence[int]:
        """Every visible step but the last."""
        return [place for place in visible(trace) if place < len(trace.steps) - 1]

    def at(self, trace: Trace, place: int) -> Edited:
        """The step after it is compared with itself."""
        found = pieces(trace)
        del found[place]
        return rebuilt(trace, self.name, found, step=place, was=place + 1)


@dataclass(frozen=True, kw_only=True)
class Reorder:
    """Steps ``place`` and ``place + 1`` in each other's place; white space at their ends stays."""

    name: str = "reordered steps"
    kind: Kind = "breaks"

    def places(self, trace: Trace) -> Sequence[int]:
        """Visible neighbours that differ, the last step excepted."""
        texts = [cores(piece.text)[1] for piece in pieces(trace)]
        return [n for n in range(len(texts) - 2) if "" != texts[n] != texts[n + 1] != ""]

    def at(self, trace: Trace, place: int) -> Edited:
        """What now comes first is compared with itself."""
        found = pieces(trace)
        (a, first, b), (c, second, d) = (cores(piece.text) for piece in found[place : place + 2])
        found[place] = Piece(text=a + second + b, gap=found[place].gap)
        found[place + 1] = Piece(text=c + first + d, gap=found[place + 1].gap)
        return rebuilt(trace, self.name, found, step=place, was=place + 1)


@dataclass(frozen=True, kw_only=True)
class PastedAnswer:
    """The last step after nonsense: all steps before it have their words in reverse order."""

    name: str = "pasted answer"
    kind: Kind = "breaks"

    def places(self, trace: Trace) -> Sequence[int]:
        """The last step, if reversing changes one before it."""
        return [len(trace.steps) - 1] if any(_reversed(p) != p for p in pieces(trace)[:-1]) else []

    def at(self, trace: Trace, place: int) -> Edited:
        """The last step is compared with itself."""
        *before, last = pieces(trace)
        return rebuilt(trace, self.name, [*map(_reversed, before), last], step=place, was=place)


def _reversed(piece: Piece) -> Piece:
    before, core, after = cores(piece.text)
    words = " ".join(reversed(core.split()))
    return piece if words == core else Piece(text=before + words + after, gap=piece.gap)
