"""What every audit leaves behind: tables on standard output, one JSON file, one HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.evaluation.audits.sections import Section

LONGEST = 60
"""Rows of a table that are printed; the report has them all."""


def leave(
    name: str, sections: Sequence[Section], results: Mapping[str, Any], settings: Mapping[str, Any], out: str
) -> None:
    """Print the sections, and write ``NAME.json`` and ``NAME.html`` into the directory ``out``.

    ``results`` are the audits' records, ``settings`` all options and inputs.
    """
    from surefoot.evaluation._plain import plain
    from surefoot.evaluation.audits import write_audit_report
    from surefoot.io import write_json

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    findings = {section.title: list(section.findings) for section in sections}
    data = {"settings": plain(settings), "findings": findings, **plain(results)}
    write_json(folder / f"{name}.json", data)
    shown = ", ".join(f"{key} {value}" for key, value in settings.items() if isinstance(value, str | int))
    note = f"Intervals are 95 %, by bootstrap over problems. {shown}."
    write_audit_report(sections, folder / f"{name}.html", title=f"Audit: {name}", note=note)
    _print(sections)


def _print(sections: Sequence[Section]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from surefoot.stats import format_cell

    console = Console(highlight=False)
    for section in sections:
        console.rule(section.title, align="left")
        for table in section.tables:
            if not table.rows:
                continue
            texts = [[format_cell(cell, ".3f") for cell in row] for row in table.rows]
            if any("\n" in text for row in texts for text in row):
                continue  # whole solutions are for the page
            shown = Table(title=table.caption, title_justify="left")
            for number, heading in enumerate(table.headers):
                shown.add_column(heading, justify="right" if number else "left", overflow="fold")
            for row in texts[:LONGEST]:
                shown.add_row(*map(Text, row))
            console.print(shown)
            if len(texts) > LONGEST:
                console.print(f"{len(texts) - LONGEST} more rows are in the report")
        for finding in section.findings:
            console.print(Text(finding))
