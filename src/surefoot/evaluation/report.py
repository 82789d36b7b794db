"""A report as one HTML file that needs nothing else: no network, no script, equal bytes for equal input."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Self

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

# Okabe and Ito's colours, which stay apart for colour-blind readers
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Report:
    """Collects parts in order and writes them as one page; each call returns the report, for chaining."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._figures = 0

    def heading(self, text: str) -> Self:
        """Start a section."""
        return self._add(f"<h2>{escape(text)}</h2>")

    def text(self, paragraph: str) -> Self:
        """Add a paragraph of plain text; mark-up in it is shown, not obeyed."""
        return self._add(f"<p>{escape(paragraph)}</p>")

    def table(
        self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "", *, spec: str = ".4g"
    ) -> Self:
        """Add a table; floats and intervals print as ``spec`` says (:func:`surefoot.stats.format_cell`).

        Raises ``ValueError`` if a row is not as long as ``headers``.
        """
        for number, row in enumerate(rows):
            if len(row) != len(headers):
                raise ValueError(f"rows[{number}] has {len(row)} cells, but there are {len(headers)} headers")
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

    def figure(self, figure: Figure, caption: str) -> Self:
        """Add a matplotlib figure as inline SVG; ``caption`` is also what a screen reader says."""
        self._figures += 1
        svg = _svg(figure, prefix=f"f{self._figures}-", label=caption)
        return self._add(f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption></figure>")

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

    def write(self, path: Path | str) -> None:
        """Write the page to ``path``, atomically."""
        with atomic_file(Path(path)) as stream:
            stream.write(self.html().encode("utf-8"))

    def _add(self, part: str) -> Self:
        self._parts.append(part)
        return self


def curve_figure(
    curves: Mapping[str, Mapping[int, Interval]], *, xlabel: str = "samples (N)", ylabel: str = "accuracy"
) -> Figure:
    """Accuracy against the number of samples on a log2 axis: one line a name, its interval shaded.

    Raises ``ValueError`` if there is no curve, a curve is empty, or a size is below 1.
    """
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.ticker import NullLocator

    sizes = sorted({size for curve in curves.values() for size in curve})
    if not sizes or sizes[0] < 1 or not all(curves.values()):
        raise ValueError("'curves' needs at least one point in each curve, at sizes of 1 or more")
    figure = NewFigure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, curve) in enumerate(curves.items()):
        colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
        x = sorted(curve)
        axes.fill_between(
            x, [curve[n].low for n in x], [curve[n].high for n in x], color=colour, alpha=0.15, lw=0
        )
        axes.plot(x, [curve[n].value for n in x], color=colour, marker=marker, markersize=5, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _svg(figure: Figure, *, prefix: str, label: str) -> str:
    """The figure as an ``<svg>`` element whose ids are its own, so that several fit on one page."""
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
    known = [cell for cell in cells if cell is not None]
    return bool(known) and not any(isinstance(cell, str) for cell in known)
