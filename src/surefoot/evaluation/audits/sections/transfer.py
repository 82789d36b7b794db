"""The transfer audit: scorers by what they were trained on, over sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from surefoot.evaluation.audits import figures
from surefoot.evaluation.audits.findings import transfer_finding
from surefoot.evaluation.audits.sections.section import Rows, Section, Table
from surefoot.evaluation.audits.transfer import Cell as TransferCell
from surefoot.evaluation.audits.transfer import TransferAudit
from surefoot.stats.intervals import Cell


def transfer_section(audit: TransferAudit) -> Section:
    """The matrix, once for AUC and once for F1."""

    def matrix(caption: str, value: Callable[[TransferCell], Cell]) -> Table:
        rows: Rows = [
            [train, *(value(audit.cell(train, test)) for test in audit.tested)] for train in audit.trained
        ]
        return Table(caption=caption, headers=["trained on", *audit.tested], rows=rows)

    return Section(
        title="Domain transfer",
        about="Each row is a scorer, named by what it was trained on; each column a labelled set.",
        findings=[transfer_finding(audit, train) for train in audit.trained],
        tables=[
            matrix("AUC of good steps over bad ones, by test domain", lambda cell: cell.auc),
            matrix(f"ProcessBench F1; threshold {audit.thresholds}", lambda cell: cell.f1),
            matrix("Threshold", lambda cell: cell.threshold),
            matrix("Traces that F1 is over", lambda cell: cell.traces),
        ],
        figures=[(partial(figures.matrix_figure, audit), "AUC by train (rows) and test domain (columns).")],
    )
