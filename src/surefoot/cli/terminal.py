"""Printing: escapes control characters, because output may quote untrusted records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from surefoot.printable import printable


def echo(text: str = "", *, err: bool = False, fg: str | None = None) -> None:
    """Print lines of text in the colour ``fg``, on standard error with ``err``."""
    safe = printable(text)
    click.echo(click.style(safe, fg=fg) if fg else safe, err=err)


def echo_table(
    title: str | None,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    err: bool = False,
    show_headings: bool = True,
) -> None:
    """Print a table whose first column is text and whose others align right. No cell is read as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    def cell(text: str) -> Text:
        return Text(printable(text))

    table = Table(title=cell(title) if title else None, title_justify="left", show_header=show_headings)
    for number, heading in enumerate(headings):
        table.add_column(cell(heading), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    Console(stderr=err, highlight=False).print(table)
