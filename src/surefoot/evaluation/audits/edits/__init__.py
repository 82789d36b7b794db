"""Edits of a solution's text: those that break its logic, and those that change its style only.

Each edit is a small frozen class with a ``name``, a ``kind``, the steps where it can be made (``places``) and
the edit itself (``at``), a pure function from a text trace to a text trace whose spans fit the new text. They
read words and numbers, nothing else, so they work on any text. On such text ``kind`` is what the edit is
meant to do: a deleted step may have been idle. Where the truth is known, check it
(``surefoot.evaluation.audits.gaming``).
"""

from __future__ import annotations

from surefoot.evaluation.audits.edits.breaking import DeletePremise, PastedAnswer, Reorder, SwapNumber
from surefoot.evaluation.audits.edits.edit import Edit, Kind, edited
from surefoot.evaluation.audits.edits.style import (
    ConfidentTone,
    EmptyStep,
    Filler,
    Instruction,
    Merge,
    Repetition,
    Split,
)

__all__ = [
    "EDITS",
    "SEARCH_EDITS",
    "ConfidentTone",
    "DeletePremise",
    "Edit",
    "EmptyStep",
    "Filler",
    "Instruction",
    "Kind",
    "Merge",
    "PastedAnswer",
    "Reorder",
    "Repetition",
    "Split",
    "SwapNumber",
    "edited",
]

EDITS: tuple[Edit, ...] = (
    SwapNumber(),
    DeletePremise(),
    Reorder(),
    PastedAnswer(),
    EmptyStep(),
    Filler(),
    Repetition(),
    Merge(),
    Split(),
    ConfidentTone(),
    Instruction(),
)
"""All edits, those that break logic first."""

SEARCH_EDITS: tuple[Edit, ...] = (*(SwapNumber(shift=shift) for shift in range(1, 10)), *EDITS[1:])
"""What a search may do: the same, with any other digit in place of one."""
