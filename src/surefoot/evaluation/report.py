"""A report as one self-contained HTML file: no network, no script, equal bytes for equal input.

A measure is declared once, as the field of a result: its name is the key in the JSON file and the header of
the column on the page and in the terminal.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from html import escape
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from pydantic import BaseModel

from surefoot.io.atomic import atomic_file
from surefoot.stats.intervals import Cell, format_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --rule: #d0d7de; --soft: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --rule: #30363d; --soft: #9198a1; }
}
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption, figcaption { color: var(--soft); text-align: left; padding: .4rem 0; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--rule); text-align: left; }
th.number, td.number { text-align: right; }
figure { margin: 1.5rem 0; }
figure svg { max-width: 100%; height: auto; background: #ffffff; border-radius: .3rem; }
"""


T = TypeVar("T")
Column: TypeAlias = str | Callable[[T], Cell]
Columns: TypeAlias = Mapping[str, Column[T]] | Sequence[str]
"""Header → attribute (``"counts.used"``) or function; or attributes alone, whose names are the headers."""

PRINTED_ROWS = 60
"""Rows of a section's table that a command prints; the page has all of them."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table; rows are as long as ``headers``, floats and intervals are formatted with ``spec``."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    spec: str = ".4g"

    @classmethod
    def of(cls, caption: str, items: Iterable[T], columns: Columns[T], *, spec: str = ".4g") -> Self:
        """One row per item."""
        if not isinstance(columns, Mapping):
            columns = {_header(path): path for path in columns}
        cells = [attrgetter(column) if isinstance(column, str) else column for column in columns.values()]
        rows = [[cell(item) for cell in cells] for item in items]
        return cls(caption=caption, headers=list(columns), rows=rows, spec=spec)


def _header(path: str) -> str:
    words = path.rsplit(".", 1)[-1].split("_")
    return " ".join(word.upper() if word in {"auc", "ece", "f1"} else word for word in words)


Row = SimpleNamespace
"""An item of :meth:`Table.of` that combines values and results, such as ``Row(source=…, part=…)``."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report, for the page and for the terminal."""

    title: str
    about: str
    findings: Sequence[str]
    """One plain sentence each, whether the result is good or bad."""
    tables: Sequence[Table]
    figures: Sequence[tuple[Callable[[], Figure], str]]
    """A function that makes the figure, and its caption."""


class Report:
    """Collects parts in order and writes them as one page; each call returns the report, for chaining."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._figures = 0
        self.printed: list[str | Table] = []
        """Paragraphs and tables for the terminal; of wide tables the first columns."""

    def heading(self, text: str) -> Self:
        """Start a section."""
        return self._add(f"<h2>{escape(text)}</h2>")

    def text(self, paragraph: str, *, printed: bool = False) -> Self:
        """Add a paragraph of plain text; markup in it is escaped."""
        self.printed += [paragraph] * printed
        return self._add(f"<p>{escape(paragraph)}</p>")

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        caption: str = "",
        *,
        spec: str = ".4g",
        printed: int = 0,
    ) -> Self:
        """Add a table; floats and intervals are formatted with ``spec`` (:func:`surefoot.stats.format_cell`).

        The terminal shows the first ``printed`` columns, or no table if that is 0. Raises ``ValueError`` if a
        row is not as long as ``headers``.
        """
        for number, row in enumerate(rows):
            if len(row) != len(headers):
                raise ValueError(f"rows[{number}] has {len(row)} cells, but there are {len(headers)} headers")
        if printed:
            short = [row[:printed] for row in rows]
            self.printed.append(Table(caption=caption, headers=headers[:printed], rows=short, spec=spec))
        numeric = [_is_numeric([row[column] for row in rows]) for column in range(len(headers))]
        head = "".join(
            _cell("th", header, right, spec) for header, right in zip(headers, numeric, strict=True)
        )
        body = "\n".join(
            "<tr>"
            + "".join(_cell("td", cell, right, spec) for cell, right in zip(row, numeric, strict=True))
            + "</tr>"
            for row in rows
        )
        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        rows_html = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
        return self._add(f'<div class="scroll"><table>{title}{rows_html}</table></div>')

    def records(
        self,
        caption: str,
        items: Iterable[T],
        columns: Columns[T],
        *,
        spec: str = ".4g",
        printed: int = 0,
    ) -> Self:
        """Add a table with one row per item, as :meth:`Table.of` does."""
        table = Table.of(caption, items, columns, spec=spec)
        return self.table(table.headers, table.rows, table.caption, spec=spec, printed=printed)

    def figure(self, figure: Figure, caption: str) -> Self:
        """Add a matplotlib figure as inline SVG; ``caption`` is also what a screen reader says."""
        self._figures += 1
        svg = _svg(figure, prefix=f"f{self._figures}-", label=caption)
        return self._add(f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption></figure>")

    def section(self, section: Section) -> Self:
        """Add a section; the terminal gets its findings and the tables without multi-line cells."""
        self.heading(section.title).text(section.about)
        for finding in section.findings:
            self.text(finding)
        for draw, caption in section.figures:
            self.figure(draw(), caption)
        self.printed.append(f"\n{section.title}")
        for table in section.tables:
            self.table(table.headers, table.rows, table.caption, spec=table.spec)
            if table.rows and not any("\n" in str(cell) for row in table.rows for cell in row):
                self.printed.append(replace(table, rows=table.rows[:PRINTED_ROWS], spec=".3f"))
                if len(table.rows) > PRINTED_ROWS:
                    self.printed.append(f"{len(table.rows) - PRINTED_ROWS} more rows are in the report")
        self.printed += section.findings
        return self

    def html(self) -> str:
        """The whole page."""
        title = escape(self._title)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
            + "\n".join(self._parts)
            + "\n</body>\n</html>\n"
        )

    def write(self, path: Path | str) -> Self:
        """Write the page to ``path``, atomically."""
        with atomic_file(Path(path)) as stream:
            stream.write(self.html().encode("utf-8"))
        return self

    def _add(self, part: str) -> Self:
        self._parts.append(part)
        return self


def _svg(figure: Figure, *, prefix: str, label: str) -> str:
    """The figure as an ``<svg>`` element; ``prefix`` keeps the ids of several figures on a page distinct."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "surefoot", "svg.fonttype": "path"}):
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :].rstrip()
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def _cell(tag: str, value: Cell, numeric: bool, spec: str) -> str:
    kind = ' class="number"' if numeric else ""
    return f"<{tag}{kind}>{escape(format_cell(value, spec))}</{tag}>"


def _is_numeric(cells: Sequence[Cell]) -> bool:
    values = [cell for cell in cells if cell is not None]
    return bool(values) and not any(isinstance(cell, str) for cell in values)


class JSONResult:
    """Base of the data classes of results that commands write to a file."""

    def to_json(self) -> dict[str, Any]:
        """Every number as plain JSON; an undefined one (NaN) is ``null``."""
        data: dict[str, Any] = to_json(self)
        return data


def to_json(value: Any) -> Any:
    """``value`` as JSON data, through data classes, records, mappings and lists; NaN becomes ``None``."""
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, BaseModel):
        return to_json(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
