"""Results as tables, and a report as one self-contained HTML file: no network, no script, equal bytes for
equal input.

A measure is declared once, as the field of a result. Its name is the key in the JSON file and the header of
its column on the page and in the terminal, and the docstring of its class is the caption of the table.
"""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import BaseModel

from surefoot.evaluation.frame import Card, FirstScreen, Origin, Tested, WorkedExample, sentence, weakest
from surefoot.evaluation.markup import STYLE, first_screen, how_made, svg_of, table_html, whole_runs
from surefoot.extras import installed
from surefoot.extras import sentence as extra_sentence
from surefoot.io.atomic import atomic_file
from surefoot.stats.intervals import Cell, Interval, format_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LOG = logging.getLogger("surefoot.evaluation")
PRINTED_ROWS = 60
"""Rows of a table that ``--tables`` prints; the page has all of them."""
STEP_KEYS = ("by_step", "positions", "first error at step")
"""Keys of results that are indices of steps: from 0 in the JSON file, from 1 in tables and plots."""
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
    cards: Mapping[str, Sequence[Card]] = field(default_factory=dict)
    """Answers on each scorer, best or first named first."""
    limits: Sequence[str] = ()
    """What limits the result: numbers, domain, excluded data."""
    sentence: str = ""
    """Replaces the sentence that the cards make."""
    tested: Tested | None = None
    """What it is a test of."""
    examples: Sequence[WorkedExample] = ()

    def rows(self) -> dict[str, list[Measures]]:
        """The rows of each table by its path."""
        rows: dict[str, list[Measures]] = {}
        _collect(self.results, (), {}, rows)
        return rows


def first_screen_of(
    sections: Sequence[Section], origin: Origin, examples: Sequence[WorkedExample] = ()
) -> FirstScreen:
    """What the sections say together: of several answers to a question the weakest counts."""
    names = dict.fromkeys(name for section in sections for name in section.cards)
    folders = {name.rpartition("/")[0] for name in names}
    short = len(names) > 1 and len(folders) == 1  # scorers of one file are called file/scorer
    ranking = {
        name.rpartition("/")[2] if short else name: weakest(
            card for section in sections for card in section.cards.get(name, ())
        )
        for name in names
    }
    lead = next(iter(ranking), "")
    cards = ranking.get(lead, [])
    sentences = [section.sentence for section in sections if section.sentence]
    more = f" It is the first of {len(ranking)} scorers compared." if len(ranking) > 1 else ""
    return FirstScreen(
        sentence=" ".join(sentences) or sentence(lead or sections[0].title, cards) + more,
        cards=cards,
        ranking=ranking,
        examples=examples,
        limits=list(dict.fromkeys(limit for section in sections for limit in section.limits)),
        origin=origin,
    )


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
        if named.get("by") in STEP_KEYS:
            named = named | {"value": from_1(str(named["value"]))}
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
            _collect(part, path, keys | {path[-1]: from_1(name) if path[-1] in STEP_KEYS else name}, rows)
        elif part is not None:
            _collect(part, (*path, name), keys, rows)


def from_1(index: str | int) -> str:
    """An index of a step, or a range of them such as ``5-6`` or ``10+``, as people count: from 1."""
    return re.sub(r"\d+", lambda number: str(int(number[0]) + 1), str(index))


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

    def __init__(self, title: str, first: FirstScreen | None = None) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"] if first is None else first_screen(first)
        self._end = [] if first is None else [*whole_runs(first), how_made(first.origin)]
        self._figures = 0
        self._says_no_plots = False
        self.printed: list[str | Table] = []
        """Paragraphs and tables of sections for the terminal."""

    def heading(self, text: str) -> Self:
        """Start a section."""
        return self._add(f"<h2>{escape(text)}</h2>")

    def text(self, paragraph: str) -> Self:
        """Add a paragraph of plain text; markup in it is escaped."""
        return self._add(f"<p>{escape(paragraph)}</p>")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> Self:
        """Add a table, which shows its caption until the reader opens it; it is open on paper.

        Raises ``ValueError`` if a row is not as long as ``headers``.
        """
        for number, row in enumerate(rows):
            if len(row) != len(headers):
                raise ValueError(f"rows[{number}] has {len(row)} cells, but there are {len(headers)} headers")
        html = table_html(headers, rows, caption)
        if caption:
            html = f"<details><summary>{escape(caption)} ({len(rows)} rows)</summary>{html}</details>"
        return self._add(html)

    def tables(self, results: Any) -> Self:
        """Add the tables of a result, which are printed as well unless a cell has several lines."""
        rows: dict[str, list[Measures]] = {}
        _collect(results, (), {}, rows)
        for path, of_path in rows.items():
            table = _table(path, of_path)
            self.table(table.headers, table.rows, table.caption)
            if any("\n" in str(cell) for row in table.rows for cell in row):
                continue
            self.printed.append(replace(table, rows=table.rows[:PRINTED_ROWS], spec=".3f"))
            if len(table.rows) > PRINTED_ROWS:
                self.printed.append(f"{len(table.rows) - PRINTED_ROWS} more rows are in the report")
        return self

    def figure(self, draw: Callable[[], Figure | None], caption: str) -> Self:
        """Add the matplotlib figure that ``draw`` makes, if any, as inline SVG.

        ``caption`` is also what a screen reader says. Without matplotlib there are no figures, and the
        report says once what they need.
        """
        if not installed("matplotlib"):
            return self._say_no_plots()
        if (figure := draw()) is None:
            return self
        self._figures += 1
        svg = svg_of(figure, prefix=f"f{self._figures}-", label=caption)
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
            self.figure(partial(plot_figure, plot, rows), plot.caption)
        return self.tables(section.results)

    def html(self) -> str:
        """The whole page."""
        title = escape(self._title)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
            + "\n".join(self._parts + self._end)
            + "\n</main>\n</body>\n</html>\n"
        )

    def write(self, path: Path | str) -> Self:
        """Write the page to ``path``, atomically."""
        with atomic_file(Path(path)) as stream:
            stream.write(self.html().encode("utf-8"))
        return self

    def _say_no_plots(self) -> Self:
        if not self._says_no_plots:
            self._says_no_plots = True
            why = f"Plots are left out: they need {extra_sentence('matplotlib')}"
            _LOG.warning(why)
            self.text(f"{why}.")
        return self

    def _add(self, part: str) -> Self:
        self._parts.append(part)
        return self


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
