"""The reading gate (``surefoot.stats.reading_gate``) as figures of a benchmark.

For each scorer NAME the AUC minus the AUC of the rival that comes closest, with 95 % intervals over problems:
``reading_within_prefix_NAME``, ``reading_similar_length_NAME`` and ``reading_within_problem_NAME``; no value
if no good and bad row are comparable in this way. ``reads_NAME`` is 1 if the lower bounds that decide are
above 0. ``auc_rows_NAME`` and those of the rivals, ``auc_rows_length_position``, ``auc_rows_characters`` and
``auc_rows_words``, are over all pairs of the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.common.figures import Figures, figure
from surefoot.stats import Interval, StepFacts, reading_gate, rival_scores, roc_auc

MISSING = {
    "within_prefix": "no good and bad row share a prefix",
    "similar_length": "none of similar length share a prefix",
    "within_problem": "no problem has a good and a bad row",
}
"""Why a comparison has no value."""


def gate_figures(
    scores: Mapping[str, ArrayLike],
    facts: Sequence[StepFacts],
    good: ArrayLike,
    problems: Sequence[str],
    *,
    training: tuple[Sequence[StepFacts], ArrayLike] | None = None,
    draws: int = 1_000,
    ending: str = "",
) -> Figures:
    """Figures of each of ``scores`` ``[N]``, on rows that have ``facts``, a label and a problem.

    ``training`` has the facts and labels of all rows that the scorers were trained on; without it, the
    rivals are fitted on the rows of other problems, as cross-validated scorers are.
    """
    labels = np.asarray(good, dtype=bool)
    rivals = rival_scores(facts, problems, labels, training)
    size = f"on {len(labels)} rows of {len(set(problems))} problems"
    figures = [
        _area(f"{name}{ending}", row, labels, size)
        for name, row in zip(("length_position", "characters", "words"), rivals, strict=True)
    ]
    for name, values in scores.items():
        found = reading_gate(
            values,
            rivals,
            labels,
            problems=problems,
            prefixes=[one.prefix for one in facts],
            characters=[one.characters for one in facts],
            draws=draws,
        )
        figures.append(_area(f"{name}{ending}", values, labels, size))
        for field, reason in MISSING.items():
            row = getattr(found, field)
            value = Interval(value=row[0], low=row[1], high=row[2]) if row else 0.0
            one = figure(f"reading_{field}_{name}{ending}", value, "of AUC")
            figures.append(one if row else one | {"value": None, "note": reason})
        verdict = figure(f"reads_{name}{ending}", float(found.reads), "of 1")
        figures.append(verdict | {"note": f"{found.problems} problems; {found}"})
    return figures


def _area(name: str, values: ArrayLike, good: ArrayLike, size: str) -> dict[str, Any]:
    return figure(f"auc_rows_{name}", roc_auc(values, good), "of pairs") | {"note": size}
