"""Results as tables, and a report as one self-contained HTML file: no network, no script, equal bytes for
equal input.

A measure is declared once, as the field of a result. Its name is the key in the JSON file and the header of
its column on the page and in the terminal, and the docstring of its class is the caption of the table.
"""

from __future__ import annotations

import inspect
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from html import escape
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import BaseModel

from surefoot.io.atomic import atomic_file
from surefoot.stats.intervals import Cell, Interval, format_cell

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
"""Attribute (``"counts.used"``) or function."""

PRINTED_ROWS, PRINTED_COLUMNS = 60, 6
"""Part of a table that a command prints; the page has all of it."""
_LISTED = 8
"""Longest list that a cell holds."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table; rows are as long as ``headers``, floats and intervals are formatted with ``spec``."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    spec: str = ".4g"


class Measures(NamedTuple):
    """One row of a result."""

    about: str
    """First sentence on its class."""
    keys: dict[str, Cell]
    """Names that identify the row, such as its scorer and subset."""
    values: dict[str, Cell]


@dataclass(frozen=True)
class Plot:
    """Measures of a result as a figure: dots with intervals, or with ``x`` lines."""

    rows: str
    """Path of the rows in the result, such as ``scores.subsets``."""
    caption: str
    y: Sequence[str] = ()
    """Measures, of which lines dash the second. By default all of a row against their names (such as N)."""
    x: str = ""
    """Key or measure; without ``y``, the path of rows with as many measures, such as tokens by N."""
    where: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Values of keys of the rows to draw; all by default."""
    log: bool = False
    diagonal: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A result as a part of a report, for the page, the terminal and the JSON file."""

    title: str
    about: str
    results: Any
    """A data class, or several by name; each data class in it becomes a row of a table."""
    findings: Sequence[str] = ()
    """One plain sentence each, whether the result is good or bad."""
    plots: Sequence[Plot] = ()
    printed: Collection[str] | None = None
    """Paths of the tables that a command prints; by default all."""

    def rows(self) -> dict[str, list[Measures]]:
        """The rows of each table by its path."""
        rows: dict[str, list[Measures]] = {}
        _collect(self.results, (), {}, rows)
        return rows


def _collect(
    value: Any, path: tuple[str, ...], keys: dict[str, Cell], rows: dict[str, list[Measures]]
) -> None:
    """Add the rows of ``value``; leading texts of a data class, or its ``name``, are keys of all below it."""
    if isinstance(value, list | tuple):
        for item in value:
            _collect(item, path, keys, rows)
        return
    parts = dict(value) if isinstance(value, Mapping) else _attributes(value)
    if path and not isinstance(value, Mapping):
        leading = dict(takewhile(lambda part: part[1] is None or isinstance(part[1], str), parts.items()))
        named = {"name": parts["name"]} if "name" in parts else leading
        hidden = named if "name" in leading else named | leading
        keys, parts = keys | named, {name: part for name, part in parts.items() if name not in hidden}
    cells = {str(name): _cell(part) for name, part in parts.items() if _is_cell(part)}
    if cells:
        about = "" if isinstance(value, Mapping) else (inspect.getdoc(type(value)) or "").split("\n\n")[0]
        rows.setdefault(".".join(path), []).append(Measures(about.replace("``", ""), keys, cells))
    for name, part in parts.items():
        if _is_cell(part):
            continue
        if isinstance(value, Mapping) and path:
            _collect(part, path, keys | {path[-1]: name}, rows)
        elif part is not None:
            _collect(part, (*path, name), keys, rows)


def _attributes(value: Any) -> dict[str, Any]:
    """Fields, and properties that are cells."""
    if isinstance(value, BaseModel):
        return dict(value)
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    properties = [name for name, _ in inspect.getmembers(type(value), lambda m: isinstance(m, property))]
    return parts | {name: cell for name in properties if _is_cell(cell := getattr(value, name))}


def _is_cell(part: Any) -> bool:
    if isinstance(part, list | tuple):
        return all(isinstance(item, str | int | float) for item in part)
    return part is None or isinstance(part, str | int | float | Interval)


def _cell(part: Any) -> Cell:
    if isinstance(part, list | tuple):
        return ", ".join(format_cell(item) for item in part[:_LISTED]) + ", …" * (len(part) > _LISTED)
    return ("no", "yes")[part] if isinstance(part, bool) else part


def _table(path: str, rows: Sequence[Measures]) -> Table:
    """The rows of one path; columns without any value are left out. A result's own values form a list."""
    about = " ".join(rows[0].about.split())
    if not path:
        return Table(caption=about, headers=["item", "value"], rows=list(rows[0].values.items()))
    cells = [row.keys | row.values for row in rows]
    names = list(dict.fromkeys([name for row in rows for name in row.keys]))
    names = list(dict.fromkeys([*names, *(name for row in rows for name in row.values)]))
    names = [name for name in names if any(row.get(name) not in (None, "") for row in cells)]
    return Table(
        caption=f"{_header(path)}: {about}" if about else _header(path),
        headers=[_header(name) for name in names],
        rows=[[row.get(name) for name in names] for row in cells],
    )


def _header(path: str) -> str:
    words = path.replace(".", ", ").split("_")
    return " ".join(word.upper() if word in {"auc", "ece", "f1"} else word for word in words)


class Report:
    """Collects parts in order and writes them as one page; each call returns the report, for chaining."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._figures = 0
        self.printed: list[str | Table] = []
        """Paragraphs and tables of sections for the terminal; of wide tables the first columns."""

    def heading(self, text: str) -> Self:
        """Start a section."""
        return self._add(f"<h2>{escape(text)}</h2>")

    def text(self, paragraph: str) -> Self:
        """Add a paragraph of plain text; markup in it is escaped."""
        return self._add(f"<p>{escape(paragraph)}</p>")

    def table(
        self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "", *, spec: str = ".4g"
    ) -> Self:
        """Add a table; floats and intervals are formatted with ``spec`` (:func:`surefoot.stats.format_cell`).

        Raises ``ValueError`` if a row is not as long as ``headers``.
        """
        for number, row in enumerate(rows):
            if len(row) != len(headers):
                raise ValueError(f"rows[{number}] has {len(row)} cells, but there are {len(headers)} headers")
        numeric = [_is_numeric([row[column] for row in rows]) for column in range(len(headers))]

        def line(tag: str, cells: Sequence[Cell]) -> str:
            kinds = [' class="number"' * right for right in numeric]
            texts = [escape(format_cell(cell, spec)) for cell in cells]
            html = (f"<{tag}{kind}>{text}</{tag}>" for kind, text in zip(kinds, texts, strict=True))
            return f"<tr>{''.join(html)}</tr>"

        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        body = "\n".join(line("td", row) for row in rows)
        rows_html = f"<thead>{line('th', headers)}</thead>\n<tbody>\n{body}\n</tbody>"
        return self._add(f'<div class="scroll"><table>{title}{rows_html}</table></div>')

    def records(self, caption: str, items: Iterable[T], columns: Mapping[str, Column[T]]) -> Self:
        """Add a table with one row per item."""
        cells = [attrgetter(column) if isinstance(column, str) else column for column in columns.values()]
        return self.table(list(columns), [[cell(item) for cell in cells] for item in items], caption)

    def figure(self, figure: Figure, caption: str) -> Self:
        """Add a matplotlib figure as inline SVG; ``caption`` is also what a screen reader says."""
        self._figures += 1
        svg = _svg(figure, prefix=f"f{self._figures}-", label=caption)
        return self._add(f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption></figure>")

    def section(self, section: Section) -> Self:
        """Add a result; the terminal gets its text and the tables without multi-line cells."""
        from surefoot.evaluation.plots import plot_figure

        self.heading(section.title)
        self.printed.append(f"\n{section.title}")
        for paragraph in (section.about, *section.findings):
            self.text(paragraph)
            self.printed.append(paragraph)
        rows = section.rows()
        for plot in section.plots:
            if figure := plot_figure(plot, rows):
                self.figure(figure, plot.caption)
        for path, of_path in rows.items():
            table = _table(path, of_path)
            self.table(table.headers, table.rows, table.caption)
            multi_line = any("\n" in str(cell) for row in table.rows for cell in row)
            if multi_line or (section.printed is not None and path not in section.printed):
                continue
            short = [row[:PRINTED_COLUMNS] for row in table.rows[:PRINTED_ROWS]]
            headers = table.headers[:PRINTED_COLUMNS]
            self.printed.append(Table(caption=table.caption, headers=headers, rows=short, spec=".3f"))
            if len(table.rows) > PRINTED_ROWS:
                self.printed.append(f"{len(table.rows) - PRINTED_ROWS} more rows are in the report")
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
