"""Path dependence: does the scorer prefer the usual among correct solutions of one problem?

A solution is usual if it shares many three-word sequences with the other correct ones (Jaccard index). No
text changes, so stored scores will do. Correct are solutions without a wrong step by the labels; without
labels, those whose answer or program is right.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import AuditedScorer, Case
from surefoot.evaluation.frame import card
from surefoot.evaluation.report import Section
from surefoot.records import Usage
from surefoot.stats.bootstrap import Bootstrap
from surefoot.stats.intervals import Interval

FEWEST = 3  # different correct solutions that a problem needs


@dataclass(frozen=True, kw_only=True)
class PathAudit:
    """Scores of usual and unusual correct solutions. Intervals are over problems."""

    scorer: str
    preference: Interval
    """Mean score of the more usual half of a problem's correct solutions, minus the other half's."""
    steps: Interval
    """The same for the number of steps, a baseline: unusual solutions may only be longer."""
    narrower: Interval
    """How much more alike the better-scored half is than all: above 0, selection loses variety."""
    problems: int
    solutions: int
    usage: Usage


def audit_paths(
    audited: AuditedScorer, cases: Sequence[Case], *, draws: int = 1000, seed: int = 0
) -> PathAudit:
    """Compare correct solutions. Raises ``ScoreError`` if no problem has ``FEWEST`` with a score."""
    groups: dict[str, dict[str, Case]] = defaultdict(dict)
    for case in cases:
        if case.outcome if case.right is None else case.right:
            trace = case.item.trace
            text = "\n".join(map(trace.step_text, range(len(trace.steps))))
            groups[case.problem_id].setdefault(text, case)
    scores = audited.score([case.item for group in groups.values() for case in group.values()])
    values = iter(scores.traces.tolist())
    rows = []
    for group in groups.values():
        scored = [(text, len(case.item.trace.steps), next(values)) for text, case in group.items()]
        scored = [row for row in scored if not math.isnan(row[2])]
        if len(scored) < FEWEST:
            continue
        alike = _similarity([text for text, *_ in scored])
        columns = np.array([row[1:] for row in scored])
        order, half = np.argsort(alike.sum(axis=1), kind="stable"), len(scored) // 2
        longer, preferred = columns[order[-half:]].mean(axis=0) - columns[order[:half]].mean(axis=0)
        best = np.argsort(-columns[:, 1], kind="stable")[: max(2, half)]
        lost = _mean_pair(alike[np.ix_(best, best)]) - _mean_pair(alike)
        rows.append((preferred, longer, lost, len(scored)))
    if not rows:
        raise ScoreError(
            f"no problem has {FEWEST} different correct solutions, by labels or outcomes: give more traces"
        )
    bootstrap, table, numbers = Bootstrap(draws=draws, seed=seed), np.array(rows), list(range(len(rows)))
    return PathAudit(
        scorer=audited.name,
        preference=bootstrap.mean(table[:, 0], numbers),
        steps=bootstrap.mean(table[:, 1], numbers),
        narrower=bootstrap.mean(table[:, 2], numbers),
        problems=len(rows),
        solutions=int(table[:, 3].sum()),
        usage=scores.usage,
    )


def _similarity(texts: Sequence[str]) -> NDArray[np.float64]:
    """Jaccard index of the three-word sequences of each two texts, [texts, texts]."""
    words = [text.split() for text in texts]
    parts = [{tuple(row[at : at + 3]) for at in range(max(1, len(row) - 2))} for row in words]
    return np.array([[len(a & b) / len(a | b) for b in parts] for a in parts])


def _mean_pair(alike: NDArray[np.float64]) -> float:
    count = len(alike)
    return float((alike.sum() - count) / (count * (count - 1)))


def paths_section(audits: Sequence[PathAudit]) -> Section:
    """Preference for usual solutions."""
    text = "is how much higher it scores the usual half of a problem's correct solutions."
    claims = {"no": "penalises correct but unusual solutions"}
    return Section(
        title="Path dependence",
        about="Correct solutions of one problem, by how many word sequences they share with the others.",
        results={"paths": audits},
        cards={
            audit.scorer: [card("trust", audit.preference, text, audit.problems, harm=True, claims=claims)]
            for audit in audits
        },
        limits=[
            f"{audits[0].solutions} correct solutions of {audits[0].problems} problems; the other ones "
            f"have fewer than {FEWEST}. Unusual wording counts as an unusual path."
        ],
    )
