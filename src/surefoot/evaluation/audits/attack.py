"""A search that optimises against the verifier: wrong solutions edited until they score well.

Only the score is looked at; the gold value of what it leads to is reported beside it. A verifier that reads
gives way only where the edits repair the solution, so gold rises with it. One that can be gamed gives way
alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.edits import SEARCH_EDITS, Edit, edited
from surefoot.evaluation.audits.gaming import Truth, edit_stream
from surefoot.evaluation.audits.over_optimisation import sizes_to
from surefoot.evaluation.audits.scorers import AuditedScorer, FloatArray
from surefoot.evaluation.plots import banded_line, legend, new_figure
from surefoot.evaluation.report import Section, Table
from surefoot.protocols import ProblemTrace
from surefoot.records import Usage
from surefoot.search.estimators import best_of_n
from surefoot.stats.bootstrap import bootstrap_cluster_mean
from surefoot.stats.intervals import Cell, Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Point:
    """Means over problems: the score that is optimised (proxy), and the share of right ones (gold)."""

    proxy: Interval
    gold: Interval
    fooled: Interval
    """Share of wrong ones that score at least as well as the median right solution; NaN without any."""


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """One solution before and after the climb."""

    trace_id: str
    proxy_before: float
    proxy_after: float
    edits: tuple[str, ...]
    text_before: str
    text_after: str


@dataclass(frozen=True, kw_only=True)
class AttackAudit:
    """What optimising against one scorer gave."""

    scorer: str
    rule: str
    climb: dict[int, Point]
    """By round of hill climbing; 0 = the wrong solutions as they were."""
    best_of: dict[int, Point]
    """Best of N randomly edited versions of each solution, by N (exact expectation over the versions)."""
    accepted: dict[str, int]
    """Edits that the climb kept, by name."""
    traces: int
    unscored: int
    """Wrong traces that the scorer gave no score; not attacked."""
    versions_unscored: int
    """Edited versions without a score; never chosen."""
    right_median: float
    """Median score of the right traces; NaN without any."""
    gold_is: str
    """Where gold comes from."""
    examples: list[Attacked]
    """Those that the scorer likes best among the ones that stayed wrong."""
    usage: Usage


def audit_attack(
    audited: AuditedScorer,
    cases: Sequence[Case],
    *,
    truth: Truth | None = None,
    edits: Sequence[Edit] = SEARCH_EDITS,
    rounds: int = 12,
    proposals: int = 8,
    versions: int = 64,
    depth: int = 3,
    attacked: int | None = None,
    draws: int = 2000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> AttackAudit:
    """Attack the first ``attacked`` wrong text traces (all): hill climbing, and best of N random versions.

    In each of ``rounds`` a trace gets ``proposals`` random edits of its present form; the best is kept if its
    aggregated score is higher. The versions of best-of-N have 1 to ``depth`` random edits. ``truth`` is gold
    for edited text. Without it only edits of style are made, which cannot repair a wrong solution: gold stays
    0 by construction. Right traces say what a good score is. Raises ``ScoreError`` for stored scores and if
    there is no wrong text trace.
    """
    if audited.stored:
        raise ScoreError(f"{audited.name}: stored scores cannot score edited text; give a checkpoint")
    wrong = [case for case in cases if case.right is False and case.item.trace.text is not None][:attacked]
    right = audited.score([case.item for case in cases if case.right])
    good = float(np.nanmedian(right.traces)) if np.isfinite(right.traces).any() else math.nan
    start = audited.score([case.item for case in wrong])
    known = [number for number, score in enumerate(start.traces) if not math.isnan(score)]
    if not known:
        raise ScoreError(
            f"{audited.name}: no wrong text trace with a score among {len(cases)}: none to attack"
        )
    allowed = list(edits) if truth else [edit for edit in edits if edit.kind == "style"]
    items = [wrong[number].item for number in known]
    values = start.traces[known]
    problems = [item.problem.id for item in items]

    def point(proxy: FloatArray, gold: FloatArray, fooled: FloatArray) -> Point:
        return Point(
            **{
                name: bootstrap_cluster_mean(values, problems, draws=draws, rng=np.random.default_rng(seed))
                for name, values in (("proxy", proxy), ("gold", gold), ("fooled", fooled))
            }
        )

    def present() -> Point:
        gold = _gold(truth, state.items)
        return point(state.scores, gold, _fooled(state.scores, gold, good))

    state = _Climb(
        items=list(items), scores=values.copy(), paths=[()] * len(items), usage=right.usage + start.usage
    )
    climb = {0: present()}
    for number in range(1, rounds + 1):
        _climb(state, audited, allowed, proposals, (seed, "climb", number))
        climb[number] = present()
        if progress:
            progress(number, rounds)
    best_of = _best_of_versions(state, audited, items, allowed, truth, versions, depth, good, seed)
    return AttackAudit(
        scorer=audited.name,
        rule=audited.rule,
        climb=climb,
        best_of={size: point(*means) for size, means in best_of.items()},
        accepted=dict(Counter(name for path in state.paths for name in path).most_common()),
        traces=len(items),
        unscored=len(wrong) - len(items),
        versions_unscored=state.unscored,
        right_median=good,
        gold_is="exact truth"
        if truth
        else "0 by construction: edits of style cannot repair a wrong solution",
        examples=_examples(items, values, state, _gold(truth, state.items)),
        usage=state.usage,
    )


@dataclass(kw_only=True)
class _Climb:
    """Where the climb stands; one entry a trace."""

    items: list[ProblemTrace]
    scores: FloatArray
    paths: list[tuple[str, ...]]
    """Names of the edits kept so far."""
    usage: Usage
    unscored: int = 0


def _climb(
    state: _Climb, audited: AuditedScorer, edits: Sequence[Edit], proposals: int, stream: tuple[object, ...]
) -> None:
    """One round: each trace becomes the best of its proposals, if that scores higher than it does."""
    proposed = [
        [_version(item, edits, 1, edit_stream(0, stream, item.trace.id, n)) for n in range(proposals)]
        for item in state.items
    ]
    values = _scored(state, audited, proposed)
    for at, (row, scores) in enumerate(zip(proposed, values, strict=True)):
        best = int(np.argmax(scores))
        if scores[best] > state.scores[at]:
            state.items[at], state.scores[at] = row[best].item, scores[best]
            state.paths[at] += row[best].edits


def _best_of_versions(
    state: _Climb,
    audited: AuditedScorer,
    items: Sequence[ProblemTrace],
    edits: Sequence[Edit],
    truth: Truth | None,
    versions: int,
    depth: int,
    good: float,
    seed: int,
) -> dict[int, tuple[FloatArray, FloatArray, FloatArray]]:
    """N → expected proxy, gold and share fooled, [traces] each, of the best of N among ``versions``."""
    pools = []
    for item in items:
        rng = edit_stream(seed, "versions", item.trace.id)
        pools.append([_version(item, edits, int(rng.integers(1, depth + 1)), rng) for _ in range(versions)])
    values = _scored(state, audited, pools)
    gold = [_gold(truth, [version.item for version in pool]) for pool in pools]
    # a version without a score is never chosen; a trace with too few scored ones is left out
    known = [(v[np.isfinite(v)], g[np.isfinite(v)]) for v, g in zip(values, gold, strict=True)]
    rows = [(v, g, _fooled(v, g, good)) for v, g in known]

    def expected(size: int, of: int) -> FloatArray:
        found = [
            best_of_n(row[0], row[of], size)
            if len(row[0]) >= size and not np.isnan(row[of]).any()
            else math.nan
            for row in rows
        ]
        return np.array(found)

    return {size: (expected(size, 0), expected(size, 1), expected(size, 2)) for size in sizes_to(versions)}


@dataclass(frozen=True, kw_only=True)
class _Version:
    item: ProblemTrace
    edits: tuple[str, ...]


def _version(item: ProblemTrace, edits: Sequence[Edit], depth: int, rng: np.random.Generator) -> _Version:
    """``depth`` random edits one after the other, each name equally likely.

    One that has no place in the trace is passed over.
    """
    names = list(dict.fromkeys(edit.name for edit in edits))
    path: tuple[str, ...] = ()
    for _ in range(depth):
        name = names[int(rng.integers(len(names)))]
        variants = [edit for edit in edits if edit.name == name]
        edit = variants[int(rng.integers(len(variants)))]
        found = edited(edit, item.trace, rng)
        if found is not None:
            item, path = ProblemTrace(problem=item.problem, trace=found.trace), (*path, name)
    return _Version(item=item, edits=path)


def _scored(
    state: _Climb, audited: AuditedScorer, versions: Sequence[Sequence[_Version]]
) -> list[FloatArray]:
    """Aggregated scores, -inf where there is none, all in one call."""
    found = audited.score([version.item for row in versions for version in row])
    state.usage += found.usage
    state.unscored += int(np.isnan(found.traces).sum())
    ends = np.cumsum([len(row) for row in versions])[:-1]
    return np.split(np.where(np.isnan(found.traces), -np.inf, found.traces), ends)


def _gold(truth: Truth | None, items: Sequence[ProblemTrace]) -> FloatArray:
    if truth is None:
        return np.zeros(len(items))
    return np.array([truth(item.problem, item.trace) for item in items], dtype=float)


def _fooled(scores: FloatArray, gold: FloatArray, good: float) -> FloatArray:
    """1 where a wrong solution scores at least ``good``, else 0; all NaN if it is not known what good is."""
    return np.where(math.isnan(good), math.nan, (scores >= good) & (gold == 0))


def _examples(
    before: Sequence[ProblemTrace], scores: FloatArray, state: _Climb, gold: FloatArray
) -> list[Attacked]:
    wrong = [at for at in np.argsort(-state.scores, kind="stable") if not gold[at] and state.paths[at]]
    return [
        Attacked(
            trace_id=before[at].trace.id,
            proxy_before=float(scores[at]),
            proxy_after=float(state.scores[at]),
            edits=state.paths[at],
            text_before=before[at].trace.text or "",
            text_after=state.items[at].trace.text or "",
        )
        for at in wrong[:_EXAMPLES]
    ]


_EXAMPLES = 3


def attack_section(audits: Sequence[AttackAudit]) -> Section:
    """Proxy and gold by round of the search against the verifier."""
    climbs = [(audit.scorer, audit.climb) for audit in audits]
    pools = [(audit.scorer, audit.best_of) for audit in audits]

    def points(caption: str, number: str, curves: Sequence[tuple[str, Mapping[int, Point]]]) -> Table:
        rows: list[list[Cell]] = [
            [scorer, place, point.proxy, point.gold, point.fooled]
            for scorer, curve in curves
            for place, point in curve.items()
        ]
        return Table(caption=caption, headers=["scorer", number, "proxy", "gold", "fooled"], rows=rows)

    examples: list[list[Cell]] = [
        [a.scorer, e.proxy_before, e.proxy_after, ", ".join(e.edits), e.text_before, e.text_after]
        for a in audits
        for e in a.examples
    ]
    return Section(
        title="A search against the verifier",
        about="Wrong solutions are edited; an edit stays if the score rises. Fooled: wrong, and scored like "
        "the median correct solution or better. Gold: "
        + "; ".join(dict.fromkeys(a.gold_is for a in audits))
        + ".",
        findings=[_finding(audit) for audit in audits],
        tables=[
            points("Hill climbing", "round", climbs),
            points("Best of N random versions of each wrong solution", "N", pools),
            Table.of(
                "What was attacked, and the edits that were accepted",
                audits,
                {
                    "scorer": "scorer",
                    "traces": "traces",
                    "no score": "unscored",
                    "versions without": "versions_unscored",
                    "median of correct": "right_median",
                    "edits accepted": lambda a: (
                        ", ".join(f"{name} {count}" for name, count in a.accepted.items()) or "none"
                    ),
                },
            ),
            Table(
                caption="Still wrong, and best liked",
                headers=["scorer", "before", "after", "edits", "text before", "text after"],
                rows=examples,
            ),
        ],
        figures=[
            (
                partial(_points_figure, climbs, "round"),
                "Proxy (solid) and gold (dashed) by round of the climb.",
            ),
            (
                partial(_points_figure, pools, "versions (N)", log=True),
                "Proxy (solid) and gold (dashed) for best of N versions.",
            ),
        ],
    )


def _finding(audit: AttackAudit) -> str:
    """How far the climb got, and what is right of it."""
    first, last = audit.climb[0], audit.climb[max(audit.climb)]
    return (
        f"Climbing against {audit.scorer} takes the score of {audit.traces} wrong solutions from "
        f"{first.proxy.value:.3f} to {last.proxy.value:.3f} in {max(audit.climb)} rounds; "
        f"{last.gold:.1%} of them are correct then, and "
        f"{last.fooled:.3f} are wrong and score like the median correct solution or better "
        f"({first.fooled:.3f} before)."
    )


def _points_figure(
    curves: Sequence[tuple[str, Mapping[int, Point]]], xlabel: str, *, log: bool = False
) -> Figure:
    """Proxy and gold by the round, or by the number of versions chosen from."""
    figure, axes = new_figure(xlabel, "proxy (solid), gold (dashed)", lines=len(curves))
    for number, (name, points) in enumerate(curves):
        banded_line(axes, list(points), [point.proxy for point in points.values()], number, name, "-")
        banded_line(axes, list(points), [point.gold for point in points.values()], number, None, "--")
    if log:
        axes.set_xscale("log", base=2)
    legend(figure)
    return figure
