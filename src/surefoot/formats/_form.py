"""What a row looked like beyond what it means: its further fields, their order, its number among equals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from surefoot.formats._rows import Row
from surefoot.records import content_id

FORM_KEY = "form"
"""Where ``Trace.meta`` notes the form of a row that has not just the usual fields in the usual order."""


def form_note(name: str, row: Row, usual: Sequence[str]) -> dict[str, Any]:
    """Entry for ``Trace.meta``, empty for a row of the ``usual`` form. ``name`` is the format's.

    It holds the names of all fields and the content of those that the reader does not know.
    """
    if row.order == tuple(usual):
        return {}
    return {FORM_KEY: {"format": name, "fields": list(row.order), "extra": dict(row.model_extra or {})}}


def in_form(name: str, row: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """``row`` as it was read: with the fields that ``meta`` notes for this format, in that order.

    Without a note, or with one of another format, ``row`` stays as it is.
    """
    note = meta.get(FORM_KEY)
    if not isinstance(note, dict) or note.get("format") != name:
        return dict(row)
    known = {**note["extra"], **row}
    return {field: known[field] for field in note["fields"] if field in known}


class Samples:
    """Numbers equal solutions of a file, so that each stays a trace of its own, with its own labels."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def number(self, *parts: object) -> int:
        """How often ``parts`` came before: 0 for the first."""
        key = content_id(*parts)
        self._seen[key] += 1
        return self._seen[key] - 1
