"""Printing: escapes control characters, because output may quote untrusted records."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap

import click

from surefoot.errors import counted
from surefoot.printable import printable

_WIDEST = 34
"""Columns of a table's cell before its text continues on the next line."""
_GAP = "  "
_NUMBER = re.compile(r"[-+−]?[\d.]|n/a$|$")


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines of text, on standard error with ``err``."""
    click.echo(printable(text), err=err)


def note(text: str) -> None:
    """Print lines of text on standard error."""
    echo(text, err=True)


def note_count(count: int, one: str, text: str) -> None:
    """Print a number that is not 0 with its noun, then ``text``, on standard error."""
    if count:
        note(f"{counted(count, one)} {text}")


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
    """Print a table as plain text; numbers align right. Words are not broken.

    Columns beyond the terminal's width follow below, and the rows then have numbers.
    """
    cells = [[_lines(cell, _WIDEST) for cell in row] for row in rows]
    head = [_lines(heading, 16) for heading in headings]
    if title:
        echo("\n".join(_lines(title, _columns())), err=err)
    blocks = _blocks([_width(column, cells, head if show_headings else None) for column in range(len(head))])
    for number, columns in enumerate(blocks):
        parts = [[row[column] for column in columns] for row in cells]
        names = [head[column] for column in columns]
        if len(blocks) > 1:
            parts = [[[str(at)], *row] for at, row in enumerate(parts, 1)]
            names = [["#"], *names]
        if number:
            echo(err=err)
        _echo_block(names if show_headings else None, parts, err)
    echo(err=err)


def _echo_block(
    head: Sequence[Sequence[str]] | None, rows: Sequence[Sequence[Sequence[str]]], err: bool
) -> None:
    columns = range(len(head or rows[0]) if head or rows else 0)
    widths = [_width(column, rows, head) for column in columns]
    numeric = [all(_NUMBER.match(line) for row in rows for line in row[column]) for column in columns]
    rule = [["-" * width] for width in widths]
    for cells in [*([head, rule] if head else []), *rows]:
        for lines in zip_longest(*cells, fillvalue=""):
            texts = [
                line.rjust(width) if right else line.ljust(width)
                for line, width, right in zip(lines, widths, numeric, strict=True)
            ]
            echo(_GAP.join(texts).rstrip(), err=err)


def _width(column: int, rows: Sequence[Sequence[Sequence[str]]], head: Sequence[Sequence[str]] | None) -> int:
    return max((len(line) for row in [*([head] if head else []), *rows] for line in row[column]), default=0)


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
    """Columns that fit side by side, with space for the numbers of rows."""
    most = _columns() - (6 if sum(widths) + len(_GAP) * (len(widths) - 1) > _columns() else 0)
    blocks: list[list[int]] = [[]]
    used = 0
    for column, width in enumerate(widths):
        if blocks[-1] and used + len(_GAP) + width > most:
            blocks.append([])
            used = 0
        used += width + len(_GAP) * bool(blocks[-1])
        blocks[-1].append(column)
    return blocks
