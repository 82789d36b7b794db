"""Printing: escapes control characters, because output may quote untrusted records."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap

import click

from surefoot.printable import printable

_WIDEST = 34
"""Columns of a table's cell before its text continues on the next line."""
_GAP = "  "


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines of text, on standard error with ``err``."""
    click.echo(printable(text), err=err)


def echo_wrapped(text: str, *, indent: str = "", err: bool = False) -> None:
    """Print a paragraph in the terminal's width, with ``indent`` before the lines after its first."""
    echo("\n".join(_lines(text, _columns(), indent)), err=err)


def echo_table(
    title: str | None,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    err: bool = False,
    show_headings: bool = True,
) -> None:
    """Print a table as plain text: the first column is aligned left, the others right.

    Words are not broken. Columns beyond the terminal's width follow below, after the first column again.
    """
    cells = [[_lines(cell, _WIDEST) for cell in row] for row in rows]
    head = [_lines(heading, 16) for heading in headings]
    widths = [
        max(len(line) for row in [*([head] if show_headings else []), *cells] for line in row[column] or [""])
        for column in range(len(headings))
    ]
    if title:
        echo("\n".join(_lines(title, _columns())), err=err)
    for columns in _blocks(widths):
        parts = [[row[column] for column in columns] for row in cells]
        of_block = [widths[column] for column in columns]
        if show_headings:
            _echo_row([head[column] for column in columns], of_block, err)
            echo(_GAP.join("-" * width for width in of_block), err=err)
        for row in parts:
            _echo_row(row, of_block, err)
        echo(err=err)


def _columns() -> int:
    return shutil.get_terminal_size().columns


def _lines(text: str, width: int, indent: str = "") -> list[str]:
    return [
        line
        for paragraph in printable(text).splitlines() or [""]
        for line in wrap(
            paragraph, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]


def _blocks(widths: Sequence[int]) -> list[list[int]]:
    """Columns that fit side by side; each block begins with the first column."""
    blocks, used = [[0]], widths[0]
    for column in range(1, len(widths)):
        needed = len(_GAP) + widths[column]
        if used + needed > _columns() and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(column)
        used += needed
    return blocks


def _echo_row(cells: Sequence[Sequence[str]], widths: Sequence[int], err: bool) -> None:
    for lines in zip_longest(*cells, fillvalue=""):
        texts = [
            line.rjust(width) if column else line.ljust(width)
            for column, (line, width) in enumerate(zip(lines, widths, strict=True))
        ]
        echo(_GAP.join(texts).rstrip(), err=err)
