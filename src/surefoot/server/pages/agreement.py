"""Agreement: raw, Cohen, Krippendorff and Gwet, per project and annotator; quality control; the lists of
disagreements and of skipped items."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from itertools import groupby, islice
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from surefoot.server.pages.page import Page
from surefoot.server.store.reviews import Disagreement, KnownLabel, Ratings
from surefoot.stats.bootstrap import Resample, bootstrap_statistic
from surefoot.stats.intervals import Interval, wilson_interval
from surefoot.stats.rater_agreement import Agreement, agreement, cohens_kappa, contingency

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_VALUES = (-1.0, 0.0, 1.0)
_DRAWS = 400
"""Bootstrap draws: opening within a second matters more than the third digit of a bound."""
_MANY_UNITS = 5_000
"""Above this many steps the page leaves the bootstrap to ``surefoot evaluate --as labels``."""
_SHOWN = 100
"""Items of a list: those that follow move up when these are decided."""


def agreement_page(page: Page) -> Response:
    """All figures of a project; not for annotators, who work blind to each other."""
    reviews = page.db.reviews
    data = agreement_view(reviews.ratings(page.id), reviews.known_labels(page.id))
    return page.show("agreement.html", data)


def agreement_view(ratings: Ratings, known: Sequence[KnownLabel]) -> dict[str, Any]:
    """Figures of labels: among annotators, and of ``known`` steps against their known labels.

    Intervals are 95 %: the bootstrap's over solutions, and Wilson's for shares of known labels.
    """
    return {
        "overall": _overall(ratings),
        "annotators": _by_annotator(ratings),
        "quality": _quality(known),
    }


def _overall(ratings: Ratings) -> dict[str, Any] | None:
    if not len(ratings.items):
        return None
    figures = agreement(ratings.matrix, categories=_VALUES)
    many = len(ratings.items) > _MANY_UNITS
    intervals = {} if many else _intervals(ratings.matrix, ratings.items)
    return {**asdict(figures), "intervals": intervals}


def _intervals(matrix: FloatArray, items: IntArray) -> dict[str, Interval]:
    """Bootstrap over solutions, since their steps are correlated; steps with one rating are left out."""
    paired = (~np.isnan(matrix)).sum(axis=0) >= 2
    rated, clusters = matrix[:, paired], items[paired].tolist()
    if len(set(clusters)) < 2:  # one solution says nothing about the spread
        return {}

    @cache  # the coefficients share their draws, and each draw gives all of them
    def resampled(items: bytes) -> Agreement:
        return agreement(rated[:, np.frombuffer(items, dtype=np.intp)], categories=_VALUES)

    def coefficient(name: str) -> Interval:
        def of(draw: Resample) -> float:
            return float(getattr(resampled(draw.items.astype(np.intp).tobytes()), name))

        return bootstrap_statistic(clusters, of, draws=_DRAWS, rng=np.random.default_rng(0))

    return {name: coefficient(name) for name in ("raw", "kappa", "alpha", "ac1")}


def _by_annotator(ratings: Ratings) -> list[dict[str, Any]]:
    """Each annotator against all others, pooled."""
    rows = dict(zip(ratings.raters, ratings.matrix, strict=True))
    figures = []
    for name, row in rows.items():
        tables = [contingency(row, theirs, values=_VALUES) for other, theirs in rows.items() if other != name]
        table = np.sum(tables, axis=0) if tables else np.zeros((3, 3))
        total, counts = float(table.sum()), {value: int((row == value).sum()) for value in _VALUES}
        labels = sum(counts.values())
        figures.append(
            {
                "annotator": name,
                "labels": labels,
                "compared": int(total),
                "raw": float(np.trace(table)) / total if total else None,
                "kappa": cohens_kappa(table),
                "shares": {int(value): count / labels if labels else None for value, count in counts.items()},
            }
        )
    return figures


def _quality(labels: Sequence[KnownLabel]) -> list[dict[str, Any]]:
    """Share of known labels that each annotator labelled correctly."""
    correct: dict[str, list[bool]] = defaultdict(list)
    for label in labels:
        correct[label.annotator].append(label.value == label.known)
    table = []
    for name, answers in sorted(correct.items()):
        share = wilson_interval(sum(answers), len(answers))
        row = {"annotator": name, "known": len(answers), "correct": sum(answers)}
        table.append({**row, "accuracy": share.value, "low": share.low, "high": share.high})
    return table


def disagreements(page: Page) -> Response:
    """Items that annotators who finished labelled differently: the first open ones and the first decided."""
    disputes, data = page.db.reviews.disagreements(page.id, decided=None), dict[str, Any]()
    for name, decided in (("open", False), ("decided", True)):
        chosen = [row for row in disputes if (row.decision is not None) == decided]
        by_item = {item_id: list(group) for item_id, group in groupby(chosen, key=lambda row: row.item_id)}
        data[name] = _listed(page, dict(islice(by_item.items(), _SHOWN)))
        data[f"{name}_items"] = len(by_item)
    data["skipped"] = page.db.assignments.skipped(page.id, limit=_SHOWN)
    return page.show("disagreements.html", data)


def _listed(page: Page, groups: dict[int, list[Disagreement]]) -> list[dict[str, Any]]:
    items = page.db.items.of_ids(page.id, groups)
    problems = page.db.traces.problems_of(page.id, {item.problem_id for item in items.values()})
    return [
        {
            "item": item_id,
            "link": f"run?{urlencode({'id': items[item_id].trace_id, 'disagreement': 1})}",
            "problem": problems[items[item_id].problem_id].text,
            "steps": [
                {
                    "step": dispute.step,
                    "values": [{"rater": rater, "value": value} for rater, value in dispute.values],
                    "decided": dispute.decision,
                }
                for dispute in disputes
            ],
        }
        for item_id, disputes in groups.items()
    ]
