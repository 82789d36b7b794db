"""Domain transfer: how well a scorer trained on one domain works on another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.scorers import AuditedScorer, AuditScores
from surefoot.evaluation.benchmarks.first_errors import (
    best_threshold,
    f1_rates,
    first_error_counts,
    predicted_errors,
)
from surefoot.evaluation.frame import Card, Question, card
from surefoot.evaluation.report import Plot, Section
from surefoot.evaluation.splits import half_of
from surefoot.records import Usage
from surefoot.stats.bootstrap import Bootstrap, group_sums
from surefoot.stats.intervals import UNKNOWN, Interval


@dataclass(frozen=True, kw_only=True)
class TransferCell:
    """One scorer on one domain."""

    train: str
    test: str
    auc: Interval
    """Good steps against bad ones, all labelled steps pooled."""
    f1: Interval
    """ProcessBench's F1 of the first error at ``threshold``."""
    threshold: float | None
    """``None`` where none could be fitted; F1 is then unknown."""
    traces: int
    """Traces whose first error, or freedom from error, is known; F1 is over these."""
    unscored: int
    """Among them those without a single score, which F1 counts as wrong."""


@dataclass(frozen=True, kw_only=True)
class TransferAudit:
    """The matrix of train domain and test domain."""

    cells: list[TransferCell]
    trained: list[str]
    tested: list[str]
    tuned: dict[str, int]
    """Traces of each domain that served to fit thresholds and are not reported on."""
    thresholds: str
    """Where thresholds come from."""
    usage: dict[str, Usage]
    """Cost by scorer."""


def audit_transfer(
    scorers: Mapping[str, AuditedScorer],
    sets: Mapping[str, Sequence[Case]],
    *,
    threshold: float | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> TransferAudit:
    """Score every set by every scorer; both are named by domain, of training and of test.

    Without ``threshold``, each scorer's threshold is fitted on half of the problems of its domain, and all
    domains are reported on the other half only; without a set of its domain a scorer gets no F1. With
    ``threshold`` all problems count. Raises ``ScoreError`` without scorers or sets, and for a set without
    labelled traces.
    """
    if not scorers or not sets:
        raise ScoreError("a transfer matrix needs at least one scorer and one labelled set")
    halves = {name: _halves(name, cases, fit=threshold is None) for name, cases in sets.items()}
    bootstrap = Bootstrap(draws=draws, seed=seed)
    cells, usage = [], {}
    for train, audited in scorers.items():
        usage[train] = Usage()
        cut = threshold
        if threshold is None and train in halves:
            tuning, _ = halves[train]
            scores = audited.score([case.item for case in tuning])
            usage[train] += scores.usage
            values, labels, _ = _first_errors(tuning, scores)
            # F1 is undefined at every threshold if all are correct or all wrong
            both = 0 < sum(label < 0 for label in labels) < len(labels)
            cut = best_threshold(values, labels).threshold if both else None
        for test, (_, reported) in halves.items():
            scores = audited.score([case.item for case in reported])
            usage[train] += scores.usage
            cells.append(_cell(train, test, reported, scores, cut, bootstrap))
    return TransferAudit(
        cells=cells,
        trained=list(scorers),
        tested=list(sets),
        tuned={name: len(tuning) for name, (tuning, _) in halves.items()},
        thresholds=f"given, {threshold:g}" if threshold is not None else "fitted on half of the own domain",
        usage=usage,
    )


def _halves(name: str, cases: Sequence[Case], *, fit: bool) -> tuple[list[Case], list[Case]]:
    """Cases for fitting and for the report, by the hash of the problem: new problems don't change them."""
    labelled = [case for case in cases if any(good is not None for good in case.good)]
    if not labelled:
        raise ScoreError(f"set {name!r}: none of {len(cases)} traces has a labelled step")
    tuning = [case for case in labelled if fit and half_of(case.problem_id)]
    problems = {case.problem_id for case in tuning}
    return tuning, [case for case in labelled if case.problem_id not in problems]


def _first_errors(
    cases: Sequence[Case], scores: AuditScores
) -> tuple[list[list[float | None]], list[int], list[str]]:
    """Scores, first errors (-1 = none) and problems of the traces with a known first error or none."""
    rows = [n for n, case in enumerate(cases) if case.right or case.first_error is not None]
    values = [[None if math.isnan(s) else float(s) for s in scores.steps[n]] for n in rows]
    labels = [-1 if (error := cases[n].first_error) is None else error for n in rows]
    return values, labels, [cases[n].problem_id for n in rows]


def _cell(
    train: str,
    test: str,
    cases: Sequence[Case],
    scores: AuditScores,
    threshold: float | None,
    bootstrap: Bootstrap,
) -> TransferCell:
    steps = [
        (score, float(good), case.problem_id)
        for case, row in zip(cases, scores.steps, strict=True)
        for good, score in zip(case.good, row, strict=True)
        if good is not None
    ]
    values, labels, owners = _first_errors(cases, scores)
    f1 = UNKNOWN
    if threshold is not None and owners:
        counts = first_error_counts(predicted_errors(values, threshold), labels)
        [_, _, f1] = bootstrap.totals([group_sums(counts, owners)], f1_rates)
    return TransferCell(
        train=train,
        test=test,
        auc=bootstrap.auc(*map(list, zip(*steps, strict=True))) if steps else UNKNOWN,
        f1=f1,
        threshold=threshold,
        traces=len(owners),
        unscored=sum(all(score is None for score in row) for row in values),
    )


def transfer_section(audit: TransferAudit) -> Section:
    """The matrix of AUC and F1."""
    return Section(
        title="Domain transfer",
        about="A scorer has the name of its training domain.",
        results={"transfer": audit},
        cards={train: _cards(audit, train) for train in audit.trained},
        limits=[f"F1 uses thresholds {audit.thresholds}."],
        plots=[Plot("transfer.cells", "AUC of good steps over bad ones by test domain.", y=("auc",))],
    )


def _cards(audit: TransferAudit, train: str) -> list[Card]:
    """AUC on the scorer's own domain, and the lowest on another."""
    cards: list[Card] = []
    measured = [cell for cell in audit.cells if cell.train == train and not math.isnan(cell.auc.value)]
    for cell in sorted(measured, key=lambda cell: (cell.test != train, cell.auc.value))[:2]:
        question: Question = "reads" if cell.test == train else "trust"
        text = (
            f"is the AUC of good over bad steps on {cell.test}, "
            f"{'its own domain' if question == 'reads' else 'the hardest other domain'}. Chance is 0.5; a "
            "step's place alone can lift it."
        )
        cards.append(card(question, cell.auc, text, cell.traces, "traces", null=0.5))
    return cards
