"""Audits as one offline HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.evaluation.audits.sections import Section
from surefoot.evaluation.report import Report


def write_audit_report(sections: Sequence[Section], path: Path, *, title: str, note: str = "") -> None:
    """One page: for each audit what it found, its figures and its tables. ``note`` goes first."""
    report = Report(title)
    if note:
        report.text(note)
    for section in sections:
        report.heading(section.title).text(section.about)
        for finding in section.findings:
            report.text(finding)
        for draw, caption in section.figures:
            report.figure(draw(), caption)
        for table in section.tables:
            report.table(table.headers, table.rows, table.caption)
    report.write(path)
