"""The table of runs, requests and reports: one filter box, and only columns with data.

A filter is words and terms, such as ``outcome:wrong error:3.. prm<0.2 tool:refund "in quotes"``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response

from surefoot.errors import StoreError, unknown
from surefoot.server.pages.page import Page

Terms = Mapping[str, Collection[str]]
"""Names of terms, and the values that each accepts; empty = any text."""
_TERM: Final = re.compile(r'(?:("[^"]*"|[^\s:<>="]+)(:|[<>]=?))?("[^"]*"|[^\s"]+)')
_RANGE: Final = re.compile(r"(\d{1,6})?(\.\.)?(\d{1,6})?")
_ADDRESS: Final = {
    "text", "problem", "page", "before", "at", "id", "step", "edit", "decision_id", "report", "disagreement",
}  # fmt: skip
"""Parameters of the addresses of lists, and of runs that are opened from them."""
COLUMNS: Final[Mapping[str, str]] = {
    "outcome": "Outcome", "title": "Task", "steps": "Steps", "first_error": "First error",
    "lowest": "Lowest score", "verdicts": "Verdicts", "tokens": "Tokens", "latency_ms": "Time",
    "policy": "Model", "created": "When",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The parsed text of a filter box."""

    text: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)
    words: str = ""
    scorer: str | None = None
    """The scorer whose lowest score is bounded."""
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, page: Page, terms: Terms, scorers: Collection[str] = ()) -> Filter:
        """The filter of an address or form, its ``text``. Raises ``StoreError`` with the valid choices."""
        text = page.form.optional("text", most=1000) or ""
        for name in page.request.query_params.keys() - _ADDRESS:
            raise StoreError(f"unknown parameter {name!r}; write the filter as text={name}:…")
        if text.count('"') % 2:
            raise StoreError(f"the closing quotation mark is missing in {text}")
        read, words, bounds = dict[str, str](), list[str](), dict[str, Any]()
        for raw, sign, quoted in _TERM.findall(text):
            name, value = raw.strip('"'), quoted.strip('"')
            if not sign and quoted[0] in "<>:":
                raise StoreError(f"remove the spaces around {quoted!r}, as in prm<0.2")
            if not sign:
                words.append(value)
            elif sign != ":":
                if name not in scorers or bounds.get("scorer", name) != name:
                    raise StoreError(unknown("scorer", name, scorers or ("none: no scores are stored",)))
                bounds |= {"scorer": name, "high" if sign[0] == "<" else "low": _number(value)}
            elif name not in terms:
                raise StoreError(f"{unknown('filter', name, terms)}; put words into quotes")
            elif terms[name] and value not in terms[name]:
                raise StoreError(unknown(name, value, terms[name]))
            else:
                read[name] = value
        return cls(text=text, terms=read, words=" ".join(words), **bounds)

    def steps(self, name: str) -> tuple[int, int | None] | None:
        """A term as steps counted from 0: ``3``, ``3..``, ``3..5`` or ``any``; ``None`` without it."""
        text = self.terms.get(name, "none")
        if text in ("none", "any"):
            return None if text == "none" else (0, None)
        match = _RANGE.fullmatch(text)
        if match is None or not text.strip("."):
            raise StoreError(f"'{name}' must be a step, such as 3, 3.., 3..5, any or none, not {text!r}")
        low, dots, high = match.groups()
        return max(0, int(low or 1) - 1), (int(high) - 1 if high else None) if dots else int(low) - 1

    def with_term(self, name: str, value: str | None) -> str:
        """The text with another value of a term, or without it."""
        parts = [part[0] for part in _TERM.finditer(self.text) if (part[1] or "").strip('"') != name]
        quoted = f'"{value}"' if value and re.search(r"[\s<>:]", value) else value
        return " ".join([*parts, *([] if value is None else [f"{name}:{quoted}"])])


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise StoreError(f"compare a score with a number, not {text!r}")
    return value


def show_list(
    page: Page, name: str, rows: Sequence[Mapping[str, Any]], data: Mapping[str, Any], **extra: Any
) -> Response:
    """The page of a list, or its JSON twin with the rows under ``name``.

    ``data`` may have the ``total`` of a list with numbered pages, or the address of the ``next`` one. A page
    past the end is answered with 404.
    """
    number = max(1, page.query.natural("page", default=1))
    around: dict[str, str | None] = {"previous": None, "next": None}
    past = not rows and bool(page.query.id("before"))
    if "total" in data:
        pages = max(1, -(-data["total"] // page.settings.rows))
        past = number > pages
        around = {
            "previous": page.link(page=number - 1) if number > 1 else None,
            "next": page.link(page=number + 1) if number < pages else None,
        }
        data = {"page": number, "pages": pages, **data}
    content = {"filter": page.form.optional("text") or "", "past": past, "live": False, **around, **data}
    columns = {
        key: words
        for key, words in COLUMNS.items()
        if any(row.get("outcome_word" if key == "outcome" else key) not in (None, "") for row in rows)
    }
    return page.show(
        "list.html", {**content, name: rows}, status=404 if past else 200, name=name, columns=columns, **extra
    )
